"""Which cells of a table are run: picked by the user, kept by what data are at hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtailor import registry
from fedtailor.papers.preset import Cell, Scale, Table, instead
from fedtailor.registry import WrongInput


@dataclass(frozen=True)
class Job:
    """One run: a cell under one seed, and the folder of its record."""

    cell: Cell
    seed: int
    folder: Path

    @property
    def title(self) -> str:
        p = self.cell.problem
        return f"{p.name}, {self.cell.row}" + (f", seed {self.seed}" if self.seed else "")


@dataclass(frozen=True)
class Plan:
    """What is going to be run of a table, and what cannot be."""

    table: Table
    scale: Scale
    cells: tuple[Cell, ...]
    refused: tuple[tuple[Cell, str], ...]  # cells whose data are not at hand, and what to do about it
    seeds: tuple[int, ...]
    out: Path

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The runs, seed by seed, each once: equal work stands in several cells."""
        found = {
            (cell.folder, seed): Job(cell, seed, folder_of(self.out, cell, seed))
            for seed in self.seeds
            for cell in self.cells
        }
        return tuple(found.values())


def folder_of(out: Path, cell: Cell, seed: int) -> Path:
    return out / cell.folder / f"seed-{seed}"


def plan(table: Table, scale: Scale, only: Sequence[str], seeds: int, out: Path) -> Plan:
    """The cells that are asked for. Data are looked for, not read, where that is enough."""
    if seeds < 1:
        raise WrongInput(f"seeds={seeds} is not possible; it must be 1 or more")
    picked = pick(table.cells(scale), only)
    cells: list[Cell] = []
    refused: list[tuple[Cell, str]] = []
    reasons: dict[str, str] = {}
    for cell in picked:
        data = cell.problem.data
        reason = reasons.setdefault(data, lacking(data))
        if not reason:
            cells.append(cell)
        elif scale == "quick" and cell.problem.stand_in is not None:
            cells.append(instead(cell))
        else:
            refused.append((cell, reason))
    return Plan(table, scale, tuple(cells), tuple(refused), tuple(range(seeds)), out)


def pick(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Cells by `method=FedAvg,data=MNIST`: a facet given twice takes either value, different facets must all fit."""
    wanted: dict[str, set[str]] = {}
    for text in only:
        for part in filter(None, (part.strip() for part in text.split(","))):
            facet, equals, value = (word.strip() for word in part.partition("="))
            if not equals or not value:
                raise WrongInput(f"--only {part!r} cannot be read; write something like data=MNIST,method=FedAvg")
            wanted.setdefault(facet.lower(), set()).add(check(cells, facet.lower(), value))
    return [cell for cell in cells if all(cell.facets[facet].lower() in wanted[facet] for facet in wanted)]


def check(cells: Sequence[Cell], facet: str, value: str) -> str:
    """A value that some cell has."""
    if any(facet not in cell.facets for cell in cells):
        raise WrongInput(f"cells cannot be picked by {facet!r}; choose {', '.join(cells[0].facets)}")
    known = unique(cell.facets[facet] for cell in cells)
    if value.lower() not in {name.lower() for name in known}:
        raise WrongInput(f"no cell has {facet}={value}; there are {', '.join(known)}")
    return value.lower()


def unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def lacking(data: str) -> str:
    """Why data cannot be read here; empty where they can."""
    try:
        registry.parse("data", data)
    except WrongInput as error:
        return str(error)
    return ""
