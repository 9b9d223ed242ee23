"""Small federations whose losses are squares, so that methods have closed forms. Everything is float64.

A client of `squares` minimises curvature / 2 * (w - centre)^2, one number that can be followed by hand; the clients of
`regressions` have two features and noise, and are for the references in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor import Driver, Federation, Method, RunSpec

SIZES = (2, 3, 5)
Rows = list[tuple[np.ndarray, np.ndarray]]


class Line(nn.Module):
    """y = x . w, one parameter vector and nothing else."""

    def __init__(self, *start: float):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w).unsqueeze(1)


class TwoLayers(nn.Module):
    """A body and a head, both linear and without a bias: the least that FedPer and FedRep can split."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2, bias=False, dtype=torch.float64)
        self.head = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.body.weight.copy_(torch.tensor([[0.5, -0.2], [0.1, 0.8]], dtype=torch.float64))
            self.head.weight.copy_(torch.tensor([[1.0, -0.5]], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def federation(rows: Rows) -> Federation:
    """Client i trains on rows[i] and is tested on a copy of its first row."""
    sizes = [len(y) for _, y in rows]
    ends = np.cumsum(sizes)
    total, n = int(ends[-1]), len(rows)
    return Federation(
        name="made",
        x=torch.from_numpy(np.concatenate([x for x, _ in rows] + [x[:1] for x, _ in rows])),
        y=torch.from_numpy(np.concatenate([y for _, y in rows] + [y[:1] for _, y in rows])),
        train=tuple(torch.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)),
        validation=(torch.empty(0, dtype=torch.int64),) * n,
        test=tuple(torch.tensor([total + i]) for i in range(n)),
        clients=tuple(f"site {i}" for i in range(n)),
        groups=(0,) * n,
        group_names=("all",),
        classes=("value",),
        task="regression",
    )


def squares(centres: Sequence[float], curvatures: Sequence[float], sizes: Sequence[int]) -> Federation:
    """Rows x = sqrt(h / 2), y = x * centre, all alike: their mean squared error is h / 2 * (w - centre)^2."""
    rows = []
    for centre, curvature, size in zip(centres, curvatures, sizes, strict=True):
        x = np.full((size, 1), (curvature / 2) ** 0.5)
        rows.append((x, x[:, 0] * centre))
    return federation(rows)


def regressions(sizes: Sequence[int] = SIZES, seed: int = 0, dtype: type = np.float64) -> Rows:
    """Two features, a slope of its own for each client, and noise."""
    draw = np.random.default_rng(seed)
    rows = []
    for size in sizes:
        x = draw.normal(size=(size, 2))
        y = x @ draw.normal(size=2) + 0.3 * draw.normal(size=size)
        rows.append((x.astype(dtype), y.astype(dtype)))
    return rows


def play(method: Method, data: Federation, model: nn.Module, rounds: int, **options: Any) -> Driver:
    """A driver after `rounds` rounds; the whole local set is one batch unless asked otherwise."""
    spec = RunSpec(**{"method": method, "model": model, "rounds": max(rounds, 1), "batch": 0, "lr": 0.1, **options})
    driver = Driver(spec, data)
    for _ in range(rounds):
        driver.step()
    return driver


def step_telling(driver: Driver) -> dict[int, list[int]]:
    """One more round; whose models each client of its cohort was sent."""
    before, method = driver.server, driver.common.method
    row = driver.step()
    payload = method.send(driver.fed(row["round"]), before, torch.tensor(row["cohort"]))
    assert payload.peer_ids is not None
    return {i: [j for j in ids if j >= 0] for i, ids in zip(row["cohort"], payload.peer_ids.tolist(), strict=True)}


def common(driver: Driver) -> dict[str, Tensor]:
    """The server's model, under any wrappers."""
    state = driver.server
    while "inner" in state:
        state = state["inner"]
    return state["model"]


def w_of(driver: Driver) -> float:
    """The server's only number, in a federation of squares."""
    return float(common(driver)["w"])


def left(lr: float, curvature: float, steps: int) -> float:
    """What `steps` of gradient descent leave of the distance to the centre: (1 - lr h)^K."""
    return (1 - lr * curvature) ** steps


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
