"""`digits`: 1,797 real handwritten digits as a federation of six domains, embedded and drawn in a second.

The 8 x 8 scans that scikit-learn carries are enlarged to 28 x 28 colour images. Every scan is rendered in
one domain only, by a fixed rule, so no digit is seen twice: not by two sites, not in training and in
testing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedtailor.data.federation import Dataset
from fedtailor.registry import register
from fedtailor.schedule import rng

SIDE = 28


@register("data", "digits")
def digits() -> Dataset:
    """1,797 real handwritten digits in six domains, from plain and inverted to coloured and noisy."""
    scans, labels = scanned()
    ink = _enlarge(torch.from_numpy(scans).double().reshape(-1, 1, 8, 8) / 16)
    domain = _domains(labels)
    x = torch.empty(len(ink), 3, SIDE, SIDE, dtype=torch.float64)
    for number, (name, render) in enumerate(_RENDER.items()):
        rows = torch.from_numpy(np.flatnonzero(domain == number))
        x[rows] = render(ink[rows], rng(0, "digits", name))
    # 256 levels, as a picture file has: equal on every machine, whatever the last bit of a sine
    x = (x.clamp(0, 1) * 255).round() / 127.5 - 1
    return Dataset(
        name="digits",
        x=x.float(),
        y=torch.from_numpy(labels),
        classes=tuple("0123456789"),
        domain=torch.from_numpy(domain),
        domain_names=tuple(_RENDER),
        model="lenet_bn",
        partition="domain(sites=2, train=40, validation=20)",
        settings={"rounds": 40, "epochs": 1, "batch": 16, "lr": 0.05},
        licence="CC BY 4.0 (Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI)",
        about="real handwritten digits; six domains that differ in how the same kind of picture was taken",
    )


def scanned() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """scikit-learn's digits [1797, 64] and their labels: read from its file, for importing it takes a second."""
    package = find_spec("sklearn")
    folders = [Path(folder) for folder in (package.submodule_search_locations or ())] if package else []
    for file in (folder / "datasets" / "data" / "digits.csv.gz" for folder in folders):
        if file.is_file():
            table = np.loadtxt(file, delimiter=",", dtype=np.int64)
            return table[:, :-1].astype(np.float64), table[:, -1]
    from sklearn.datasets import load_digits

    scans, labels = load_digits(return_X_y=True)
    return scans, labels.astype(np.int64)


def _domains(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The domain of each row: every class is shuffled and dealt out evenly."""
    domain = np.empty(len(labels), dtype=np.int64)
    for label in range(10):
        rows = rng(0, "digits", "domain", label).permutation(np.flatnonzero(labels == label))
        domain[rows] = (np.arange(len(rows)) + label) % len(_RENDER)
    return domain


def _enlarge(scans: Tensor) -> Tensor:
    """[rows, 1, 8, 8] grey counts to [rows, 1, 28, 28] ink from 0 to 1: smooth, then a soft edge."""
    smooth = F.interpolate(scans, size=(22, 22), mode="bicubic", align_corners=False)
    return _edge(F.pad(smooth, (3, 3, 3, 3)), at=0.45)


def _edge(grey: Tensor, at: float | Tensor, sharpness: float = 9.0) -> Tensor:
    return torch.sigmoid(sharpness * (grey - at))


def _plain(ink: Tensor, draw: np.random.Generator) -> Tensor:
    return ink.expand(-1, 3, -1, -1)


def _inverted(ink: Tensor, draw: np.random.Generator) -> Tensor:
    return 1 - ink.expand(-1, 3, -1, -1)


def _slanted(ink: Tensor, draw: np.random.Generator) -> Tensor:
    """Rotated by 20 to 40 degrees and sheared."""
    angle = _uniform(draw, ink, 20, 40).flatten().deg2rad()
    shear = -_uniform(draw, ink, 0.2, 0.4).flatten()
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).reshape(-1, 2, 2)
    lean = torch.eye(2, dtype=torch.float64).repeat(len(ink), 1, 1)
    lean[:, 0, 1] = shear
    matrix = torch.cat([1.1 * turn @ lean, torch.zeros(len(ink), 2, 1, dtype=torch.float64)], 2)
    grid = F.affine_grid(matrix, list(ink.shape), align_corners=False)
    return F.grid_sample(ink, grid, mode="bicubic", align_corners=False).expand(-1, 3, -1, -1)


def _coloured(ink: Tensor, draw: np.random.Generator) -> Tensor:
    """Ink of a bright colour on crossing waves of two darker ones."""
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    angle, pitch, phase = (_uniform(draw, ink, *limits) for limits in ((0, 3.14), (0.3, 0.9), (0, 6.28)))
    across = pitch * (rows * angle.cos() + columns * angle.sin()) + phase
    along = pitch * (columns * angle.cos() - rows * angle.sin()) - phase
    weave = (2 + across.sin() + along.sin()) / 4
    colour = torch.from_numpy(draw.uniform(0, 1, (len(ink), 3, 3)))[..., None, None]
    ground = 0.6 * (colour[:, 0] * weave + colour[:, 1] * (1 - weave))
    return ground * (1 - ink) + ink * (0.5 + 0.5 * colour[:, 2])


def _noisy(ink: Tensor, draw: np.random.Generator) -> Tensor:
    """Out of focus, faint and grainy."""
    grain = torch.from_numpy(draw.normal(0, 0.12, (len(ink), 3, SIDE, SIDE)))
    return 0.2 + 0.6 * _blur(ink, 1.2) + grain


def _strokes(ink: Tensor, draw: np.random.Generator) -> Tensor:
    """Hairlines or heavy strokes, one or the other."""
    thin = _edge(_blur(ink, 0.8), at=0.78, sharpness=14)
    thick = _edge(_blur(ink, 1.1), at=0.25, sharpness=18)
    return torch.where(_uniform(draw, ink, 0, 1) < 0.5, thin, thick).expand(-1, 3, -1, -1)


def _blur(images: Tensor, width: float) -> Tensor:
    reach = torch.arange(-5, 6, dtype=torch.float64)
    bell = torch.exp(-((reach / width) ** 2) / 2)
    bell = bell / bell.sum()
    across = F.conv2d(images, bell.reshape(1, 1, 1, -1), padding=(0, 5))
    return F.conv2d(across, bell.reshape(1, 1, -1, 1), padding=(5, 0))


def _uniform(draw: np.random.Generator, images: Tensor, low: float, high: float) -> Tensor:
    """One number for each image, shaped to be broadcast over it."""
    return torch.from_numpy(draw.uniform(low, high, (len(images), 1, 1, 1)))


_RENDER: dict[str, Callable[[Tensor, np.random.Generator], Tensor]] = {
    "plain": _plain,
    "inverted": _inverted,
    "slanted": _slanted,
    "coloured": _coloured,
    "noisy": _noisy,
    "strokes": _strokes,
}
