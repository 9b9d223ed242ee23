"""What every site keeps between rounds: in memory, or, of many sites, in one file that is mapped into memory.

With the file, the memory that a run needs is that of the clients that train at a time, however many there are; and a
client that has never taken part needs none, for what it holds is a function of the seed.
"""

from __future__ import annotations

import copy
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor import tree
from fedtailor.tree import State

MANY = 1000  # sites; the states of more are in a file ...
ROOM = 1 << 28  # ... and so are those that are more bytes in all
ALIGNED = 64  # bytes
PAGE = mmap.ALLOCATIONGRANULARITY


@dataclass(frozen=True)
class Layout:
    """How a state lies in a run of bytes: its names in order, and the tensors, of which one may have several names."""

    leaves: tuple[tuple[str, int | None], ...]  # path, and the tensor's number; None: an empty sub-state
    tensors: tuple[tuple[torch.dtype, torch.Size, int], ...]  # type, shape, place of the first byte
    size: int

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> tuple[Layout, list[Tensor]]:
        """The layout of a state, and its tensors, each once."""
        numbers: dict[Any, int] = {}
        values: list[Tensor] = []
        leaves: list[tuple[str, int | None]] = []
        for path, tensor in tree.leaves(state):
            if tensor is None:
                leaves.append((path, None))
                continue
            number = numbers.setdefault(tree.identity(tensor), len(values))
            if number == len(values):
                values.append(tensor)
            leaves.append((path, number))
        places, end = [], 0
        for value in values:
            places.append((value.dtype, value.shape, end))
            end += -(-value.numel() * value.element_size() // ALIGNED) * ALIGNED
        return cls(tuple(leaves), tuple(places), end), values

    def state(self, values: Sequence[Tensor]) -> State:
        return tree.grown((path, None if number is None else values[number]) for path, number in self.leaves)


class Slip:
    """Says where a state lies in a shelf; when nobody has it any more, the place is free."""

    def __init__(self, shelf: Shelf, layout: Layout, place: int):
        self.shelf, self.layout, self.place = shelf, layout, place

    def __del__(self) -> None:
        self.shelf.free.setdefault(self.layout.size, []).append(self.place)


class Shelf:
    """A nameless file of states, mapped into memory; what was read or written leaves the memory again."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(prefix="fedtailor-")  # noqa: SIM115 - open as long as the shelf is
        weakref.finalize(self, self.file.close)
        self.length = 0
        self.free: dict[int, list[int]] = {}  # places by size
        self.layouts: dict[Layout, Layout] = {}
        self.memory: mmap.mmap | None = None

    def put(self, state: State) -> Slip:
        layout, values = Layout.of(state)
        layout = self.layouts.setdefault(layout, layout)
        slip = Slip(self, layout, self.place_for(layout.size))
        for number, value in enumerate(values):
            self.view(slip, number).copy_(value.detach())
        self.let_go(slip)
        return slip

    def get(self, slip: Slip) -> State:
        values = [self.view(slip, number).clone() for number in range(len(slip.layout.tensors))]
        self.let_go(slip)
        return slip.layout.state(values)

    def place_for(self, size: int) -> int:
        if self.free.get(size):
            return self.free[size].pop()
        place, self.length = self.length, self.length + size
        if self.memory is None or self.length > len(self.memory):
            os.ftruncate(self.file.fileno(), max(1 << 20, 2 * self.length))  # what is never written takes no room
            self.memory = mmap.mmap(self.file.fileno(), 0)
        return place

    def view(self, slip: Slip, number: int) -> Tensor:
        """A tensor on the file's own memory, for no longer than it takes to copy it."""
        dtype, shape, offset = slip.layout.tensors[number]
        if not shape.numel():
            return torch.empty(shape, dtype=dtype)
        assert self.memory is not None, "made for the first place"
        start = slip.place + offset
        return torch.frombuffer(self.memory, dtype=dtype, count=shape.numel(), offset=start).view(shape)

    def let_go(self, slip: Slip) -> None:
        """Tell the system that these pages are not needed in memory; they are in the file."""
        if self.memory is not None and slip.layout.size and hasattr(mmap, "MADV_DONTNEED"):
            start = slip.place // PAGE * PAGE
            self.memory.madvise(mmap.MADV_DONTNEED, start, slip.place + slip.layout.size - start)


class Kept(Sequence[State]):
    """The states of all sites after a round, by their number. A value: a round makes a new one, with some replaced.

    A state that was never replaced is `first(number)`.
    """

    def __init__(self, n: int, first: Callable[[int], State]):
        sample = first(0)
        self.first = first
        self.empty = not tree.flatten(sample)  # there is nothing to keep
        self.shelf = Shelf() if n > MANY or n * tree.nbytes(sample) > ROOM else None
        self.entries: list[State | Slip | None] = [None] * n
        self.firsts: dict[int, State] = {}  # what `first` gave, where it can be remembered; the same for all copies
        self.when: NDArray[np.int64] = np.zeros(n, dtype=np.int64)  # the round that replaced it; 0: none did

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, number: int) -> State: ...
    @overload
    def __getitem__(self, number: slice) -> list[State]: ...
    def __getitem__(self, number: int | slice) -> State | list[State]:
        if isinstance(number, slice):
            return [self[i] for i in range(len(self))[number]]
        entry = self.entries[number]
        if isinstance(entry, Slip):
            return entry.shelf.get(entry)
        if entry is not None:
            return entry
        if self.shelf is not None:
            return self.first(number)
        if number not in self.firsts:
            self.firsts[number] = self.first(number)
        return self.firsts[number]

    def __setitem__(self, number: int, state: State) -> None:
        """Replace one for good, outside the rounds."""
        self.put(number, state, max(1, int(self.when[number])))

    def copy(self) -> Kept:
        """The same states, some of which are about to be replaced by `put`."""
        new = copy.copy(self)
        new.entries, new.when = list(self.entries), self.when.copy()
        return new

    def put(self, number: int, state: State, round: int) -> None:
        if self.empty and not tree.flatten(state):
            return
        self.entries[number] = owned(state) if self.shelf is None else self.shelf.put(state)
        self.firsts.pop(number, None)
        self.when[number] = round

    def replaced(self, after: int = 0) -> list[int]:
        """The numbers of those that a round after this one replaced."""
        return [int(number) for number in np.flatnonzero(self.when > after)]

    def alike(self, numbers: Sequence[int]) -> Mapping[Layout, list[int]]:
        """Layouts of replaced states, with the numbers of those that have each."""
        found: dict[Layout, list[int]] = {}
        for number in numbers:
            entry = self.entries[number]
            layout = entry.layout if isinstance(entry, Slip) else Layout.of(self[number])[0]
            found.setdefault(layout, []).append(number)
        return found

    def tensor(self, number: int, place: int) -> Tensor:
        """One of the tensors of a replaced state, by its number in the layout."""
        entry = self.entries[number]
        if not isinstance(entry, Slip):
            return Layout.of(self[number])[1][place]
        found = entry.shelf.view(entry, place).clone()
        entry.shelf.let_go(entry)
        return found


def owned(state: State) -> State:
    """A state whose tensors keep no others' memory: a lane of a stack is copied out of it, so that the stack can go."""
    copies: dict[Any, Tensor] = {}

    def own(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size():
            return tensor
        key = tree.identity(tensor)
        if key not in copies:
            copies[key] = tensor.clone()
        return copies[key]

    return tree.transform(own, state)
