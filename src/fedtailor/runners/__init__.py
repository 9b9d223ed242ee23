"""Runners: who executes the clients of a round, and how fast. All give the same results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedtailor.method import Received
from fedtailor.site import Exam, Reply, Site
from fedtailor.tree import State

Exams = Mapping[int, Exam]  # by the number of the site that is told of
States = Mapping[int, State] | Sequence[State]  # what sites keep, by their number


@dataclass(frozen=True)
class Work:
    """One client's part of a round; what it keeps and its message, with copies of other clients' models, are read when
    it is its turn."""

    site: Site
    states: States
    deliver: Callable[[], Received] | None = None  # unpacks its message, where it has one
    kind: Hashable = None  # equal for messages of one shape, which may be stacked

    @property
    def kept(self) -> State:
        return self.states[self.site.number]

    @property
    def got(self) -> Received | None:
        return self.deliver() if self.deliver else None


class Runner(Protocol):
    """Runs the clients of a round; a client whose reply does not come is treated as dropped out."""

    def plan(self) -> Mapping[str, Any]:
        """How it works, for the record; a resumed run uses the same plan."""
        ...

    def begin(self, sites: Sequence[Site]) -> None:
        """Told of all clients before the first round."""
        ...

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        """The replies, in any order."""
        ...

    def examine(self, work: Iterable[Work], round: int, final: bool = False) -> Iterator[tuple[int, Exams]]:
        """The exams, in any order, of clients that are not training now; or of the models that they end with."""
        ...

    def end(self) -> None:
        """Let go of processes and memory; it may begin again."""
        ...
