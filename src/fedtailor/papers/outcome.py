"""What came out of a table: our numbers beside the paper's, cell by cell, and its claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedtailor.papers.preset import Cell, Count, Number, Scale, Table
from fedtailor.papers.published import Printed
from fedtailor.papers.record import Record, best_round, read_off
from fedtailor.papers.verdict import Judged, Met, Seeds, judge, met
from fedtailor.report import words

Records = Mapping[int, Record]  # of one cell, by seed


@dataclass(frozen=True)
class Line:
    """One number of a table: ours by seed, that of training alone, and the paper's."""

    cell: Cell
    number: Number
    ours: Seeds
    alone: Seeds
    printed: Printed | None
    verdict: Met
    point: str  # which model was tested
    differences: tuple[str, ...]  # from the paper's setting
    found_in: tuple[int, ...]  # the rounds that the numbers were read off, where they were chosen

    @property
    def row(self) -> str:
        return self.cell.row

    @property
    def column(self) -> str:
        return self.number.column


@dataclass(frozen=True)
class Counted:
    """A number that was counted off a network, and how the paper would print it."""

    count: Count
    number: int
    printed: Printed

    @property
    def as_printed(self) -> str:
        digits = len(str(self.printed.mean).partition(".")[2])
        scaled = self.number * 10**digits / self.count.unit
        return f"{(math.floor(scaled) if self.count.cut else round(scaled)) / 10**digits:.{digits}f}"

    @property
    def verdict(self) -> str:
        return "exact" if float(self.as_printed) == self.printed.mean else "differs"


@dataclass(frozen=True)
class Outcome:
    """A table as far as it was run."""

    table: Table
    scale: Scale
    lines: tuple[Line, ...]
    counted: tuple[Counted, ...] = ()
    refused: tuple[tuple[Cell, str], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()  # cells that came to no end, and why
    records: Mapping[str, Records] = field(default_factory=dict)  # complete ones, by the folder of their cell

    @property
    def done(self) -> int:
        """Cells that have a number."""
        return len({id(line.cell) for line in self.lines if line.verdict != "not run"}) + len(self.counted)

    @property
    def of(self) -> int:
        """Cells of the whole table, whether or not they were asked for."""
        return len(self.table.cells(self.scale)) + len(self.table.counts)

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for line in self.lines for seed in line.ours})

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(line.column for line in self.lines))

    @cached_property
    def claims(self) -> tuple[Judged, ...]:
        numbers = {(line.row, line.column): line.ours for line in self.lines if line.ours}
        return tuple(judge(claim, numbers, self.columns, self.table.margin) for claim in self.table.claims)

    @cached_property
    def notes(self) -> dict[str, int]:
        """Every difference of setting, numbered as it is first met."""
        run = [line.differences for line in self.lines if line.verdict != "not run"]
        texts = dict.fromkeys(text for told in (*run, *(c.count.differences for c in self.counted)) for text in told)
        return {text: number for number, text in enumerate(texts, start=1)}


def outcome(
    table: Table, scale: Scale, cells: Sequence[Cell], records: Callable[[Cell], Records],
    counts: Mapping[Count, int] | None = None, refused: Sequence[tuple[Cell, str]] = (),
    failed: Sequence[tuple[str, str]] = (),
) -> Outcome:  # fmt: skip
    """Read every number of the cells off their records; only complete runs have numbers."""
    found = {cell.folder: {s: r for s, r in records(cell).items() if r.complete} for cell in cells}
    alone = {
        number.column: values(found[cell.folder], number)
        for cell in cells if cell.row == table.alone
        for number in cell.numbers
    }  # fmt: skip
    lines = []
    for cell in cells:
        of_cell = found[cell.folder]
        points = words.listing(list(dict.fromkeys(record.point for record in of_cell.values())))
        fewer = shortage(cell, of_cell)
        for number in cell.numbers:
            ours = values(of_cell, number)
            printed = table.printed.at(number.key) if table.printed and number.key else None
            rounds = [best_round(record, number.reading) for record in of_cell.values()]
            comparable = cell.comparable and number.comparable and not fewer
            verdict = met(ours, len(of_cell), printed.mean if printed else None, table.band, comparable)
            lines.append(Line(
                cell, number, ours, alone.get(number.column, {}), printed, verdict, points,
                (*cell.all_differences, *fewer), tuple(round for round in rounds if round is not None),
            ))  # fmt: skip
    counted = tuple(
        Counted(count, number, table.printed.at(count.key)) for count, number in (counts or {}).items() if table.printed
    )
    return Outcome(table, scale, tuple(lines), counted, tuple(refused), tuple(failed), found)


def shortage(cell: Cell, records: Records) -> tuple[str, ...]:
    """Where only a part of a set was at hand: said of the rows that were tested on."""
    tests = {sum(record.end_counts) for record in records.values()}
    if not tests or min(tests) > 0.98 * cell.problem.tests:
        return ()
    share, label = min(tests) / cell.problem.tests, cell.problem.label
    return (f"{share:.0%} of {label} is at hand: tested on {min(tests):,} rows, not {cell.problem.tests:,}",)


def values(records: Records, number: Number) -> Seeds:
    """By seed; a run that diverged has none."""
    read = {seed: read_off(record, number.reading) for seed, record in records.items()}
    return {seed: value for seed, value in read.items() if value is not None}
