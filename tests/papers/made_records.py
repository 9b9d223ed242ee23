"""Records as runs would leave them, with numbers that are given here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedtailor.papers.outcome import Outcome, outcome
from fedtailor.papers.preset import Cell, Problem, Scale, Table
from fedtailor.papers.record import Record

PROBLEM = Problem("MNIST", "MLR", "digits", "iid(clients=3)", "mlr", clients=3, rows=60, tests=60)
OTHER = replace(PROBLEM, label="CIFAR10", data="digits(styles=1)")
SETTINGS = {"rounds": 6, "batch": 8, "lr": 0.1}


def made_record(cell: Cell, seed: int = 0, **changes: Any) -> Record:
    """Three clients with 10, 20 and 30 test rows, tested after rounds 2, 4 and 6."""
    found = Record(
        work=cell.work, seed=seed, complete=True, versions={"fedtailor": "0.1.0", "torch": "2"},
        clients=("left", "middle", "right"), fingerprint="f", parameters={"total": 25}, point="trained", plan={},
        rounds=(2, 4, 6), macro={"accuracy": [0.2, 0.5, 0.6]}, micro={"accuracy": [0.3, 0.55, 0.7]}, validation={},
        bytes=(1200, 2400, 3600), seconds=(6.0, 12.0, 18.0), steps=(10, 20, 30),
        end={"accuracy": [0.5, 0.6, 0.7]}, end_counts=(10, 20, 30), learned={},
    )  # fmt: skip
    return replace(found, **changes)


Changes = Mapping[str, Any]


def made_outcome(table: Table, by_row: Mapping[str, Sequence[Changes]], scale: Scale = "full") -> Outcome:
    """Of each row named, a record for each of its changes: those of seed 0, 1, ..."""

    def records(cell: Cell) -> dict[int, Record]:
        return {seed: made_record(cell, seed, **changes) for seed, changes in enumerate(by_row.get(cell.row, ()))}

    return outcome(table, scale, table.cells(scale), records)


def every_cell(table: Table, scale: Scale, make: Callable[[Cell, int], Record], seeds: int = 1) -> Outcome:
    """Of each cell of a table what `make` gives."""
    return outcome(table, scale, table.cells(scale), lambda cell: {s: make(cell, s) for s in range(seeds)})
