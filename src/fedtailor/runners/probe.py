"""A few steps of the ways to train clients, timed on the run's own first round. Nothing of the run is changed by it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from fedtailor.arch import Arch
from fedtailor.runners import Work
from fedtailor.runners.sequential import Sequential, working
from fedtailor.runners.stacked import MOST, Stacked

STEPS = 3
FEW = 2  # clients that are timed one by one
SMALL_CHUNK = 8
LONG = 0.5  # seconds after which once is enough
BETTER = 0.95  # of the time of a simpler way, at most, to be taken in its place
ACCURATE = 4.0  # times the error of ordinary products, at most

Way = Sequential | Stacked


def fastest(work: Sequence[Work], threads: int, patience: float) -> tuple[Way, float, float]:
    """The fastest way found within so many seconds; how long it takes for a client's step, and one by one takes."""
    parts = shortened(work)
    began = time.perf_counter()
    best: Way = Sequential(threads)

    def seconds(way: Way) -> float:
        return timed(way, parts if isinstance(way, Stacked) else parts[:FEW], threads)

    alone = least = seconds(best)

    def tried(way: Way) -> None:
        """In the place of the best where it is faster, also than the best is now: other work may have slowed that."""
        nonlocal best, least
        if time.perf_counter() - began < patience:
            found = seconds(way)
            if found < BETTER * least and found < BETTER * seconds(best):
                best, least = way, found

    for layout in layouts(parts[0].site.common.arch):
        tried(Sequential(threads, layout))
    for chunk in chunks(len(parts)):
        tried(Stacked(threads, chunk=chunk))
    if medium_is_better():
        kind = best
        tried(
            Stacked(threads, chunk=kind.chunk, products="medium") if isinstance(kind, Stacked) else
            Sequential(threads, kind.layout, "medium")
        )  # fmt: skip
    return best, least, alone


def layouts(arch: Arch) -> list[str]:
    return ["channels_last"] if any(isinstance(module, nn.Conv2d) for module in arch.net.modules()) else []


def chunks(clients: int) -> list[int]:
    """Chunks worth trying: everybody together, and few."""
    if clients < 2:
        return []
    return [0, SMALL_CHUNK] if clients > SMALL_CHUNK else [0]


def shortened(work: Sequence[Work]) -> list[Work]:
    """The clients with most rows, with three batches each."""
    most = sorted(work, key=lambda part: len(part.site.rows), reverse=True)[:MOST]
    common = replace(most[0].site.common, epochs=1, steps=None)
    rows = STEPS * common.batch or None
    return [replace(part, site=replace(part.site, common=common, rows=part.site.rows[:rows])) for part in most]


def timed(way: Way, parts: Sequence[Work], threads: int) -> float:
    """Seconds for a client's step, the better of two, or where they are long, of one; infinite where this way is none.
    The first time warms up."""
    clock = time.process_time if threads == 1 else time.perf_counter
    spent, steps = list[float](), 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while len(spent) < 2 or (len(spent) < 3 and sum(spent) < LONG):
            began = clock()
            steps = max(1, sum(reply.steps for reply in way.train(parts, 1, False)))
            spent.append(clock() - began)
            if isinstance(way, Stacked) and way.refused:
                return float("inf")
    return min(spent[1:]) / steps


@cache
def medium_is_better() -> bool:
    """Whether torch's `medium` products are faster here and as good as exact.

    On a processor without hardware for bfloat16 products it picks another library, which may be twice as fast and
    keeps float32; where there is such hardware it really rounds, and is not used.
    """
    drawn = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 512, 512, generator=drawn)
    exact = a.double() @ b.double()
    errors, spent = dict[str, float](), dict[str, list[float]]()
    for _ in range(5):
        for products in ("highest", "medium"):
            with working(1, products):
                began = time.process_time()
                found = a @ b
                spent.setdefault(products, []).append(time.process_time() - began)
            errors[products] = float((found.double() - exact).abs().max())
    return errors["medium"] <= ACCURATE * errors["highest"] and min(spent["medium"]) < min(spent["highest"])
