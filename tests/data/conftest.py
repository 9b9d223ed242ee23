from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedtailor.data import Dataset


def of_counts(counts: list[int]) -> Dataset:
    """Rows of the given number in each class, shuffled; five domains; eight owners."""
    labels = np.random.default_rng(7).permutation(np.repeat(np.arange(len(counts)), counts))
    rows = torch.arange(len(labels))
    return Dataset(
        name="made",
        x=torch.stack([rows, rows * 2], 1).float(),
        y=torch.from_numpy(labels),
        classes=tuple(f"class {label}" for label in range(len(counts))),
        domain=rows % 5,
        domain_names=("a", "b", "c", "d", "e"),
        owner=rows * 8 // len(rows),
    )


@pytest.fixture(scope="session")
def make() -> Callable[[list[int]], Dataset]:
    return of_counts


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return of_counts([90, 120, 60, 150, 101, 79])


@pytest.fixture(scope="session")
def mnist_labels() -> Dataset:
    """As many rows in each class as MNIST has, training and test together."""
    return of_counts([6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958])
