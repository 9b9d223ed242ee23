"""One client after the other, in this process: the readable oracle for every faster runner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedtailor.runners import Exams, Work
from fedtailor.site import Reply, Site, finished, model_of, take_exam, take_part


class Sequential:
    """Trains the clients in turn; an error names the client, the round and the method."""

    def __init__(self, threads: int):
        self.threads = threads

    def plan(self) -> Mapping[str, Any]:
        return {"runner": "sequential", "threads": self.threads}

    def begin(self, sites: Sequence[Site]) -> None:
        pass

    def end(self) -> None:
        pass

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        with threads(self.threads):
            for part in work:
                with told(part, round):
                    reply = take_part(part.site, part.kept, part.got, round, examine)
                yield reply

    def examine(self, work: Iterable[Work], round: int, final: bool = False) -> Iterator[tuple[int, Exams]]:
        with threads(self.threads):
            for part in work:
                with told(part, round):
                    if final:
                        assert part.got is not None, "every site gets its last model"
                        model = finished(part.site, part.kept, part.got)
                    else:
                        model = model_of(part.site, part.kept, part.got, round)
                    exams = take_exam(part.site, model)
                yield part.site.number, exams


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch's threads within an operation, put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def told(part: Work, round: int) -> Iterator[None]:
    """An error says whose it is."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in round {round}, client {part.site.number}, method {part.site.common.method!r}")
        raise
