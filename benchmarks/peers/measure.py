"""One piece of the measurement: a workload in one mode, all software in turn."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from peers.bundle import Bundle
from peers.line import Process
from peers.workloads import ALL, TESTED, Workload, bundle, origin, to_compare

BLOCK = 0.1  # seconds; rounds that take less are timed several at a time
WARM_UP = 1  # and one more, which tells how many make a block; what a method does once is done by then
PAUSE = 0.02  # seconds between two blocks, in which waiting threads fall asleep
# How far results may be apart, in units of the largest change of a value. In float64 after several steps; in float32
# after one, since the next may already see another side of a ReLU or another maximum, where rounding has moved a value.
SAME = {"float64": 1e-5, "float32": 1e-3}  # one peer takes differences in float32 whatever it trains in
BATCHES = {"float64": 3.5, "float32": 1}


class Differs(RuntimeError):
    """Two do not compute the same."""


@dataclass(frozen=True)
class Effort:
    """How long a piece is measured."""

    least: int  # repetitions
    most: int
    seconds: float


@dataclass(frozen=True)
class Entrant:
    """One that takes part: an adapter, and for this package a method."""

    adapter: str
    python: Path
    method: str = "FedAvg"

    @property
    def name(self) -> str:
        return self.adapter if self.method == "FedAvg" else self.method


@dataclass
class Times:
    """Seconds of a round, one number a repetition."""

    passed: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def measured(workload: Workload, mode: str, entrants: Sequence[Entrant], effort: Effort, cache: Path) -> dict[str, Any]:
    """All entrants on one workload, in turn; then what they compute is compared."""
    began = time.perf_counter()
    whole, logs, one_core = bundle(workload), cache / "logs", mode not in (ALL, TESTED)
    logs.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=cache) as folder, ExitStack() as stack:
        scratch = Path(folder)
        processes = {
            entrant: stack.enter_context(
                closing(
                    Process(entrant.python, entrant.adapter, logs / f"{place} {entrant.adapter}.log", one_core, scratch)
                )
            )
            for place, entrant in enumerate(entrants)
        }
        for process in processes.values():
            process.hear()  # that it is there: whoever prepares now has the machine for itself
        whole.save(scratch / "whole.npz")
        for entrant, process in processes.items():
            options = {"method": entrant.method, "evaluate": mode == TESTED}
            process.ask(do="prepare", bundle=str(scratch / "whole.npz"), options=options)
        times = in_turn(processes, effort)
        facts = {entrant.name: process.ask(do="tell") for entrant, process in processes.items()}
        training = {one: process for one, process in processes.items() if one.adapter != "peak"}
        apart = {kind: compare(whole, training, kind, facts["ours"].get("plan"), scratch) for kind in SAME}
    return {
        "workload": workload.name, "mode": mode, "data": origin(workload),
        "rows": sum(map(len, whole.train)), "flop": flop_of_a_round(whole),
        "date": datetime.now(UTC).isoformat(timespec="minutes"), "load": os.getloadavg(),
        "seconds": round(time.perf_counter() - began, 1), "apart": apart,
        "entrants": {
            entrant.name: {**facts[entrant.name], "passed": taken.passed, "processor": taken.processor}
            for entrant, taken in times.items()
        },
    }  # fmt: skip


def in_turn(processes: Mapping[Entrant, Process], effort: Effort) -> dict[Entrant, Times]:
    """Each does a block of rounds, then the next; who begins moves on with every repetition."""
    counts = {}
    for entrant, process in processes.items():
        process.ask(do="rounds", count=WARM_UP)
        once = process.ask(do="rounds", count=1)["passed"]
        counts[entrant] = max(1, math.ceil(BLOCK / max(once, 1e-6)))
    times = {entrant: Times() for entrant in processes}
    order, began = list(processes), time.perf_counter()
    for repetition in range(effort.most):
        if repetition >= effort.least and time.perf_counter() - began > effort.seconds:
            break
        for entrant in order:
            time.sleep(PAUSE)
            answer = processes[entrant].ask(do="rounds", count=counts[entrant])
            times[entrant].passed.append(answer["passed"] / counts[entrant])
            times[entrant].processor.append(answer["processor"] / counts[entrant])
        order = [*order[1:], order[0]]
    return times


def compare(
    whole: Bundle, processes: Mapping[Entrant, Process], kind: str, plan: Mapping[str, Any] | None, scratch: Path
) -> dict[str, float]:
    """How far each is after a round from the plain loop in float64, in units of the largest change of a value. This
    package does it by the same plan as when it was timed."""
    plain = next((process for entrant, process in processes.items() if entrant.adapter == "plain"), None)
    if plain is None:
        return {}
    files = {"ours": scratch / "ours.npz", "others": scratch / "others.npz"}
    for file, one in zip(files.values(), to_compare(whole, BATCHES[kind]), strict=True):
        one.save(file)
    right = after_a_round(plain, files["others"], {"double": True})
    change = farthest(right, {name: value.numpy() for name, value in whole.values.items()})
    trained = {name for name, _ in whole.net().named_parameters()}
    apart = {}
    for entrant, process in processes.items():
        file = files["ours" if entrant.adapter == "ours" else "others"]
        found = after_a_round(process, file, {"double": kind == "float64", "plan": plan})
        if not trained <= found.keys():
            raise Differs(f"{entrant.name} gives no {', '.join(sorted(trained - found.keys()))}")
        apart[entrant.name] = farthest(found, right) / change
        if not apart[entrant.name] <= SAME[kind]:
            raise Differs(
                f"{entrant.name} does not compute what the plain loop does: after a round in {kind} they are "
                f"{apart[entrant.name]:.1e} of the largest change apart; allowed are {SAME[kind]}"
            )
    return apart


def after_a_round(process: Process, path: Path, options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    saved = path.with_suffix(".after.npz")
    process.ask(do="prepare", bundle=str(path), options=options)
    process.ask(do="rounds", count=1)
    process.ask(do="save", path=str(saved))
    with np.load(saved, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def farthest(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """The largest difference of two numbers, counters aside; NaN where there is one."""
    floating = [name for name, value in one.items() if np.issubdtype(value.dtype, np.floating)]
    return float(np.max([np.abs(one[name] - other[name]).max() for name in floating]))


def flop_of_a_round(whole: Bundle) -> float:
    """Operations of the matrix products and convolutions of a round, forward and backward, as torch counts them."""
    settings, net = whole.settings, whole.net()
    rows = whole.train[0][: settings.batch]
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(net(whole.x[rows]), whole.y[rows]).backward()
    share = settings.cohort / len(whole.train)
    return float(counter.get_total_flops() / len(rows) * share * sum(map(len, whole.train)))
