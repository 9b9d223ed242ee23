"""Figures with one row per client: how each fares under each method, and who holds how much of what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator

from fedtailor.report import words
from fedtailor.report.outcomes import Outcome, best_first
from fedtailor.report.read import Comparison
from fedtailor.report.style import PRINT, Look, Palette, brief, legend_columns, looks, settings

MOST_MARKS = 6  # methods in one row, Local not counted; more cannot be told apart
MOST_ROWS = 100  # clients that get a row of their own
_LEVELS = 8  # steps of shade in `holdings`


def sites(
    comparison: Comparison, found: Sequence[Outcome], palette: Palette = PRINT, width: float = 7.2
) -> Figure | None:
    """One row per client, one mark per method, against Local; of very many clients the ordered gains."""
    shown = shown_methods(comparison, found)
    if not shown:
        return None
    with mpl.rc_context(settings(palette)):
        draw = _ordered if len(comparison.clients) > MOST_ROWS else _rows
        return draw(comparison, shown, palette, width)


def shown_methods(comparison: Comparison, found: Sequence[Outcome]) -> list[Outcome]:
    """The methods that the picture has room for: Local, and the best of the others, in the comparison's order."""
    tested = [outcome for outcome in found if outcome.tested]
    others = [outcome for outcome in best_first(tested, comparison.higher_is_better) if not outcome.entry.is_alone]
    return [outcome for outcome in tested if outcome.entry.is_alone or outcome in others[:MOST_MARKS]]


def holdings(
    label_counts: Sequence[Sequence[int]],
    sizes: Sequence[int],
    clients: Sequence[str],
    groups: Sequence[int],
    group_names: Sequence[str],
    classes: Sequence[str],
    palette: Palette = PRINT,
    width: float = 7.2,
) -> Figure:
    """Who holds how much of what: training rows by client and class, and in total."""
    counts = np.array(label_counts, dtype=np.int64).reshape(len(clients), -1)
    k = counts.shape[1]
    pitch = _pitch(len(clients))
    places, heads = _places(groups, group_names, pitch)
    with mpl.rc_context(settings(palette)):
        figure = Figure((width, 0.75 + pitch * (max(places) + 1.5)), layout="constrained")
        if k:
            left, right = figure.subplots(1, 2, sharey=True, width_ratios=[min(max(k, 4) * 0.45, 5.2), 1.6])
            _cells(left, counts, places, classes, palette, numbers=counts.size <= 360 and width > 5)
        else:
            left = right = figure.subplots()
        right.barh(places, sizes, height=0.72, color=palette.fill, alpha=0.75, linewidth=0)
        if len(clients) <= 60:
            for place, amount in zip(places, sizes, strict=True):
                right.annotate(
                    str(amount), (amount, place), (3, 0), textcoords="offset points", va="center", fontsize=7,
                    color=palette.muted,
                )  # fmt: skip
            right.set_xlim(0, max(*sizes, 1) * 1.3)
        right.set_xlabel("training rows" if width > 5 else "rows")
        right.xaxis.set_major_locator(MaxNLocator(3 if k else 5, integer=True))
        right.grid(False, axis="y")
        _client_axis(left, clients, places, heads, palette, pitch)
        right.spines["left"].set_visible(False)
        right.tick_params(axis="y", length=0)
        return figure


def of_record(data: Mapping[str, Any], palette: Palette = PRINT, width: float = 7.2) -> Figure | None:
    """`holdings` of the `data` block of a record; None if it does not say what the clients hold."""
    if not data.get("sizes"):
        return None
    clients = [str(name) for name in data["clients"]]
    groups = data.get("groups") or [0] * len(clients)
    names = [str(name) for name in data.get("group_names") or ()]
    classes = [str(name) for name in data.get("classes") or ()]
    return holdings(data.get("label_counts") or (), data["sizes"], clients, groups, names, classes, palette, width)


def _rows(comparison: Comparison, shown: Sequence[Outcome], palette: Palette, width: float) -> Figure:
    n, scale, look = len(comparison.clients), words.scale(comparison.primary), looks(comparison, palette)
    numbers = [
        group for client in range(n) for group, (_, members) in enumerate(comparison.groups) if client in members
    ]
    pitch = _pitch(n)
    places, heads = _places(numbers, [name for name, _ in comparison.groups], pitch)
    columns = legend_columns([outcome.label for outcome in shown], width)
    height = 0.8 + pitch * (max(places) + 1.5) + 0.2 * math.ceil(len(shown) / columns)
    figure = Figure((width, height), layout="constrained")
    axes = figure.subplots()
    table = np.array([[np.nan if v is None else scale * v for v in outcome.values] for outcome in shown])
    for place, column in zip(places, table.T, strict=True):
        tested = column[np.isfinite(column)]
        if len(tested):
            axes.plot([tested.min(), tested.max()], [place, place], color=palette.grid, linewidth=2.2, zorder=1)
    handles = []
    for outcome, line in zip(shown, table, strict=True):
        mark = _mark(look[outcome.label], outcome, palette, small=n > 50)
        axes.plot(line, places, zorder=2 if outcome.entry.is_alone else 3, **mark)
        handles.append(Line2D([], [], label=brief(outcome.label), **mark))
    axes.set_xlabel(words.with_unit(comparison.primary))
    axes.grid(False, axis="y")
    _client_axis(axes, comparison.clients, places, heads, palette, pitch)
    figure.legend(handles=handles, loc="outside upper left", ncols=columns)
    return figure


def _mark(look: Look, outcome: Outcome, palette: Palette, small: bool) -> dict[str, Any]:
    """Local is an upright line that the others stand left or right of."""
    mark: dict[str, Any] = {"linestyle": "", "marker": look.marker, "color": look.colour}
    if outcome.entry.is_alone:
        return {
            **mark,
            "markersize": 6 if small else 10,
            "markeredgewidth": 2.2,
            "markeredgecolor": look.colour,
        }
    return {
        **mark,
        "markersize": 4.5 if small else 6,
        "markeredgewidth": 0.5,
        "markeredgecolor": palette.surface,
    }


def _ordered(comparison: Comparison, shown: Sequence[Outcome], palette: Palette, width: float) -> Figure:
    """For more clients than there can be rows: each method's differences to Local (or values), sorted."""
    look, scale = looks(comparison, palette), words.scale(comparison.primary)
    lines = [outcome for outcome in shown if outcome.alone is not None]
    against = bool(lines)
    lines = lines or list(shown)
    figure = Figure((width, 3.4 if width > 5 else 2.9), layout="constrained")
    axes = figure.subplots()
    for outcome in lines:
        pairs = zip(outcome.values, outcome.alone or (0.0,) * len(outcome.values), strict=True)
        line = sorted(scale * (a - b) for a, b in pairs if a is not None and b is not None)
        style = look[outcome.label]
        axes.plot(
            range(1, len(line) + 1),
            line,
            color=style.colour,
            linestyle=style.dash,
            label=brief(outcome.label),
        )
    title = words.with_unit(comparison.primary)
    if against:
        axes.axhline(0, color=palette.alone, linestyle=(0, (4, 2)), linewidth=1.2)
        title += " less Local"
    axes.set_ylabel(title)
    axes.set_xlabel("clients, sorted for each method")
    figure.legend(loc="outside upper left", ncols=legend_columns([outcome.label for outcome in lines], width))
    return figure


def _places(groups: Sequence[int], names: Sequence[str], pitch: float) -> tuple[list[float], list[tuple[float, str]]]:
    """The height of each client's row, and of a heading over each group, counted downwards."""
    several = 1 < len(set(groups)) < len(groups)
    places, height = [0.0] * len(groups), 0.0
    heads: list[tuple[float, str]] = []
    for group in sorted(set(groups)) if several else [None]:
        if group is not None:
            height += 0.25 if heads else 0.0
            heads.append((height, str(names[group]) if group < len(names) else f"group {group}"))
            height += max(0.9, 0.15 / pitch)
        for client, own in enumerate(groups):
            if group is None or own == group:
                places[client] = height
                height += 1.0
    return places, heads


def _pitch(n: int) -> float:
    """Inches per row: down to what a name needs, and without names as little as keeps the picture on a screen."""
    return max(0.115, min(0.24, 9.0 / n)) if n <= MOST_ROWS else max(0.02, 11.5 / n)


def _client_axis(
    axes: Axes,
    clients: Sequence[str],
    places: Sequence[float],
    heads: Sequence[tuple[float, str]],
    palette: Palette,
    pitch: float,
) -> None:
    size = max(5.0, min(8.0, 50 * pitch))
    named = len(clients) <= MOST_ROWS
    axes.set_yticks(list(places) if named else [], [brief(name) for name in clients] if named else [], fontsize=size)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(places) + 0.7, -0.7)
    axes.spines["left"].set_visible(False)
    for height, name in heads:
        axes.annotate(
            brief(name),
            (0, height),
            (4, 0),
            xycoords=("axes fraction", "data"),
            va="center",
            textcoords="offset points",
            fontsize=min(8.0, size + 1) if named else 8,
            fontweight="bold",
            color=palette.muted,
        )


def _cells(
    axes: Axes, counts: Any, places: Sequence[float], classes: Sequence[str], palette: Palette, numbers: bool
) -> None:
    """Shaded cells, one path for each shade: a hundred clients by a hundred classes stay a small file."""
    # Shade by the square root: a class of which a client holds a twentieth must not look like none.
    level = np.ceil(np.sqrt(counts / max(int(counts.max()), 1)) * _LEVELS).astype(int)
    for shade in range(1, _LEVELS + 1):
        where = np.argwhere(level == shade)
        if len(where):
            outline = Outline.make_compound_path(*(_box(column, places[client]) for client, column in where))
            alpha = 0.08 + 0.72 * shade / _LEVELS
            axes.add_patch(PathPatch(outline, facecolor=palette.fill, alpha=alpha, linewidth=0))
    for client, column in np.argwhere(counts > 0) if numbers else ():
        axes.text(column, places[client], str(counts[client, column]), ha="center", va="center", fontsize=6.5)
    axes.set_xlim(-0.6, counts.shape[1] - 0.4)
    ticks = list(range(0, counts.shape[1], max(1, math.ceil(counts.shape[1] / 12))))
    names = [brief(classes[i], 12) for i in ticks]
    long = max(map(len, names)) > 3
    axes.set_xticks(ticks, names, rotation=45 if long else 0, ha="right" if long else "center")
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("class")
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)


def _box(x: float, y: float) -> Outline:
    left, right, top, bottom = x - 0.46, x + 0.46, y - 0.42, y + 0.42
    return Outline([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], closed=True)
