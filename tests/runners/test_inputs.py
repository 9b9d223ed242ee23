"""Pictures as bytes, texts and sequences: stacked or one by one, a client ends where it would alone."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from fedtailor import RunSpec, registry, tree
from fedtailor.data.federation import Federation
from fedtailor.driver import Driver
from fedtailor.nn import make
from fedtailor.runners.sequential import Sequential
from fedtailor.runners.stacked import Stacked

SIZES = (300, 7, 12)  # of the clients; more than a byte counts, in one batch


def federation(x: torch.Tensor) -> Federation:
    rows = torch.split(torch.arange(sum(SIZES)), SIZES)
    tested = tuple(some[:5] for some in torch.split(torch.arange(sum(SIZES), len(x)), 5))[:3]
    return Federation(
        "inputs", x, torch.arange(len(x)) % 3, rows, ((torch.empty(0, dtype=torch.int64)),) * 3, tested,
        ("a", "b", "c"), (0, 0, 0), ("all",), ("k", "l", "m"),
    )  # fmt: skip


def pictures() -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (sum(SIZES) + 15, 1, 16, 16), generator=draw).to(torch.uint8)


def in_double(model: str, **options: Any) -> Any:
    def made(classes: int, shape: tuple[int, ...]) -> nn.Module:
        return make(model, classes=classes, shape=shape, seed=0, **options).double()

    return made


def played(x: torch.Tensor, model: Any, runner: Any, method: str = "FedAvg", batch: int = 280) -> Driver:
    spec = RunSpec(method=registry.parse("method", method), model=model, rounds=2, epochs=2, batch=batch, lr=0.05)
    driver = Driver(spec, federation(x), runner)
    for _ in range(2):
        driver.step()
    return driver


def agree(one: Driver, other: Driver) -> None:
    left, right = tree.flatten(one.state), tree.flatten(other.state)
    assert list(left) == list(right)
    for name in left:
        torch.testing.assert_close(right[name], left[name], rtol=1e-9, atol=1e-11, msg=name)
    for a, b in zip(one.rows, other.rows, strict=True):
        assert a["test"]["accuracy"] == b["test"]["accuracy"]


@pytest.mark.parametrize("model", ["mlr", "dnn", "cnn4", "lenet_bn"])
@pytest.mark.parametrize("runner", [Sequential, Stacked])
def test_bytes_are_numbers_from_minus_one_to_one(model: str, runner: Any) -> None:
    """Black is -1, white is 1, and 51 (a fifth of 255) is -0.6."""
    x = pictures()
    x[0, 0, 0, :3] = torch.tensor([0, 255, 51])
    numbers = x.double() / 127.5 - 1
    assert numbers[0, 0, 0, :3].tolist() == [-1, 1, pytest.approx(-0.6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(played(numbers, in_double(model), Sequential(1)), played(x, in_double(model), runner(1)))
    kept = federation(x)
    rows = torch.tensor([0, 3])
    torch.testing.assert_close(kept.inputs(rows), numbers[rows].float())
    assert torch.equal(federation(numbers).inputs(rows), numbers[rows])
    whole = dataclasses.replace(kept, x=x.float())
    assert kept.fingerprint() != whole.fingerprint()


@pytest.mark.parametrize("name", ["FedALA", "Ditto", "FedPHP", "FedFomo(M=2)", "LocalAttention(FedBN())", "FedHealth"])
def test_bytes_with_methods_that_look_at_the_rows_themselves(name: str) -> None:
    numbers = pictures().double() / 127.5 - 1
    arguments = (in_double("lenet_bn"), Sequential(1), name, 20)
    agree(played(numbers, *arguments), played(pictures(), *arguments))


def sequences() -> torch.Tensor:
    return torch.randn(sum(SIZES) + 15, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def texts() -> torch.Tensor:
    return torch.randint(0, 20, (sum(SIZES) + 15, 5), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("x", "model", "options"), [
    (sequences(), "gru(hidden=7)", {}), (texts(), "fasttext(vocabulary=20)", {"words": 19}),
])  # fmt: skip
@pytest.mark.parametrize("method", ["FedAvg", "FedALA", "Ditto"])
def test_sequences_and_texts(x: torch.Tensor, model: str, options: dict[str, Any], method: str) -> None:
    """In a stack, or one by one with a word of warning where there is no rule for these layers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*runs its clients one by one")
        stacked = played(x, in_double(model, **options), Stacked(1), method, 20)
    agree(played(x, in_double(model, **options), Sequential(1), method, 20), stacked)
