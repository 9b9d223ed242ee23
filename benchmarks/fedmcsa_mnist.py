"""Table 2 of FedMCSA on MNIST with multinomial logistic regression: `python benchmarks/fedmcsa_mnist.py OUT`.

Reads `mnist.npz` in the folder FEDTAILOR_DATA. All 70,000 images, each pixel standardised over them, on 20 clients of
two classes each. Otherwise as `fedmcsa_synthetic.py` beside it.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from fedmcsa_synthetic import main

import fedtailor as ft
from fedtailor.data import class_pairs

PUBLISHED = {"fedavg": 92.39, "moving": 98.82, "fixed": 98.82, "mean": 92.20}


def mnist() -> ft.Dataset:
    with np.load(Path(os.environ["FEDTAILOR_DATA"]) / "mnist.npz") as file:
        x = np.concatenate([file["x_train"], file["x_test"]]).reshape(70_000, 784).astype(np.float64)
        y = np.concatenate([file["y_train"], file["y_test"]]).astype(np.int64)
    x = (x - x.mean(0)) / (x.std(0) + 0.001)
    return ft.Dataset(
        name="mnist", x=torch.from_numpy(x.astype(np.float32)), y=torch.from_numpy(y),
        classes=tuple("0123456789"), model="mlr", partition="class_pairs",
    )  # fmt: skip


if __name__ == "__main__":
    main(ft.load(mnist(), class_pairs(test=0.25, validation=0.0)), {"cohort": 10}, PUBLISHED)
