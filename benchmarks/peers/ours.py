"""This package, through `federate`, told what to do by a callback."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from typing import Any

import torch

import fedtailor
from fedtailor import Driver, Federation, RunSpec, registry
from fedtailor.driver import Callback
from fedtailor.method import MethodNote
from fedtailor.nn import Model, make
from fedtailor.record import Row
from fedtailor.runners import planner
from peers.bundle import Bundle
from peers.line import Line

ENDLESS = 10**6  # rounds: none is the last


class Enough(Exception):
    """No more rounds are asked for."""


class Told(Callback):
    """Lets a run go on when a round is asked for, and ends it when none is."""

    def __init__(self, line: Line):
        self.line = line

    def on_start(self, driver: Driver) -> None:
        self.asked = self.line.rounds(lambda: driver.server["model"], lambda: facts(driver))
        self.go_on()

    def on_round(self, driver: Driver, row: Row) -> None:
        self.go_on()

    def go_on(self) -> None:
        try:
            next(self.asked)
        except StopIteration:
            raise Enough from None


def facts(driver: Driver) -> Mapping[str, Any]:
    trainers = driver.data.n if driver.common.method.trains == "all" else driver.cohort_size
    return {
        "software": f"fedtailor {fedtailor.__version__}, torch {torch.__version__}",
        "threads": torch.get_num_threads(), "plan": dict(driver.runner.plan()), "trainers": trainers,
    }  # fmt: skip


def run(bundle: Bundle, line: Line) -> None:
    asked, n = bundle.settings, len(bundle.train)
    federation = Federation(
        name=asked.workload, x=bundle.x, y=bundle.y, train=tuple(bundle.train), test=tuple(bundle.test),
        validation=(torch.empty(0, dtype=torch.int64),) * n, clients=tuple(f"client-{i}" for i in range(n)),
        groups=(0,) * n, group_names=("all",), classes=tuple(map(str, range(asked.classes))),
    )  # fmt: skip
    model: Model = asked.model
    if asked.double:
        model = make(asked.model, classes=asked.classes, shape=bundle.shape, seed=0).double()
    spec = RunSpec(
        registry.parse("method", asked.method), model=model, rounds=ENDLESS, cohort=asked.cohort, epochs=1,
        eval_every=1 if asked.evaluate else ENDLESS, batch=asked.batch, lr=asked.lr,
    )  # fmt: skip
    runner = planner.again(asked.plan) if asked.plan else None
    with contextlib.suppress(Enough):
        fedtailor.federate(spec, federation, runner=runner, callbacks=[Told(line)])


def main() -> None:
    warnings.simplefilter("ignore", MethodNote)
    line = Line()
    for path, options in line.bundles():
        run(Bundle.load(path, **options), line)


if __name__ == "__main__":
    main()
