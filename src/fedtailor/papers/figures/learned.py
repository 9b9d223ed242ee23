"""What clients learned, over the rounds: a panel for each column, a line for each client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from fedtailor.papers.drawing import Learned
from fedtailor.papers.figures.picture import Picture, file_name, several_seeds
from fedtailor.papers.outcome import Line, Outcome
from fedtailor.report.learned.courses import draw_courses, lines_in_words
from fedtailor.report.learned.lessons import Courses, Numbers, Sites
from fedtailor.report.style import PRINT, Palette

PREFIX = "learned/"


def pictures(drawing: Learned, found: Outcome) -> Iterator[Picture]:
    """One figure for each run of the table that learned something."""
    by_cell: dict[str, list[Line]] = {}
    for line in found.lines:
        if line.number.reading.metric.startswith(PREFIX) and found.records.get(line.cell.folder):
            by_cell.setdefault(line.cell.folder, []).append(line)
    for folder, lines in by_cell.items():
        records = list(found.records[folder].values())
        rounds, clients = records[0].rounds, records[0].clients
        names = [line.number.reading.metric.removeprefix(PREFIX) for line in lines]
        kept = [[record.learned.get(name) for name in names] for record in records]
        values = np.array([[as_numbers(one, len(rounds), len(clients)) for one in of_run] for of_run in kept]).mean(0)
        if not np.isfinite(values).any():
            continue
        lesson = Courses(
            drawing.what, tuple(line.column for line in lines), tuple(range(len(clients))), rounds,
            values.transpose(2, 0, 1),
        )  # fmt: skip
        sites = Sites(clients, (("", tuple(range(len(clients)))),))
        told = f"{drawing.what.capitalize()}, after each tested round. {lines_in_words(lesson, sites)}"
        told += " Mean over seeds." if several_seeds(found) else ""
        several = len(by_cell) > 1
        title = drawing.what.capitalize() + (f": {lines[0].row}" if several else "")
        name = file_name(f"learned {lines[0].row if several else ''}")
        yield Picture(name, title, told, partial(draw, lesson, sites))


def as_numbers(values: list[list[float | None]] | None, rounds: int, clients: int) -> Numbers:
    """[rounds, clients]; NaN where a client told nothing."""
    found = np.full((rounds, clients), np.nan) if values is None else np.array(values, dtype=np.float64)
    assert found.shape == (rounds, clients)
    return found


def draw(lesson: Courses, sites: Sites, palette: Palette = PRINT, width: float = 7.0) -> Figure:
    return draw_courses(lesson, sites, palette, width)
