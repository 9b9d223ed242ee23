"""Runners: who executes the clients of a round, and how fast. All give the same results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fedtailor.method import Received
from fedtailor.site import Reply, Site
from fedtailor.tree import State


@dataclass(frozen=True)
class Work:
    """One client's part of a round."""

    site: Site
    kept: State
    got: Received | None


class Runner(Protocol):
    """Runs the clients of a round; a client whose reply does not come is treated as dropped out."""

    def plan(self) -> Mapping[str, Any]:
        """How it works, for the record; a resumed run uses the same plan."""
        ...

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        """The replies, in any order."""
        ...
