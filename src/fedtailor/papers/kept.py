"""Records that are kept for good: `RECORDS/fedmcsa-table2/full/<cell>-seed-0.json`, and what is read off them.

Beside the records of a table may lie `remarks.md`, in which whoever ran it says what they make of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from fedtailor.papers import TABLES
from fedtailor.papers.outcome import Outcome, Records, outcome
from fedtailor.papers.plan import Job
from fedtailor.papers.preset import Cell, Count, Scale, Table, instead
from fedtailor.papers.record import Record, of_run, read_record
from fedtailor.registry import WrongInput

COUNTS = "counts.json"


@dataclass(frozen=True)
class Kept:
    """What is kept of a table at one scale."""

    found: Outcome
    remarks: str
    records: tuple[Record, ...]
    stale: tuple[str, ...]  # records that belong to no cell of the table as it is now


def place(root: Path, table: Table, scale: Scale, cell: Cell, seed: int) -> Path:
    return root / table.id.replace(":", "-") / scale / f"{cell.folder}-seed-{seed}.json"


def keep(root: Path, table: Table, scale: Scale, job: Job) -> None:
    """Keep the record of a complete run."""
    record = of_run(job.folder, job.cell, job.seed)
    if record is None or not record.complete:
        return
    path = place(root, table, scale, job.cell, job.seed)
    try:
        record.write(path)
    except OSError as error:
        raise WrongInput(f"cannot write {path}: {error.strerror}; choose another folder with --keep") from None


def keep_counts(root: Path, table: Table, counts: Mapping[Count, int]) -> None:
    path = root / table.id.replace(":", "-") / COUNTS
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps([count.row, count.column, number]) for count, number in counts.items()]
    path.write_text("[" + ",\n ".join(lines) + "]\n", encoding="utf-8")


def read_counts(path: Path, table: Table) -> dict[Count, int]:
    if not path.exists():
        return {}
    numbers = [number for _, _, number in json.loads(path.read_text(encoding="utf-8"))]
    return dict(zip(table.counts, numbers, strict=True))


def read_kept(root: Path) -> Iterator[Kept]:
    """Table by table, in the order of the presets."""
    if not root.is_dir():
        raise WrongInput(f"there is no folder {root}; give one that `fedtailor reproduce ... --keep` wrote")
    for table in TABLES.values():
        for scale in get_args(Scale)[::-1]:  # the paper's own setting first
            if (root / table.id.replace(":", "-") / scale).is_dir():
                yield read_table(root, table, scale)
        if table.counts and (root / table.id.replace(":", "-") / COUNTS).exists():
            yield read_table(root, table, "full")


def read_table(root: Path, table: Table, scale: Scale) -> Kept:
    folder = root / table.id.replace(":", "-")
    used: dict[Path, Record] = {}

    def records(cell: Cell) -> Records:
        found = {}
        for path in sorted((folder / scale).glob(f"{cell.folder}-seed-*.json")):
            record = read_record(path)
            if dict(record.work) != cell.work:
                raise WrongInput(f"{path} is of other work than its name says; keep it again with --keep")
            found[record.seed] = record
            used[path] = record
        return found

    def at_hand(cell: Cell) -> Cell:
        """The stand-in where only that was run."""
        if cell.problem.stand_in is None or scale != "quick" or records(cell):
            return cell
        return instead(cell) if records(instead(cell)) else cell

    counts = read_counts(folder / COUNTS, table)
    found = outcome(table, scale, [at_hand(cell) for cell in table.cells(scale)], records, counts)
    remarks = folder / "remarks.md"
    told = remarks.read_text(encoding="utf-8").strip() if remarks.exists() else ""
    stale = sorted(path.name for path in set((folder / scale).glob("*.json")) - used.keys())
    return Kept(found, told, tuple(used.values()), tuple(stale))
