from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
        part=torch.tensor([0, 0, 1, 2])[rows % 4],
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and an empty cache."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


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
