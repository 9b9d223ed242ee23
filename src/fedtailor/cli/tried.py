"""What a method keeps, sends and shows, found by trying it on a federation of a few rows."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence

import torch

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.cli.catalogue import CLIENTS
from fedtailor.data.federation import Federation
from fedtailor.driver import Driver
from fedtailor.method import Method, Wrapper
from fedtailor.methods.fedavg import FedAvg
from fedtailor.nn import make
from fedtailor.registry import Entry
from fedtailor.site import take_part
from fedtailor.spec import RunSpec
from fedtailor.tree import State

SEES = {"sums": "sums of uploads only", "models": "single clients' models"}
WHOLE = "the whole model"
ROUNDS = 100


def facts(found: Entry) -> Iterator[str]:
    """What a method keeps, sends and shows, found by trying it; of a user's own, perhaps why that failed."""
    needed = [p for p in inspect.signature(found.factory).parameters.values() if p.default is p.empty]
    try:
        method = found.factory(**{p.name: FedAvg() for p in needed})
    except (TypeError, ValueError):
        return
    if not isinstance(method, Method):
        return
    try:
        stays, traffic = _trial(method)
    except Exception as error:  # of a user's own method: the list goes on
        yield f"could not be tried on lenet_bn: {type(error).__name__}: {error}"
        stays = traffic = "?"
    around = f"; here around {FedAvg()!r}" if needed else ""
    public = " and the public rows" if method.public_share else ""
    sees = "everybody's rows" if method.pools else "nothing" if stays == WHOLE else f"{SEES[method.sees]}{public}"
    yield f"stays at the client: {stays}{around}"
    yield f"traffic: {traffic}; the server sees {sees}"
    tuned = f", and after {method.finish_epochs} epochs of tuning at the end" if method.finish_epochs else ""
    yield f"tested: {method.point}{tuned}; {'; '.join(_papers(method)) or 'no paper stated'}"
    tries = [f"{name} {', '.join(map(str, values))}" for name, values in _grid(method)]
    yield f"`fedtailor tune` tries: {'; '.join([*tries, 'three learning rates'])}"


def _grid(method: Method) -> Iterator[tuple[str, tuple[object, ...]]]:
    """The values worth trying of all that a method is made of, the outermost first."""
    yield from method.grid.items()
    if isinstance(method, Wrapper):
        yield from _grid(method.inner)


def _papers(method: Method) -> list[str]:
    """Of all that a method is made of, the innermost first; FedAvg's where there is no other."""
    inside = [method]
    while isinstance(inside[-1], Wrapper):
        inside.append(inside[-1].inner)
    papers = [part.paper for part in reversed(inside) if part.paper]
    return list(dict.fromkeys([paper for paper in papers if paper != FedAvg.paper] or papers))


def _trial(method: Method) -> tuple[str, str]:
    """What stays at a client and what travels, in words, of LeNet with batch norm: it has every kind of layer.

    One client takes part in a first round, all others are given its upload, and what it then exchanges half way through
    the run is counted.
    """
    n, none = CLIENTS, torch.empty(0, dtype=torch.int64)
    rows = torch.arange(4 * n)
    images = torch.rand(4 * n, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    federation = Federation(
        name="tried", x=images, y=rows % 10, clients=tuple(map(str, range(n))), groups=(0,) * n, group_names=("all",),
        classes=tuple("0123456789"), train=torch.split(rows, 4), validation=(none,) * n, test=(none,) * n,
    )  # fmt: skip
    spec = RunSpec(method=method, model="lenet_bn", rounds=ROUNDS, batch=0, steps=1, lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        driver = Driver(spec, federation)
        public = driver.public_due(0) > 0
        everybody = range(driver.data.n)
        _, upload, driver.kept[0] = exchange(driver, 0, everybody, 1)
        driver.server = driver.aggregate(driver.fed(1), driver.server, dict.fromkeys(everybody, upload))
        down, up, _ = exchange(driver, 0, everybody, ROUNDS // 2)
    base = Arch(make("lenet_bn", classes=10, shape=(3, 28, 28), seed=0))
    received, sent = (tree.nbytes(way) / tree.nbytes(base.values()) for way in (down, up))
    traffic = f"{_models(received)} down, {_number(sent)} up" if received or sent else "none"
    if method.pools:
        traffic = "the rows themselves, before the first round"
    return _stays(driver, frozenset(base.names)), f"{traffic}, and the public rows once" if public else traffic


def _number(value: float) -> str:
    """With two digits, or as a whole number where it is one."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _models(value: float) -> str:
    return f"{_number(value)} model{'' if _number(value) == '1' else 's'}"


def _stays(driver: Driver, base: frozenset[str]) -> str:
    """What never leaves the client, in words."""
    arch, personal = driver.arch, driver.private
    groups = {
        "normalisation layers": arch.norm, "last layer": arch.head, "the layers it adds": frozenset(arch.names) - base
    }  # fmt: skip
    words = [name for name, names in groups.items() if names and names <= personal]
    others = len(personal - frozenset().union(*groups.values()))
    words += [f"{others} further tensors"] if others else []
    words = [WHOLE] if personal == frozenset(arch.names) else words
    state, own = driver.kept[0]["method"], set[str]()
    while state is not None:
        own |= state.keys() - {"inner"}
        state = state.get("inner")
    words += [f"a state of its own ({', '.join(sorted(own))})"] if own else []
    return ", ".join(words) or "nothing"


def exchange(driver: Driver, number: int, cohort: Sequence[int], round: int) -> tuple[State, State, State]:
    """What one client of a cohort receives, sends and keeps in a round."""
    payload = driver.common.method.send(driver.fed(round), driver.server, torch.tensor(cohort))
    got = driver.message(payload, cohort.index(number), number)
    reply = take_part(driver.sites[number], driver.kept[number], got, round, examine=False)
    down = {"model": got.model, "extra": got.extra, "peers": got.peers}
    return down, dict(reply.upload or {}), dict(reply.kept or {})
