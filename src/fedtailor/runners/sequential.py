"""One client after the other, in this process: the readable oracle for every faster runner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedtailor.runners import Exams, Work, memory
from fedtailor.site import Reply, Site, finished, model_of, take_exam, take_part
from fedtailor.tree import Tree


class Sequential:
    """Trains the clients in turn; an error names the client, the round and the method."""

    def __init__(self, threads: int, layout: str = "", products: str = ""):
        self.threads, self.layout, self.products = threads, layout, products

    def plan(self) -> dict[str, Any]:
        return {"runner": "sequential", "threads": self.threads, **chosen(layout=self.layout, products=self.products)}

    def begin(self, sites: Sequence[Site]) -> None:
        pass

    def end(self) -> None:
        memory.give_back()

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        with working(self.threads, self.products):
            for part in work:
                with told(part, round), laid_out(part, self.layout):
                    reply = take_part(part.site, part.kept, part.got, round, examine)
                yield reply

    def examine(self, work: Iterable[Work], round: int, final: bool = False) -> Iterator[tuple[int, Exams]]:
        with working(self.threads, self.products):
            for part in work:
                with told(part, round), laid_out(part, self.layout):
                    exams = take_exam(part.site, examined(part, round, final))
                yield part.site.number, exams


def examined(part: Work, round: int, final: bool) -> Tree:
    """The model of an exam."""
    got = part.got
    if final:
        assert got is not None, "every site gets its last model"
        return finished(part.site, part.kept, got)
    return model_of(part.site, part.kept, got, round)


def chosen(**ways: Any) -> dict[str, Any]:
    """What is not as by default, for the record."""
    return {name: value for name, value in ways.items() if value}


@contextmanager
def working(threads: int, products: str = "") -> Iterator[None]:
    """Torch's threads within an operation, and how it multiplies matrices (`medium` may be faster); both put back."""
    memory.keep_freed()
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    change(threads, products or before[1])
    try:
        yield
    finally:
        change(*before)


def change(threads: int, products: str) -> None:
    """Only what is not so: torch forgets the convolutions that it has prepared when it is told of threads."""
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    if products != torch.get_float32_matmul_precision():
        torch.set_float32_matmul_precision(products)


@contextmanager
def laid_out(part: Work, layout: str) -> Iterator[None]:
    """How pictures lie in memory when they enter the network."""
    arch = part.site.common.arch
    before, arch.layout = arch.layout, layout
    try:
        yield
    finally:
        arch.layout = before


@contextmanager
def told(part: Work, round: int) -> Iterator[None]:
    """An error says whose it is."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in round {round}, client {part.site.number}, method {part.site.common.method!r}")
        raise
