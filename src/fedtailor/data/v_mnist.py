"""V-MNIST of FedHAM: MNIST, four variations of it, and Fashion-MNIST, each cut among three sites.

The variations are those of Larochelle et al. (2007): digits turned by any angle; on noise; on patches of photographs;
turned and on patches. No digit is used twice. The photographs are the two that come with scikit-learn. Where MNIST is
not at hand, scikit-learn's own 1,797 scans do in its place, and clothes are left out.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.data.federation import Dataset
from fedtailor.data.idx import fashion_mnist, mnist
from fedtailor.registry import register
from fedtailor.schedule import rng

SIDE = 28
SITES = 3  # of each kind
MEAN, DEVIATION, TOTAL = 72_795 / 18, 1_876.0, 72_795  # rows of a site as the paper prints them, where they differ
EQUAL = 4_600  # and where they do not
FLAT = 0.1  # least deviation of a patch's grey values
KINDS: tuple[str, ...] = ("plain", "turned", "noise", "picture", "turned picture", "clothes")


def sizes_of(sites: int, total: int, spread: float) -> np.ndarray:
    """Sizes that sum to `total` with this deviation over mean: quantiles of a normal distribution, in a drawn order."""
    levels = np.array([NormalDist().inv_cdf((place + 0.5) / sites) for place in range(sites)])
    levels /= levels.std()
    sizes = np.rint(total / sites * (1 + spread * levels)).astype(np.int64)
    sizes = rng(0, "v_mnist", "sizes").permutation(sizes)
    sizes[0] += total - sizes.sum()
    return sizes


def turned(ink: Tensor, draw: np.random.Generator) -> Tensor:
    """Each digit by an angle of its own."""
    angle = torch.from_numpy(draw.uniform(0, 2 * math.pi, len(ink))).float()
    zero = torch.zeros_like(angle)
    rows = [torch.stack([angle.cos(), -angle.sin(), zero], 1), torch.stack([angle.sin(), angle.cos(), zero], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(ink.shape), align_corners=False)
    return F.grid_sample(ink, grid, mode="bilinear", align_corners=False)


def noise(count: int, draw: np.random.Generator) -> Tensor:
    return torch.from_numpy(draw.random((count, 1, SIDE, SIDE), dtype=np.float32))


def patches(count: int, draw: np.random.Generator) -> Tensor:
    """Grey patches of two photographs, none of them flat."""
    from sklearn.datasets import load_sample_images  # takes a second to import

    photographs = [image.mean(2, dtype=np.float32) / 255 for image in load_sample_images().images]
    found = np.empty((count, 1, SIDE, SIDE), np.float32)
    for row in range(count):
        while True:
            photograph = photographs[draw.integers(len(photographs))]
            top, left = (draw.integers(length - SIDE) for length in photograph.shape)
            found[row, 0] = photograph[top : top + SIDE, left : left + SIDE]
            if found[row].std() >= FLAT:
                break
    return torch.from_numpy(found)


def of_kind(kind: str, ink: Tensor) -> Tensor:
    """Digits from 0 to 1 in one of the ways; where they are not, the ground shows."""
    draw = rng(0, "v_mnist", kind)
    if kind.startswith("turned"):
        ink = turned(ink, draw)
    if kind == "noise":
        return ink + (1 - ink) * noise(len(ink), draw)
    return ink + (1 - ink) * patches(len(ink), draw) if kind.endswith("picture") else ink


def scans() -> tuple[Tensor, Tensor]:
    """scikit-learn's digits, enlarged."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    ink = torch.from_numpy(pixels / 16).float().reshape(-1, 1, 8, 8)
    large = F.interpolate(ink, size=(20, 20), mode="bicubic", align_corners=False).clamp(0, 1)
    return F.pad(large, (4, 4, 4, 4)), torch.from_numpy(labels.astype(np.int64))


@register("data", "v_mnist")
def v_mnist(source: Literal["mnist", "digits"] = "mnist", balanced: bool = False) -> Dataset:
    """V-MNIST: digits plain, turned, on noise, on pictures, both, and clothes, at three sites each; FedHAM's task."""
    if source == "mnist":
        whole, clothes = mnist(), fashion_mnist()
        digits, labels, kinds = whole.x, whole.y, KINDS
        total, spread = (EQUAL * 18, 0.0) if balanced else (TOTAL, DEVIATION / MEAN)
        sizes = sizes_of(18, total, spread)
    else:
        ink, labels = scans()
        digits, kinds = (ink * 255).round().to(torch.uint8), KINDS[:5]
        sizes = sizes_of(15, len(digits), 0.0 if balanced else DEVIATION / MEAN)
    order = torch.from_numpy(rng(0, "v_mnist", source).permutation(len(digits)))
    x, y, start = [], [], 0
    for number, kind in enumerate(kinds):
        count = int(sizes[SITES * number : SITES * (number + 1)].sum())
        if kind == "clothes":
            rows = torch.from_numpy(rng(0, "v_mnist", kind).permutation(len(clothes.x))[:count])
            x.append(clothes.x[rows])
            y.append(clothes.y[rows])
            continue
        rows = order[start : start + count]
        start += count
        x.append((of_kind(kind, digits[rows] / 255) * 255).round().to(torch.uint8))
        y.append(labels[rows])
    held = torch.from_numpy(sizes)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), held)
    return Dataset(
        name="v_mnist",
        x=torch.cat(x),
        y=torch.cat(y),
        classes=tuple("0123456789"),
        domain=owner // SITES,
        domain_names=kinds,
        owner=owner,
        owner_names=tuple(f"{kind}-{site + 1}" for kind in kinds for site in range(SITES)),
        model="cnn4",
        partition="natural(validation=0.1, test=0.2)",
        settings={"rounds": 150, "epochs": 1, "batch": 32, "lr": 0.02},
        licence="made of MNIST (CC BY-SA 3.0) and Fashion-MNIST (MIT)" if source == "mnist"
        else "made of scikit-learn's digits (Alpaydin and Kaynak, UCI, CC BY 4.0)",
        about="digits in five ways" + (" and clothes" if source == "mnist" else "") + "; made, not measured",
    )  # fmt: skip
