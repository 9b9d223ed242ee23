"""Trees: named tensors, and the few operations that methods need.

A *tree* holds a model: parameters and buffers by name. A *state* nests trees; `flatten` names each tensor by its
path, which is how a state travels and how it is saved. Tensors are values here: no operation changes its arguments.

Tensors that are not of floating type (counters of batch norm, index buffers) are never averaged or interpolated:
`mean` takes the largest over the clients, which does not depend on their order, and `lerp` takes the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

BLOCK = 1 << 22  # values of a large tensor that `mean` looks at at a time

Tree = dict[str, Tensor]
State = dict[str, Any]


def pick(tree: Mapping[str, Tensor], names: Collection[str]) -> Tree:
    """The tensors named."""
    return {name: tensor for name, tensor in tree.items() if name in names}


def drop(tree: Mapping[str, Tensor], names: Collection[str]) -> Tree:
    """The tensors not named."""
    return {name: tensor for name, tensor in tree.items() if name not in names}


def join(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Tree:
    """`function` of the tensors of the same name, for each name of the first tree."""
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def zeros(tree: Mapping[str, Tensor]) -> Tree:
    return join(torch.zeros_like, tree)


def sub(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    return join(torch.sub, a, b)


def lerp(a: Mapping[str, Tensor], b: Mapping[str, Tensor], weight: float | Tensor) -> Tree:
    """a + weight (b - a)."""
    return join(lambda x, y: x + weight * (y - x) if x.is_floating_point() else y, a, b)


def mean(stacked: Mapping[str, Tensor], weights: Tensor) -> Tree:
    """The weighted mean over the leading dimension; `weights` need not sum to one."""
    share = weights.double() / weights.double().sum()

    def average(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x.amax(0)
        precise = x.double() if x.dtype is torch.float64 else x.float()
        total: Tensor = torch.tensordot(share.to(precise), precise, dims=1)
        least, most = precise.amin(0), precise.amax(0)  # of which torch's aminmax takes fifteen times as long
        return total.clamp(least, most).to(x.dtype)  # so that equal values (a frozen tensor's) are their own mean

    def by_blocks(x: Tensor) -> Tensor:
        """The same where each step's tensors would be large."""
        flat, result = x.view(len(x), -1), x.new_empty(x.shape[1:])
        values = flat.shape[1]
        size = 64 * -(-values // (64 * -(-values // BLOCK)))  # blocks much alike: a tiny one is added up in another way
        for start in range(0, values, size):
            result.view(-1)[start : start + size] = average(flat[:, start : start + size])
        return result

    large = {name for name, x in stacked.items() if x[0].numel() > BLOCK and x.is_contiguous() and not x.requires_grad}
    return {name: by_blocks(x) if name in large else average(x) for name, x in stacked.items()}


def sqdist(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Collection[str] | None = None) -> Tensor:
    """Squared Euclidean distance, over `names` or all floating tensors of `a`."""
    chosen = [n for n in a if (a[n].is_floating_point() if names is None else n in names)]
    total = torch.zeros((), dtype=torch.float32)
    for name in chosen:
        total = total.to(a[name]) + (a[name] - b[name]).square().sum()
    return total


def rows(stacked: State, index: Tensor) -> State:
    """The rows `index` of every tensor."""
    return transform(lambda x: x[index.to(x.device)], stacked)


def put(stacked: Mapping[str, Tensor], index: Tensor, values: Mapping[str, Tensor]) -> Tree:
    """`stacked` with its rows `index` replaced."""
    return join(lambda x, y: x.index_copy(0, index.to(x.device), y), stacked, values)


def expand(tree: Mapping[str, Tensor], n: int) -> Tree:
    """`n` copies of a tree in a new leading dimension."""
    return join(lambda x: x.expand(n, *x.shape).clone(), tree)


def stack(states: Sequence[State]) -> State:
    """States of the same shape, stacked in a new leading dimension."""
    flat = [flatten(state) for state in states]
    return unflatten({name: torch.stack([one[name] for one in flat]) for name in flat[0]})


def where(condition: Tensor, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    return join(lambda x, y: torch.where(condition, x, y), a, b)


def transform(function: Callable[[Tensor], Tensor], state: Mapping[str, Any]) -> State:
    """`function` of every tensor of a nested state."""
    def changed(value: Any) -> Any:
        nested = not isinstance(value, Tensor) and isinstance(value, Mapping)  # asked in this order: tensors are many
        return transform(function, value) if nested else function(value)

    return {key: changed(value) for key, value in state.items()}


def detach(state: State) -> State:
    """The same values, cut from any gradient."""
    return transform(Tensor.detach, state)


def flatten(state: Mapping[str, Any], path: str = "") -> Tree:
    """A nested state as one tree whose names are paths: `{"ala": {"w": t}}` -> `{"ala/w": t}`."""
    flat: Tree = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            flat[path + key] = value
        elif isinstance(value, Mapping):
            flat.update(flatten(value, f"{path}{key}/"))
        else:
            kind = type(value).__name__
            raise TypeError(f"a state holds tensors only, but {path + key!r} is a {kind}; make it a tensor")
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> State:
    return grown(flat.items())


def leaves(state: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Tensor | None]]:
    """Every tensor with its path, in order, and None for a sub-state that is empty."""
    for key, value in state.items():
        if isinstance(value, Tensor):
            yield path + key, value
        elif value:
            yield from leaves(value, f"{path}{key}/")
        else:
            yield path + key, None


def grown(leaves: Iterable[tuple[str, Tensor | None]]) -> State:
    """The state that has these leaves."""
    state: State = {}
    for path, tensor in leaves:
        *parents, last = path.split("/")
        inner = state
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = {} if tensor is None else tensor
    return state


def identity(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same values in the same memory, as long as they exist; an empty one is its own."""
    if not tensor.numel():
        return (id(tensor),)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def nbytes(state: Mapping[str, Any]) -> int:
    """Bytes of all tensors: what `encode` gives."""
    return sum(tensor.nbytes for tensor in flatten(state).values())


Schema = list[tuple[str, str, tuple[int, ...]]]


def encode(state: Mapping[str, Any]) -> tuple[bytes, Schema]:
    """One flat buffer of raw values, and the schema (path, type, shape), in order, that tells what is where."""
    flat = flatten(state)
    schema = [(path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for path, tensor in flat.items()]
    return b"".join(raw(tensor) for tensor in flat.values()), schema


def decode(buffer: bytes, schema: Iterable[tuple[str, str, Sequence[int]]]) -> State:
    flat: Tree = {}
    offset = 0
    for path, kind, shape in schema:
        dtype: torch.dtype = getattr(torch, kind)
        count = 1
        for length in shape:
            count *= length
        size = count * dtype.itemsize
        flat[path] = torch.empty(tuple(shape), dtype=dtype)
        if count:
            piece = torch.frombuffer(bytearray(buffer[offset : offset + size]), dtype=dtype)
            flat[path].copy_(piece.reshape(tuple(shape)))
        offset += size
    if offset != len(buffer):
        raise ValueError(f"the message has {len(buffer)} bytes, its schema tells of {offset}")
    return unflatten(flat)


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor's values, of any type, bfloat16 included."""
    return bytes(buffer(tensor))


def buffer(tensor: Tensor) -> memoryview:
    """The same bytes where they lie, without a copy where there need be none."""
    values = tensor.detach().cpu().contiguous()
    # a single value counts as contiguous whatever its stride
    return values.as_strided((values.numel(),), (1,)).view(torch.uint8).numpy().data
