"""A set of pictures is in memory once: from the file to a federation that is ready to run, and for all its clients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor import FedAvg, RunSpec, load
from fedtailor.data import Federation, mnist
from fedtailor.driver import Driver

MEASURED = """
import json, resource, sys
import fedtailor.data, fedtailor.driver, torch
from fedtailor import FedAvg, RunSpec, load
import PIL.Image
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
federation = load(sys.argv[1])
driver = fedtailor.driver.Driver(RunSpec.of(federation, FedAvg(), model="mlr"), federation)
federation.fingerprint()
print(json.dumps({"bytes": federation.x.nbytes, "peak": peak() - before}))
"""


def lists_of(federation: Federation) -> list[torch.Tensor]:
    return [rows for part in (federation.train, federation.validation, federation.test) for rows in part]


def test_clients_share_the_rows_and_have_lists_of_numbers(home: Path) -> None:
    """With a copy of MNIST in small: no tensor of a client, a site or a pooled federation has rows of its own."""
    draw = np.random.default_rng(0)
    held = {"x_train": draw.integers(0, 256, (500, 28, 28), np.uint8), "y_train": np.arange(500) % 10,
            "x_test": draw.integers(0, 256, (100, 28, 28), np.uint8), "y_test": np.arange(100) % 10}  # fmt: skip
    np.savez(home / "mnist.npz", **held)
    dataset = mnist()
    federation = load(dataset, "pathological(classes=2, clients=20)")
    assert dataset.x.dtype is torch.uint8 and dataset.x.untyped_storage().nbytes() == 600 * 28 * 28
    driver = Driver(RunSpec.of(federation, FedAvg(), model="mlr"), federation)
    for x in (federation.x, federation.pooled().x, driver.data.x, *(site.x for site in driver.sites)):
        assert x.data_ptr() == dataset.x.data_ptr()
    assert sum(rows.untyped_storage().nbytes() for rows in lists_of(federation)) == 600 * 8
    again = [rows for site in driver.sites for rows in (site.rows, *site.exams[site.number].values())]
    assert sum(rows.untyped_storage().nbytes() for rows in again) == 600 * 8


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is counted in other units")
@pytest.mark.parametrize(("data", "file", "rows", "size"), [
    ("mnist", "mnist.npz", 70_000, 784), ("cifar10", "cifar10_20k4k.npz", 24_000, 3072),
])  # fmt: skip
def test_reading_takes_a_few_times_the_bytes_of_the_pictures(
    data: str, file: str, rows: int, size: int, data_folder: Path
) -> None:
    """The whole of MNIST, and the part of CIFAR-10, in a process of their own."""
    if not (data_folder / file).is_file():
        pytest.skip(f"needs {file}")
    command = [sys.executable, "-c", MEASURED, data]
    environment = {"PYTHONPATH": str(Path(fedtailor.__file__).parents[1]), "FEDTAILOR_DATA": str(data_folder),
                   "OMP_NUM_THREADS": "1", "PATH": ""}  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["bytes"] == rows * size
    assert found["peak"] < 5 * found["bytes"]
