"""Per-FedAvg: a global model that is good after one gradient step on a client's own data.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020.

    minimise mean_i f_i(w - alpha grad f_i(w))
    client i, per step, with independent batches D, D', D'':
        v <- w - alpha grad f(w; D);  g <- grad f(v; D')                          Alg. 1
        FO:  w <- w - beta g
        HF:  w <- w - beta (g - alpha d),
             d = [grad f(w + delta g; D'') - grad f(w - delta g; D'')] / (2 delta)          Hessian of f times g
    w <- sum_i n_i / n * w_i

Deviations: (1) clients are weighted by size in the mean; the paper's mean is uniform. (2) The step from w to w is the
run's optimiser (momentum, weight decay and clipping, where the run has them); the step to v is always plain. (3)
Running statistics of batch norm follow the passes at v only: v is the model that is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtailor.arch import Arch
from fedtailor.local import Batch, Client
from fedtailor.method import Fitted, Method, Received, require, worth_trying
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "PerFedAvg")
@dataclass(frozen=True, repr=False)
class PerFedAvg(Method):
    """Meta-learning: the global model is trained for, and tested after, one gradient step on each client's data."""

    variant: Literal["FO", "HF"] = "FO"  # without the Hessian, or with its product by differences of gradients
    alpha: float | None = None  # $\\alpha$: rate of the adapting step; None: the run's
    beta: float | None = None  # $\\beta$: rate of the training step; None: the run's
    delta: float = 1e-3  # $\\delta$

    grid = worth_trying(alpha=(0.003, 0.01, 0.03))
    point = "adapted"
    paper = "Fallah et al., NeurIPS 2020"
    citation = """@inproceedings{fallah2020personalized,
  title     = {Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach},
  author    = {Fallah, Alireza and Mokhtari, Aryan and Ozdaglar, Asuman},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year      = {2020}
}"""

    def __post_init__(self) -> None:
        require(self.variant in ("FO", "HF"), "PerFedAvg", f"variant={self.variant!r} must be 'FO' or 'HF'")
        for name in ("alpha", "beta"):
            rate = getattr(self, name)
            allowed = rate is None or 0 <= rate < math.inf
            require(allowed, "PerFedAvg", f"{name}={rate} must be finite and 0 or more, or None: the run's lr")
        require(0 < self.delta < math.inf, "PerFedAvg", f"delta={self.delta} must be above 0, such as 0.001")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.alpha == 0:
            yield "PerFedAvg: with alpha=0 there is no adapting step, so this is FedAvg"
        if self.beta == 0:
            yield "PerFedAvg: with beta=0 the global model never moves"
        if self.variant == "FO" and self.delta != PerFedAvg.delta:
            yield f"PerFedAvg: delta={self.delta} has no effect with variant='FO', which leaves the Hessian out"

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        alpha, beta = self.rate(client), client.lr if self.beta is None else self.beta
        w, memory = {name: tensor.clone() for name, tensor in model.items()}, State()
        # the batches of the step itself are those of plain training, so that alpha=0 is FedAvg
        for outer, inner, third in client.streams(3):
            v = self.adapt(client, w, inner, alpha)
            g, loss, buffers = slope(client, v, outer)
            move = g
            if self.variant == "HF":
                hessian_g = self.along(client, w, g, third)
                move = {name: x - alpha * hessian_g[name] for name, x in g.items()}
            memory = client.opt.step(w, move, memory, beta)
            w.update(buffers)
            client.meter.add([loss])
        return Fitted(w, state)

    def personalised(self, client: Client, state: State, got: Received) -> Tree:
        for batch in client.batches(steps=1):  # none, where the client has too few rows for a step
            return self.adapt(client, got.model, batch, self.rate(client))
        return got.model

    def rate(self, client: Client) -> float:
        return client.lr if self.alpha is None else self.alpha

    def adapt(self, client: Client, w: Tree, batch: Batch, alpha: float) -> Tree:
        """v = w - alpha grad f(w; D)."""
        g, _, _ = slope(client, w, batch)
        return {name: x - alpha * g[name] if name in g else x for name, x in w.items()}

    def along(self, client: Client, w: Tree, g: Tree, batch: Batch) -> Tree:
        """d, close to the Hessian at w times g."""
        ahead, behind = (
            slope(client, {n: x + sign * self.delta * g[n] if n in g else x for n, x in w.items()}, batch)[0]
            for sign in (1, -1)
        )
        return {name: (ahead[name] - behind[name]) / (2 * self.delta) for name in g}


def slope(client: Client, model: Tree, batch: Batch) -> tuple[Tree, Tensor, Tree]:
    """The gradient of the local objective over what is trained, the objective, and the buffers after the pass."""
    names = [name for name in model if name in client.arch.trainable]
    model = {name: x.detach().requires_grad_(name in names) for name, x in model.items()}
    loss, buffers = client.loss(model, batch)
    slopes = torch.autograd.grad(loss, [model[name] for name in names], allow_unused=True)
    return {n: g for n, g in zip(names, slopes, strict=True) if g is not None}, loss.detach(), buffers
