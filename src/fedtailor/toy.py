"""A toy federation that is over in milliseconds and spares a method nothing.

Its clients are unequal: one is smaller than a batch, one holds a single row, and only some take part in a round.
"""

from __future__ import annotations

import warnings
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor import schedule
from fedtailor.data.federation import Federation
from fedtailor.driver import Driver
from fedtailor.method import Method, MethodNote
from fedtailor.nn.attention import Slot
from fedtailor.runners.sequential import Sequential
from fedtailor.spec import RunSpec

SIZES = (12, 7, 3, 9, 1)  # training rows of the clients; a batch is 4
SHAPE = (2, 2, 3)  # of a row: two channels of 2 x 3


def toy_federation(dtype: torch.dtype = torch.float32) -> Federation:
    """Five unequal clients with a linear rule of three classes, shifted from client to client."""
    draw = schedule.rng(0, "toy")
    x, y, lists = [], [], dict[str, list[Tensor]](train=[], validation=[], test=[])
    rule, rows = draw.normal(size=(prod(SHAPE), 3)), 0
    for client, size in enumerate(SIZES):
        features = draw.normal(loc=0.3 * client, size=(size + 6, prod(SHAPE)))
        x.append(features.reshape(-1, *SHAPE))
        y.append((features @ rule + 0.5 * draw.normal(size=(size + 6, 3))).argmax(1))
        for part, count in (("train", size), ("validation", 2), ("test", 4)):
            lists[part].append(torch.arange(rows, rows + count))
            rows += count
    return Federation(
        name="toy", x=torch.from_numpy(np.concatenate(x)).to(dtype), y=torch.from_numpy(np.concatenate(y)),
        clients=tuple(f"site-{i}" for i in range(len(SIZES))), groups=(0, 0, 1, 1, 1), group_names=("a", "b"),
        classes=("0", "1", "2"), train=tuple(lists["train"]),
        validation=tuple(lists["validation"]), test=tuple(lists["test"]),
    )  # fmt: skip


class ToyNet(nn.Sequential):
    """A convolution of single pixels, with batch norm or without, a place for attention, and a linear layer."""

    def __init__(self, classes: int, shape: tuple[int, ...], norm: bool = True):
        middle = [nn.BatchNorm2d(3)] if norm else []
        features = 3 * prod(shape[1:])
        super().__init__(
            nn.Conv2d(shape[0], 3, 1), *middle, nn.ReLU(), Slot(3), nn.Flatten(), nn.Linear(features, classes)
        )


def without_norm(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return ToyNet(classes, shape, norm=False)


def double(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return ToyNet(classes, shape).double()


def toy_driver(method: Method, **options: Any) -> Driver:
    """A driver of the toy federation: three of five clients a round, batches of four."""
    settings: dict[str, Any] = {"model": ToyNet, "rounds": 4, "cohort": 3, "batch": 4, "lr": 0.1, "momentum": 0.5}
    federation = options.pop("federation", None) or toy_federation()
    runner = options.pop("runner", None) or Sequential(1)
    kind = options.pop("kind", Driver)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MethodNote)  # a toy network may well make a plug-in inert
        driver: Driver = kind(RunSpec(method=method, **{**settings, **options}), federation, runner)
    return driver


def run(driver: Driver, rounds: int | None = None) -> Driver:
    for _ in range(driver.spec.rounds if rounds is None else rounds):
        driver.step()
    return driver
