"""How long is a round of FedAvg beside the same round written by hand in plain PyTorch?

    python benchmarks/plain_loop.py [repetitions]

The loop written by hand is the fastest ordinary one: tensors in memory, one `nn.Module` and `torch.optim.SGD`, every
batch gathered by its row numbers, which are drawn beforehand. Both train the same clients on the same batches from the
same model, turn by turn in one process on one thread, and must reach the same model. Compared are

    a client's round   values in, local training, values out                   with `take_part`
    a whole round      the clients of a cohort and their mean, one by one      with `Driver.step`
    in one stack       the same by the stacked runner

Prints a table in Markdown and the same as JSON. Ratios are medians over repetitions of ours / plain, of processor time
and of time passed: the first is steady on a busy machine. The aim is 1.3 or less, one by one.
"""

from __future__ import annotations

import copy
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import fedtailor
from fedtailor import Driver, FedAvg, Federation, Received, RunSpec, schedule
from fedtailor.runners import Runner
from fedtailor.runners.sequential import Sequential
from fedtailor.runners.stacked import Stacked
from fedtailor.site import take_part

AIM = 1.3
WARM_UP = 3
SAME = 1e-4  # of the largest change of a value: what rounding in float32 leaves
Values = dict[str, Tensor]


@dataclass(frozen=True)
class Workload:
    """A model of this package on samples of one shape: `clients` train `steps` batches each."""

    name: str
    model: str
    shape: tuple[int, ...]
    batch: int
    steps: int
    clients: int
    lr: float

    def driver(self, runner: Runner) -> Driver:
        rows = self.batch * self.steps
        drawn = torch.Generator().manual_seed(0)
        x = torch.randn(self.clients * (rows + 1), *self.shape, generator=drawn)
        parts = torch.split(torch.arange(len(x)), [rows, 1] * self.clients)
        federation = Federation(
            name=self.name, x=x, y=torch.randint(0, 10, (len(x),), generator=drawn), train=parts[0::2],
            validation=(torch.empty(0, dtype=torch.int64),) * self.clients, test=parts[1::2],
            clients=tuple(f"client-{i}" for i in range(self.clients)), groups=(0,) * self.clients,
            group_names=("all",), classes=tuple("0123456789"),
        )  # fmt: skip
        endless = 10**6  # rounds, so that no round is the last, and none is examined
        spec = RunSpec(FedAvg(), model=self.model, batch=self.batch, lr=self.lr, rounds=endless, eval_every=endless)
        return Driver(spec, federation, runner)


WORKLOADS = (
    Workload("MLR, 784 inputs, batch 20, 20 steps", "mlr", (1, 28, 28), batch=20, steps=20, clients=10, lr=0.005),
    Workload("DNN, 784 inputs, batch 20, 20 steps", "dnn", (1, 28, 28), batch=20, steps=20, clients=10, lr=0.005),
    Workload("LeNet+BN, 28 x 28 x 3, batch 32, 5 steps", "lenet_bn", (3, 28, 28), 32, steps=5, clients=5, lr=0.01),
    Workload("CNN4, 28 x 28, batch 10, 10 steps", "cnn4", (1, 28, 28), batch=10, steps=10, clients=2, lr=0.005),
)


# ---------- the loop written by hand ----------


class PlainLoop:
    """FedAvg as one would write it for a single experiment."""

    def __init__(self, driver: Driver, lr: float):
        self.driver, self.lr = driver, lr
        self.x, self.y = driver.data.x, driver.data.y
        self.net = copy.deepcopy(driver.arch.net).train()
        self.model: Values = {name: value.clone() for name, value in driver.initial.items()}

    def batches(self, round: int) -> list[list[Tensor]]:
        """The row numbers of each client's batches, as this package draws them."""
        seed, batch = self.driver.spec.seed, self.driver.spec.batch
        return [
            list(torch.split(schedule.epoch_order(seed, round, client, 0, 0, rows), batch))
            for client, rows in enumerate(self.driver.data.train)
        ]

    def client(self, model: Values, batches: list[Tensor]) -> Values:
        self.net.load_state_dict(model)
        optimiser = torch.optim.SGD(self.net.parameters(), lr=self.lr)
        for rows in batches:
            optimiser.zero_grad()
            nn.functional.cross_entropy(self.net(self.x[rows]), self.y[rows]).backward()
            optimiser.step()
        return {name: value.detach().clone() for name, value in self.net.state_dict().items()}

    def round(self, batches: list[list[Tensor]]) -> None:
        trained = [self.client(self.model, some) for some in batches]
        self.model = {name: mean([one[name] for one in trained]) for name in self.model}


def mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(0) if values[0].is_floating_point() else values[0]


# ---------- measuring ----------


def seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Processor time and time passed."""
    processor, passed = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - passed


def difference(ours: Values, plain: Values, before: Values) -> float:
    """The largest difference between two results, in units of the largest change."""
    names = [name for name in before if before[name].is_floating_point()]
    change = max(float((plain[name] - before[name]).abs().max()) for name in names)
    return max(float((ours[name] - plain[name]).abs().max()) for name in names) / change


def check_same(workload: Workload) -> float:
    """Both reach the same model in a round; how far apart they are."""
    drivers = [workload.driver(Sequential(1)), workload.driver(Stacked(1))]
    plain = PlainLoop(drivers[0], workload.lr)
    plain.round(plain.batches(1))
    for driver in drivers:
        driver.step()
    apart = max(difference(driver.server["model"], plain.model, driver.initial) for driver in drivers)
    if apart > SAME:
        raise SystemExit(f"{workload.name}: the loops do not compute the same; they are {apart:.1e} apart")
    return apart


def measure(workload: Workload, repetitions: int) -> list[dict[str, Any]]:
    """A row for the client's round and one for the whole round."""
    apart = check_same(workload)
    driver, stacked = workload.driver(Sequential(1)), workload.driver(Stacked(1))
    plain = PlainLoop(driver, workload.lr)
    times: dict[str, list[tuple[tuple[float, float], tuple[float, float]]]] = {"client": [], "round": [], "stack": []}
    for repetition in range(-WARM_UP, repetitions):
        number = driver.round + 1
        batches, model = plain.batches(number), plain.model
        pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "client": (
                lambda n=number: take_part(driver.sites[0], driver.kept[0], Received(driver.server["model"]), n, False),
                lambda m=model, b=batches: plain.client(m, b[0]),
            ),
            "round": (driver.step, lambda b=batches: plain.round(b)),
            "stack": (stacked.step, lambda b=batches: plain.round(b)),
        }
        for what, (our_work, plain_work) in pairs.items():
            if repetition % 2:
                theirs, ours = seconds(plain_work), seconds(our_work)
            else:
                ours, theirs = seconds(our_work), seconds(plain_work)
            if repetition >= 0:
                times[what].append((ours, theirs))
    whole = f"a whole round, {workload.clients} clients"
    labels = {"client": "a client's round", "round": whole, "stack": f"{whole}, in one stack"}
    return [
        {
            "workload": workload.name, "part": labels[what],
            "plain_ms": round(1000 * statistics.median(theirs[0] for _, theirs in pairs), 3),
            "ours_ms": round(1000 * statistics.median(ours[0] for ours, _ in pairs), 3),
            "ratio_processor": round(statistics.median(ours[0] / theirs[0] for ours, theirs in pairs), 3),
            "ratio_passed": round(statistics.median(ours[1] / theirs[1] for ours, theirs in pairs), 3),
            "apart": apart,
        }
        for what, pairs in times.items()
    ]  # fmt: skip


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 41
    torch.set_num_threads(1)
    rows = [row for workload in WORKLOADS for row in measure(workload, repetitions)]
    print("| workload | part | plain, ms | ours, ms | ratio, processor | ratio, passed |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        keys = ("workload", "part", "plain_ms", "ours_ms", "ratio_processor", "ratio_passed")
        print("|", " | ".join(str(row[key]) for key in keys), "|")
    machine = {
        "fedtailor": fedtailor.__version__, "torch": torch.__version__, "python": platform.python_version(),
        "machine": platform.machine(), "threads": torch.get_num_threads(), "repetitions": repetitions, "aim": AIM,
    }  # fmt: skip
    print(json.dumps({**machine, "rows": rows}))


if __name__ == "__main__":
    main()
