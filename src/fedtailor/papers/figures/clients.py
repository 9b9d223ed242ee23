"""Every client at the end of the run: a line of marks for each row of a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedtailor.papers.figures.picture import Picture, Shown, grid, numbered, panels, several_seeds, sheets, shown
from fedtailor.papers.outcome import Outcome, Records
from fedtailor.report import words
from fedtailor.report.style import MARKERS, PRINT, Palette, brief, legend_columns, settings

Numbers = NDArray[np.float64]

MOST_NAMED = 6  # clients that have a mark of their own each
WORSE = "worse"  # head of the numbers at the right
PITCH = 0.21  # inches of a row
LETTER = 0.066  # inches of a letter of a row's name


@dataclass(frozen=True)
class Ends:
    """One row on one problem."""

    values: Numbers  # per cent of each client, mean over seeds; NaN where it has no test rows or no number
    worse: float | None  # clients that would do better alone, mean over seeds
    tested: int

    @property
    def mean(self) -> float:
        return float(np.nanmean(self.values))


@dataclass(frozen=True)
class Part:
    title: str
    clients: tuple[str, ...]
    rows: Mapping[str, Ends]
    alone: str


def pictures(found: Outcome) -> Iterator[Picture]:
    """One figure, or several where the problems are too many."""
    parts = [part for one in shown(found) if (part := part_of(one, found)) is not None]
    if not parts:
        return
    metric = shown(found)[0].reading.metric
    rows = [row for row in dict.fromkeys(line.row for line in found.lines) if any(row in part.rows for part in parts)]
    rows.sort(key=lambda row: row == found.table.alone)  # last
    drawn = sheets([[part] for part in parts])
    for number, own in enumerate(drawn, start=1):
        what = f"{metric.capitalize()} of each client"
        if len(drawn) > 1:
            what += f": {words.listing([part.title for part in own])}"
        told = caption(own, metric, several_seeds(found))
        name = numbered("clients", number, len(drawn))
        yield Picture(name, what, told, partial(draw, own, rows, words.with_unit(metric)))


def part_of(problem: Shown, found: Outcome) -> Part | None:
    metric = problem.reading.metric
    alone = found.table.alone
    of_rows = {row: found.records[line.cell.folder] for row, line in problem.lines.items()}
    rows = {}
    for row, records in of_rows.items():
        ends = ends_of(records, {} if row == alone else of_rows.get(alone, {}), metric)
        if ends is not None:
            rows[row] = ends
    clients = next(iter(next(iter(of_rows.values())).values())).clients
    return Part(problem.title, clients, rows, alone) if rows else None


def ends_of(records: Records, alone: Records, metric: str) -> Ends | None:
    """What the clients end with; runs under the same seed are held against training alone."""
    by_seed = {seed: in_per_cent(record.end.get(metric, ()), record.end_counts) for seed, record in records.items()}
    by_seed = {seed: values for seed, values in by_seed.items() if np.isfinite(values).any()}
    if not by_seed:
        return None
    worse = []
    for seed, values in by_seed.items():
        if seed in alone:
            other = in_per_cent(alone[seed].end.get(metric, ()), alone[seed].end_counts)
            worse.append(int((values < other).sum()))
    values = np.array(list(by_seed.values()))
    known = np.isfinite(values).all(0)
    mean = np.where(known, np.where(known, values, 0).mean(0), np.nan)
    return Ends(mean, float(np.mean(worse)) if worse else None, int(known.sum()))


def in_per_cent(values: Sequence[float | None], counts: Sequence[int]) -> Numbers:
    """In per cent; NaN where there is nothing to test on, or no number."""
    pairs = zip(values, counts, strict=True) if values else ()
    return np.array([np.nan if value is None or not count else 100 * value for value, count in pairs])


def caption(parts: Sequence[Part], metric: str, seeds: bool) -> str:
    told = [f"{metric.capitalize()} of each client on its test rows, with the model that it ends with."]
    if seeds:
        told.append("Mean over seeds.")
    named = all(len(part.clients) <= MOST_NAMED for part in parts)
    told.append(f"{'Each client has its mark' if named else 'A dot is a client'}; the upright line is their mean.")
    alone = next((part.alone for part in parts if part.alone in part.rows), None)
    if alone is not None:
        told.append(f"Dashed: the mean of {alone}. At the right: how many clients do worse than alone.")
    return " ".join(told)


def draw(
    parts: Sequence[Part], rows: Sequence[str], x_title: str, palette: Palette = PRINT, width: float = 7.0
) -> Figure:
    """Problem by problem; rows at equal heights, so that they are named once."""
    room = LETTER * max(len(brief(row)) for row in rows)
    down, across = grid(len(parts), min(3, int((width - room) / 1.4)))
    clients = [part.clients for part in parts]
    named = len(set(clients)) == 1 and len(clients[0]) <= MOST_NAMED
    columns = legend_columns(clients[0], width) if named else 1
    legend = 0.2 * math.ceil(len(clients[0]) / columns) if named else 0.0
    titled = len(parts) > 1
    with mpl.rc_context(settings(palette)):
        height = down * (PITCH * (len(rows) + 0.6) + 0.3 + 0.2 * titled) + 0.25 + legend
        figure = Figure((width, height), layout="constrained")
        axes_of = panels(figure, down, across, len(parts), sharey=True)
        for axes, part in zip(axes_of, parts, strict=True):
            draw_part(axes, part, rows, palette, named)
            if titled:
                axes.set_title(brief(part.title, int(((width - room) / across - 0.5) / 0.075)), loc="left")
        axes_of[0].set_ylim(len(rows) - 0.4, -0.6)
        axes_of[0].set_yticks(range(len(rows)), [brief(row) for row in rows])
        figure.supxlabel(x_title, fontsize=9, color=palette.muted)
        if named:
            handles = [Line2D([], [], label=brief(name), **mark(i, palette)) for i, name in enumerate(clients[0])]
            figure.legend(handles=handles, loc="outside upper left", ncols=columns)
        return figure


def draw_part(axes: Axes, part: Part, rows: Sequence[str], palette: Palette, named: bool) -> None:
    if part.alone in part.rows:
        axes.axvline(part.rows[part.alone].mean, color=palette.alone, linestyle=(0, (4, 2)), linewidth=1.1, zorder=1)
    for place, row in enumerate(rows):
        if row not in part.rows:
            continue
        ends = part.rows[row]
        if named:
            for client, value in enumerate(ends.values):
                axes.plot([value], [place], **mark(client, palette), zorder=3)
        else:
            axes.plot(ends.values, place + scatter(len(ends.values)), linestyle="", marker="o", markersize=3.2,
                      markeredgewidth=0, color=palette.alone if row == part.alone else palette.fill,
                      alpha=0.5 if len(ends.values) <= 40 else 0.35, zorder=2)  # fmt: skip
        axes.plot([ends.mean], [place], marker="|", markersize=11, markeredgewidth=2, color=palette.ink, zorder=4)
        if ends.worse is not None:
            axes.annotate(
                f"{words.count(ends.worse)} of {ends.tested}", (1, place), (3, 0), xycoords=("axes fraction", "data"),
                textcoords="offset points", va="center", fontsize=7, color=palette.muted, annotation_clip=False,
            )  # fmt: skip
    if any(ends.worse is not None for ends in part.rows.values()):
        axes.annotate(WORSE, (1, 1), (3, 2), xycoords="axes fraction", textcoords="offset points", fontsize=7,
                      color=palette.muted, annotation_clip=False)  # fmt: skip
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)))


def mark(client: int, palette: Palette) -> dict[str, Any]:
    return {
        "linestyle": "", "marker": MARKERS[client % len(MARKERS)], "color": palette.series[client], "markersize": 5.5,
        "markeredgecolor": palette.surface, "markeredgewidth": 0.5,
    }  # fmt: skip


def scatter(count: int) -> Numbers:
    """How far marks of one row stand above or below it, so that equal ones are seen: the same in every picture."""
    return np.array([0.56 * ((0.618034 * client) % 1 - 0.5) for client in range(count)])
