"""The way of one client's model over the loss of its own rows, in two dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedtailor.papers.figures.picture import Picture, file_name
from fedtailor.papers.outcome import Outcome
from fedtailor.report.style import PRINT, Palette, settings

LEVELS = 9  # lines of equal loss


def pictures(found: Outcome) -> Iterator[Picture]:
    """One figure for each run that was followed: of its first seed."""
    told = {}
    for line in found.lines:
        records = found.records.get(line.cell.folder, {})
        way = next((record.trajectory for record in records.values() if record.trajectory), None)
        if way is not None and line.cell.follow is not None:
            told[line.row] = (way, line.cell.follow.before, line.cell.follow.after)
    for row, (way, before, after) in told.items():
        several = len(told) > 1
        title = f"The way of {way['client']} over the loss of its own rows{f', {row}' if several else ''}"
        drawn = partial(draw, way, before, after)
        yield Picture(file_name(f"trajectory {row if several else ''}"), title, caption(way, before, after), drawn)


def caption(way: Mapping[str, Any], before: str, after: str) -> str:
    rounds, turn = way["rounds"], way["turn"]
    first, last = rounds[0], rounds[-1]
    early = np.array(rounds) <= turn
    begins, ends = np.array(way["loss_begin"]), np.array(way["loss_end"])
    return (
        f"Rounds {first} to {last}: circles where local training begins, squares where it ends. Up to round {turn} the "
        f"client starts from the model received ({before}), from round {turn + 1} on it is {after}. The thin lines "
        f"join equal local loss, in the plane of the two first principal components of these models "
        f"({100 * way['shares'][0]:.0f} and {100 * way['shares'][1]:.0f} % of their variance). The loss where a round "
        f"begins is {begins[early].mean():.3g} on average with {before} and {begins[~early].mean():.3g} with {after}; "
        f"where it ends, {ends[early].mean():.3g} and {ends[~early].mean():.3g}."
    )


def draw(way: Mapping[str, Any], before: str, after: str, palette: Palette = PRINT, width: float = 7.0) -> Figure:
    with mpl.rc_context(settings(palette)):
        figure = Figure((width, 0.68 * width if width > 5 else 0.95 * width), layout="constrained")
        axes = figure.subplots()
        surface(axes, way, palette)
        turn = sum(number <= way["turn"] for number in way["rounds"])
        begin, end = np.array(way["begin"]), np.array(way["end"])
        along = np.stack([begin, end], 1).reshape(-1, 2)  # begin, end, begin, end, ...
        for name, colour, part in ((before, palette.ink, slice(0, 2 * turn)), (after, palette.series[0],
                                   slice(max(0, 2 * turn - 1), None))):  # fmt: skip
            line(axes, along[part], name, colour)
        marks: dict[str, Any] = {"linestyle": "", "markersize": 5, "markeredgewidth": 1.1, "zorder": 5}
        for number, colour in ((slice(0, turn), palette.ink), (slice(turn, None), palette.series[0])):
            axes.plot(*begin[number].T, marker="o", markerfacecolor=palette.surface, markeredgecolor=colour, **marks)
            axes.plot(*end[number].T, marker="s", markerfacecolor=colour, markeredgecolor=palette.surface, **marks)
        axes.set_xlabel("first principal component")
        axes.set_ylabel("second principal component")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(False)
        figure.legend(loc="outside upper left", ncols=2)
        return figure


def surface(axes: Axes, way: Mapping[str, Any], palette: Palette) -> None:
    """Lines of equal loss, evenly spaced in its logarithm: it falls by orders of magnitude."""
    losses = np.array(way["loss"])
    low, high = max(losses.min(), 1e-4), losses.max()
    levels = np.geomspace(low, max(high, 1.01 * low), LEVELS + 2)[1:-1]
    lines = axes.contour(*way["axes"], losses, levels=levels, colors=palette.muted, linewidths=0.6, alpha=0.7)
    axes.clabel(lines, fmt=lambda level: f"{level:.2g}", fontsize=6.5, colors=palette.muted)


def line(axes: Axes, along: Any, name: str, colour: str) -> None:
    """The way, with an arrow on every step."""
    axes.plot(*along.T, color=colour, linewidth=1.1, label=name, zorder=3)
    for start, stop in pairwise(along):
        axes.annotate(
            "", start + 0.6 * (stop - start), xytext=start, zorder=3,
            arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 0.7, "mutation_scale": 7},
        )  # fmt: skip
