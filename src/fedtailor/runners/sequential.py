"""One client after the other, in this process: the readable oracle for every faster runner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from fedtailor.runners import Work
from fedtailor.site import Reply, take_part


class Sequential:
    """Trains the clients in turn; an error names the client, the round and the method."""

    def __init__(self, threads: int):
        self.threads = threads

    def plan(self) -> Mapping[str, Any]:
        return {"runner": "sequential", "threads": self.threads}

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            for part in work:
                try:
                    yield take_part(part.site, part.kept, part.got, round, examine)
                except Exception as error:
                    error.add_note(f"in round {round}, client {part.site.number}, method {part.site.common.method!r}")
                    raise
        finally:
            torch.set_num_threads(before)
