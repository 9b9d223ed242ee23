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
    that keep these are as good as the models). `nearest` takes the ceil((n - 1) / k) nearest. A client that has sent
    nothing yet cannot be compared: it sees everybody where there is one cluster, and otherwise nobody.
    """
    known: Tensor = (kept["seen"] > 0).cpu()
    others: Tensor = known[None, :] & ~torch.eye(fed.n, dtype=torch.bool)
    if k == 1 and grouping != "meanshift":
        return others
    others &= known[:, None]
    squared = mixing.squared_distances(kept["models"], fed.arch.trainable).cpu()
    if grouping == "nearest":
        far = torch.where(others, squared, torch.inf)
        near = far.topk(math.ceil((fed.n - 1) / k), dim=1, largest=False).indices
        return others & torch.zeros_like(others).scatter(1, near, True)
    who = known.nonzero()[:, 0]
    seed = schedule.torch_seed(fed.seed, "clusters", fed.round) % 2**32
    labels = torch.full((fed.n,), -1)
    labels[who] = torch.from_numpy(labels_of(squared[who][:, who].numpy(), k, grouping, seed))
    return others & (labels[:, None] == labels[None, :])


def labels_of(squared: NDArray[np.float64], k: int, grouping: Grouping, seed: int) -> NDArray[np.int64]:
    """The cluster of each point, from the squared distances between them."""
    from sklearn.cluster import KMeans, MeanShift, estimate_bandwidth

    alike = np.unique(squared == 0, axis=0, return_inverse=True)[1].reshape(-1)  # numbers the different points
    count = len(squared)
    if count < 2 or (alike.max() < k and grouping == "kmeans"):
        return np.asarray(alike, dtype=np.int64)
    points = coordinates(squared / max(squared.max(), np.finfo(float).tiny))  # of any size: clusters have no unit
    if grouping == "kmeans":
        return np.asarray(KMeans(k, n_init=10, random_state=seed).fit_predict(points), dtype=np.int64)
    # scikit-learn's bandwidth looks at 0.3 of the points, of which there must be one beside the point itself
    width = estimate_bandwidth(points, quantile=min(1.0, max(0.3, 2.5 / count)), random_state=seed)
    if width < 1e-6:  # most points have one that is equal
        return np.asarray(alike, dtype=np.int64)
    return np.asarray(MeanShift(bandwidth=width).fit_predict(points), dtype=np.int64)


def coordinates(squared: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points in at most n dimensions with these squared distances (classical scaling)."""
    n = len(squared)
    centre = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-centre @ squared @ centre / 2)
    points: NDArray[np.float64] = vectors * np.sqrt(np.clip(values, 0, None))
    return points


def padded(visible: Tensor, cohort: Tensor) -> Tensor:
    """The numbers that each client of the cohort may see, padded with -1."""
    lists = [row.nonzero()[:, 0] for row in visible[cohort]]
    return torch.nn.utils.rnn.pad_sequence(lists, batch_first=True, padding_value=-1)
