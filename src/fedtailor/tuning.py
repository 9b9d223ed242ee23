"""Choosing a method's settings on validation rows, with as many optimiser steps for every method.

A method declares values worth trying (`grid`, three or more of each parameter); plug-ins and what they wrap are tried
together, at three rates. Every method has the same budget of optimiser steps, steps within steps included: it is shared
out evenly over the candidates, and each is trained until its share is used up. So a method with a larger grid, or with
more steps in a round, sees fewer rounds of each candidate. Test rows play no part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from fedtailor.data.federation import Federation
from fedtailor.driver import Diverged, Driver
from fedtailor.method import Method
from fedtailor.metrics import per_client, summarise
from fedtailor.registry import WrongInput
from fedtailor.schedule import rng
from fedtailor.spec import RunSpec

RATES = (1 / 3, 1.0, 3.0)  # times the rate that is asked for
SHORTEST = 0.1  # of a plain run, in optimiser steps: with a smaller share nothing could be told


@dataclass(frozen=True)
class Trial:
    """One candidate, and how it did."""

    spec: RunSpec
    score: float | None  # mean over clients of the metric on validation rows; None: it diverged
    steps: int  # optimiser steps of all clients
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        return {"method": repr(self.spec.method), "lr": self.spec.lr, "score": self.score, "steps": self.steps,
                "rounds": self.rounds}  # fmt: skip


@dataclass(frozen=True)
class Tuned:
    """What was chosen for a method, and among what."""

    asked: RunSpec
    chosen: RunSpec
    trials: tuple[Trial, ...]
    candidates: int  # in the whole grid
    metric: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "asked": {"method": repr(self.asked.method), "lr": self.asked.lr},
            "chosen": {"method": repr(self.chosen.method), "lr": self.chosen.lr},
            "chosen_by": f"mean over clients of {self.metric} on validation rows", "candidates": self.candidates,
            "steps": sum(trial.steps for trial in self.trials), "trials": [trial.to_dict() for trial in self.trials],
        }  # fmt: skip


def variants(method: Method) -> Iterator[Method]:
    """The method as it stands, then every combination of the values that it and its inner methods declare."""
    yield method
    if not is_dataclass(method):
        return
    inner = [field.name for field in fields(method) if isinstance(getattr(method, field.name), Method)]
    choices: dict[str, list[Any]] = {name: list(variants(getattr(method, name))) for name in inner}
    choices |= {name: list(dict.fromkeys((getattr(method, name), *values))) for name, values in method.grid.items()}
    for values in itertools.product(*choices.values()):
        found = replace(method, **dict(zip(choices, values, strict=True)))
        if found != method:
            yield found


def candidates(spec: RunSpec) -> list[RunSpec]:
    """Every variant at every rate; what is asked for is the first."""
    rates = sorted(RATES, key=lambda rate: abs(math.log(rate)))
    found = [replace(spec, method=m, lr=spec.lr * rate) for m in dict.fromkeys(variants(spec.method)) for rate in rates]
    return list(dict.fromkeys(found))


def plain_steps(driver: Driver) -> int:
    """Optimiser steps of all clients in a whole run of plain training."""
    each = [site.client(1).steps for site in driver.sites]
    return round(driver.spec.rounds * driver.cohort_size * sum(each) / len(each))


def tune(
    federation: Federation, spec: RunSpec, budget: float, tell: Callable[[int, int, Trial], None] = lambda *_: None
) -> Tuned:
    """Try the candidates with `budget` plain runs' optimiser steps in all, and choose the best on validation rows."""
    if not sum(map(len, federation.validation)):
        raise WrongInput(
            f"{federation.source or federation.name} has no validation rows to choose on; cut it with some, such as "
            "--partition 'dirichlet(validation=0.1)'"
        )
    if not budget > 0:
        raise WrongInput(f"budget={budget} is not possible; give a number of plain runs above 0, such as 3")
    every = candidates(spec)
    driver = Driver(spec, federation)
    steps = budget * plain_steps(driver)
    tried = drawn(every, max(1, int(budget / SHORTEST)), spec.seed)
    trials = []
    for number, candidate in enumerate(tried, start=1):
        try:
            trials.append(trial(federation, candidate, steps / len(tried)))
        except WrongInput:  # a value that this network or federation does not bear
            continue
        tell(number, len(tried), trials[-1])
    good = [one for one in trials if one.score is not None]
    if not good:
        raise Diverged(f"every candidate of {spec.method!r} diverged; begin with a smaller lr (now {spec.lr:g})")
    higher = driver.task.higher_is_better
    best = max(good, key=lambda one: (one.score or 0.0) * (1 if higher else -1))  # the first of equals
    return Tuned(spec, best.spec, tuple(trials), len(every), driver.task.primary)


def drawn(every: Sequence[RunSpec], most: int, seed: int) -> list[RunSpec]:
    """As many candidates as the budget bears, at random; what was asked for is always among them."""
    if len(every) <= most:
        return list(every)
    others = rng(seed, "tuning").permutation(len(every) - 1)[: most - 1] + 1
    return [every[0], *(every[number] for number in sorted(others.tolist()))]


def trial(federation: Federation, spec: RunSpec, steps: float) -> Trial:
    """Train until so many steps are taken; then the model that each client has, on its validation rows.

    Schedules run as in the whole run, and what comes after it (`finish_epochs`) is left out.
    """
    driver = Driver(replace(spec, eval_every=spec.rounds, finish_epochs=0), federation)
    spent, score = 0, None
    try:
        while driver.round < spec.rounds and (spent < steps or not driver.round):
            spent += sum(driver.step()["steps"])
        row = driver.finish()
        values = per_client(row, "validation", driver.task.primary)
        found = summarise(values, row["validation"]["count"], driver.task.higher_is_better).macro
        score = found if math.isfinite(found) else None
    except Diverged:
        pass
    finally:
        driver.runner.end()
    return Trial(spec, score, spent, driver.round)
