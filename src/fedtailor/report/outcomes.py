"""What each line of a comparison reached: the chosen row of every run, folded over clients and seeds.

Tables, figures and sentences all take their numbers from here, so they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtailor import metrics
from fedtailor.registry import WrongInput
from fedtailor.report.read import Comparison, Entry, RunRecord

Values = tuple[float | None, ...]
Spread = tuple[float, float | None]  # mean and standard deviation over seeds, None for a single seed


@dataclass(frozen=True)
class Gain:
    """An entry less Local: mean over clients with its 95 % interval, and the clients on either side."""

    mean: float
    low: float
    high: float
    better: int  # clients whose mean over the seeds beats Local
    clients: int
    worse: float  # clients worse off than alone, mean over the seeds of the count per seed
    seeds: int


@dataclass(frozen=True)
class Outcome:
    """All numbers of one entry under one selection. Without any tested round the numbers are None."""

    entry: Entry
    points: tuple[str, ...]
    taken: str  # when in the run: "end of run", "round 40", "best of rounds 12 to 31"
    tested: int  # runs that have numbers
    values: Values  # per client, mean over seeds
    macro: Spread | None
    micro: Spread | None
    worst: Spread | None
    bottom_tenth: Spread | None
    over_clients: Spread | None
    gain: Gain | None
    alone: Values | None  # per client what Local reached, mean over the seeds that both were run with
    traffic: tuple[float, float] | None  # bytes down and up per round and client of the exchange
    total_bytes: float  # of a whole run, all clients, both ways
    seconds: float | None

    @property
    def label(self) -> str:
        return self.entry.label


def outcomes(comparison: Comparison, how: metrics.How = "last") -> tuple[Outcome, ...]:
    """One outcome per entry, in the order of the comparison."""
    return tuple(_outcome(comparison, entry, how) for entry in comparison.entries)


def chosen(run: RunRecord, how: metrics.How) -> Mapping[str, Any] | None:
    """The row whose numbers are reported; None while nothing has been tested."""
    if not any(row.get("test") for row in run.rows):
        return None
    return metrics.select(run.rows, how, str(run.info["primary"]), bool(run.info["higher_is_better"]))


def values(comparison: Comparison, row: Mapping[str, Any]) -> Values:
    """The primary metric of each client in one row."""
    found = tuple(None if value is None else float(value) for value in row["test"][comparison.primary])
    if len(found) != len(comparison.clients):
        raise WrongInput(
            f"a row holds {len(found)} values of {comparison.primary} and the federation has {len(comparison.clients)} "
            "clients; report on these runs one by one"
        )
    return found


def over_seeds(columns: Sequence[Values]) -> Values:
    """Per client the mean over those seeds in which it was tested."""
    return tuple(mean_of(column) for column in zip(*columns, strict=True))


def mean_of(column: Sequence[float | None] | None) -> float | None:
    """Unweighted mean over the clients that have a number."""
    present = [value for value in column or () if value is not None]
    return float(np.mean(present)) if present else None


def best_first(found: Iterable[Outcome], higher_is_better: bool) -> list[Outcome]:
    """By the mean over clients; then what diverged, then what has no number yet."""

    def order(outcome: Outcome) -> tuple[int, float]:
        if outcome.macro is None:
            return 2, 0.0
        mean = outcome.macro[0]
        return (1, 0.0) if math.isnan(mean) else (0, -mean if higher_is_better else mean)

    return sorted(found, key=order)


def _outcome(comparison: Comparison, entry: Entry, how: metrics.How) -> Outcome:
    picked = [(run, row) for run in entry.counted if (row := chosen(run, how)) is not None]
    columns = {run.seed: values(comparison, row) for run, row in picked}
    alone = _alone(comparison, entry, columns, how)
    better = comparison.higher_is_better
    folded = [metrics.summarise(columns[run.seed], _counts(row), better) for run, row in picked]

    def spread(name: str) -> Spread | None:
        return metrics.across_seeds([getattr(summary, name) for summary in folded]) if folded else None

    return Outcome(
        entry=entry,
        points=tuple(dict.fromkeys(str(row["point"]) for _, row in picked)),
        taken=_taken(picked, how),
        tested=len(picked),
        values=over_seeds(list(columns.values())) or (None,) * len(comparison.clients),
        macro=spread("macro"),
        micro=spread("micro"),
        worst=spread("worst"),
        bottom_tenth=spread("bottom_tenth"),
        over_clients=spread("std"),
        gain=_gain(columns, alone, better),
        alone=over_seeds(list(alone.values())) or None,
        # Pooling moves the rows themselves; what its only client then sends to itself is no traffic.
        traffic=None if entry.is_pooled else _traffic(entry),
        total_bytes=0.0 if entry.is_pooled else _total_bytes(entry),
        seconds=_seconds(entry),
    )


def exchanged(row: Mapping[str, Any]) -> float:
    """Bytes of one row, all clients, both ways."""
    return float(sum(row.get("down") or ()) + sum(row.get("up") or ()))


def _counts(row: Mapping[str, Any]) -> list[float]:
    # A client without test rows has no value either and counts nowhere.
    return [float(count or 0) for count in row["test"]["count"]]


def _taken(picked: Sequence[tuple[RunRecord, Mapping[str, Any]]], how: metrics.How) -> str:
    if not picked:
        return "not tested yet"
    if all(row.get("finish") for _, row in picked):
        # the run's own word, or the method's where the run says nothing
        tuned = {int(run.info.get("finish_epochs") or run.spec.get("finish_epochs") or 0) for run, _ in picked} - {0}
        return f"end of run, {max(tuned)} tuning epochs" if tuned else "end of run"
    rounds = sorted({int(row["round"]) for _, row in picked})
    words = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
    return {"last": words, "best": f"{words} (best)", "best_on_validation": f"{words} (best on validation)"}[how]


def _alone(comparison: Comparison, entry: Entry, seeds: Iterable[int], how: metrics.How) -> dict[int, Values]:
    """What Local reached on the same federation, under those of the seeds that it was run with."""
    found = {}
    for seed, run in comparison.alone(entry).items():
        row = chosen(run, how) if seed in seeds else None
        if row is not None:
            found[seed] = values(comparison, row)
    return found


def _gain(columns: Mapping[int, Values], alone: Mapping[int, Values], higher_is_better: bool) -> Gain | None:
    """Seed by seed against Local; None where Local was not run."""
    worse = [metrics.worse_off(columns[seed], alone[seed], higher_is_better) for seed in alone]
    counted = [count for count in worse if count is not None]
    if not counted:
        return None
    mine, theirs = over_seeds([columns[seed] for seed in alone]), over_seeds(list(alone.values()))
    mean, low, high = metrics.paired_bootstrap(mine, theirs, seed=0)
    both = [(a, b) for a, b in zip(mine, theirs, strict=True) if a is not None and b is not None]
    better = sum(a > b if higher_is_better else a < b for a, b in both)
    return Gain(mean, low, high, better, len(both), float(np.mean(counted)), len(counted))


def _traffic(entry: Entry) -> tuple[float, float] | None:
    """Mean bytes down and up of one client in one exchange; the delivery at the end is no round of its own."""
    down = up = exchanges = 0.0
    for row in (row for run in entry.counted for row in run.rounds):
        down += sum(row.get("down") or ())
        up += sum(row.get("up") or ())
        exchanges += len(row.get("cohort") or ())
    return (down / exchanges, up / exchanges) if exchanges else None


def _total_bytes(entry: Entry) -> float:
    return float(np.mean([sum(exchanged(row) for row in run.rows) for run in entry.counted]))


def _seconds(entry: Entry) -> float | None:
    totals = [sum(float((row.get("seconds") or {}).get("total") or 0) for row in run.rows) for run in entry.counted]
    return float(np.mean(totals)) if any(run.rows for run in entry.counted) else None
