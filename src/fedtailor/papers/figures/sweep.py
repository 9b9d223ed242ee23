"""Numbers of a table over a setting that its rows try out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fedtailor.papers.drawing import Sweep
from fedtailor.papers.figures.picture import Picture, grid, panels, several_seeds, shown
from fedtailor.papers.outcome import Outcome
from fedtailor.papers.verdict import deviation, mean
from fedtailor.report import words
from fedtailor.report.lines import Curve, name_ends
from fedtailor.report.style import PRINT, Palette, brief, looks_of, settings


@dataclass(frozen=True)
class Part:
    title: str
    points: tuple[tuple[float, float, float], ...]  # x, the number, its deviation over seeds
    levels: Mapping[str, float]
    turn: float | None


def pictures(drawing: Sweep, found: Outcome) -> Iterator[Picture]:
    parts = []
    for one in shown(found):
        numbers = {row: line.ours for row, line in one.lines.items() if line.ours}
        points = sorted(
            (drawing.at[row], mean(ours), deviation(ours) or 0.0) for row, ours in numbers.items() if row in drawing.at
        )
        levels = {row: mean(ours) for row, ours in numbers.items() if row not in drawing.at}
        column = next(iter(one.lines.values())).column
        if points:
            parts.append(Part(one.title, tuple(points), levels, drawing.turns.get(column)))
    if not parts:
        return
    metric = shown(found)[0].reading.metric
    told = [f"The number of the table over {drawing.axis}."]
    if any(part.levels for part in parts):
        told.append("Dashed: rows without it.")
    if any(part.turn for part in parts):
        told.append("Dotted: from where on, in the paper, it makes no difference any more.")
    if several_seeds(found):
        told.append("The bars are one standard deviation over seeds.")
    title = f"{metric.capitalize()} over {drawing.axis}"
    drawn = partial(draw, parts, drawing.axis, words.with_unit(metric))
    yield Picture("sweep", title, " ".join(told), drawn)


def draw(parts: Sequence[Part], x_title: str, y_title: str, palette: Palette = PRINT, width: float = 7.0) -> Figure:
    down, across = grid(len(parts), 3 if width > 5 else 1)
    with mpl.rc_context(settings(palette)):
        tall = 2.5 if width > 5 else 2.1
        figure = Figure((width, down * tall + 0.3), layout="constrained")
        axes_of = panels(figure, down, across, len(parts))
        for axes, part in zip(axes_of, parts, strict=True):
            draw_part(axes, part, palette)
            axes.set_title(brief(part.title, int(width / across / 0.08)), loc="left")
        figure.supxlabel(x_title, fontsize=9, color=palette.muted)
        figure.supylabel(y_title, fontsize=9, color=palette.muted)
        return figure


def draw_part(axes: Axes, part: Part, palette: Palette) -> None:
    x, y, spread = (list(values) for values in zip(*part.points, strict=True))
    axes.set_xscale("log")
    axes.errorbar(x, y, yerr=spread if any(spread) else None, color=palette.fill, marker="o", capsize=2, zorder=3)
    for height in part.levels.values():
        axes.axhline(height, color=palette.alone, linestyle=(0, (4, 2)), linewidth=1.2, zorder=1)
    if part.turn is not None:
        axes.axvline(part.turn, color=palette.muted, linestyle=(0, (1, 1.5)), linewidth=1.2, zorder=1)
        axes.annotate(f"{part.turn:g}", (part.turn, 0), (3, 3), xycoords=("data", "axes fraction"),
                      textcoords="offset points", color=palette.muted, fontsize=8)  # fmt: skip
    if max(x) / min(x) >= 10:
        axes.xaxis.set_major_locator(LogLocator(10))
    else:
        axes.xaxis.set_major_locator(FixedLocator(x))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(FixedLocator(x))
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = min([*y, *part.levels.values()]), max([*y, *part.levels.values()])
    margin = 0.12 * max(high - low, 1.0)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(10 ** (math.log10(min(x)) - 0.15), 10 ** (math.log10(max(x)) + 0.15))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
    right, look = axes.get_xlim()[1], looks_of(list(part.levels), list(part.levels), palette)
    name_ends(axes, {name: Curve((right,), (height,), (0.0,)) for name, height in part.levels.items()}, look, gap=0.08)
