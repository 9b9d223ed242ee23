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
def synthetic(alpha: float = 0.5, beta: float = 0.5) -> Dataset:
    """100 clients of very different sizes, each with its own inputs and its own linear labels.

    Sizes are (floor(lognormal(4, 2)) + 50) * 5. Client k draws u ~ N(0, alpha), B ~ N(0, beta), the mean of
    its inputs v[j] ~ N(B, 1), and its labels' W ~ N(u, 1) [60 x 10] and b ~ N(u, 1). Then x ~ N(v,
    diag(j^-1.2)) with j = 1..60, and y = argmax(x W + b). alpha and beta are standard deviations.

    As published, alpha is without effect: u adds the same number, u (sum x + 1), to every class.
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0 <= value < math.inf:
            raise WrongInput(f"synthetic: {name}={value!r} is not possible; give a standard deviation from 0")
    legacy = np.random.RandomState(LEGACY_SEED)
    sizes = (legacy.lognormal(4, 2, CLIENTS).astype(np.int64) + 50) * 5
    label_means = legacy.normal(0, alpha, CLIENTS)
    input_means = legacy.normal(legacy.normal(0, beta, CLIENTS)[:, None], 1, (CLIENTS, FEATURES))
    spread = np.arange(1, FEATURES + 1) ** -0.6  # square root of j^-1.2
    x, y = np.empty((sizes.sum(), FEATURES), np.float32), np.empty(sizes.sum(), np.int64)
    stop = np.cumsum(sizes)
    for client, (first, last) in enumerate(zip(stop - sizes, stop, strict=True)):
        weight = legacy.normal(label_means[client], 1, (FEATURES, CLASSES))
        bias = legacy.normal(label_means[client], 1, CLASSES)
        rows = input_means[client] + spread * legacy.standard_normal((last - first, FEATURES))
        x[first:last], y[first:last] = rows, (rows @ weight + bias).argmax(1)
    return Dataset(
        name="synthetic",
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        classes=tuple(str(label) for label in range(CLASSES)),
        owner=torch.from_numpy(np.repeat(np.arange(CLIENTS), sizes)),
        model="mlr",
        partition="natural",
        settings={
            "rounds": 800,
            "steps": 20,
            "batch": 20,
            "lr": 0.02,
            "cohort": 20,
            "weight_decay": 0.001,
        },
        licence="made by formula, free of rights",
        about="100 clients of very different sizes, each with inputs and a linear rule for labels of its own",
    )
