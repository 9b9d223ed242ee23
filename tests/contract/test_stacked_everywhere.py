"""Every method, on the networks of its paper and in the pairings that papers claim, trains its clients in one stack.

A method that ran its clients one by one after all would be right, and slow without anybody's knowing: it fails here.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from small import method_named
from torch import Tensor

from fedtailor import Driver, Federation, Method, RunSpec, WrongInput, registry
from fedtailor.lanes import rules
from fedtailor.runners.sequential import Sequential
from fedtailor.runners.stacked import Stacked

CLIENTS, ROWS = 3, 8

PICTURES: dict[str, tuple[int, ...]] = {
    "mlr": (1, 6, 6), "dnn": (1, 6, 6), "cnn4": (1, 16, 16), "lenet_bn": (3, 16, 16), "alexnet_small": (1, 28, 28),
    "resnet18": (3, 32, 32), "mobilenet_v2": (3, 32, 32), "alexnet_bn": (3, 63, 63),
}  # fmt: skip
GRU, FASTTEXT = "gru(hidden=6)", "fasttext(vocabulary=30)"

# who is compared on a paper's networks, beside the paper's own
FEDALA = (
    "FedALA", "FedAvg", "FedProx", "FedAvgC", "FedProxC", "PerFedAvg", "FedRep", "pFedMe", "Ditto", "FedAMP", "FedPHP",
    "FedFomo", "APPLE", "PartialFedAdaptive", "Local",
)  # fmt: skip
PAPERS: dict[str, tuple[str, ...]] = {
    "mlr": ("FedMCSA", "FedMCSAWithoutAttention", "FedAvg", "FedProx", "PerFedAvg", "pFedMe", "HeurFedAMP", "FedAMP"),
    "cnn4": FEDALA,
    FASTTEXT: FEDALA,
    "resnet18": ("FedALA",),
    "alexnet_small": ("FedHAM", "FedAMP", "FedAvg", "Local", "FedSGD", "FTL"),
    "mobilenet_v2": ("FedHAM",),
    GRU: ("FedHAM", "FedHealth", "FTL", "FedAMP", "FedAvg", "FedPer", "FedAvgFT"),
    "lenet_bn": (
        *registry.names("method"),
        # what the papers' plug-ins are combined with: pFedLA, FedALA, FedMCSA; and what is new here
        *(f"LocalAttention({inner})" for inner in ("Proximal(FedAvg())", "FedBN(), kind='ca'", "pFedMe()", "Ditto()")),
        *(f"ALA({inner})" for inner in (
            "FedProx()", "PerFedAvg(variant='HF')", "FedRep()", "pFedMe()", "Ditto()", "FedAMP()", "FedPHP()",
            "PartialFedAdaptive()",
        )),
        "ComponentAttention(pFedMe())", "ComponentAttention(LocalAttention(FedAvg()))", "ALA(LocalAttention(FedBN()))",
    ),
    "dnn": tuple(registry.names("method")),
}  # fmt: skip


class Alone(Sequential):
    def train(self, *_: Any) -> Any:
        raise AssertionError("a client was trained by itself")


def inputs(model: str) -> Tensor:
    drawn, rows = torch.Generator().manual_seed(0), CLIENTS * ROWS
    if model == GRU:
        return torch.randn(rows, 5, 4, generator=drawn)
    if model == FASTTEXT:
        return torch.randint(0, 30, (rows, 7), generator=drawn)
    return torch.randn(rows, *PICTURES[model], generator=drawn)


def federation(model: str, sizes: tuple[int, ...] = (6, 6, 6)) -> Federation:
    rows = torch.arange(CLIENTS * ROWS).split(ROWS)
    train = tuple(some[:size] for some, size in zip(rows, sizes, strict=True))
    return Federation(
        "paper", inputs(model), torch.arange(CLIENTS * ROWS) % 3, train,
        (torch.empty(0, dtype=torch.int64),) * CLIENTS, tuple(r[6:] for r in rows), tuple("abc"), (0,) * CLIENTS,
        ("all",), tuple("xyz"),
    )  # fmt: skip


def written(name: str) -> Method:
    """A method as named; FedALA's weights are learned in two passes, not in up to a hundred."""
    method: Method = registry.parse("method", name) if "(" in name else method_named(name)
    return dataclasses.replace(method, cap=2) if hasattr(method, "cap") else method  # type: ignore[type-var]


@pytest.fixture
def by_vmap(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Any]]:
    """Functions that have no rule, and none in torch.vmap either, so that they are done lane by lane."""
    found: set[Any] = set()
    monkeypatch.setattr(rules, "_without_vmap", found)
    yield found


def check(name: str, model: str, by_lane: set[Any], sizes: tuple[int, ...] = (6, 6, 6), **work: int) -> None:
    method = written(name)
    spec = RunSpec(method, model=model, rounds=2, batch=3, lr=0.01, **(work or {"steps": 1}))
    runner = Stacked(1, room=1 << 33)  # also where it would take much memory
    if not method.pools:  # a single client is alone
        runner.alone = Alone(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            driver = Driver(spec, federation(model, sizes), runner)
        except WrongInput as refused:  # such as FedBN on a network without norms
            assert "choose" in str(refused) or "such as" in str(refused)
            return
        driver.step()
        driver.step()
    assert not runner.refused
    assert by_lane <= {torch.histc}, "operations of training that are done client by client"


CASES = [(name, model) for model, names in PAPERS.items() for name in dict.fromkeys(names)]


@pytest.mark.parametrize(("name", "model"), CASES)
def test_is_trained_in_one_stack(name: str, model: str, by_vmap: set[Any]) -> None:
    check(name, model, by_vmap)


# What asks for the clients' numbers of steps in Python, or takes several steps on each batch, trains unequal clients
# with those of their own size.
BY_SIZE = ("SCAFFOLD", "FedHealth", "pFedMe", "PerFedAvg", "PartialFedAdaptive", "kind='ca'")


@pytest.mark.parametrize("model", ["dnn", "lenet_bn"])
@pytest.mark.parametrize("name", [name for name in PAPERS["lenet_bn"] if not any(part in name for part in BY_SIZE)])
def test_unequal_clients_are_trained_in_one_stack(name: str, model: str, by_vmap: set[Any]) -> None:
    """Two batches, a full one and a short one, and one that is smaller than a batch."""
    check(name, model, by_vmap, sizes=(6, 5, 2), epochs=1)


LARGE = [("alexnet_bn", "pFedLA"), ("alexnet_bn", "FedBN"), ("resnet18", "PartialFedAdaptive"), ("resnet18", "FedBN")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("model", "name"), LARGE)
def test_the_largest_networks_are_trained_in_one_stack(name: str, model: str, by_vmap: set[Any]) -> None:
    check(name, model, by_vmap)


def test_a_fallback_would_be_noticed(by_vmap: set[Any]) -> None:
    looks: Callable[..., Any] = lambda self, client, state, got: (  # noqa: E731
        got.model if sum(t.sum() for t in got.model.values()).item() > -1e9 else {}, state
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry.entry("method", "FedAvg").factory, "start", looks)
        with pytest.raises(AssertionError, match="trained by itself"):
            check("FedAvg", "dnn", by_vmap)
