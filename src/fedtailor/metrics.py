"""From one number per client to the numbers of a table: means over clients, rounds chosen, seeds, intervals.

A client without a number (no rows, not tested) is None and counts nowhere. NaN is a number here, that of a
model that diverged: it is worse than any other and makes the means it enters NaN, so that nothing hides it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedtailor import schedule
from fedtailor.registry import WrongInput

Values = Sequence[float | None]
Row = Mapping[str, Any]  # a row of a run record
How = Literal["last", "best", "best_on_validation"]


@dataclass(frozen=True)
class Summary:
    """One metric over the clients that have it."""

    macro: float  # unweighted mean over clients
    micro: float  # mean weighted by the clients' row counts
    worst: float  # the worst client's
    bottom_tenth: float  # mean over the worst tenth of the clients, at least one
    std: float  # population standard deviation: these clients are all there are, not a sample of more
    clients: int


def summarise(values: Values, counts: Sequence[int | float], higher_is_better: bool = True) -> Summary:
    """Fold a metric over clients; `counts` are the rows that each client's value was made of.

    `micro` equals the value over all rows pooled for whatever is a mean over rows (accuracy, loss, mae); for
    precision, rmse and r2 it is the weighted mean of the clients' values, nothing else.
    """
    pairs = [(value, count) for value, count in zip(values, counts, strict=True) if value is not None]
    if not pairs:
        raise WrongInput("no client has a value to summarise; test at least one client that has rows")
    present = np.array([value for value, _ in pairs], dtype=np.float64)
    weights = np.array([count for _, count in pairs], dtype=np.float64)
    if not weights.sum() > 0:
        raise WrongInput("the clients have values but no rows; give the number of rows behind each value")
    worst_first = np.array(sorted(present, key=lambda value: _goodness(value, higher_is_better)))
    with np.errstate(invalid="ignore"):  # an infinite loss has no finite deviation: NaN, as it should be
        return Summary(
            macro=float(present.mean()),
            micro=float((present * weights).sum() / weights.sum()),
            worst=float(worst_first[0]),
            bottom_tenth=float(worst_first[: math.ceil(len(present) / 10)].mean()),
            std=float(present.std()),
            clients=len(present),
        )


def worse_off(values: Values, alone: Values | None, higher_is_better: bool = True) -> int | None:
    """How many clients would have done better alone (`alone`: their values without any federation).

    A tie is not worse. Clients that miss either number are left out; None if no client has both.
    """
    pairs = _both(values, alone) if alone is not None else []
    if not pairs:
        return None
    better = higher_is_better
    return sum(_goodness(value, better) < _goodness(other, better) for value, other in pairs)


def per_client(row: Row, part: str, metric: str) -> list[float | None]:
    """The clients' numbers in a row of a run record; none if it was not evaluated.

    A record is JSON, which has no NaN: null with rows counted is a number that was not finite, and NaN again
    here. Without this a diverged client would drop out of the means, and improve them.
    """
    evaluated = row.get(part)
    if evaluated is None:
        return []
    if metric not in evaluated:
        known = ", ".join(key for key in evaluated if key != "count")
        raise WrongInput(f"the run has no metric {metric!r}; it recorded {known}")
    pairs = zip(evaluated[metric], evaluated["count"], strict=True)
    return [math.nan if value is None and count else value for value, count in pairs]


def select(rows: Iterable[Row], how: How, metric: str, higher: bool = True) -> Row:
    """The row of a run record whose numbers are reported.

    `last`: the finish row (the models that the clients end with), or the last tested round of an unfinished
    run. `best`: the round with the best macro mean of `metric` on *test* data. This selects on test data, as
    most papers do, and is optimistic. `best_on_validation`: the same on validation data, which is fair.

    Ties go to the earliest round. The finish row is a later point of evaluation and competes with no round.
    """
    if how not in ("last", "best", "best_on_validation"):
        raise WrongInput(f"there is no selection {how!r}; choose last, best or best_on_validation")
    part = "validation" if how == "best_on_validation" else "test"
    numbers = [(row, [v for v in per_client(row, part, metric) if v is not None]) for row in rows]
    tested = [(row, values) for row, values in numbers if values]
    rounds = [(row, values) for row, values in tested if not row.get("finish")]
    finish = [row for row, _ in tested if row.get("finish")]
    if how == "last" and tested:
        return finish[0] if finish else rounds[-1][0]
    if not rounds:
        fix = "evaluate more often" if part == "test" else "cut the data with a validation part"
        raise WrongInput(f"no round was evaluated on {part} data, so there is no {how!r}; {fix}")
    return max(rounds, key=lambda tested: _goodness(float(np.mean(tested[1])), higher))[0]


def across_seeds(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and *sample* standard deviation (n - 1) over repetitions; no deviation for a single one."""
    if not values:
        raise WrongInput("there is no repetition to average; give the value of at least one seed")
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_bootstrap(a: Values, b: Values, seed: int, draws: int = 10_000) -> tuple[float, float, float]:
    """Mean over clients of a - b, and its 95 % interval over clients.

    The clients are drawn anew with replacement, each with both its numbers, `draws` times; the interval is
    between the 2.5 and 97.5 percentiles of the means. It tells how much the mean hangs on which clients took
    part, not how it varies over seeds; over a handful of clients it is too narrow.
    """
    pairs = _both(a, b)
    if not pairs:
        raise WrongInput("no client has both numbers; compare two runs that tested the same clients")
    difference = np.array([x - y for x, y in pairs])
    generator = schedule.rng(seed, "bootstrap")
    n = len(difference)
    with np.errstate(invalid="ignore"):  # infinite losses: NaN where there is no answer
        means = difference[generator.integers(n, size=(draws, n))].mean(1)
        low, high = np.quantile(means, (0.025, 0.975))
        return float(difference.mean()), float(low), float(high)


def _goodness(value: float, higher_is_better: bool) -> float:
    """Larger is better, whatever the metric; NaN is as bad as can be."""
    if math.isnan(value):
        return -math.inf
    return value if higher_is_better else -value


def _both(a: Values, b: Values) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
