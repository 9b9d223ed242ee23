"""Decoding of pictures, with Pillow: in threads, and once, for what was decoded is kept in the user's cache."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.data.files import cache
from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
Source = bytes | Path | Callable[[], bytes]

BLOCK = 256  # pictures that are in memory at a time while they are decoded
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


def square(sources: Sequence[Source], names: Sequence[str], side: int) -> Iterator[Pixels]:
    """All pictures at one size, block by block of [n, 3, side, side], whatever their shape was."""

    def draw(number: int) -> Pixels:
        picture = decoded(sources[number], names[number])
        if picture.size != (side, side):
            from PIL.Image import Resampling

            picture = picture.resize((side, side), Resampling.BILINEAR)
        return np.asarray(picture).transpose(2, 0, 1)

    with ThreadPoolExecutor() as pool:  # Pillow decodes outside Python's lock
        for begin in range(0, len(sources), BLOCK):
            yield np.stack(list(pool.map(draw, range(begin, min(begin + BLOCK, len(sources))))))


def once(name: str, stamps: Sequence[object], sources: Sequence[Source], names: Sequence[str], side: int) -> Tensor:
    """The pictures as `square` gives them, from the cache where they were decoded before.

    `stamps` tell one state of the files from any other: their names, sizes and times.
    """
    key = (side, list(names), list(stamps))
    return kept(name, key, (len(sources), 3, side, side), "decoded", lambda: square(sources, names, side))


def kept(
    name: str, key: object, shape: tuple[int, ...], doing: str, blocks: Callable[[], Iterable[Pixels]]
) -> Tensor:  # fmt: skip
    """What `blocks` give one after the other, from the cache where it was made before for the same `key`.

    Pictures may be more than memory holds: each block goes to the file at once, and the file is mapped into memory.
    """
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    path = cache() / f"{name}-{digest}.npy"
    try:
        return mapped(path, shape)
    except (OSError, ValueError):
        pass
    if shape[0] >= MANY:
        told = f"{name}: {shape[0]:,} pictures are being {doing}, and kept as {path} for the next time"
        warnings.warn(told, DataNote, stacklevel=2)
    begun = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with begun.open("wb") as file:
            head = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, head)
            for block in blocks():
                file.write(np.ascontiguousarray(block).data)
        begun.replace(path)
        return mapped(path, shape)
    except OSError as error:
        warnings.warn(f"{name}: the pictures cannot be kept as {path} ({error})", DataNote, stacklevel=2)
        return torch.from_numpy(np.concatenate(list(blocks())))
    finally:
        with suppress(OSError):
            begun.unlink(missing_ok=True)


def mapped(path: Path, shape: tuple[int, ...]) -> Tensor:
    """A file of bytes, read from the disk as its rows are needed; writing changes the copy in memory alone."""
    found = np.lib.format.open_memmap(path, mode="c")
    if found.shape != shape or found.dtype != np.uint8:
        raise ValueError(f"{path} holds something else")
    return torch.from_numpy(found)


def check_side(source: str, size: int) -> None:
    if not 8 <= size <= 1024:
        raise WrongInput(f"{source}: size={size} is not possible; give the pixels of a side, from 8 to 1024")
