"""A small federation, network, method and client that put everything to use; and when two records are the same."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor import (
    SGD,
    Arch,
    Callback,
    Client,
    Federation,
    Fitted,
    Method,
    Run,
    RunSpec,
    WrongInput,
    descend,
    registry,
    resume,
    task,
    tree,
)
from fedtailor.nn import Slot
from fedtailor.record import RunFolder

ROUNDS = 6


class SmallNet(nn.Module):
    """Batch norm for running statistics and counters, dropout for torch's own random numbers, a place for attention."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.place = Slot(4)
        self.body = nn.Linear(16, 8)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.max_pool2d(self.place(torch.relu(self.norm(self.conv(x)))), 2).flatten(1)
        out: Tensor = self.head(self.drop(torch.relu(self.body(features))))
        return out


def small_federation() -> Federation:
    """Five clients of different size, one of them smaller than a batch, and a few public rows."""
    sizes = (9, 4, 12, 7, 10)
    held = sum(sizes) + 4 * len(sizes)
    x = torch.randn(held + 3, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    rows = torch.split(torch.arange(held), [part for size in sizes for part in (size, 2, 2)])
    corner = x[:, 0, :3, :3].mean((1, 2))
    return Federation(
        name="small", x=x, y=(corner > -0.2).long() + (corner > 0.2).long(),
        train=rows[0::3], validation=rows[1::3], test=rows[2::3], public=torch.arange(held, held + 3),
        clients=tuple("abcde"), groups=(0, 0, 1, 1, 1), group_names=("some", "others"),
        classes=("dark", "grey", "light"),
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Everything(Method):
    """Not a method of any use: all clients train, and every slot that a site can keep is kept."""

    trains = "all"
    point = "received"

    def personal(self, arch: Any) -> frozenset[str]:
        return arch.norm

    def own_init(self, arch: Any) -> frozenset[str]:
        return arch.head

    def init_client(self, fed: Any, model: Any) -> dict[str, Any]:
        return {"seen": torch.zeros((), dtype=torch.int64), "none": {}, "old": {"model": model}}

    def start(self, client: Client, state: Any, got: Any) -> tuple[Any, Any]:
        model = tree.lerp(state["old"]["model"], got.model, client.random("mix", ()))
        return model, {**state, "seen": state["seen"] + 1}

    def fit(self, client: Client, state: Any, model: Any, got: Any) -> Fitted:
        after = descend(client, model).theta
        return Fitted(after, {**state, "old": {"model": after}}, {"seen": state["seen"].float()})

    def init_server(self, fed: Any, model: Any) -> dict[str, Any]:
        return {"model": model, "empty": {}, "noise": fed.random("noise", (3,)).bfloat16()}

    def aggregate(self, fed: Any, server: Any, uploads: Any, weights: Tensor, cohort: Tensor) -> dict[str, Any]:
        model = tree.mean(uploads["model"], weights)
        return {**server, "model": model, "noise": server["noise"] + fed.random("noise", (3,)).bfloat16()}


def method_named(name: str) -> Method:
    """A registered method with its defaults; a wrapper around FedAvg."""
    if name == "Everything":
        with contextlib.suppress(WrongInput):  # registered here, so that other tests do not find it
            registry.register("method", "Everything")(Everything)
        return Everything()
    needed = [
        parameter
        for parameter in inspect.signature(registry.entry("method", name).factory).parameters.values()
        if parameter.default is parameter.empty
    ]
    method: Method = registry.parse("method", f"{name}(FedAvg())" if needed else name)
    return method


def small_spec(method: Method, **options: Any) -> RunSpec:
    settings: dict[str, Any] = {
        "rounds": ROUNDS, "cohort": 0.6, "epochs": 1, "batch": 5, "lr": 0.1, "momentum": 0.9, "lr_decay": 0.95,
        "finish_epochs": 1, "seed": 5, "checkpoint_every": 1, "model": SmallNet,
    }  # fmt: skip
    return RunSpec(method=method, **{**settings, **options})


# ---------- a client by itself ----------

ROWS = torch.tensor([3, 1, 4, 15, 9, 2, 6, 5, 35, 8, 7])  # eleven of forty
DRAWN = torch.Generator().manual_seed(0)
X = torch.randn(40, 4, generator=DRAWN, dtype=torch.float64)
Y = torch.randint(0, 3, (40,), generator=DRAWN)


def small_net() -> nn.Sequential:
    """In float64, so that rounding hides nothing; the fourth layer is never trained."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    net[3].requires_grad_(False)
    return net.double()


def client_of(net: nn.Module, **changes: Any) -> Client:
    arch = Arch(net)
    settings: dict[str, Any] = {
        "arch": arch, "task": task.of("classification"), "x": X, "y": Y, "rows": ROWS, "seed": 7, "number": 2,
        "round": 3, "rounds": 9, "lr": 0.2, "batch": 4, "epochs": 3, "steps_asked": None, "opt": SGD(),
        "shared": arch.trainable, "private": frozenset(), "smallest": 2,
    }  # fmt: skip
    return Client(**{**settings, **changes})


# ---------- runs ----------


@dataclass
class StopAfter(Callback):
    """Ctrl-C when a round is done."""

    round: int

    def on_round(self, driver: Any, row: Any) -> None:
        if driver.round == self.round:
            raise KeyboardInterrupt


def go_on(path: Path, **options: Any) -> Run:
    """Resume a run of `small_spec` on `small_federation`."""
    return resume(path, federation=small_federation(), model=SmallNet, **options)


# ---------- what is compared ----------


def assert_same_end(killed: Path, whole: Path) -> None:
    """Bit-identical server and clients; identical rows and facts, but for the time."""
    assert_same_state(RunFolder(killed).load(), RunFolder(whole).load())
    assert rows_of(killed) == rows_of(whole)
    facts, others = RunFolder(killed).info(), RunFolder(whole).info()
    assert facts["status"] == "complete"
    assert {**facts, "started": ""} == {**others, "started": ""}
    assert checkpoints_of(killed) == checkpoints_of(whole)


def assert_same_state(one: Any, other: Any) -> None:
    (round_one, state_one, said_one), (round_other, state_other, said_other) = one, other
    assert (round_one, said_one) == (round_other, said_other) == (round_other, [])
    assert outline(state_one) == outline(state_other)
    for path, tensor in tree.flatten(state_other).items():
        assert tree.raw(tree.flatten(state_one)[path]) == tree.raw(tensor), path


def outline(state: Any) -> Any:
    """Names in their order, with types and shapes."""
    if isinstance(state, Tensor):
        return state.dtype, tuple(state.shape)
    return [(key, outline(value)) for key, value in state.items()]


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows = RunFolder(path).rows()
    assert all(row.pop("seconds") for row in rows)
    return rows


def checkpoints_of(path: Path) -> list[str]:
    """The two that are kept; a process killed before it removed the one before them leaves a third."""
    return [file.name for file in RunFolder(path).checkpoints()][:2]
