"""Checkpoints of very many sites: each adds a file with the states that changed since the one before.

A shard is a safetensors file with one tensor for each name, whose rows are sites; `number` says which. What a later
shard has counts, so a checkpoint names, for each site, the shard and the row. When the shards hold much that no longer
counts, all that does is written anew, so that a checkpoint costs as much as the sites that trained.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor import tree
from fedtailor.store import Kept, Layout
from fedtailor.tree import State

SLACK = 1 << 24  # bytes that may be out of date before all is written anew, beside as much as was written then
MOST = 512  # shards
NAMES = {
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.uint8: "U8",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64", torch.bool: "BOOL",
}  # fmt: skip
TYPES = {name: dtype for dtype, name in NAMES.items()}


class BadShard(Exception):
    """A shard that is missing, cut short, or does not match its digest."""


@dataclass
class Shards:
    """The shards of a checkpoint, and where each site's state is among them."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # digest and bytes by name
    shard: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # by site; -1: it has no state yet
    row: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    round: int = 0  # of the checkpoint
    whole: int = 0  # bytes, when all was last written

    def about(self) -> dict[str, str]:
        return {"shards": json.dumps({"files": self.files, "whole": self.whole})}

    def index(self) -> State:
        """Where each site's state is, as tensors."""
        return {"shard": torch.from_numpy(self.shard), "row": torch.from_numpy(self.row)}

    @classmethod
    def told(cls, round: int, about: str, index: Mapping[str, Tensor]) -> Shards:
        said: dict[str, Any] = json.loads(about)
        return cls(said["files"], index["shard"].numpy(), index["row"].numpy(), round, said["whole"])

    def following(self, round: int, kept: Kept) -> tuple[Shards, Iterator[tuple[str, Layout, list[int]]]]:
        """The shards after a further round, and those among them that have to be written: name, layout and sites."""
        size = sum(about["bytes"] for about in self.files.values())
        anew = size > 2 * self.whole + SLACK or len(self.files) > MOST or not len(self.shard)
        files = {} if anew else dict(self.files)
        shard = np.full(len(kept), -1) if anew else self.shard.copy()
        row = np.zeros(len(kept), np.int64) if anew else self.row.copy()
        new = Shards(files, shard, row, round, 0 if anew else self.whole)

        def missing() -> Iterator[tuple[str, Layout, list[int]]]:
            alike = kept.alike(kept.replaced(0 if anew else self.round))
            for place, (layout, numbers) in enumerate(alike.items()):
                name = f"sites-{round:06d}-{place}.safetensors"
                new.shard[numbers], new.row[numbers] = len(new.files), np.arange(len(numbers))
                new.files[name] = {}
                yield name, layout, numbers
                new.whole += new.files[name]["bytes"] if anew else 0

        return new, missing()

    def states(self, folder: Path) -> Mapping[str, State]:
        """All states, read one by one when they are asked for; raises BadShard where a file is not what it was."""
        open_files = [OpenShard(folder / name, about["digest"]) for name, about in self.files.items()]
        return States(open_files, self.shard, self.row)


class States(Mapping[str, State]):
    """The states in shards, by the site's number in five digits."""

    def __init__(self, files: Sequence[OpenShard], shard: NDArray[np.int64], row: NDArray[np.int64]):
        self.files, self.shard, self.row = files, shard, row

    def __len__(self) -> int:
        return int((self.shard >= 0).sum())

    def __iter__(self) -> Iterator[str]:
        return (f"{number:05d}" for number in np.flatnonzero(self.shard >= 0))

    def __getitem__(self, name: str) -> State:
        number = int(name)
        if self.shard[number] < 0:
            raise KeyError(name)
        return self.files[int(self.shard[number])].state(int(self.row[number]))


class OpenShard:
    """A shard whose digest was checked; its rows are read one by one."""

    def __init__(self, path: Path, digest: str):
        try:
            self.file = open(path, "rb")  # noqa: SIM115 - open as long as the shard is
        except OSError as error:
            raise BadShard(f"{path.name}: {error.strerror}") from None
        weakref.finalize(self, self.file.close)
        if hashlib.file_digest(self.file, "sha256").hexdigest() != digest:
            raise BadShard(f"{path.name} does not match its digest")
        length = int.from_bytes(os.pread(self.file.fileno(), 8, 0), "little")
        header = json.loads(os.pread(self.file.fileno(), length, 8))
        self.leaves: list[tuple[str, str | None]] = json.loads(header.pop("__metadata__")["leaves"])
        self.columns, self.start = header, 8 + length

    def state(self, row: int) -> State:
        values = {name: self.value(name, row) for _, name in self.leaves if name is not None}
        return tree.grown((path, None if name is None else values[name]) for path, name in self.leaves)

    def value(self, name: str, row: int) -> Tensor:
        about = self.columns[name]
        dtype, shape = TYPES[about["dtype"]], torch.Size(about["shape"][1:])
        size = shape.numel() * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        data = os.pread(self.file.fileno(), size, self.start + about["data_offsets"][0] + row * size)
        return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


def pieces(kept: Kept, layout: Layout, numbers: Sequence[int], round: int) -> Iterator[bytes]:
    """The bytes of a shard, one state's tensor at a time."""
    names: dict[int, str] = {}
    for path, number in layout.leaves:
        if number is not None:
            names.setdefault(number, path)
    leaves = [(path, None if number is None else names[number]) for path, number in layout.leaves]
    order = sorted(names, key=lambda number: -layout.tensors[number][0].itemsize)  # so that each column is aligned
    header: dict[str, Any] = {"__metadata__": {"round": str(round), "leaves": json.dumps(leaves)}}
    end = 0
    columns = [(names[number], *layout.tensors[number][:2]) for number in order]
    for name, dtype, shape in [("number", torch.int64, torch.Size(())), *columns]:
        begin, end = end, end + len(numbers) * shape.numel() * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": [len(numbers), *shape], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the first tensor is aligned
    yield len(text).to_bytes(8, "little") + text
    yield tree.raw(torch.tensor(numbers))
    for place in order:
        for number in numbers:
            yield tree.raw(kept.tensor(number, place))


class Told:
    """Passes bytes on, and tells their digest and number afterwards."""

    def __init__(self, data: Iterable[bytes]):
        self.data, self.digest, self.bytes = data, hashlib.sha256(), 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.data:
            self.digest.update(piece)
            self.bytes += len(piece)
            yield piece

    def about(self) -> dict[str, Any]:
        return {"digest": self.digest.hexdigest(), "bytes": self.bytes}
