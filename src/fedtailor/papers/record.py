"""What is kept of a run: small enough for a repository, enough for every number, table and figure of a page.

A record holds what was run and with which versions, and of every tested round the means over clients and over rows;
of the end of the run each client's own numbers. No tensors, no rows of data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from fedtailor.papers.preset import Cell, Quantity, Reading
from fedtailor.registry import WrongInput

FORMAT = 1
TRAJECTORY = "trajectory.json"  # in the folder of a run
Series = dict[str, list[float | None]]
_DIGITS = 6


@dataclass(frozen=True)
class Record:
    """One run of a cell under one seed."""

    work: Mapping[str, Any]  # of the cell: data, partition, model, method and settings
    seed: int
    complete: bool
    versions: Mapping[str, str]
    clients: tuple[str, ...]
    fingerprint: str  # of the federation
    parameters: Mapping[str, int]
    point: str  # which model was tested
    plan: Mapping[str, Any]  # how it was run
    rounds: tuple[int, ...]  # the tested ones
    macro: Series  # by metric: the mean over clients after each of these rounds
    micro: Series  # by metric: the mean over all test rows
    validation: Series  # by metric: the mean over clients, on validation rows
    bytes: tuple[int, ...]  # exchanged by all clients up to each of these rounds, both ways
    seconds: tuple[float, ...]  # of training up to each of these rounds, without testing
    steps: tuple[int, ...]  # optimiser steps of all clients up to each of these rounds
    end: Mapping[str, list[float | None]]  # by metric: of each client, at the end of the run
    end_counts: tuple[int, ...]  # test rows of each client
    learned: Mapping[str, list[list[float | None]]]  # by name: after each of these rounds, of each client
    curves: Mapping[str, list[list[list[float]]]] = field(default_factory=dict)  # the same of curves, step by step
    trajectory: Mapping[str, Any] = field(default_factory=dict)  # of a client that was followed
    format: int = FORMAT

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)
        path.write_text(text.replace('], "', '],\n "').replace('}, "', '},\n "') + "\n", encoding="utf-8")


def read_record(path: Path) -> Record:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.get("format") != FORMAT:
            raise ValueError(f"it is of format {found.get('format')!r}, and this version reads {FORMAT}")
        for name in ("clients", "rounds", "bytes", "seconds", "steps", "end_counts"):
            found[name] = tuple(found[name])
        return Record(**found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WrongInput(f"{path} is no record of a reproduced run ({error}); keep it again with --keep") from None


def of_run(folder: Path, cell: Cell, seed: int) -> Record | None:
    """The record of a run folder as far as it got; None where nothing has been tested yet."""
    from fedtailor.metrics import per_client, summarise
    from fedtailor.report.read import read_run

    if not (folder / "run.json").exists():
        return None
    run = read_run(folder)
    info, higher = run.info, bool(run.info["higher_is_better"])
    metrics = ("accuracy", "precision") if info["primary"] == "accuracy" else (str(info["primary"]),)

    def means(part: str, row: Mapping[str, Any], metric: str) -> tuple[float | None, float | None]:
        values = per_client(row, part, metric)
        if not any(value is not None for value in values):
            return None, None
        s = summarise(values, row[part]["count"], higher)
        return rounded(s.macro), rounded(s.micro)

    tested = [row for row in run.rounds if row["test"]]
    if not tested:
        return None
    total = {"bytes": 0, "seconds": 0.0, "steps": 0}
    sums: dict[str, list[Any]] = {name: [] for name in total}
    for row in run.rounds:
        total["bytes"] += sum(row["down"]) + sum(row["up"])
        total["seconds"] += row["seconds"]["train"]
        total["steps"] += sum(row["steps"])
        if row["test"]:
            for name, so_far in total.items():
                sums[name].append(round(so_far, 2))
    pairs = {m: [means("test", row, m) for row in tested] for m in metrics}
    checked = {m: [means("validation", row, m)[0] for row in tested] for m in metrics}
    last = run.rows[-1] if run.complete else None
    return Record(
        work=cell.work, seed=seed, complete=run.complete,
        versions={name: str(info[name]) for name in ("fedtailor", "torch", "numpy", "python") if name in info},
        clients=run.clients, fingerprint=str(run.data["fingerprint"]), parameters=info["parameters"],
        point=str(info["point"]), plan=info["plan"], rounds=tuple(row["round"] for row in tested),
        macro={m: [macro for macro, _ in found] for m, found in pairs.items()},
        micro={m: [micro for _, micro in found] for m, found in pairs.items()},
        validation={m: found for m, found in checked.items() if any(value is not None for value in found)},
        bytes=tuple(sums["bytes"]), seconds=tuple(sums["seconds"]), steps=tuple(sums["steps"]),
        end={m: [rounded(v) for v in per_client(last, "test", m)] for m in metrics} if last else {},
        end_counts=tuple(last["test"]["count"]) if last else (),
        learned=learned(tested, len(run.clients), cell.learned) if cell.learned else {},
        curves=curves(tested, len(run.clients), cell.learned) if cell.learned else {},
        trajectory=followed(folder),
    )  # fmt: skip


def learned(rows: Sequence[Mapping[str, Any]], clients: int, prefix: str) -> dict[str, list[list[float | None]]]:
    """The single numbers that clients learned, of names that begin so; the name is kept without that."""
    found: dict[str, list[list[float | None]]] = {}
    for place, row in enumerate(rows):
        for client, told in row["explain"].get("clients", {}).items():
            for name, value in told.items():
                if name.startswith(prefix) and isinstance(value, int | float):
                    series = found.setdefault(name.removeprefix(prefix), [[None] * clients for _ in rows])
                    series[place][int(client)] = rounded(value)
    return found


def curves(rows: Sequence[Mapping[str, Any]], clients: int, prefix: str) -> dict[str, list[list[list[float]]]]:
    """The curves that clients showed, of names that begin so, each up to where it is cut; the name is kept whole."""
    found: dict[str, list[list[list[float]]]] = {}
    for place, row in enumerate(rows):
        for client, told in row["explain"].get("clients", {}).items():
            for name, values in told.items():
                if name.startswith(prefix) and isinstance(values, list):
                    series = found.setdefault(name, [[[] for _ in range(clients)] for _ in rows])
                    series[place][int(client)] = [round(v, _DIGITS) for v in takewhile(lambda v: v is not None, values)]
    return found


def followed(folder: Path) -> dict[str, Any]:
    """What is kept of a client that was followed; nothing in other runs."""
    path = folder / TRAJECTORY
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def rounded(value: float | None) -> float | None:
    """JSON has no NaN: a mean that is no number is None, as in run folders."""
    return None if value is None or not math.isfinite(value) else round(value, _DIGITS)


def read_off(record: Record, reading: Reading) -> float | None:
    """The number that is meant, in per cent or in its own unit; None where the run has none (yet)."""
    if reading.select == "when":
        return reached(record, reading)
    if reading.metric.startswith("learned/"):
        found = last_learned(record, reading)
    elif reading.select == "last":
        found = at_the_end(record, reading)
    else:
        series = series_of(record, reading)
        by = series if reading.select == "best" else record.validation.get(reading.metric, [])
        found = series[best(by)] if any(value is not None for value in by) else None
    return None if found is None else 100 * found


def at_the_end(record: Record, reading: Reading) -> float | None:
    """Of the models that the clients end with."""
    values = record.end.get(reading.metric)
    if not values:
        return None
    if reading.over not in ("macro", "micro"):
        return values[record.clients.index(reading.over)]
    weights = record.end_counts if reading.over == "micro" else [1] * len(values)
    pairs = [(v, w) for v, w, n in zip(values, weights, record.end_counts, strict=True) if n]
    if any(v is None for v, _ in pairs):  # a client that diverged hides in no mean
        return None
    return sum((v or 0.0) * w for v, w in pairs) / sum(w for _, w in pairs)


def last_learned(record: Record, reading: Reading) -> float | None:
    """Of the last tested round: one client's, or the mean over clients."""
    values = record.learned.get(reading.metric.removeprefix("learned/"), [[]])[-1]
    if reading.over in record.clients and values:
        return values[record.clients.index(reading.over)]
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def reached(record: Record, reading: Reading) -> float | None:
    """What it took to reach the target; None where it was not reached."""
    series = series_of(record, reading)
    at = next((i for i, value in enumerate(series) if value is not None and 100 * value >= reading.target), None)
    if at is None:
        return None
    return spent(record, at, reading.quantity)


def spent(record: Record, at: int, quantity: Quantity) -> float:
    """What a run took up to one of its tested rounds."""
    if quantity == "models":  # four bytes a parameter; there and back is one exchange
        return record.bytes[at] / (2 * len(record.clients) * 4 * record.parameters["total"])
    return record.seconds[at] / 60 if quantity == "minutes" else float(record.rounds[at])


def series_of(record: Record, reading: Reading) -> list[float | None]:
    """The mean that is meant, after each tested round."""
    return (record.micro if reading.over == "micro" else record.macro).get(reading.metric, [])


def best(values: Sequence[float | None]) -> int:
    """The first of the highest; rounds without a number are passed over."""
    return max(range(len(values)), key=lambda i: -math.inf if values[i] is None else values[i])  # type: ignore[arg-type,return-value]


def best_round(record: Record, reading: Reading) -> int | None:
    """The round that a number was read off, where it was chosen."""
    if reading.select == "last":
        return None
    series = series_of(record, reading)
    by = series if reading.select == "best" else record.validation.get(reading.metric, [])
    return record.rounds[best(by)] if any(value is not None for value in by) else None
