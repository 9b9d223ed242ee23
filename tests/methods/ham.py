"""FedHAM in bare PyTorch, from Algorithms 1 and 2 of the paper and its equations 3 to 15.

Nothing here imports fedtailor. What is drawn at random comes in from outside: the first Theta, the matrix of the
sketch, the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Model = dict[str, Tensor]
Batches = Callable[[int, int, int, int], Sequence[tuple[Tensor, Tensor]]]  # of a round, client, stream and epochs

LAYERS = {"1": ("q1", "k1", "t1"), "2": ("q2", "k2", "t2")}


@dataclass
class Settings:
    p: int = 1
    layers: str = "both"
    cosine: bool = False
    centred: bool = False
    adam: tuple[str, ...] = ("1",)  # the layers that Adam learns
    ham_lr: float = 0.05
    lam: float = 1.0
    exact: bool = False
    every_epoch: bool = False
    lr: float = 0.1
    lr_decay: float = 1.0
    epochs: int = 2
    base: dict[str, float] = field(default_factory=dict)  # momentum and weight decay of the steps on x_i


class Client:
    """Theta_i, its optimisers, and x_i; before the first round x_i is nothing."""

    def __init__(self, theta: Model, s: Settings):
        self.theta = {name: w.detach().clone().requires_grad_() for name, w in theta.items()}
        self.x: Model | None = None
        self.alpha: list[float] = []
        self.beta: list[float] = []
        self.norms = [0.0, 0.0]
        self.optimisers: dict[str, torch.optim.Optimizer] = {}
        for layer, names in LAYERS.items():
            parts = [self.theta[name] for name in names if name in theta]
            adam = layer in s.adam
            self.optimisers[layer] = torch.optim.Adam(parts, lr=s.ham_lr) if adam else torch.optim.SGD(parts)

    def adam(self, name: str, slot: str) -> Any:
        layer = name[-1]
        return self.optimisers[layer].state[self.theta[name]][slot]


def fedham(
    net: nn.Module,
    sizes: Sequence[int],
    cohorts: Sequence[Sequence[int]],
    theta: Model,
    phi: Callable[[Model], Tensor],
    batches: Batches,
    s: Settings,
) -> tuple[Model, list[Client]]:
    """The server's model and the clients after a round for each cohort."""
    glob: Model = {name: value.clone() for name, value in net.state_dict().items()}
    clients = [Client(theta, s) for _ in sizes]
    sent: dict[int, Model] = {}
    for t, cohort in enumerate(cohorts, start=1):
        known, lr = dict(sent), s.lr * s.lr_decay ** (t - 1)  # all clients of a round hear of the same models
        for i in cohort:
            client = clients[i]
            if t <= s.p:
                client.x = descend(net, glob, batches(t, i, 0, s.epochs), lr, s)  # Eq. 12
            else:
                x = glob if client.x is None else client.x
                others = {j: known[j] for j in known if j != i and s.layers != "second"}
                turns, epochs = (s.epochs, 1) if s.every_epoch else (1, s.epochs)
                for turn in range(turns):
                    learn(net, client, x, glob, others, phi, batches(t, i, 2 * turn + 1, epochs), lr, s)
                    with torch.no_grad():
                        x, alpha, beta = ham(net, client.theta, x, glob, list(others.values()), phi, s)  # Eq. 14
                    x = descend(
                        net, x, batches(t, i, 2 * turn, epochs), lr, s,
                        also=lambda x, client=client, others=others, glob=glob:
                            ham(net, client.theta, x, glob, list(others.values()), phi, s)[0],
                    )  # fmt: skip
                client.x = x
                client.beta = beta.tolist()
                client.alpha = [0.0] * len(sizes)
                for j, weight in zip(others, alpha.tolist(), strict=False):  # alone there is one weight, on x^g
                    client.alpha[j] = weight
            sent[i] = client.x
        total = sum(sizes[i] for i in cohort)  # Algorithm 1, line 8
        glob = {
            name: sum(sizes[i] / total * sent[i][name] for i in cohort)
            if value.is_floating_point() else max(sent[i][name] for i in cohort)
            for name, value in glob.items()
        }  # fmt: skip
    return glob, clients


def loss(net: nn.Module, model: Model, x: Tensor, y: Tensor) -> tuple[Tensor, Model]:
    """The mean squared error, and the buffers after the pass, which changes those it is given."""
    buffers = {name: model[name].detach().clone() for name, _ in net.named_buffers()}
    out = functional_call(net.train(), {**model, **buffers}, (x,))
    return (out[:, 0] - y).square().mean(), buffers


def descend(
    net: nn.Module,
    start: Model,
    batches: Sequence[tuple[Tensor, Tensor]],
    lr: float,
    s: Settings,
    also: Callable[[Model], Model] | None = None,
) -> Model:
    """Eq. 11, or with lambda F(H(x_i)) added Eq. 15: SGD on the parameters that are trained."""
    trained = {name for name, p in net.named_parameters() if p.requires_grad}
    model = {name: value.detach().clone().requires_grad_(name in trained) for name, value in start.items()}
    optimiser = torch.optim.SGD([model[name] for name in sorted(trained)], lr=lr, **s.base)
    for x, y in batches:
        optimiser.zero_grad()
        objective, buffers = loss(net, model, x, y)
        if s.exact and also is not None:
            objective = objective + s.lam * loss(net, also(model), x, y)[0]
        objective.backward()
        optimiser.step()
        model |= buffers
    return {name: value.detach() for name, value in model.items()}


def learn(
    net: nn.Module,
    client: Client,
    x: Model,
    glob: Model,
    others: dict[int, Model],
    phi: Callable[[Model], Tensor],
    batches: Sequence[tuple[Tensor, Tensor]],
    lr: float,
    s: Settings,
) -> None:
    """Eq. 13; x_i, the others and x^g are constants."""
    client.norms = [0.0, 0.0]
    for inputs, y in batches:
        hybrid, _, _ = ham(net, client.theta, x, glob, list(others.values()), phi, s)
        for w in client.theta.values():
            w.grad = None
        loss(net, hybrid, inputs, y)[0].backward()
        for place, (layer, names) in enumerate(LAYERS.items()):
            slopes = [w.grad for name in names if (w := client.theta.get(name)) is not None and w.grad is not None]
            client.norms[place] += sum(float(g.square().sum()) for g in slopes) ** 0.5 / len(batches)
            if layer not in s.adam:
                client.optimisers[layer].param_groups[0]["lr"] = lr * s.lam
            client.optimisers[layer].step()


def ham(
    net: nn.Module,
    theta: Model,
    x: Model,
    glob: Model,
    others: list[Model],
    phi: Callable[[Model], Tensor],
    s: Settings,
) -> tuple[Model, Tensor, Tensor]:
    """H_Theta: the hybrid model, alpha and beta."""
    values = others or [glob]  # alone: x^g in their place
    alpha = attention(theta, "1", x, values, glob, phi, s)  # Eq. 5
    attended = {name: sum(a * v[name] for a, v in zip(alpha, values, strict=True)) for name in x}  # Eq. 6
    rows = {"both": [x, attended, glob], "first": [attended], "second": [x, glob]}[s.layers]
    beta = attention(theta, "2", x, rows, glob, phi, s)  # Eq. 8; over a single one it is 1
    frozen = {name for name, p in net.named_parameters() if not p.requires_grad}
    mixed = {name: sum(b * v[name] for b, v in zip(beta, rows, strict=True)) for name in x}  # Eq. 9
    hybrid = {
        name: value if name in frozen or not value.is_floating_point() else mixed[name] for name, value in x.items()
    }
    if s.layers == "first":
        beta = torch.tensor([0.0, 1.0, 0.0])
    if s.layers == "second":
        beta = torch.stack([beta[0], torch.zeros_like(beta[0]), beta[1]])
    return hybrid, alpha, beta


def attention(
    theta: Model,
    layer: str,
    x: Model,
    values: Sequence[Model],
    glob: Model,
    phi: Callable[[Model], Tensor],
    s: Settings,
) -> Tensor:
    """Att(Wq phi(x_i), Wk phi(v)) of Eq. 4, entry by entry."""
    wq, wk = theta[f"q{layer}"], theta[f"k{layer}"]
    origin = phi(glob) if s.centred else 0.0

    def seen(w: Tensor, model: Model) -> Tensor:
        at = phi(model) - origin
        return w * at if w.dim() == 1 else w @ at

    query, keys = seen(wq, x), [seen(wk, v) for v in values]
    if s.cosine:
        lengths = [key.norm().clamp(min=1e-12) * query.norm().clamp(min=1e-12) for key in keys]  # 0 for a zero vector
        scores = [theta[f"t{layer}"] * (query @ key) / length for key, length in zip(keys, lengths, strict=True)]
    else:
        scores = [query @ key / len(query) ** 0.5 for key in keys]
    e = torch.stack(scores).exp()
    return e / e.sum()


def flat(model: Model, names: Sequence[str]) -> Tensor:
    return torch.cat([model[name].flatten() for name in names])
