"""Trained together, every client ends where it ends alone."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedtailor import registry, tree
from fedtailor.data.federation import Federation
from fedtailor.driver import Driver
from fedtailor.local import Client
from fedtailor.method import Fitted, Method, Received
from fedtailor.nn import make
from fedtailor.runners.chain import Chain
from fedtailor.runners.lane_client import LaneClient
from fedtailor.runners.sequential import Sequential
from fedtailor.runners.stacked import Stacked
from fedtailor.toy import SHAPE, ToyNet, double, run, toy_driver, toy_federation
from fedtailor.tree import State, Tree

PAIRINGS = [
    "LocalAttention(Proximal(FedAvg()))", "LocalAttention(FedBN(), kind='se')", "LocalAttention(pFedMe(), kind='ca')",
    "LocalAttention(Ditto())", "ALA(PerFedAvg(variant='HF'))", "ALA(FedRep())", "ALA(pFedMe())", "ALA(Ditto())",
    "ALA(FedAMP())", "ALA(FedPHP())", "ALA(PartialFedAdaptive())", "ComponentAttention(pFedMe())",
    "ALA(LocalAttention(FedBN()), p=2)", "ComponentAttention(LocalAttention(FedAvg()))", "FedHAM(p=1, k=2)",
    "FedHAM(p=1, projection='diag', ham_optimizer='adam')", "PartialFedAdaptive(alpha_optimizer='sgd', merge='hard')",
]  # fmt: skip


def method_of(name: str) -> Method:
    if "(" in name:
        method: Method = registry.parse("method", name)
        return method
    inner = inspect.signature(registry.entry("method", name).factory).parameters.get("inner")
    plugin = inner is not None and inner.default is inner.empty
    found: Method = registry.parse("method", f"{name}(FedAvg())" if plugin else name)
    return found


def equal_clients() -> Federation:
    """The toy federation with seven training rows at each of its first four clients, and seven at the last."""
    whole = toy_federation(torch.float64)
    lists = [*whole.train[:2], whole.train[3]]
    return dataclasses.replace(
        whole, train=tuple(rows[:7] for rows in lists), validation=(*whole.validation[:2], whole.validation[3]),
        test=(*whole.test[:2], whole.test[3][:3]), clients=("a", "b", "c"), groups=(0, 0, 0),
    )  # fmt: skip


class Refuses(Sequential):
    def train(self, work: Any, round: int, examine: bool) -> Any:
        raise AssertionError("a client was trained by itself")


class NoneAlone(Stacked):
    """Fails where a client would be trained by itself."""

    def __init__(self, threads: int):
        super().__init__(threads)
        self.alone = Refuses(threads)


def compared(method: Method, runner: Stacked, **options: Any) -> Driver:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = run(toy_driver(method, **options, runner=Sequential(1)))
        together = run(toy_driver(method, **options, runner=runner))
    left, right = tree.flatten(alone.state), tree.flatten(together.state)
    assert list(left) == list(right)
    for name in left:
        torch.testing.assert_close(right[name], left[name], rtol=1e-9, atol=1e-11, equal_nan=True, msg=name)
    for a, b in zip(alone.rows, together.rows, strict=True):
        for key in ("steps", "down", "up", "stopped", "cohort", "trainers"):
            assert a[key] == b[key]
        assert (a["test"] is None) == (b["test"] is None)
        assert a["test"] is None or a["test"]["accuracy"] == b["test"]["accuracy"]
        assert numbers(a["train_loss"]) == pytest.approx(numbers(b["train_loss"]), rel=1e-5)
        assert a["explain"].keys() == b["explain"].keys()
    return together


def numbers(values: list[float | None]) -> list[float]:
    return [-1.0 if value is None else value for value in values]


class DroppingToyNet(ToyNet):
    """With batch norm and dropout."""

    def __init__(self, classes: int, shape: tuple[int, ...]):
        super().__init__(classes, shape)
        self.insert(len(self) - 1, nn.Dropout(0.3))
        self.double()


@pytest.mark.parametrize("name", [*registry.names("method"), *PAIRINGS])
def test_unequal_clients(name: str) -> None:
    """Sizes 12, 7, 3, 9 and 1 in batches of 4, three of them in a round, with batch norm and dropout."""
    runner = Stacked(1)
    compared(method_of(name), runner, model=DroppingToyNet, federation=toy_federation(torch.float64))
    assert not runner.refused


@pytest.mark.parametrize("name", [*registry.names("method"), *PAIRINGS])
def test_equal_clients_are_really_stacked(name: str) -> None:
    method = method_of(name)
    lonely = method.pools or "k=2" in name  # clusters of one and of two see different numbers of peers
    runner = Stacked(1) if lonely else NoneAlone(1)
    compared(method, runner, model=double, federation=equal_clients(), cohort=1.0)


class Dropping(nn.Sequential):
    def __init__(self, classes: int, shape: tuple[int, ...]):
        super().__init__(nn.Flatten(), nn.Linear(12, 6), nn.Dropout(0.4), nn.ReLU(), nn.Linear(6, classes))
        self.double()


def linear(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return make("dnn", classes=classes, shape=shape, seed=0).double()


def bare(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return ToyNet(classes, shape, norm=False).double()


@pytest.mark.parametrize("model", [linear, bare, Dropping])
@pytest.mark.parametrize("name", ["FedAvg", "Proximal(FedAvg(), mu=0.5)", "Ditto", "FedHAM(p=1)", "pFedMe", "SCAFFOLD"])
def test_networks_of_every_kind(name: str, model: Any) -> None:
    """A chain of linear layers, a convolution, dropout; the first two are trained with batches that are filled up."""
    federation = toy_federation(torch.float64)
    runner = Stacked(1)
    compared(method_of(name), runner, model=model, federation=federation, cohort=1.0)
    assert not runner.refused


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 5}, {"epochs": 3, "momentum": 0.0}, {"batch": 0, "momentum": 0.0}, {"weight_decay": 0.01},
        {"clip": 0.3}, {"lr_decay": 0.5, "momentum": 0.0, "weight_decay": 0.1}, {"point": "trained"},
        {"weighting": "uniform", "buffers": "local"}, {"eval_every": 2},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("model", [double, linear])
def test_settings_of_every_kind(options: dict[str, Any], model: Any) -> None:
    compared(method_of("FedAvg"), Stacked(1), model=model, federation=toy_federation(torch.float64), **options)


PULLED = [
    "FedProx(mu=0.5)", "Ditto(lam=0.3)", "FedAMP", "FedMCSA(sigma=10, lam=2)", "FedMCSA(lam=2, inner_steps=2)",
    "ALA(FedProx(mu=0.3))", "Proximal(Ditto(lam=0.3), mu=0.5)",
]  # fmt: skip


@pytest.mark.parametrize("name", PULLED)
@pytest.mark.parametrize("options", [{"epochs": 2}, {"weight_decay": 0.1, "steps": 5}], ids=str)
def test_pulls_stay_on_the_chain(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps written out, with the pull's part in their losses; each step of each client one of them."""
    taken: list[int] = []
    written_out = Chain.step

    def step(self: Chain, links: Any, x: Tensor, *rest: Any) -> Tensor:
        taken.append(len(x))
        return written_out(self, links, x, *rest)

    monkeypatch.setattr(Chain, "step", step)
    settings: dict[str, Any] = {"model": linear, "federation": toy_federation(torch.float64), "momentum": 0.0}
    driver = compared(method_of(name), Stacked(1), **settings, **options)
    assert sum(taken) >= sum(sum(row["steps"]) for row in driver.rows) - driver.spec.rounds  # all but clients left over


def test_chunks_change_nothing() -> None:
    """With room for one, two or all clients in a chunk."""
    for room in (1, 20_000, 1 << 30):
        compared(method_of("FedBN"), Stacked(1, room), model=double, federation=equal_clients(), cohort=1.0)


def test_float32_agrees_after_a_round() -> None:
    """The tolerance that is stated: 1e-5 of the largest value after one round; noise grows from there by training."""
    for name in ("FedAvg", "FedBN", "Ditto"):
        ends = []
        for runner in (Sequential(1), Stacked(1)):
            driver = run(toy_driver(method_of(name), runner=runner, cohort=1.0), 1)
            ends.append(tree.flatten(driver.state))
        for key, value in ends[0].items():
            torch.testing.assert_close(ends[1][key], value, rtol=1e-5, atol=1e-5, msg=key)


@dataclasses.dataclass(frozen=True, repr=False)
class Looks(Method):
    """Looks at a value, which no stack of clients can answer."""

    def start(self, client, state, got):  # type: ignore[no-untyped-def]
        return (got.model if sum(t.sum() for t in got.model.values()).item() > -1e9 else {}), state


def test_a_method_that_cannot_be_stacked_is_run_one_by_one_and_says_so() -> None:
    runner = Stacked(1)
    driver = toy_driver(Looks(), runner=runner, cohort=1.0)
    with pytest.warns(UserWarning, match=r"Looks\(\) runs its clients one by one: item"):
        run(driver)
    assert driver.round == 4 and "item" in runner.refused
    alone = run(toy_driver(Looks(), runner=Sequential(1), cohort=1.0))
    assert torch.equal(alone.server["model"]["0.weight"], driver.server["model"]["0.weight"])


def test_a_client_that_diverges_is_told_apart() -> None:
    federation = equal_clients()
    x = federation.x.clone()
    x[federation.train[1]] *= 1e200  # only the second client's loss is no number
    federation = dataclasses.replace(federation, x=x)
    options = {"model": bare, "federation": federation, "cohort": 1.0, "on_nan": "drop", "lr": 0.1, "rounds": 2}
    together = compared(method_of("FedAvg"), NoneAlone(1), **options)
    assert together.rows[0]["stopped"] == [1]


def test_clients_are_told_what_differs() -> None:
    driver = toy_driver(method_of("FedAvg"), runner=Sequential(1))
    client = LaneClient.of([site.client(1) for site in driver.sites])
    for ask in (lambda: client.size, lambda: client.steps, lambda: len(client.rows), lambda: client.x[client.rows]):
        with pytest.raises(Exception, match="differ"):
            ask()
    drawn = client.random("noise", (2,))
    for i, site in enumerate(driver.sites):
        own: Tensor = site.client(1).random("noise", (2,))
        assert torch.equal(drawn.as_subclass(Tensor)[i], own)
    assert client.x.shape[1:] == SHAPE


STEPPING = ["pFedMe(mu=0.01)", "ComponentAttention(pFedMe())", "PerFedAvg", "PerFedAvg(variant='HF')"]


@pytest.mark.parametrize("name", STEPPING)
def test_single_batches_of_unequal_clients_are_filled_up(name: str) -> None:
    """As many steps at all, and last batches of different length: nobody is trained alone."""
    federation = toy_federation(torch.float64)
    compared(method_of(name), NoneAlone(1), model=linear, federation=federation, steps=5, cohort=1.0)


@dataclasses.dataclass(frozen=True, repr=False)
class Counting(Method):
    """Looks into its batches, where rows that only fill them up would count."""

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        for view in client.each_batch():
            for batch in view.batches(steps=1):
                shift = batch.x.mean()
                model = {name: x + 0.01 * shift for name, x in model.items()}
        return Fitted(model, state)


def test_a_batch_that_is_filled_up_is_shown_to_nobody() -> None:
    federation = toy_federation(torch.float64)
    compared(Counting(), Stacked(1), model=linear, federation=federation, steps=5, cohort=1.0)
