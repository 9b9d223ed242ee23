"""`Lanes`: one value for each of several clients, that ordinary code takes for a single one.

A `Lanes` tensor holds the clients' values stacked in a leading dimension which only this module sees: its `shape`,
`dim` and `len` are those of one client's value, and every operation on it is done for all clients at once. So the hooks
of a method and the `forward` of a network, written for one client, run unchanged for many.

What is common in training has a rule here that is as fast as a stack of clients can be (a linear layer is one batched
product, a convolution one grouped convolution). Whatever has none goes through `torch.vmap`, one operation at a time,
or else lane by lane; and what no stack can answer, such as Python that looks at values, raises `OneByOne`: these
clients must be run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]
Rule = Callable[[Function, tuple[Any, ...], dict[str, Any]], Any]


_shape, _ndim = Tensor.shape.__get__, Tensor.ndim.__get__  # type: ignore[attr-defined]  # of the whole stack


class OneByOne(Exception):
    """What is asked for cannot be done for several clients at once."""


class Lanes(Tensor):
    """Values of several clients; see the module."""

    __slots__ = ()

    @classmethod
    def __torch_function__(
        cls, func: Function, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return (RULES.get(func) or DEFAULT[0])(func, args, kwargs or {})

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        with torch._C.DisableTorchFunctionSubclass():
            return stacked_shape(self)[1:]

    @property
    def ndim(self) -> int:  # type: ignore[override]
        with torch._C.DisableTorchFunctionSubclass():
            return depth(self)

    @property
    def T(self) -> Tensor:  # type: ignore[override]
        return self.transpose(0, 1) if self.ndim == 2 else self.permute(*reversed(range(self.ndim)))

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return self.shape.numel()

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"lanes({raw(self)!r})"

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        raise OneByOne("Python that branches on a tensor's value")

    def item(self) -> Any:
        raise OneByOne("item()")

    def tolist(self) -> Any:
        raise OneByOne("tolist()")

    __float__ = __int__ = __index__ = item


def lanes(stacked: Tensor) -> Tensor:
    """`stacked`, whose first dimension counts clients, as the value of each; on the same memory."""
    with torch._C.DisableTorchFunctionSubclass():
        return stacked.as_subclass(Lanes)


def raw(value: Tensor) -> Tensor:
    """The stacked values as an ordinary tensor, on the same memory."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(Tensor)


def is_lanes(value: object) -> bool:
    return type(value) is Lanes


# ---------- lanes that are not all of a chunk ----------

_selection: list[tuple[int, Tensor | slice]] = []


@contextmanager
def selected(count: int, which: Tensor | slice) -> Iterator[None]:
    """While `count` lanes of a chunk are worked on, values of the whole chunk stand for theirs."""
    _selection.append((count, which))
    try:
        yield
    finally:
        _selection.pop()


def aligned(values: Sequence[Tensor]) -> list[Tensor]:
    """Lanes of the whole chunk cut to those that are worked on, where they meet such."""
    counts = [stacked_shape(value)[0] for value in values]
    if len(set(counts)) == 1:
        return list(values)
    if not _selection:
        raise OneByOne("values of different numbers of clients")
    count, which = _selection[-1]
    return [value if own == count else value[which] for value, own in zip(values, counts, strict=True)]


def stacks(*values: Tensor) -> list[Tensor]:
    """The stacked values as ordinary tensors, of the same clients."""
    return [value.as_subclass(Tensor) for value in aligned(values)]


# ---------- what rules are made of: under DisableTorchFunctionSubclass, Lanes are ordinary stacked tensors ----------


def wrapped(out: Any) -> Any:
    if type(out) is Tensor:
        out.__class__ = Lanes
        return out
    if isinstance(out, tuple | list):
        parts = [wrapped(part) for part in out]
        return type(out)(*parts) if hasattr(out, "_fields") else type(out)(parts)
    return out


def depth(value: Tensor) -> int:
    """Dimensions of one client's value."""
    ndim: int = _ndim(value)
    return ndim - 1 if type(value) is Lanes else ndim


def stacked_shape(value: Tensor) -> torch.Size:
    shape: torch.Size = _shape(value)
    return shape


def register(rule: Rule, *functions: Any) -> None:
    RULES.update({function: rule for function in functions if function is not None})


def both(names: str) -> list[Any]:
    """A function of torch and the method of Tensor by that name, where there are such."""
    places = (torch, Tensor)
    return [getattr(place, name) for name in names.split() for place in places if hasattr(place, name)]


RULES: dict[Any, Rule] = {}
DEFAULT: list[Rule] = []  # for what has no rule of its own
