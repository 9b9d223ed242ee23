"""A figure that can be drawn in any width, and what is shown of a problem in it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedtailor.papers.outcome import Line, Outcome
from fedtailor.papers.preset import Problem, Reading
from fedtailor.report.style import Palette

Part = TypeVar("Part")  # a panel with what is drawn in it

MOST_PANELS = 6  # on one sheet


@dataclass(frozen=True)
class Picture:
    name: str  # of its file
    title: str
    caption: str  # what it shows and how to read it
    draw: Callable[[Palette, float], Figure]  # with these colours, so many inches wide


@dataclass(frozen=True)
class Shown:
    """What was run on one problem: of each row one line, whose number is a mean."""

    title: str
    lines: Mapping[str, Line]

    @property
    def reading(self) -> Reading:
        return next(iter(self.lines.values())).number.reading


def shown(found: Outcome) -> list[Shown]:
    """Problem by problem, the rows that have a record and a metric."""
    by: dict[Problem, dict[str, Line]] = {}
    for line in found.lines:
        reading = line.number.reading
        mean = reading.over in ("macro", "micro") and not reading.metric.startswith("learned/")
        if mean and found.records.get(line.cell.folder):
            by.setdefault(line.cell.problem, {}).setdefault(line.row, line)
    names = Counter(title_of(problem) for problem in by)
    return [
        Shown(title_of(problem) if names[title_of(problem)] == 1 else next(iter(lines.values())).column, lines)
        for problem, lines in by.items()
    ]


def title_of(problem: Problem) -> str:
    return f"{problem.name} for {problem.instead_of}" if problem.instead_of else problem.name


def several_seeds(found: Outcome) -> bool:
    return any(len(records) > 1 for records in found.records.values())


def file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def sheets(by_problem: Sequence[Sequence[Part]]) -> list[list[Part]]:
    """The panels of all problems on one sheet, or on several of about as many problems, where they are too many."""
    several = [own for own in by_problem if own]
    if len(several) < 2:
        return [list(own) for own in several]
    count = math.ceil(sum(map(len, several)) / MOST_PANELS)
    each = math.ceil(len(several) / count)
    return [[part for own in several[at : at + each] for part in own] for at in range(0, len(several), each)]


def numbered(name: str, number: int, of: int) -> str:
    """The name of a sheet's file."""
    return f"{name}-{number}" if of > 1 else name


def grid(count: int, most: int) -> tuple[int, int]:
    """Rows and columns of so many panels, no more than `most` beside each other, with few gaps."""
    down = math.ceil(count / max(1, most))
    return down, math.ceil(count / down)


def panels(figure: Figure, down: int, across: int, count: int, sharey: bool = False) -> list[Axes]:
    """So many panels, row by row; what is left of the last row stays empty."""
    every = list(figure.subplots(down, across, squeeze=False, sharey=sharey).flat)
    for axes in every[count:]:
        axes.axis("off")
    return every[:count]
