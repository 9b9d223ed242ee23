"""What is drawn of a table: plain data, so that tables can be listed without a library that draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Over = Literal["rounds", "models", "minutes"]


@dataclass(frozen=True)
class Panel:
    """Rows of a table that are drawn together; training alone is drawn in every panel."""

    title: str
    rows: Mapping[str, str]  # by row, its name in the picture


def together(title: str, *rows: str) -> Panel:
    """Rows under their own names."""
    return Panel(title, {row: row for row in rows})


@dataclass(frozen=True)
class Courses:
    """Accuracy over rounds, traffic or time: a line for each row, in one panel or in several."""

    over: Over = "rounds"
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True)
class PerClient:
    """Every client at the end of the run: a line of marks for each row."""


@dataclass(frozen=True)
class Sweep:
    """Numbers over a setting that the rows try out; the other rows stand as levels beside it."""

    axis: str
    at: Mapping[str, float]  # by row
    turns: Mapping[str, float] = field(default_factory=dict)  # by column: where the paper sees the line turn level


@dataclass(frozen=True)
class Across:
    """Numbers over what the columns try out: a line for each row."""

    axis: str
    at: Mapping[str, float]  # by column


@dataclass(frozen=True)
class Bars:
    """A bar for each row: what it took to reach a target, or points above training alone."""


@dataclass(frozen=True)
class Learned:
    """What clients learned, over the rounds: a panel for each column, a line for each client."""

    what: str


@dataclass(frozen=True)
class Losses:
    """Curves that one client showed, in several rounds."""

    name: str  # under which the method shows them
    what: str
    axis: str  # what each step is
    client: int


@dataclass(frozen=True)
class Trajectory:
    """The way of the client that a cell follows, over the loss of its own rows."""


Drawing = Courses | PerClient | Sweep | Across | Bars | Learned | Losses | Trajectory
USUAL: tuple[Drawing, ...] = (Courses(), PerClient())
