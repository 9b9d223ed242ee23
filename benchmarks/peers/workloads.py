"""What is measured: five federations, and how fast others are to be left behind.

W1 and W2 are Fashion-MNIST where FEDTAILOR_DATA names a folder that has it, else random numbers of the same shape, on
which the work is the same; the others are random.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedtailor import Dataset, schedule
from fedtailor.data import dirichlet
from fedtailor.nn import make
from peers.bundle import Bundle, Settings

SEED = 0
MODES = ("one core", "default threads", "default threads, with evaluation")
ONE, ALL, TESTED = MODES


@dataclass(frozen=True)
class Workload:
    name: str
    about: str
    model: str
    shape: tuple[int, ...]
    clients: int
    cohort: int
    rows: int  # of each client to train on; with `uneven`, their mean
    tests: int
    batch: int
    lr: float
    classes: int = 10
    uneven: bool = False  # Dirichlet(0.1)
    fashion: bool = False
    beside: tuple[str, ...] = ("fluke", "pfl")
    targets: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (mode, beside whom) -> times as fast
    dearer: Mapping[str, float] = field(default_factory=dict)  # method -> times FedAvg's cost, at most

    @property
    def modes(self) -> tuple[str, ...]:
        return MODES if self.beside else (ONE, ALL)


def targets(one: tuple[float, float], tested: tuple[float, float]) -> dict[tuple[str, str], float]:
    """Of fluke and pfl, training on one core and training with evaluation on the default threads; and how near this
    package is to come to a loop written for the network."""
    found = {(ONE, peer): value for peer, value in zip(("fluke", "pfl"), one, strict=True)} | {(ONE, "by_hand"): 0.85}
    return found | {(TESTED, peer): value for peer, value in zip(("fluke", "pfl"), tested, strict=True)}


# What methods may cost, in times FedAvg. Learning the attention of FedHAM is a second pass over the data; its own |X| d
# multiplications are a three hundredth of a batch's here. PartialFed with soft weights ends in an epoch of its own.
HAM_AT_MOST = 2.01

WORKLOADS = (
    Workload(
        "W1 MLR", "10 of 20 clients, 20 steps of 20 rows", "mlr", (1, 28, 28), clients=20, cohort=10, rows=400,
        tests=100, batch=20, lr=0.005, fashion=True, targets=targets((6, 6), (8, 8)),
        dearer={"FedProx": 1.1, "FedMCSA": 1.1},
    ),
    Workload(
        "W1 DNN", "10 of 20 clients, 20 steps of 20 rows", "dnn", (1, 28, 28), clients=20, cohort=10, rows=400,
        tests=100, batch=20, lr=0.005, fashion=True, targets=targets((3.5, 3.5), (5, 5)),
        dearer={"FedProx": 1.1, "FedMCSA": 1.1},
    ),
    Workload(
        "W2 CNN4", "20 clients, Dirichlet(0.1), an epoch in batches of 10", "cnn4", (1, 28, 28), clients=20, cohort=20,
        rows=220, tests=73, batch=10, lr=0.005, uneven=True, fashion=True, targets=targets((1.4, 1.4), (2, 2)),
        dearer={"FedALA": 1.4},
    ),
    Workload(
        "W3 LeNet+BN", "5 domains, 62 steps of 32 rows", "lenet_bn", (3, 28, 28), clients=5, cohort=5, rows=62 * 32,
        tests=500, batch=32, lr=0.01, targets=targets((1.4, 1.4), (1.3, 1.3)),
        dearer={
            "FedBN": 1.1, "FedPer": 1.1, "pFedLA(kind='se')": 1.05, "pFedLA(kind='eca')": 1.05,
            "pFedLA(kind='ca')": 1.4, "pFedLA(kind='hybrid')": 1.4, "PartialFedAdaptive": 2.1,
            "PartialFedAdaptive(merge='hard')": 1.1,
        },
    ),
    Workload(
        "W4 GRU", "8 of 42 clients, 48 time steps of 13 numbers, 10 steps of 32 rows", "gru", (48, 13), clients=42,
        cohort=8, rows=320, tests=80, batch=32, lr=0.01, classes=5, beside=(),
        targets={(ONE, "plain"): 1.8, (ALL, "plain"): 1.8}, dearer={"FedHAM(p=1, k=3)": HAM_AT_MOST},
    ),
    Workload(
        "W5 ResNet-18", "4 clients, 5 steps of 32 rows of 3 x 32 x 32", "resnet18", (3, 32, 32), clients=4, cohort=4,
        rows=160, tests=40, batch=32, lr=0.01, beside=(),
        targets={(ONE, "plain"): 1.0, (ALL, "plain"): 1.3},
    ),
)  # fmt: skip


def origin(workload: Workload) -> str:
    """Where the numbers come from."""
    return "Fashion-MNIST" if workload.fashion and fashion_file() is not None else "random numbers"


def bundle(workload: Workload) -> Bundle:
    """The federation as tensors, with the first model."""
    total = workload.clients * (workload.rows + workload.tests)
    x, y = rows_of(workload, total)
    if workload.uneven:
        share = workload.tests / (workload.rows + workload.tests)
        dataset = Dataset(workload.name, x, y, tuple(map(str, range(workload.classes))))
        parts = dirichlet(alpha=0.1, clients=workload.clients, validation=0.0, test=share).cut(dataset, SEED)
        train, test = list(parts.train), list(parts.test)
    else:
        lists = torch.split(torch.arange(total), [workload.rows, workload.tests] * workload.clients)
        train, test = list(lists[0::2]), list(lists[1::2])
    net = make(workload.model, classes=workload.classes, shape=workload.shape, seed=SEED)
    settings = Settings(workload.name, workload.model, workload.classes, workload.batch, workload.lr, workload.cohort)
    return Bundle(settings, x, y, train, test, dict(net.state_dict()))


def rows_of(workload: Workload, total: int) -> tuple[Tensor, Tensor]:
    file = fashion_file() if workload.fashion else None
    if file is not None:
        return fashion(file, total)
    random = torch.Generator().manual_seed(SEED)
    x = torch.randn(total, *workload.shape, generator=random)
    return x, torch.randint(0, workload.classes, (total,), generator=random)


def fashion_file() -> Path | None:
    folder = os.environ.get("FEDTAILOR_DATA")
    file = Path(folder) / "fashion_mnist.npz" if folder else None
    return file if file is not None and file.is_file() else None


def fashion(file: Path, total: int) -> tuple[Tensor, Tensor]:
    """The first training images: they are stored as tiles of 28 x 28, row by row, on large sheets."""
    tiles: list[np.ndarray] = []
    with np.load(file, allow_pickle=False) as stored:
        while sum(map(len, tiles)) < total:
            sheet = np.asarray(Image.open(io.BytesIO(stored[f"train_sheet_{len(tiles):02d}"].tobytes())).convert("L"))
            high, wide = sheet.shape[0] // 28, sheet.shape[1] // 28
            tiles.append(sheet.reshape(high, 28, wide, 28).swapaxes(1, 2).reshape(-1, 1, 28, 28))
        labels = stored["train_labels"][:total].astype(np.int64)
    x = np.concatenate(tiles)[:total].astype(np.float32) / 255
    return torch.from_numpy(x), torch.from_numpy(labels)


def to_compare(whole: Bundle, batches: float) -> tuple[Bundle, Bundle]:
    """A small federation for one round of this package, with so many batches of each client; and that round for others:
    its cohort, with the rows in the order in which this package takes them."""
    settings = whole.settings
    train = [rows[: int(batches * settings.batch)] for rows in whole.train]
    cohort = schedule.draw_cohort(SEED, 1, len(train), settings.cohort)
    taken = [schedule.epoch_order(SEED, 1, client, 0, 0, train[client]) for client in cohort]
    test = [whole.test[client] for client in cohort]
    others = replace(whole, settings=replace(settings, ordered=True), train=taken, test=test)
    return replace(whole, train=train), others
