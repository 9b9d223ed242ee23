"""What servers that mix models need: every client's last model, how alike they are, and their mixtures.

`keep` and `remember` make the part of a server's state that holds the models, stacked over all clients, and the round
in which each came in. Likeness is measured in float64. `mix` gives one model for each client: float buffers are mixed
like weights, of integer counters the largest is taken, and equal values are their own mixture, as in `tree.mean`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.tree import State, Tree

COLUMNS = 1 << 20  # of all models at a time, so that float64 copies stay small


def keep(model: Tree, n: int) -> State:
    """The state of a server that knows n clients, none of which has sent anything yet."""
    return {"models": tree.expand(model, n), "seen": torch.zeros(n, dtype=torch.int64)}


def remember(kept: State, models: Tree, cohort: Tensor, round: int) -> State:
    """The state after the clients of `cohort` sent their models."""
    seen: Tensor = kept["seen"]
    return {
        "models": tree.put(kept["models"], cohort, models),
        "seen": seen.index_fill(0, cohort.to(seen.device), round),
    }


def newest(kept: State) -> Tensor:
    """The clients whose models came in last."""
    seen: Tensor = kept["seen"]
    return (seen == seen.max()).nonzero()[:, 0]


def mix(models: Tree, weights: Tensor) -> Tree:
    """Row i is sum_j weights[i, j] * model j; the weights of a row are not negative and sum to 1."""

    def mixed(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return torch.zeros_like(x) + x.amax(0)
        precise = flat(x.double() if x.dtype is torch.float64 else x.float())
        least, most = precise.amin(0), precise.amax(0)
        return (weights.to(precise) @ precise).clamp(least, most).to(x.dtype).reshape(x.shape)

    return {name: mixed(x) for name, x in models.items()}


def cosines(models: Tree, names: Collection[str]) -> Tensor:
    """cos(model i, model j) over `names`: 1 between two zero vectors, 0 between a zero vector and another."""
    products = square(models)
    for part in parts(models, names):
        products += part @ part.T
    norms = products.diagonal().sqrt()
    zero = norms == 0
    cosine = products / (norms[:, None] * norms).clamp(min=torch.finfo(torch.float64).tiny)
    return torch.where(zero[:, None] & zero, 1.0, cosine).clamp(-1.0, 1.0).fill_diagonal_(1.0)


def squared_distances(models: Tree, names: Collection[str]) -> Tensor:
    """||model i - model j||^2 over `names`; exactly zero between equal models."""
    total = square(models)
    for part in parts(models, names):
        total += torch.cdist(part, part, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total


def square(models: Tree) -> Tensor:
    """Zeros, a row and a column for each client."""
    first = next(iter(models.values()))
    return first.new_zeros(len(first), len(first), dtype=torch.float64)


def parts(models: Tree, names: Collection[str]) -> Iterator[Tensor]:
    """The models as matrices in float64, a row for each client, some columns at a time."""
    for name, x in models.items():
        if name in names:
            yield from (part.double() for part in torch.split(flat(x), COLUMNS, dim=1))


def flat(x: Tensor) -> Tensor:
    return x.reshape(len(x), x[0].numel())
