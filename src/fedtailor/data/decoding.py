"""Decoding of pictures, with Pillow: in threads, and once, for what was decoded is kept in the user's cache."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedtailor.data.files import cache
from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
Source = bytes | Path | Callable[[], bytes]

MANY = 2000  # pictures whose decoding takes so long that it is announced


class DataNote(UserWarning):
    """What a user should know while data are read."""


def decoded(source: Source, what: str, mode: str = "RGB") -> Image:
    """A picture in red, green and blue, or in another mode; `what` is its name in a message."""
    try:
        from PIL import Image as pillow
    except ImportError:
        raise WrongInput("pictures need Pillow; install it with: pip install 'fedtailor[images]'") from None
    try:
        content = source() if callable(source) else source
        with pillow.open(io.BytesIO(content) if isinstance(content, bytes) else content) as picture:
            picture.load()
            return picture if picture.mode == mode else picture.convert(mode)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise WrongInput(f"{what} cannot be read as a picture ({error}); replace it or take it away") from None


def square(sources: Sequence[Source], names: Sequence[str], side: int) -> Tensor:
    """All pictures at one size, uint8 [n, 3, side, side], whatever their shape was."""
    x = np.empty((len(sources), 3, side, side), np.uint8)

    def draw(number: int) -> None:
        picture = decoded(sources[number], names[number])
        if picture.size != (side, side):
            from PIL.Image import Resampling

            picture = picture.resize((side, side), Resampling.BILINEAR)
        x[number] = np.asarray(picture).transpose(2, 0, 1)

    with ThreadPoolExecutor() as pool:  # Pillow decodes outside Python's lock
        for _ in pool.map(draw, range(len(sources))):
            pass
    return torch.from_numpy(x)


def once(name: str, stamps: Sequence[object], sources: Sequence[Source], names: Sequence[str], side: int) -> Tensor:
    """The pictures as `square` gives them, from the cache where they were decoded before.

    `stamps` tell one state of the files from any other: their names, sizes and times.
    """
    key = (side, list(names), list(stamps))
    return kept(name, key, len(sources), "decoded", lambda: square(sources, names, side))


def kept(name: str, key: object, count: int, doing: str, make: Callable[[], Tensor]) -> Tensor:
    """What `make` gives, from the cache where it was made before for the same `key`."""
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    path = cache() / f"{name}-{digest}.safetensors"
    try:
        return load_file(path)["x"]
    except (OSError, SafetensorError, KeyError):
        pass
    if count >= MANY:
        told = f"{name}: {count:,} pictures are being {doing}, and kept as {path} for the next time"
        warnings.warn(told, DataNote, stacklevel=2)
    x = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = path.with_name(f"{path.name}.{os.getpid()}")
        save_file({"x": x}, begun)
        begun.replace(path)
    except (OSError, SafetensorError) as error:
        warnings.warn(f"{name}: the pictures cannot be kept as {path} ({error})", DataNote, stacklevel=2)
    return x


def check_side(source: str, size: int) -> None:
    if not 8 <= size <= 1024:
        raise WrongInput(f"{source}: size={size} is not possible; give the pixels of a side, from 8 to 1024")
