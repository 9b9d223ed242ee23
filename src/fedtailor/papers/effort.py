"""How long a cell takes, told before it is run and without running anything.

Steps are counted as the run will take them; a step costs a fixed time and a time for each of its rows, measured for
each network on one core; methods that do more than plain training have a factor. A short loop of plain Python then
tells how fast this machine is against that one. Expect a factor of two either way.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable

from fedtailor.papers.preset import Cell

# seconds for a step of one client, and for each row of it, trained on one core
COSTS: dict[str, tuple[float, float]] = {
    "MLR": (20e-6, 2.5e-6), "DNN": (40e-6, 4e-6), "LeNet": (1.5e-3, 60e-6), "CNN": (1.5e-3, 220e-6),
    "GRU": (3e-3, 550e-6), "AlexNet": (10e-3, 2.2e-3), "ResNet-18": (30e-3, 4e-3), "fastText": (300e-6, 64e-6),
}  # fmt: skip
# work of a client against plain training; of nested methods the factors are multiplied
FACTORS = {
    "pFedMe": 5.2, "Ditto": 2.0, "PerFedAvg": 2.0, "FedHAM": 2.5, "AdaptiveLocalAggregation": 1.3, "FedALA": 1.3,
    "FedRep": 1.6, "FedFomo": 3.0, "APPLE": 4.0, "FedAvgC": 11.0, "FedProxC": 11.0, "TunedStart": 11.0, "FedPHP": 1.4,
    "PartialFedAdaptive": 1.3, "FedHealth": 1.5, "FedMCSA": 1.3, "ComponentAttention": 1.2, "LocalAttention": 1.3,
    "SCAFFOLD": 1.2, "HeurFedAMP": 1.2, "FedAMP": 1.2,
}  # fmt: skip
ALL_TRAIN = ("FedMCSA(", "ComponentAttention(")  # every client in every round, whoever is drawn
FIRST_STAGE = 30  # epochs in which ALA's weights converge, where its cap is not lower
FORWARD = 0.35  # of a row tested against one trained on
START = 1.0  # seconds to read the data and set up
LOOP = 0.0115  # seconds of the loop below on the core that the costs were measured on


def machine() -> float:
    """How many times slower than the core of the measurements this one is."""
    best = math.inf
    for _ in range(3):
        began = time.process_time()  # whatever else runs here
        total = 0
        for number in range(200_000):
            total += number & 3
        best = min(best, time.process_time() - began)
    return best / LOOP


def seconds(cell: Cell) -> float:
    """Of one run of a cell, on the core of the measurements."""
    problem, settings = cell.problem, cell.settings
    step, row = COSTS[problem.network]
    rounds, each = settings["rounds"], problem.rows / problem.clients
    batch = min(settings["batch"] or each, each)
    epoch = math.ceil(each / batch)
    steps = settings.get("steps") or settings.get("epochs", 1) * epoch
    steps = rounds * steps + weight_learning(cell) * epoch
    train = trainers(cell) * steps * (step + batch * row)
    tests = rounds / settings.get("eval_every", 1) * problem.tests * row * FORWARD
    return float(START + factor(cell.method) * train + tests)


def weight_learning(cell: Cell) -> float:
    """Epochs of ALA in its first stage, and beyond one a round, which its factor does not hold; on 80 % of the rows."""
    if "FedALA(" not in cell.method and "AdaptiveLocalAggregation(" not in cell.method:
        return 0.0
    given = {name: int(value) for name, value in re.findall(r"(cap|later_epochs|after)=(\d+)", cell.method)}
    first = min(FIRST_STAGE, given.get("cap", FIRST_STAGE))
    rounds: int = cell.settings["rounds"] - given.get("after", 0)
    return 0.8 * (first + rounds * max(0, given.get("later_epochs", 1) - 1))


def trainers(cell: Cell) -> float:
    cohort = cell.settings.get("cohort", 1.0)
    if isinstance(cohort, float) or any(name in cell.method for name in ALL_TRAIN):
        return cell.problem.clients * (cohort if isinstance(cohort, float) else 1.0)
    return float(cohort)


def factor(method: str) -> float:
    return math.prod(FACTORS.get(name, 1.0) for name in re.findall(r"\w+(?=\()", method))


def estimate(cells: Iterable[Cell], seeds: int = 1, processes: int = 0) -> float:
    """Seconds on this machine, with so many cells at a time; all cores if none is given."""
    works = {cell.folder: seconds(cell) for cell in cells}
    return machine() * seeds * sum(works.values()) / (processes or os.cpu_count() or 1)
