"""What came out of a table: our numbers beside the paper's, cell by cell, and its claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedtailor.papers.preset import Cell, Number, Scale, Table
from fedtailor.papers.published import Printed
from fedtailor.papers.record import Record, best_round, read_off
from fedtailor.papers.verdict import Judged, Met, Seeds, judge, met

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
    found_in: tuple[int, ...]  # the rounds that the numbers were read off, where they were chosen

    @property
    def row(self) -> str:
        return self.cell.row

    @property
    def column(self) -> str:
        return self.number.column


@dataclass(frozen=True)
class Outcome:
    """A table as far as it was run."""

    table: Table
    scale: Scale
    lines: tuple[Line, ...]
    refused: tuple[tuple[Cell, str], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()  # cells that came to no end, and why

    @property
    def done(self) -> int:
        """Cells that have a number."""
        return len({id(line.cell) for line in self.lines if line.ours})

    @property
    def of(self) -> int:
        """Cells of the whole table, whether or not they were asked for."""
        return len(self.table.cells(self.scale))

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
        texts = dict.fromkeys(text for line in self.lines if line.ours for text in line.cell.all_differences)
        return {text: number for number, text in enumerate(texts, start=1)}


def outcome(
    table: Table, scale: Scale, cells: Sequence[Cell], records: Callable[[Cell], Records],
    refused: Sequence[tuple[Cell, str]] = (), failed: Sequence[tuple[str, str]] = (),
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
        for number in cell.numbers:
            ours = values(found[cell.folder], number)
            printed = table.printed.at(number.key) if table.printed and number.key else None
            rounds = [best_round(record, number.reading) for record in found[cell.folder].values()]
            lines.append(Line(
                cell, number, ours, alone.get(number.column, {}), printed,
                met(ours, printed.mean if printed else None, table.band, cell.comparable),
                tuple(round for round in rounds if round is not None),
            ))  # fmt: skip
    return Outcome(table, scale, tuple(lines), tuple(refused), tuple(failed))


def values(records: Records, number: Number) -> Seeds:
    """By seed; a run that diverged has none."""
    read = {seed: read_off(record, number.reading) for seed, record in records.items()}
    return {seed: value for seed, value in read.items() if value is not None}
