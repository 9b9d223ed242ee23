"""Arithmetic for the references: gradients by hand in NumPy, and plain PyTorch where there is batch norm.

Nothing here imports fedtailor. Each test writes its method's own loop, from the paper, out of these pieces.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from torch import nn

Model = dict[str, np.ndarray]
Gradient = Callable[[Model], Model]

# How each reference is run: plainly, and with all that an optimiser can be asked for.
SETTINGS = [
    {"lr": 0.1, "epochs": 1},
    {"lr": 0.05, "epochs": 3, "momentum": 0.9, "weight_decay": 0.02, "lr_decay": 0.8},
]


def line(x: np.ndarray, y: np.ndarray) -> Gradient:
    """Of mean((x w - y)^2)."""
    return lambda m: {"w": 2 / len(y) * x.T @ (x @ m["w"] - y)}


def two_layers(x: np.ndarray, y: np.ndarray) -> Gradient:
    """Of mean((x body' head' - y)^2), by the chain rule."""

    def gradient(m: Model) -> Model:
        hidden = x @ m["body.weight"].T
        slope = 2 / len(y) * (hidden @ m["head.weight"][0] - y)
        return {
            "head.weight": (slope @ hidden)[None],
            "body.weight": np.outer(m["head.weight"][0], slope @ x),
        }

    return gradient


def descend(
    model: Model,
    gradient: Gradient,
    *,
    lr: float,
    epochs: int,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    only: Collection[str] | None = None,
) -> Model:
    """Full-batch gradient descent as PyTorch defines SGD: decay into the gradient, v <- m v + g, w <- w - lr v."""
    model = {name: value.copy() for name, value in model.items()}
    names = list(model if only is None else only)
    velocity: Model = {}
    for _ in range(epochs):
        slope = gradient(model)
        for name in names:
            g = slope[name] + weight_decay * model[name]
            velocity[name] = momentum * velocity[name] + g if name in velocity else g
        for name in names:
            model[name] -= lr * velocity[name]
    return model


def options(setting: Mapping[str, float], round: int) -> dict[str, float]:
    """The arguments of `descend` in a round, counted from 1."""
    kept = {key: value for key, value in setting.items() if key != "lr_decay"}
    return {**kept, "lr": setting["lr"] * setting.get("lr_decay", 1.0) ** (round - 1)}


def mean(models: Sequence[Model], weights: Sequence[float]) -> Model:
    total = sum(weights)
    return {name: sum(w / total * m[name] for w, m in zip(weights, models, strict=True)) for name in models[0]}


def values(net: nn.Module) -> Model:
    return {name: tensor.detach().numpy().copy() for name, tensor in net.state_dict().items()}


def close(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, np.ndarray], tolerance: float = 1e-12) -> None:
    """Equal to rounding, name by name; for `assert`-free use in a loop."""
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name].numpy(), value, rtol=tolerance, atol=tolerance, err_msg=name)


def plain_torch(
    net: nn.Module,
    rows: Sequence[tuple[np.ndarray, np.ndarray]],
    cohorts: Sequence[Sequence[int]],
    personal: Collection[str],
    *,
    lr: float,
    epochs: int,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Federated averaging of modules, as one would write it for a paper; names in `personal` stay where they are.

    Returns the server's state dict and the clients'. Integer entries are not averaged: the largest is taken.
    """
    clients = [copy.deepcopy(net) for _ in rows]
    server = {name: v.clone() for name, v in net.state_dict().items() if name not in personal}
    for round, cohort in enumerate(cohorts):
        for i in cohort:
            clients[i].load_state_dict(server, strict=False)
            clients[i].train()
            opt = torch.optim.SGD(
                clients[i].parameters(), lr=lr * lr_decay**round, momentum=momentum, weight_decay=weight_decay
            )
            x, y = (torch.from_numpy(part) for part in rows[i])
            for _ in range(epochs):
                opt.zero_grad()
                (clients[i](x)[:, 0] - y).square().mean().backward()
                opt.step()
        total = sum(len(rows[i][1]) for i in cohort)
        sent = [(len(rows[i][1]) / total, clients[i].state_dict()) for i in cohort]
        for name, value in server.items():
            if value.is_floating_point():
                server[name] = sum(share * state[name] for share, state in sent)
            else:
                server[name] = torch.stack([state[name] for _, state in sent]).amax(0)
    return server, [client.state_dict() for client in clients]
