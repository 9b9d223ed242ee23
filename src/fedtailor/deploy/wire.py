"""A state as one flat buffer of raw values and a schema that tells what is where; and back, trusting nothing.

One buffer, however many tensors: a transport pays per object, not per byte. All types of torch travel, bfloat16,
single values and empty tensors included, and so do empty sub-states. What comes in is measured against the schema, and
the schema against limits, before a byte of it is used.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.tree import State

EMPTY = "state"  # the kind of an empty sub-state in a schema
KINDS: dict[str, torch.dtype] = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
MOST_TENSORS = 100_000
MOST_DIMENSIONS = 16
LONGEST_PATH = 1000

Field = tuple[str, str, tuple[int, ...]]
Room = Callable[[str, torch.dtype, tuple[int, ...]], Tensor]  # where a tensor that comes in is to lie


class BadMessage(ValueError):
    """A message that is not what it should be; the text says in what."""


@dataclass(frozen=True)
class Packed:
    """A state ready to travel; made once, it can be sent to many."""

    schema: tuple[Field, ...]
    body: bytes
    digest: str  # SHA-256 of the body, in hexadecimal


def pack(state: Mapping[str, Any]) -> Packed:
    """One buffer of all values, in the order of the state."""
    schema: list[Field] = []
    pieces: list[bytes] = []
    for path, tensor in tree.leaves(state):
        if tensor is None:
            schema.append((path, EMPTY, ()))
            continue
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in KINDS:
            raise TypeError(f"{path!r} is of type {kind}, which cannot be sent; there are {', '.join(KINDS)}")
        schema.append((path, kind, tuple(tensor.shape)))
        pieces.append(tree.raw(tensor))
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return Packed(tuple(schema), body, hashlib.sha256(body).hexdigest())


def read_schema(written: Any) -> tuple[Field, ...]:
    """A schema as it came in, checked: known types, small dimensions, no path twice or inside another."""
    if not isinstance(written, list) or len(written) > MOST_TENSORS:
        raise BadMessage(f"its schema is not a list of at most {MOST_TENSORS} tensors")
    fields: list[Field] = []
    seen: set[str] = set()
    inner: set[str] = set()
    for entry in written:
        path, kind, shape = _read_field(entry)
        parts = path.split("/")
        above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        if path in seen or path in inner or above & seen:
            raise BadMessage(f"{path!r} is in its schema twice, or inside another tensor")
        seen.add(path)
        inner |= above
        fields.append((path, kind, shape))
    return tuple(fields)


def _read_field(entry: Any) -> Field:
    if not isinstance(entry, list) or len(entry) != 3:
        raise BadMessage("its schema has an entry that is not a path, a type and a shape")
    path, kind, shape = entry
    if not isinstance(path, str) or len(path) > LONGEST_PATH or not all(path.split("/")):
        raise BadMessage(f"its schema has a path that is none: {str(path)[:50]!r}")
    if not isinstance(kind, str) or (kind != EMPTY and kind not in KINDS):
        raise BadMessage(f"its schema has the unknown type {str(kind)[:50]!r}")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or (kind == EMPTY and shape):
        raise BadMessage(f"its schema has a shape that is none, at {path!r}")
    if not all(type(length) is int and 0 <= length < 2**48 for length in shape):
        raise BadMessage(f"its schema has an impossible shape at {path!r}")
    return path, kind, tuple(shape)


def size_of(schema: tuple[Field, ...]) -> int:
    """Bytes that a schema tells of."""
    return sum(math.prod(shape) * KINDS[kind].itemsize for _, kind, shape in schema if kind != EMPTY)


def anywhere(path: str, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=kind)


def unpack(written: Any, body: bytes | bytearray, room: Room = anywhere) -> State:
    """The state of a schema and a buffer, neither of them trusted; each tensor is copied to where `room` says."""
    schema = read_schema(written)
    told = size_of(schema)
    if told != len(body):
        raise BadMessage(f"its body has {len(body)} bytes, and its schema tells of {told}")
    state: State = {}
    offset = 0
    for path, kind, shape in schema:
        *parents, last = path.split("/")
        place = state
        for parent in parents:
            place = place.setdefault(parent, {})
        if kind == EMPTY:
            place[last] = {}
            continue
        place[last] = tensor = room(path, KINDS[kind], shape)
        offset = _fill(tensor, path, body, offset)
    return state


def _fill(tensor: Tensor, path: str, body: bytes | bytearray, offset: int) -> int:
    """Copy a tensor's values out of the buffer; gives where the next one's begin."""
    size = tensor.numel() * tensor.element_size()
    if size:
        values = np.frombuffer(body, dtype=np.uint8, count=size, offset=offset)
        if tensor.dtype is torch.bool and values.max() > 1:
            raise BadMessage(f"{path!r} holds a truth value that is neither true nor false")
        tensor.view(-1).view(torch.uint8).numpy()[:] = values
    return offset + size


def check_like(state: Mapping[str, Any], example: Mapping[str, Any], what: str) -> None:
    """That a state has the names, types and shapes of an example, in whatever order."""
    found, wanted = dict(tree.leaves(state)), dict(tree.leaves(example))
    odd = sorted(found.keys() ^ wanted.keys())
    if odd:
        side = "lacks" if odd[0] in wanted else "has an unknown"
        raise BadMessage(f"the {what} {side} {odd[0]!r}" + (f" and {len(odd) - 1} more" if len(odd) > 1 else ""))
    for path, tensor in found.items():
        if outline(tensor) != outline(wanted[path]):
            raise BadMessage(f"in the {what}, {path!r} is {outline(tensor)} and should be {outline(wanted[path])}")


def outline(tensor: Tensor | None) -> str:
    if tensor is None:
        return "an empty state"
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def check_finite(state: Mapping[str, Any], what: str) -> None:
    """That every value is a finite number."""
    for path, tensor in tree.leaves(state):
        if tensor is None or not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        least, most = values.aminmax()  # of NaN both are NaN; unlike `isfinite` it makes no tensor of that size
        if not (math.isfinite(least) and math.isfinite(most)):
            raise BadMessage(f"in the {what}, {path!r} holds a value that is not a finite number")
