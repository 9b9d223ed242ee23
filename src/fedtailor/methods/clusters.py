"""Which clients may see which: clusters of the models that a server holds."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor import schedule
from fedtailor.method import Fed
from fedtailor.methods import mixing
from fedtailor.tree import State

Grouping = Literal["kmeans", "meanshift", "nearest"]


def visible(kept: State, fed: Fed, k: int, grouping: Grouping) -> Tensor:
    """visible[i, j]: whether client i is sent the model of client j, another one that has sent any.

    `kmeans` and `meanshift` cluster whole models (by scikit-learn, on the exact distances between them: coordinates
    that keep these are as good as the models). `nearest` takes the ceil((n - 1) / k) nearest.
    """
    known: Tensor = kept["seen"] > 0
    others: Tensor = known[None, :] & ~torch.eye(fed.n, dtype=torch.bool)
    if grouping == "kmeans" and k == 1:
        return others
    distances = mixing.squared_distances(kept["models"], fed.arch.trainable)
    if grouping == "nearest":
        far = torch.where(others, distances, torch.inf)
        count = min(math.ceil((fed.n - 1) / k), fed.n - 1)
        near = torch.zeros_like(others).scatter(1, far.topk(count, dim=1, largest=False).indices, True)
        return near & others
    points = coordinates(distances.cpu().numpy())
    labels = torch.from_numpy(labels_of(points, k, grouping, schedule.torch_seed(fed.seed, "clusters", fed.round)))
    return others & (labels[:, None] == labels[None, :])


def coordinates(squared: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points in at most n - 1 dimensions with these squared distances (classical scaling)."""
    n = len(squared)
    centre = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-centre @ squared @ centre / 2)
    points: NDArray[np.float64] = vectors * np.sqrt(np.clip(values, 0, None))
    return points


def labels_of(points: NDArray[np.float64], k: int, grouping: Grouping, seed: int) -> NDArray[np.int64]:
    from sklearn.cluster import KMeans, MeanShift, estimate_bandwidth

    if grouping == "kmeans":
        distinct = len(np.unique(points.round(9), axis=0))
        clustering = KMeans(min(k, distinct), n_init=10, random_state=seed % 2**32)
        return np.asarray(clustering.fit_predict(points), dtype=np.int64)
    width = estimate_bandwidth(points, random_state=seed % 2**32)
    if not width > 0:  # all models are equal
        return np.zeros(len(points), dtype=np.int64)
    return np.asarray(MeanShift(bandwidth=width).fit_predict(points), dtype=np.int64)


def padded(visible: Tensor, cohort: Tensor) -> Tensor:
    """The numbers that each client of the cohort may see, padded with -1."""
    lists = [row.nonzero()[:, 0] for row in visible[cohort]]
    return torch.nn.utils.rnn.pad_sequence(lists, batch_first=True, padding_value=-1)
