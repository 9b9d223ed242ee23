"""A published table as data: cells that can be run, the numbers beside which they stand, and what the table claims.

Everything here is text and numbers, so that tables can be listed and picked from without PyTorch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from fedtailor.papers.drawing import USUAL, Drawing
from fedtailor.papers.published import Key, Paper, PrintedTable, published
from fedtailor.registry import WrongInput

Scale = Literal["quick", "reduced", "full"]
SCALES: Mapping[str, str] = {
    "quick": "a few rounds, minutes in all: that everything works, and which way the numbers point",
    "reduced": "as much as two cores do in hours, with what differs from the paper said",
    "full": "the paper's own setting",
}
Select = Literal["last", "best", "best_on_validation", "when"]
Quantity = Literal["value", "rounds", "models", "minutes"]


@dataclass(frozen=True)
class Problem:
    """Data, who holds them, and a network."""

    label: str  # the data as the paper calls them
    network: str  # the network as the paper calls it
    data: str  # as --data takes it
    partition: str
    model: str
    clients: int
    rows: int  # to train on, all clients together
    tests: int  # to test on, all clients together
    differences: tuple[str, ...] = ()  # from the paper's, in words
    instead_of: str = ""  # of a stand-in: the data it stands for
    stand_in: Problem | None = None  # taken where the data are not at hand, at the scale quick

    @property
    def name(self) -> str:
        return f"{self.label}/{self.network}"


@dataclass(frozen=True)
class Reading:
    """Which number of a run is meant: what, averaged how, of which round."""

    metric: str = "accuracy"  # or something that a method learned: "learned/..."
    over: str = "macro"  # macro: mean over clients; micro: over all test rows; or the name of one client
    select: Select = "last"  # "when": what it took until the metric reached the target
    target: float = 0.0  # in per cent
    quantity: Quantity = "value"

    @property
    def words(self) -> str:
        means = {"macro": "mean over clients", "micro": "over the test rows of all clients"}
        over = means.get(self.over, "each client")
        if self.select == "when":
            what = "exchanges of a whole model by a client" if self.quantity == "models" else self.quantity
            return f"{what} until the {self.metric}, {over}, is {self.target:g} %"
        when = {
            "last": "at the end of the run",
            "best": "in the round where it is best, which flatters every method, as in the paper",
            "best_on_validation": "in the round that is best on validation rows",
        }
        return f"{self.metric}, {over}, {when[self.select]}"

    @property
    def unit(self) -> str:
        return "per cent" if self.quantity == "value" else self.quantity


@dataclass(frozen=True)
class Number:
    """One number that a cell gives, the column that it stands in, and where the paper prints its own."""

    column: str
    reading: Reading
    key: Key | None = None
    comparable: bool = True  # whether the data of this column are those of the paper


@dataclass(frozen=True)
class Follow:
    """A client whose models are followed from round to round, and the round in which the method turns."""

    client: int
    first: int  # round
    turn: int
    before: str  # what the client starts from up to this round, and after it
    after: str


@dataclass(frozen=True)
class Cell:
    """A run, under one or more seeds, and the numbers that are read off it."""

    row: str  # the method as the paper calls it
    problem: Problem
    method: str  # as --method takes it
    settings: Mapping[str, Any]  # of the run; the seed comes later
    numbers: tuple[Number, ...]
    differences: tuple[str, ...] = ()  # from the paper's setting, in words, beside those of the problem
    comparable: bool = True  # whether so little differs that our number should meet the paper's
    learned: str = ""  # what the method says it learned is kept of these names
    follow: Follow | None = None
    stand_in_settings: Mapping[str, Any] = field(default_factory=dict)  # over the others, where data stand in

    @property
    def facets(self) -> dict[str, str]:
        """What `--only` may pick by."""
        return {"method": self.row, "data": self.problem.label, "model": self.problem.network}

    @property
    def all_differences(self) -> tuple[str, ...]:
        return (*self.problem.differences, *self.differences)

    @property
    def work(self) -> dict[str, Any]:
        """What is run, as plain values: equal work has equal results, in whatever table it stands."""
        p = self.problem
        return {"data": p.data, "partition": p.partition, "model": p.model, "method": self.method, **self.settings}

    @cached_property
    def folder(self) -> str:
        """A name for the work: readable, and another one as soon as anything differs."""
        digest = hashlib.sha256(json.dumps(self.work, sort_keys=True).encode()).hexdigest()[:8]
        parts = (self.problem.label, self.problem.network, self.row)
        plain = ("".join(c if c.isalnum() else "-" for c in part.lower()).strip("-") for part in parts)
        return "-".join([*plain, digest])


@dataclass(frozen=True)
class Count:
    """A number that is counted off a network, without a run."""

    row: str
    column: str
    what: Literal["parameters", "weights"]  # all that is trained, or the weights that ALA learns
    model: str
    method: str
    classes: int
    shape: tuple[int, ...]
    unit: int  # in what the paper prints it: thousands, millions
    key: Key
    cut: bool = False  # whether the paper cuts digits off, where others round
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """That some rows of a table are better than others, or no better: by the paper, or a question of ours."""

    text: str
    pairs: tuple[tuple[str, str], ...]  # rows, the better one first; columns, where it is along columns
    columns: tuple[str, ...] = ()  # in these (or in these rows); none: in all that both have
    along: Literal["rows", "columns"] = "rows"
    smaller: bool = False  # is better
    whose: Literal["paper", "ours"] = "paper"
    expects: Literal["better", "level"] = "better"


def chain(*rows: str) -> tuple[tuple[str, str], ...]:
    """Each row better than the one after it."""
    return tuple(pairwise(rows))


@dataclass(frozen=True)
class Table:
    """One table or figure of a paper."""

    paper: str
    name: str  # table2, figure5
    title: str
    make: Callable[[Scale], Iterable[Cell]] = lambda scale: ()
    counts: tuple[Count, ...] = ()
    claims: tuple[Claim, ...] = ()
    alone: str = "Local"  # the row of training alone, which is shown beside every other
    band: float = 1.0  # points within which a number counts as met
    margin: float = 0.3  # points up to which two rows count as level
    eligible: tuple[Scale, ...] = ("quick", "reduced", "full")
    about: str = ""  # what is not covered, and why
    drawings: tuple[Drawing, ...] = USUAL

    @property
    def id(self) -> str:
        return f"{self.paper}:{self.name}"

    @property
    def source(self) -> Paper:
        return published(self.paper)

    @property
    def printed(self) -> PrintedTable | None:
        """None for a figure that prints no numbers."""
        return self.source.tables.get(self.name)

    def cells(self, scale: Scale) -> tuple[Cell, ...]:
        if scale not in self.eligible:
            raise WrongInput(f"{self.id} has no scale {scale!r}; choose {' or '.join(self.eligible)}")
        return tuple(self.make(scale))


def instead(cell: Cell) -> Cell:
    """The cell on the data that stand in for its own."""
    problem = cell.problem.stand_in
    assert problem is not None
    means = tuple(number for number in cell.numbers if number.reading.over in ("macro", "micro"))
    settings = {**cell.settings, **cell.stand_in_settings}
    return replace(cell, problem=problem, settings=settings, numbers=means, comparable=False)  # other clients' names
