"""Synthetic(alpha, beta) of FedMCSA's experiments: 100 clients that differ in both inputs and labels."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedtailor.data.federation import Dataset
from fedtailor.registry import WrongInput, register

CLIENTS, FEATURES, CLASSES = 100, 60, 10
LEGACY_SEED = 0  # of NumPy's legacy generator, as in the experiments; 205,795 rows, 250 to 25,810 a client


@register("data", "synthetic")
def synthetic(
    alpha: float = 0.5, beta: float = 0.5, clients: int = CLIENTS, sizes: tuple[int, int] | None = None
) -> Dataset:
    """100 clients of very different sizes, each with its own inputs and its own linear labels.

    Sizes are (floor(lognormal(4, 2)) + 50) * 5, or with `sizes=(50, 500)` floor(lognormal(4, 2)) kept between these:
    for many more clients than the 100 of the experiments. Client k draws u ~ N(0, alpha), B ~ N(0, beta), the mean of
    its inputs v[j] ~ N(B, 1), and its labels' W ~ N(u, 1) [60 x 10] and b ~ N(u, 1). Then x ~ N(v,
    diag(j^-1.2)) with j = 1..60, and y = argmax(x W + b). alpha and beta are standard deviations.

    As published, alpha is without effect: u adds the same number, u (sum x + 1), to every class.
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0 <= value < math.inf:
            raise WrongInput(f"synthetic: {name}={value!r} is not possible; give a standard deviation from 0")
    if clients < 1:
        raise WrongInput(f"synthetic: clients={clients} is not possible; ask for 1 or more")
    if sizes is not None and not 1 <= sizes[0] <= sizes[1]:
        raise WrongInput(f"synthetic: sizes={sizes!r} is not possible; give the least and the most rows, from 1 on")
    legacy = np.random.RandomState(LEGACY_SEED)
    drawn = legacy.lognormal(4, 2, clients).astype(np.int64)
    counts = (drawn + 50) * 5 if sizes is None else drawn.clip(*sizes)
    label_means = legacy.normal(0, alpha, clients)
    input_means = legacy.normal(legacy.normal(0, beta, clients)[:, None], 1, (clients, FEATURES))
    spread = np.arange(1, FEATURES + 1) ** -0.6  # square root of j^-1.2
    x, y = np.empty((counts.sum(), FEATURES), np.float32), np.empty(counts.sum(), np.int64)
    stop = np.cumsum(counts)
    for client, (first, last) in enumerate(zip(stop - counts, stop, strict=True)):
        weight = legacy.normal(label_means[client], 1, (FEATURES, CLASSES))
        bias = legacy.normal(label_means[client], 1, CLASSES)
        rows = input_means[client] + spread * legacy.standard_normal((last - first, FEATURES))
        x[first:last], y[first:last] = rows, (rows @ weight + bias).argmax(1)
    return Dataset(
        name="synthetic",
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        classes=tuple(str(label) for label in range(CLASSES)),
        owner=torch.from_numpy(np.repeat(np.arange(clients), counts)),
        model="mlr",
        partition="natural",
        settings={
            "rounds": 800,
            "steps": 20,
            "batch": 20,
            "lr": 0.02,
            "cohort": min(20, clients),
            "weight_decay": 0.001,
        },
        licence="made by formula, free of rights",
        about=f"{clients:,} clients of very different sizes, each with inputs and a linear rule for labels of its own",
    )
