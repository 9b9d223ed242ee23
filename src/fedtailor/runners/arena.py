"""Tensors in memory that processes share: one process writes, those forked from it read, and nothing is pickled.

What is put is described in plain JSON, with the tensors' places in the arena; what is got are tensors on the shared
memory itself, valid until the writer clears the arena.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedtailor import tree

ALIGNED = 64  # bytes: a cache line
LEAST = 1 << 20  # bytes that are asked for at once


def nameless_file() -> int:
    """A file without a name, in memory where the system has such; gone with the last process that holds it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedtailor")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Arena:
    """A nameless file that grows, mapped into memory."""

    def __init__(self) -> None:
        self.file = nameless_file()
        self.used = 0
        self.memory: mmap.mmap | None = None
        self.written: dict[tuple[Any, ...], tuple[int, Tensor]] = {}  # what is one tensor is written once

    def __del__(self) -> None:
        os.close(self.file)

    def clear(self) -> None:
        self.used = 0
        self.written = {}

    def put(self, value: Any) -> Any:
        """A nested state as JSON that `get` understands: a tensor by its place, type and shape."""
        if isinstance(value, Mapping):
            return {key: self.put(inner) for key, inner in value.items()}
        return [self._place(value), str(value.dtype).removeprefix("torch."), list(value.shape)]

    def get(self, described: Any, seen: dict[int, Tensor] | None = None) -> Any:
        """What was put, on the shared memory; equal places give one tensor, remembered in `seen`."""
        seen = {} if seen is None else seen
        if isinstance(described, Mapping):
            return {key: self.get(inner, seen) for key, inner in described.items()}
        place, dtype, shape = described
        if place not in seen:
            seen[place] = self._tensor(place, getattr(torch, dtype), shape)
        return seen[place]

    def _place(self, tensor: Tensor) -> int:
        tensor = tensor.detach()
        key = tree.identity(tensor)
        if key in self.written:
            return self.written[key][0]
        place = self.used
        size = tensor.numel() * tensor.element_size()
        self.used += max(ALIGNED, -(-size // ALIGNED) * ALIGNED)  # an empty one has a place of its own, too
        if self._size() < self.used:
            os.ftruncate(self.file, max(LEAST, 2 * self.used))
        self._tensor(place, tensor.dtype, tensor.shape).copy_(tensor)
        self.written[key] = (place, tensor)  # kept, so that its address is not another's meanwhile
        return place

    def _size(self) -> int:
        return os.fstat(self.file).st_size

    def _tensor(self, place: int, dtype: torch.dtype, shape: Any) -> Tensor:
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(tuple(shape), dtype=dtype)
        if self.memory is None or len(self.memory) < place + count * dtype.itemsize:
            self.memory = mmap.mmap(self.file, self._size())
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=place).reshape(tuple(shape))
