"""A table of four small cells on the digits of the package, in place of FedMCSA's table 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fedtailor.papers.fedmcsa import BEST
from fedtailor.papers.preset import Cell, Claim, Number, Problem, Scale, Table, chain
from fedtailor.papers.published import Key

SMALL = Problem("MNIST", "MLR", "digits", "iid(clients=3, validation=0.1)", "mlr", clients=3, rows=1170, tests=450)
ABSENT = replace(SMALL, label="FMNIST", data="arrays('nowhere.npz')")
STOOD_FOR = replace(ABSENT, label="CIFAR10", stand_in=replace(SMALL, label="digits", instead_of="CIFAR10"))
SETTINGS = {"rounds": 2, "steps": 2, "batch": 8, "lr": 0.1, "eval_every": 1, "checkpoint_every": 1, "cohort": 1.0,
            "runner": "sequential"}  # fmt: skip


def small_cell(row: str, method: str, problem: Problem = SMALL, printed: bool = True) -> Cell:
    key = Key(row, problem.name) if printed else None
    return Cell(row, problem, method, SETTINGS, (Number(problem.name, BEST, key),), ("2 rounds",))


def cells(scale: Scale) -> Iterator[Cell]:
    yield small_cell("FedAvg", "FedAvg()")
    yield small_cell("FedMCSA", "FedMCSA(sigma=50.0, anchor='moving')")
    yield small_cell("Local", "Local()", printed=False)
    yield small_cell("FedAvg", "FedAvg()", ABSENT)
    yield small_cell("FedAvg", "FedAvg()", STOOD_FOR)


SMALL_TABLE = Table(
    "fedmcsa", "table2", "A small table", cells,
    claims=(
        Claim("FedMCSA is better than FedAvg", chain("FedMCSA", "FedAvg")),
        Claim("FedMCSA is better than training alone", chain("FedMCSA", "Local"), whose="ours"),
    ),
)  # fmt: skip
