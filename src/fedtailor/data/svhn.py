"""Street View House Numbers, in the MATLAB files of single digits ("format 2")."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedtailor.data import compact
from fedtailor.data.decoding import Pixels
from fedtailor.data.download import ORIGINS, Origin, Remote, originate, place
from fedtailor.data.federation import Dataset
from fedtailor.data.files import check_labels, first_of, home
from fedtailor.registry import WrongInput, register

ADDRESS = "http://ufldl.stanford.edu/housenumbers"

# sizes and checksums: the catalogue of TensorFlow Datasets
originate("svhn", Origin(
    "for non-commercial use only (Netzer et al., 2011)",
    (
        Remote("train_32x32.mat", f"{ADDRESS}/train_32x32.mat", 182_040_794,
               "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
        Remote("test_32x32.mat", f"{ADDRESS}/test_32x32.mat", 64_275_384,
               "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    ),
    compact="digits_svhn.npz",
))  # fmt: skip


def read_mat(path: Path) -> tuple[Pixels, NDArray[np.int64]]:
    """Pictures and labels of a file: X [height, width, channels, n], y [n, 1] from 1 to 10, which is the digit 0."""
    from scipy.io import loadmat  # comes with scikit-learn

    try:
        held = loadmat(path, variable_names=("X", "y"))
        x, y = held["X"], held["y"]
    except Exception as error:  # what is no such file makes the reader stumble in many ways
        raise WrongInput(f"{path} is no file of SVHN's digits ({error!r}); delete it and fetch it again") from None
    if x.ndim != 4 or x.shape[2] != 3 or x.dtype != np.uint8:
        raise WrongInput(f"{path}: X is {x.dtype} {x.shape}; SVHN's single digits are bytes [32, 32, 3, n]")
    labels = y.reshape(-1).astype(np.int64)
    check_labels("SVHN", path, labels, x.shape[3], 11)
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels % 10


@register("data", "svhn")
def svhn() -> Dataset:
    """SVHN: 99,289 digits of house numbers, 32 x 32 in colour, training and test pictures together."""
    copy = home() / ORIGINS["svhn"].compact
    files = first_of("svhn", [place("svhn", file.name) for file in ORIGINS["svhn"].files], [copy])
    if files[0] == copy:
        x, labels = compact.sheets(copy)
        extent = f"a sample of {len(x):,}"
    else:
        x, labels = (np.concatenate(part) for part in zip(*map(read_mat, files), strict=True))
        extent = "the whole set"
    return Dataset(
        name="svhn",
        x=torch.from_numpy(x),
        y=torch.from_numpy(labels),
        classes=tuple("0123456789"),
        model="lenet_bn",
        partition="dirichlet(alpha=0.1, clients=20)",
        settings={"rounds": 100, "epochs": 1, "batch": 32, "lr": 0.01},
        licence=ORIGINS["svhn"].licence,
        about=f"digits of house numbers; {extent}",
    )
