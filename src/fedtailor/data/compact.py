"""Compact copies of picture sets: one NumPy file with lossless sheets of tiles, or with picture files end to end."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.decoding import Pixels, decoded
from fedtailor.data.files import Array, read_npz

if TYPE_CHECKING:
    from PIL.Image import Image

TILES = 64  # in a row of a sheet
SPLITS = ("train", "test")
AT_ONCE = 2  # sheets that are decoded: each takes several times its bytes


def sheets(path: Path) -> tuple[Pixels, NDArray[np.int64]]:
    """Pictures [n, channels, height, width] and labels, those to train on first."""
    arrays = read_npz(path)
    shapes = [tuple(int(size) for size in arrays[f"{split}_shape"]) for split in SPLITS]
    _, height, width, *colour = shapes[0]
    x = np.empty((sum(rows for rows, *_ in shapes), 3 if colour else 1, height, width), np.uint8)
    ends = np.cumsum([0, *(rows for rows, *_ in shapes)]).tolist()
    for split, (start, end) in zip(SPLITS, pairwise(ends), strict=True):
        fill(x[start:end], path, arrays, sorted(name for name in arrays if name.startswith(f"{split}_sheet_")))
    return x, np.concatenate([arrays[f"{split}_labels"] for split in SPLITS]).astype(np.int64)


def fill(x: Pixels, path: Path, arrays: dict[str, Array], names: Sequence[str]) -> None:
    """Cut the sheets into their tiles, row by row, into the place where they stay."""
    _, channels, height, width = x.shape

    def picture(name: str) -> Image:
        return decoded(arrays.pop(name).tobytes(), f"{name} in {path}", "RGB" if channels == 3 else "L")

    done = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:  # Pillow decodes outside Python's lock
        for sheet in pool.map(picture, names):
            for top in range(0, sheet.height, height):
                row = np.asarray(sheet.crop((0, top, TILES * width, top + height)))
                part = row.reshape(height, TILES, width, channels).transpose(1, 3, 0, 2)[: len(x) - done]
                x[done : done + len(part)] = part
                done += len(part)


def plain(path: Path) -> tuple[Array, NDArray[np.int64]]:
    """The arrays x_train and x_test one after the other, and their labels."""
    arrays = read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    x, labels = (np.concatenate([arrays[f"{key}_{split}"] for split in SPLITS]) for key in "xy")
    return x, labels.astype(np.int64)


def blobs(path: Path) -> tuple[list[bytes], dict[str, Array]]:
    """The picture files that are stored end to end, and the other arrays."""
    arrays = read_npz(path)
    data, ends = arrays.pop("data"), arrays.pop("offsets").tolist()
    return [data[start:end].tobytes() for start, end in pairwise(ends)], arrays
