"""What the tests of the command line share: a plugin to call it with, and how to look at what it left."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor import registry

FINDS_US = {"PYTHONPATH": str(Path(fedtailor.__file__).parents[1])}  # for processes that tests start

PLUGIN = '''
"""A toy dataset, and methods that misbehave when the environment asks for it."""

import os
import time

import torch

from fedtailor import Dataset, FedAvg, Fitted, register
from dataclasses import dataclass


@register("data", "toy")
def toy() -> Dataset:
    """Pictures of one bright corner."""
    draw = torch.Generator().manual_seed(1)
    y = torch.arange(96) % 3
    x = torch.rand(96, 1, 16, 16, generator=draw)
    for label in range(3):
        x[y == label, :, : 5 * (label + 1), :5] += 0.5
    settings = dict(rounds=2, batch=8, lr=0.1)
    return Dataset("toy", x, y, ("a", "b", "c"), model="mlr", partition="iid(clients=4)", settings=settings)


@register("method", "Moody")
@dataclass(frozen=True, repr=False)
class Moody(FedAvg):
    """FedAvg that stops, fails, sleeps or explodes in the round that the environment names."""

    def fit(self, client, state, model, got):
        time.sleep(float(os.environ.get("MOODY_SLEEPS", "0")))
        if os.environ.get("MOODY_STOPS") == str(client.round):
            raise KeyboardInterrupt
        if os.environ.get("MOODY_FAILS") == str(client.round):
            raise ZeroDivisionError("no such luck")
        fitted = super().fit(client, state, model, got)
        if os.environ.get("MOODY_EXPLODES") == str(client.round):
            return Fitted({name: value * float("nan") for name, value in fitted.model.items()}, fitted.state)
        return fitted
'''


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Call = Callable[..., Ended]


def forget_plugins(patch: pytest.MonkeyPatch) -> None:
    """The names known now are those known when `patch` is undone."""
    for kind in registry._entries:
        registry.names(kind)  # the package registers its own once, when they are first asked for
    patch.setattr(registry, "_entries", {kind: dict(found) for kind, found in registry._entries.items()})


def untimed(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run without its seconds."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
