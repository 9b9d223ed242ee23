"""Lines: a value of each client over the rounds, and curves of a client over the steps of several rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedtailor.report.learned.lessons import Courses, Curves, Numbers, Sites
from fedtailor.report.style import DASHES, MARKERS, PRINT, Palette, brief, legend_columns, settings

MOST_PANELS = 12  # clients that get a panel of their own
_MOST_ROUNDS = 6  # curves of one client that can be told apart


def draw_courses(lesson: Courses, sites: Sites, palette: Palette = PRINT, width: float = 7.2) -> Figure:
    """A panel for each part. Each group has a colour: thin lines are its clients, the thick one is their mean.

    Where there are no groups, or more than can be told apart, the thick line is the mean of all.
    """
    looks = _looks(lesson, sites, palette)
    across = min(len(lesson.parts), (3 if width > 5 else 2) if len(lesson.parts) > 2 else len(lesson.parts))
    down = math.ceil(len(lesson.parts) / across)
    several = len(looks) > 1
    columns = legend_columns(looks, width) if several else 1
    height = down * (1.75 if across > 1 else 2.4) + 0.35 + (0.2 * math.ceil(len(looks) / columns) if several else 0)
    with mpl.rc_context(settings(palette)):
        figure = Figure((width, height), layout="constrained")
        grid = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
        for axes in grid[len(lesson.parts) :]:
            axes.axis("off")
            axes.figure.axes[grid.index(axes) - across].tick_params(labelbottom=True)
        for number, part in enumerate(lesson.parts):
            axes, values = grid[number], lesson.values[:, number]
            for members, line in looks.values():
                mean = {"color": palette.ink} if len(members) > 1 and not several else {}
                own = values[[lesson.clients.index(client) for client in members]]
                _group(axes, lesson.rounds, own, line, line | mean)
            axes.set_title(brief(part, int(width / across / 0.08)))
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        low, high = np.nanmin(lesson.values), np.nanmax(lesson.values)
        if low >= 0 and 0.6 < high <= 1:
            grid[0].set_ylim(-0.03, 1.03)
        figure.supxlabel("round", fontsize=9, color=palette.muted)
        figure.supylabel(lesson.what, fontsize=9, color=palette.muted)
        if several:
            handles = [Line2D([], [], label=brief(label), **line) for label, (_, line) in looks.items()]
            figure.legend(handles=handles, loc="outside upper left", ncols=columns)
        return figure


def _looks(lesson: Courses, sites: Sites, palette: Palette) -> dict[str, tuple[list[int], dict[str, Any]]]:
    """The clients of each line, and how it looks: groups, or where there are none and few clients, these."""
    everybody, most = list(lesson.clients), len(palette.series)
    groups = {name: [i for i in members if i in everybody] for name, members in sites.groups}
    groups = {name: members for name, members in groups.items() if members}
    if not sites.grouped and len(everybody) <= most:
        groups = {sites.names[i]: [i] for i in everybody}
    elif not sites.grouped or len(groups) > 2 * most:
        groups = {"": everybody}
    looks: list[dict[str, Any]] = [
        {"color": palette.series[i % most], "linestyle": DASHES[i // most]} for i in range(len(groups))
    ]
    if len(groups) > 1 and all(len(members) == 1 for members in groups.values()):  # told apart without colour too
        every = max(1, len(lesson.rounds) // 6)
        for i, look in enumerate(looks):
            look |= {"marker": MARKERS[i % len(MARKERS)], "markersize": 4, "markevery": (i % every, every)}
    return {name: (members, look) for (name, members), look in zip(groups.items(), looks, strict=True)}


def lines_in_words(lesson: Courses, sites: Sites) -> str:
    """What is a line of the picture."""
    looks = _looks(lesson, sites, PRINT)
    if all(len(members) == 1 for members, _ in looks.values()):
        return "Each line is a client."
    means = "the thick one is their mean" if len(looks) == 1 else "thick ones the means of their groups"
    return f"Thin lines are clients, {means}."


def _group(
    axes: Axes, rounds: Sequence[int], values: Numbers, line: Mapping[str, Any], mean: Mapping[str, Any]
) -> None:
    mark: dict[str, Any] = {"marker": "o", "markersize": 3.5} if len(rounds) < 3 and "marker" not in line else {}
    thin = {"linewidth": 0.7, "alpha": max(0.2, 0.6 - 0.02 * len(values))} if len(values) > 1 else {}
    for own in values:
        shown = np.isfinite(own)
        axes.plot(np.array(rounds)[shown], own[shown], **{**line, **thin, **mark})
    if len(values) > 1:
        known = np.isfinite(values).any(0)
        axes.plot(np.array(rounds)[known], np.nanmean(values[:, known], 0), **{**mean, **mark}, zorder=3)


def draw_curves(lesson: Curves, sites: Sites, palette: Palette = PRINT, width: float = 7.2) -> Figure:
    """A panel for each client, or of many clients for each group, with a curve for some of the rounds."""
    panels = _panels(lesson, sites)
    chosen = some_rounds(lesson)
    across = 1 if len(panels) == 1 else min(len(panels), 4 if width > 5 else 2)
    down = math.ceil(len(panels) / across)
    columns = legend_columns([f"round {round}" for round in chosen], width)
    height = down * (1.6 if across > 1 else 2.8) + 0.35 + 0.2 * math.ceil(len(chosen) / columns)
    with mpl.rc_context(settings(palette)):
        figure = Figure((width, height), layout="constrained")
        grid = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
        for axes in grid[len(panels) :]:
            axes.axis("off")
            axes.figure.axes[grid.index(axes) - across].tick_params(labelbottom=True)
        for axes, (title, members) in zip(grid, panels.items(), strict=False):
            for number, round in enumerate(chosen):
                curve = _mean([lesson.curves[client].get(round, ()) for client in members])
                if len(curve):
                    axes.plot(range(1, len(curve) + 1), curve, **_stage(number, len(chosen), palette))
            axes.set_title(brief(title, int(width / across / 0.08)))
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        figure.supxlabel(lesson.axis, fontsize=9, color=palette.muted)
        figure.supylabel(lesson.what, fontsize=9, color=palette.muted)
        handles = [Line2D([], [], label=f"round {round}", **_stage(number, len(chosen), palette))
                   for number, round in enumerate(chosen)]  # fmt: skip
        figure.legend(handles=handles, loc="outside upper left", ncols=columns)
        return figure


def _stage(number: int, of: int, palette: Palette) -> dict[str, Any]:
    """Later rounds are stronger; marks show curves of a single step."""
    strength = 0.3 + 0.7 * (number + 1) / of
    marker = ("o", "s", "^", "D", "v", "P")[number % 6]
    return {"color": palette.fill, "alpha": strength, "marker": marker, "markersize": 3.2, "linewidth": 1.3}


def some_rounds(lesson: Curves, most: int = _MOST_ROUNDS) -> list[int]:
    """The first round that has a curve, the last, and some between."""
    rounds = sorted({round for by_round in lesson.curves.values() for round in by_round})
    if len(rounds) <= most:
        return rounds
    return [rounds[math.floor(i * (len(rounds) - 1) / (most - 1) + 0.5)] for i in range(most)]


def _panels(lesson: Curves, sites: Sites) -> dict[str, list[int]]:
    clients = list(sites.sort(lesson.curves))
    if len(clients) <= MOST_PANELS:
        return {sites.names[client]: [client] for client in clients}
    groups = {name: [i for i in members if i in lesson.curves] for name, members in sites.groups}
    if not sites.grouped or len(groups) > MOST_PANELS:
        return {f"mean over {len(clients)} clients": clients}
    return {f"{name} ({len(members)})": members for name, members in groups.items() if members}


def _mean(curves: Sequence[Sequence[float]]) -> list[float]:
    """At each step over the curves that reach it."""
    longest = max(map(len, curves), default=0)
    return [float(np.mean([curve[step] for curve in curves if step < len(curve)])) for step in range(longest)]
