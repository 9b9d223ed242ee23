"""Compact copies of picture sets: one NumPy file with lossless sheets of tiles, or with picture files end to end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.decoding import Pixels, decoded
from fedtailor.data.files import Array, read_npz

TILES = 64  # in a row of a sheet


def sheets(path: Path) -> tuple[Pixels, NDArray[np.int64]]:
    """Pictures [n, channels, height, width] and labels, those to train on first."""
    arrays = read_npz(path)
    parts = [of_split(path, arrays, split) for split in ("train", "test")]
    x, labels = (np.concatenate(some) for some in zip(*parts, strict=True))
    return x, labels


def of_split(path: Path, arrays: dict[str, Array], split: str) -> tuple[Pixels, NDArray[np.int64]]:
    rows, height, width, *colour = (int(size) for size in arrays[f"{split}_shape"])
    names = sorted(name for name in arrays if name.startswith(f"{split}_sheet_"))

    def tiles(name: str) -> Pixels:
        sheet = np.asarray(decoded(arrays[name].tobytes(), f"{name} in {path}"))
        parts = sheet[..., : 3 if colour else 1].reshape(-1, height, TILES, width, 3 if colour else 1)
        return parts.transpose(0, 2, 4, 1, 3).reshape(-1, parts.shape[-1], height, width)

    with ThreadPoolExecutor() as pool:  # Pillow decodes outside Python's lock
        pictures = np.concatenate(list(pool.map(tiles, names)))[:rows]
    return pictures, arrays[f"{split}_labels"].astype(np.int64)


def plain(path: Path) -> tuple[Array, NDArray[np.int64]]:
    """The arrays x_train and x_test one after the other, and their labels."""
    arrays = read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    x, labels = (np.concatenate([arrays[f"{key}_{split}"] for split in ("train", "test")]) for key in "xy")
    return x, labels.astype(np.int64)


def blobs(path: Path) -> tuple[list[bytes], dict[str, Array]]:
    """The picture files that are stored end to end, and the other arrays."""
    arrays = read_npz(path)
    data, ends = arrays.pop("data"), arrays.pop("offsets").tolist()
    return [data[start:end].tobytes() for start, end in pairwise(ends)], arrays
