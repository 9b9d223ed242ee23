"""Where does the time of a round go?

    python benchmarks/phases.py [WORKLOAD ...]      such as W1 or 'W3 LeNet+BN'; all without any

Rounds of federated averaging with evaluation on one core, of the workloads of `beside_peers.py`: the share of each
phase in the processor time. A phase's time is that of its functions, less that of other phases which they call.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import isgeneratorfunction
from typing import Any

import torch
from peers import ours
from peers.workloads import WORKLOADS, Workload, bundle

from fedtailor import SGD, Client, Driver, driver, site
from fedtailor.runners import stacked
from fedtailor.runners.chain import Chain
from fedtailor.runners.lane_client import LaneClient

LEAST, SECONDS = 5, 2.0  # rounds, and how long at least
REST = "the rest"
PHASES: dict[str, tuple[tuple[Any, str], ...]] = {
    "draw and gather batches": (
        (Client, "batches"), (LaneClient, "batches"), (LaneClient, "filled"), (LaneClient, "groups"),
        (LaneClient, "rows_at"),
    ),
    "forward": ((Client, "loss"), (LaneClient, "loss")),
    "backward": ((torch.autograd, "_engine_run_backward"),),  # `grad` itself is told apart by those who overload it
    "update": ((SGD, "step"),),
    "steps written out": ((Chain, "step"),),
    "evaluate": ((site, "take_exam"), (stacked, "take_exams")),
    "aggregate": ((Driver, "aggregate"),),
    "record": ((driver, "plain"),),
}  # fmt: skip


class Clock:
    """Charges the processor's time to the innermost phase."""

    def __init__(self) -> None:
        self.open = [REST]
        self.begin()

    def begin(self) -> None:
        self.spent = dict.fromkeys([*PHASES, REST], 0.0)
        self.since = time.process_time()

    def charge(self) -> None:
        now = time.process_time()
        self.spent[self.open[-1]] += now - self.since
        self.since = now

    def enter(self, phase: str) -> None:
        self.charge()
        self.open.append(phase)

    def leave(self) -> None:
        self.charge()
        self.open.pop()

    def timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.enter(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        def generated(*args: Any, **kwargs: Any) -> Iterator[Any]:
            values = function(*args, **kwargs)
            while True:
                self.enter(phase)
                try:
                    value = next(values)
                except StopIteration:
                    return
                finally:
                    self.leave()
                yield value

        return generated if isgeneratorfunction(function) else called


class Rounds:
    """Stands where orders come from: some rounds to warm up, then some that are timed."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.seconds: list[float] = []

    def rounds(self, values: Any, facts: Any) -> Iterator[None]:
        for _ in range(2):
            yield
        self.clock.begin()
        while len(self.seconds) < LEAST or sum(self.seconds) < SECONDS:
            began = time.process_time()
            yield
            self.seconds.append(time.process_time() - began)
        self.clock.charge()
        self.plan = facts()["plan"]


def table(workload: Workload, clock: Clock) -> list[str]:
    whole = bundle(workload)
    asked = Rounds(clock)
    ours.run(replace(whole, settings=replace(whole.settings, evaluate=True)), asked)  # type: ignore[arg-type]
    total = sum(clock.spent.values())
    shares = [f"{clock.spent[phase] / total:.0%}" for phase in (*PHASES, REST)]
    return [workload.name, asked.plan["runner"], f"{1000 * statistics.median(asked.seconds):.1f}", *shares]


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    clock = Clock()
    for phase, functions in PHASES.items():
        for owner, name in functions:
            setattr(owner, name, clock.timed(getattr(owner, name), phase))
    rows = [["workload", "runner", "ms", *PHASES, REST], ["---"] * (len(PHASES) + 4)]
    rows += [table(one, clock) for one in WORKLOADS if one.name.startswith(tuple(names or [""]))]
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main(sys.argv[1:])
