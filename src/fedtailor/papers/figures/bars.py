"""A bar for each row: points above training alone, or what it took to reach a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedtailor.papers.figures.picture import Picture, grid, panels, several_seeds
from fedtailor.papers.outcome import Line, Outcome
from fedtailor.papers.preset import Reading
from fedtailor.papers.verdict import deviation, mean
from fedtailor.report.style import PRINT, Palette, brief, settings

PITCH = 0.23  # inches of a row
LETTER = 0.066  # inches of a letter of a row's name
UNITS = {"rounds": "rounds", "models": "exchanges of a model", "minutes": "minutes of training"}


@dataclass(frozen=True)
class Bar:
    length: float | None  # from zero; None where the number was not reached
    deviation: float | None
    text: str  # beside it


@dataclass(frozen=True)
class Part:
    title: str
    axis: str
    bars: Mapping[str, Bar]  # by row


def pictures(found: Outcome) -> Iterator[Picture]:
    """Accuracies and precisions in one figure, what it took in another."""
    columns = dict.fromkeys(line.column for line in found.lines)
    values, spent = list[Part](), list[Part]()
    for column in columns:
        lines = [line for line in found.lines if line.column == column and found.records.get(line.cell.folder)]
        if not lines:
            continue
        if lines[0].number.reading.select == "when":
            spent.append(spent_in(lines))
        elif (part := gained(column, lines, found.table.alone)) is not None:
            values.append(part)
    seeds = " The thin line is one standard deviation over seeds." if several_seeds(found) else ""
    alone = found.table.alone
    if values:
        told = f"The bar is the difference to {alone}, in points; beside it stands the number itself.{seeds}"
        yield Picture("bars", f"Against {alone}", told, partial(draw, values))
    if spent:
        told = f"{reading_in_words(found)}; nothing is drawn where it was not reached.{seeds}"
        yield Picture("spent", "What it took", told, partial(draw, spent))


def reading_in_words(found: Outcome) -> str:
    reading: Reading = next(line.number.reading for line in found.lines if line.number.reading.select == "when")
    mean_of = "mean over clients" if reading.over == "macro" else "over the test rows of all clients"
    return f"What it took until the {reading.metric}, {mean_of}, was {reading.target:g} %"


def gained(column: str, lines: Sequence[Line], alone: str) -> Part | None:
    """None where training alone was not run: there is nothing to hold the others against."""
    own = next((line.ours for line in lines if line.row == alone and line.ours), None)
    if own is None:
        return None
    bars = {}
    for line in lines:
        if line.row != alone and line.ours:
            spread = deviation(line.ours)
            bars[line.row] = Bar(mean(line.ours) - mean(own), spread, f"{mean(line.ours):.1f}")
    return Part(column, f"points above {alone} ({mean(own):.1f})", bars) if bars else None


def spent_in(lines: Sequence[Line]) -> Part:
    bars = {}
    for line in lines:
        value = mean(line.ours) if line.ours else None
        text = "not reached" if value is None else f"{value:.{3 if value >= 1 else 2}g}"
        bars[line.row] = Bar(value, deviation(line.ours) if line.ours else None, text)
    return Part("", UNITS[lines[0].number.reading.quantity], bars)


def draw(parts: Sequence[Part], palette: Palette = PRINT, width: float = 7.0) -> Figure:
    """Column by column; rows at equal heights, so that they are named once."""
    rows = list(dict.fromkeys(row for part in parts for row in part.bars))
    room = LETTER * max(len(brief(row)) for row in rows)
    down, across = grid(len(parts), min(3, int((width - room) / 1.7)))
    with mpl.rc_context(settings(palette)):
        height = down * (PITCH * (len(rows) + 0.6) + 0.75) + 0.05
        figure = Figure((width, height), layout="constrained")
        axes_of = panels(figure, down, across, len(parts), sharey=True)
        for axes, part in zip(axes_of, parts, strict=True):
            draw_part(axes, part, rows, palette)
            letters = int((width - room) / across / 0.08)
            if part.title:
                axes.set_title(brief(part.title, letters), loc="left")
            axes.set_xlabel(brief(part.axis, letters + 4))
        axes_of[0].set_ylim(len(rows) - 0.4, -0.6)
        axes_of[0].set_yticks(range(len(rows)), [brief(row) for row in rows])
        return figure


def draw_part(axes: Axes, part: Part, rows: Sequence[str], palette: Palette) -> None:
    lengths = [bar.length for bar in part.bars.values() if bar.length is not None]
    low, high = min([0.0, *lengths]), max([0.0, *lengths])
    over = 0.3 * (high - low or 1.0)  # room for the numbers
    axes.set_xlim(low - (over if low < 0 else 0), high + over)
    for row, bar in part.bars.items():
        place, length = rows.index(row), bar.length or 0.0
        if bar.length is not None:
            axes.barh(place, length, height=0.62, color=palette.fill, alpha=0.8, linewidth=0, label=row)
        if bar.deviation:
            axes.plot([length - bar.deviation, length + bar.deviation], [place, place], color=palette.ink, linewidth=1)
        side = -1 if length < 0 else 1
        axes.annotate(
            bar.text, (length + side * (bar.deviation or 0), place), (4 * side, 0), textcoords="offset points",
            va="center", ha="right" if length < 0 else "left", fontsize=7.5, color=palette.ink,
        )  # fmt: skip
    axes.axvline(0, color=palette.muted, linewidth=0.8)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)))


