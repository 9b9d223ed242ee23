"""What came out, in sentences: the result in plain words, and what a reader must know before trusting it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fedtailor.report import words
from fedtailor.report.outcomes import Gain, Outcome, best_first
from fedtailor.report.read import Comparison, RunRecord


def headline(comparison: Comparison, found: Sequence[Outcome]) -> str:
    """One or two sentences: which method is best, and what sharing brings over training alone."""
    metric, sites = comparison.primary, f"{len(comparison.clients)} sites"
    tested = [outcome for outcome in best_first(found, comparison.higher_is_better) if outcome.macro is not None]
    if not tested:
        return "No round has been tested yet, so there is no result to show."
    sharing = [outcome for outcome in tested if not (outcome.entry.is_alone or outcome.entry.is_pooled)]
    so_far = "" if all(run.complete for run in comparison.runs) and not comparison.missing else "So far: "
    best = sharing[0] if sharing else tested[0]
    mean = f"{words.value(best.macro[0], metric)} {metric} on average over {sites}" if best.macro else ""
    if not sharing:
        return f"{so_far}{best.label} reaches {mean}; no method that shares was run."
    rank = f"the best of the {len(sharing)} methods that share" if len(sharing) > 1 else "the only method that shares"
    if best.gain is None:
        alone = "What a site gains over training alone is not computed, as Local was not run with the same seeds."
        return f"{so_far}{best.label} reaches {mean}. {alone}"
    return so_far + _against_alone(best, best.gain, rank, mean, comparison)


def _against_alone(best: Outcome, gain: Gain, rank: str, mean: str, comparison: Comparison) -> str:
    """The verdict that the interval allows: helps, hurts, or open."""
    metric, higher = comparison.primary, comparison.higher_is_better
    low, high = (gain.low, gain.high) if higher else (-gain.high, -gain.low)
    interval = f"95 % interval {words.number(gain.low, metric, True)} to {words.number(gain.high, metric, True)}"
    helped = f"{gain.better} of {gain.clients} sites"
    signed = words.difference(gain.mean, metric)
    if low > 0:
        direction = "over" if higher else "against"
        return (
            f"{best.label} helps {helped}: {signed} {direction} training alone ({interval}). It is {rank}, with {mean}."
        )
    if high < 0:
        return f"Training alone is best. {best.label}, {rank}, stands at {signed} ({interval}) and helps {helped}."
    return (
        f"No method clearly beats training alone. {best.label}, {rank}, stands at {signed}, and which sites take part "
        f"can turn that round ({interval}); it helps {helped}."
    )


def notices(comparison: Comparison, found: Sequence[Outcome]) -> list[str]:
    """What a reader must know before trusting the numbers: runs cut short, clients stopped, unequal settings."""
    told = []
    for entry in comparison.entries:
        for run in entry.runs:
            told += _of_run(f"{entry.label}, seed {run.seed}", run, counts=run in entry.counted)
    told += [f"{name} has not started, and is missing from every number." for name in comparison.missing]
    differ = differing(comparison)
    budget = [key for key in differ if key in _BUDGET]
    told += [unequal(comparison, key) for key in budget]
    for outcome in found:
        if outcome.gain is not None and outcome.gain.seeds < outcome.tested:
            told.append(
                f"{outcome.label} was run with {outcome.tested} seeds and Local with {outcome.gain.seeds} of them: the "
                "difference to Local is over those only."
            )
    versions = sorted({str(run.info.get("fedtailor", "unknown")) for run in comparison.runs})
    if len(versions) > 1:
        told.append(f"The runs were made with different versions of fedtailor: {words.listing(versions)}.")
    return told


_BUDGET = {
    "model": "model", "rounds": "number of rounds", "cohort": "number of clients in a round",
    "epochs": "number of local epochs", "steps": "number of local steps", "batch": "size of a batch",
    "finish_epochs": "number of epochs of local tuning after the last round",
}  # fmt: skip


def unequal(comparison: Comparison, key: str) -> str:
    """A setting that is not the same for all methods, and which has how much of it."""
    having: dict[str, list[str]] = {}
    for entry in comparison.entries:
        for run in entry.runs:
            value = run.settings.get(key)
            having.setdefault("none" if value in (None, 0) else str(value), []).append(entry.label)
    told = [f"{value} for {words.listing(list(dict.fromkeys(labels)))}" for value, labels in having.items()]
    own = " That is part of some methods; --finish-epochs N gives all the same." if key == "finish_epochs" else ""
    return f"Not all methods had the same {_BUDGET[key]}: {'; '.join(told)}.{own}"


def differing(comparison: Comparison) -> list[str]:
    """The settings that are not the same in all runs, seeds apart."""
    keys = dict.fromkeys(key for run in comparison.runs for key in run.settings)
    return [key for key in keys if len({json.dumps(run.settings.get(key)) for run in comparison.runs}) > 1]


def _of_run(name: str, run: RunRecord, counts: bool) -> list[str]:
    told = []
    if not run.rows:
        told.append(f"{name} has not finished a round yet.")
    elif not run.complete:
        of = f" of {run.wanted}" if run.wanted is not None else ""
        use = "its numbers are of that state" if counts else "it is left out of the means over seeds"
        state = {"interrupted": "was interrupted", "failed": "failed"}.get(
            str(run.info.get("status")), "is not finished"
        )
        told.append(f"{name} {state}: it is on record up to round {run.reached}{of}, and {use}.")
    if run.torn:
        told.append(f"The last line of {name} was only half written and is left out.")
    if run.stopped:
        clients = [f"{client} (round {number})" for client, number in run.stopped.items()]
        told.append(f"{name}: training became NaN and was stopped at {words.listing(clients)}.")
    return told
