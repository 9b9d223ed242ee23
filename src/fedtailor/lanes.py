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

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

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
            return (RULES.get(func) or unknown)(func, args, kwargs or {})

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


# ---------- rules ----------
# A rule is called where Lanes are ordinary stacked tensors to every operation.


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


def elementwise(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Operations that broadcast: a client's value of fewer dimensions gets them after the lanes."""
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    if len(tensors) > 1:
        most = max(map(depth, tensors))
        laned = [t for t in tensors if type(t) is Lanes]
        cut = dict(zip(map(id, laned), aligned(laned), strict=True)) if len(laned) > 1 else {}

        def fitted(value: Any) -> Any:
            if type(value) is not Lanes:
                return value
            chosen = cut.get(id(value), value)
            missing = most - depth(value)
            if missing:
                shape = stacked_shape(chosen)
                return chosen.reshape(shape[0], *(1,) * missing, *shape[1:])
            return chosen

        out = func(*map(fitted, args), **{key: fitted(value) for key, value in kwargs.items()})
    else:
        out = func(*args, **kwargs)
    return args[0] if out is args[0] else wrapped(out)


def of_lists(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch._foreach_*: element by element over lists of tensors."""
    if any(is_lanes(a) for a in args if isinstance(a, Tensor)):
        raise OneByOne(f"{func.__name__} with one factor per client")
    lists = [list(a) for a in args if isinstance(a, list | tuple)]
    if any(is_lanes(t) for part in lists for t in part):
        for part in lists:
            if not all(is_lanes(t) for t in part):
                raise OneByOne(f"{func.__name__} of a common tensor in place")
        if len(lists) > 1:
            pairs = [aligned(group) for group in zip(*lists, strict=True)]
            rest = [a for a in args if not isinstance(a, list | tuple)]
            lists = [list(part) for part in zip(*pairs, strict=True)]
            return wrapped(func(*lists, *rest, **kwargs))
    return wrapped(func(*args, **kwargs))


def norms(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch._foreach_norm: a norm of each tensor, for each client."""
    if len(args) > 1 or kwargs:
        raise OneByOne("torch._foreach_norm of another order than 2")
    return [wrapped(raw(x).flatten(1).norm(dim=1)) if is_lanes(x) else x.norm() for x in args[0]]


def converting(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """x.to(y): y lends its type and device, not its lanes."""
    out = func(*args, **kwargs)
    return wrapped(out) if is_lanes(args[0]) else out


def plain(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What concerns no value: types, devices, gradients asked for."""
    out = func(*args, **kwargs)
    return args[0] if out is args[0] else out


def constant(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """x.new_zeros(shape): the same for every client, hence no lanes."""
    return func(*args, **kwargs)


def shifted(dim: int) -> int:
    return dim + 1 if dim >= 0 else dim


def reducing(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """sum, mean, amax ...: over all of a client's numbers, or over its dimensions."""
    x, *rest = args
    named = "dim" in kwargs
    dim = kwargs["dim"] if named else rest[0] if rest else None
    if dim is None or dim == ():
        kwargs = {key: value for key, value in kwargs.items() if key != "dim"}
        if depth(x) != 1:
            x = x.reshape(stacked_shape(x)[0], -1)
        return wrapped(func(x, 1, *rest[1:], **kwargs))
    if not isinstance(dim, int | tuple | list) or isinstance(dim, bool):
        return unknown(func, args, kwargs)
    moved = shifted(dim) if isinstance(dim, int) else tuple(map(shifted, dim))
    if named:
        return wrapped(func(x, *rest, **{**kwargs, "dim": moved}))
    return wrapped(func(x, moved, *rest[1:], **kwargs))


def along(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """softmax, cumsum ...: along one dimension that is always named."""
    x, *rest = args
    if "dim" in kwargs:
        return wrapped(func(x, *rest, **{**kwargs, "dim": shifted(kwargs["dim"])}))
    if not rest or not isinstance(rest[0], int):
        return unknown(func, args, kwargs)
    return wrapped(func(x, shifted(rest[0]), *rest[1:], **kwargs))


def shape_of(rest: Sequence[Any]) -> tuple[int, ...]:
    return tuple(rest[0]) if len(rest) == 1 and not isinstance(rest[0], int) else tuple(rest)


def reshaping(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, *rest = args
    if kwargs or not all(isinstance(size, int) for size in shape_of(rest)):
        return unknown(func, args, kwargs)
    return wrapped(func(x, (stacked_shape(x)[0], *shape_of(rest))))


def flattening(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, *rest = args
    start, end = (*rest, *(kwargs.get(k, d) for k, d in (("start_dim", 0), ("end_dim", -1))[len(rest) :]))
    if not depth(x):
        return wrapped(x.reshape(-1, 1))
    return wrapped(x.flatten(shifted(start), shifted(end)))


def moving(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """transpose, permute, unsqueeze ...: every integer is a dimension."""
    x, *rest = args
    if kwargs or not all(isinstance(dim, int) for dim in shape_of(rest)):
        return unknown(func, args, kwargs)
    dims = [shifted(dim) for dim in shape_of(rest)]
    return wrapped(func(x, (0, *dims)) if func in (Tensor.permute, torch.permute) else func(x, *dims))


def joining(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """cat and stack."""
    parts = list(args[0])
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    cut = stacks(*(part for part in parts if is_lanes(part)))
    count = len(cut[0])
    ready = iter(cut)
    full = [next(ready) if is_lanes(part) else part.expand(count, *part.shape) for part in parts]
    return wrapped(func(full, dim=shifted(dim)))


def indexing(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, index = args
    parts = index if isinstance(index, tuple) else (index,)
    if all(p is None or p is Ellipsis or (isinstance(p, int | slice) and not isinstance(p, bool)) for p in parts):
        return wrapped(x[(slice(None), *parts)])
    if len(parts) == 1 and is_lanes(parts[0]) and parts[0].dtype is torch.int64:
        rows = parts[0]
        if not is_lanes(x):
            return wrapped(x[rows.as_subclass(Tensor)])
        x, rows = stacks(x, rows)
        lane = torch.arange(len(x), device=x.device).reshape(-1, *(1,) * (rows.ndim - 1))
        return wrapped(x[lane, rows])
    if len(parts) == 1 and isinstance(parts[0], Tensor) and parts[0].dtype is torch.int64 and is_lanes(x):
        return wrapped(x[:, parts[0]])
    return unknown(func, args, kwargs)


def assigning(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """x[1:] = y, into the lanes of x."""
    x, index, value = args
    parts = index if isinstance(index, tuple) else (index,)
    if not is_lanes(x) or not all(isinstance(p, int | slice) and not isinstance(p, bool) for p in parts):
        raise OneByOne("an assignment to some entries")
    place = x[(slice(None), *parts)]
    if is_lanes(value):
        missing = place.ndim - 1 - depth(value)
        value = value.reshape(len(place), *(1,) * missing, *stacked_shape(value)[1:])
    place.copy_(value) if isinstance(value, Tensor) else place.fill_(value)


def gradient(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch.autograd.grad: no client's objective depends on another's values, so their sum has each one's gradient."""
    outputs, inputs, *rest = args
    outputs = [outputs] if isinstance(outputs, Tensor) else outputs
    if rest or kwargs.get("grad_outputs") is not None:
        raise OneByOne("torch.autograd.grad with grad_outputs")
    found = func([output.sum() for output in outputs], inputs, **kwargs)
    many = [inputs] if isinstance(inputs, Tensor) else inputs
    return tuple(wrapped(g) if g is not None and is_lanes(x) else g for g, x in zip(found, many, strict=True))


_without_vmap: set[Any] = set()  # functions that were found to have no rule there either


def unknown(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any other operation: by torch.vmap, or else lane by lane."""
    if getattr(func, "__name__", "") == "__get__":  # a property
        out = func(*args)
        return wrapped(out) if isinstance(out, Tensor) else out
    leaves, spec = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if is_lanes(leaf)]
    cut = stacks(*(leaves[place] for place in places))

    def call(*values: Tensor) -> Any:
        filled = list(leaves)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        again, named = tree_unflatten(filled, spec)
        return func(*again, **named)

    if func not in _without_vmap:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # vmap warns where it would loop itself
                return wrapped(torch.vmap(call, randomness="error")(*cut))
        except (RuntimeError, ValueError, NotImplementedError, UserWarning):
            _without_vmap.add(func)
    parts = [call(*values) for values in zip(*(value.unbind(0) for value in cut), strict=True)]
    flat = [tree_flatten(part) for part in parts]
    if not all(isinstance(leaf, Tensor) for leaf in flat[0][0]):
        raise OneByOne(f"{getattr(func, '__name__', func)}(), which gives no tensor")
    if len({tuple(leaf.shape for leaf in some) for some, _ in flat}) > 1:
        raise OneByOne(f"{getattr(func, '__name__', func)}(), whose shape depends on the values")
    columns = zip(*(some for some, _ in flat), strict=True)
    return wrapped(tree_unflatten([torch.stack(column) for column in columns], flat[0][1]))


# ---------- rules for layers ----------


def linear(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, weight, bias = (*args, *(kwargs.get(k) for k in ("weight", "bias")[len(args) - 1 :]))[:3]
    if not is_lanes(x) or (bias is not None and is_lanes(bias) is not is_lanes(weight)) or depth(x) < 2:
        return unknown(func, args, kwargs)
    if not is_lanes(weight):
        return wrapped(func(x, weight, bias))
    x, weight, *rest = stacks(x, weight, *([] if bias is None else [bias]))
    rows = x.reshape(len(x), -1, x.shape[-1])
    out = torch.baddbmm(rest[0].unsqueeze(1), rows, weight.mT) if rest else torch.bmm(rows, weight.mT)
    return wrapped(out.reshape(*x.shape[:-1], out.shape[-1]))


def merged(x: Tensor) -> Tensor:
    """[lanes, rows, channels, ...] as [rows, lanes * channels, ...], channels last in memory."""
    order = (1, *range(3, x.ndim), 0, 2)
    last = x.permute(order).contiguous()
    flat = last.view(*last.shape[:-2], -1)
    return flat.permute(0, flat.ndim - 1, *range(1, flat.ndim - 1))


def parted(x: Tensor, count: int) -> Any:
    """What `merged` made, as it was; a view on the same memory."""
    return wrapped(x.view(len(x), count, -1, *x.shape[2:]).transpose(0, 1))


def convolution(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
    if not is_lanes(x) or not is_lanes(weight) or (bias is not None and not is_lanes(bias)):
        return unknown(func, args, kwargs)
    x, weight, *rest = stacks(x, weight, *([] if bias is None else [bias]))
    count = len(x)
    given["groups"] = given.get("groups", 1) * count
    out = func(merged(x), weight.flatten(0, 1), rest[0].flatten() if rest else None, **given)
    return parted(out, count)


def pooling(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Each channel for itself."""
    [x], rest = stacks(args[0]), args[1:]
    return parted(func(merged(x), *rest, **kwargs), len(x))


def batch_norm(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As one norm over the channels of all clients; their running statistics are moved in place."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x = given.pop("input")
    if not is_lanes(x):
        return unknown(func, args, kwargs)
    own = [name for name in names[1:5] if is_lanes(given.get(name))]
    x, *values = stacks(x, *(given[name] for name in own))
    common = [name for name in names[1:5] if isinstance(given.get(name), Tensor) and name not in own]
    given |= {name: given[name].expand(len(x), -1).reshape(-1) for name in common}
    given |= {name: value.reshape(-1) for name, value in zip(own, values, strict=True)}
    return parted(func(merged(x), **given), len(x))


def cross_entropy(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out, y, *rest = args
    reduction = kwargs.get("reduction", "mean")
    usual = is_lanes(out) and is_lanes(y) and depth(out) == 2 and depth(y) == 1
    if rest or kwargs.keys() - {"reduction"} or not usual:
        return unknown(func, args, kwargs)
    out, y = stacks(out, y)
    losses = func(out.flatten(0, 1), y.flatten(), reduction="none").view(len(out), -1)
    return wrapped(losses if reduction == "none" else losses.mean(1) if reduction == "mean" else losses.sum(1))


_generators: list[list[torch.Generator]] = []


@contextmanager
def drawing_from(seeds: Sequence[int]) -> Iterator[None]:
    """Dropout draws each lane's mask from a generator of its own."""
    _generators.append([torch.Generator().manual_seed(seed) for seed in seeds])
    try:
        yield
    finally:
        _generators.pop()


def dropout(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Each client's mask is drawn from its own generator, as the client alone would draw it."""
    x, p, training, *_ = (*args, *(kwargs.get(k, d) for k, d in (("p", 0.5), ("training", True))[len(args) - 1 :]))
    if not training or p == 0:
        return x
    if not _generators or not is_lanes(x):
        raise OneByOne("dropout outside training")
    draws, [x] = _generators[-1], stacks(x)
    if len(x) != len(draws):
        which = _selection[-1][1]
        places = range(len(draws))[which] if isinstance(which, slice) else which.tolist()
        draws = [draws[place] for place in places]
    # as torch draws it for one client: contiguous noise of the input's shape
    noise = torch.stack([torch.empty(x.shape[1:], dtype=x.dtype).bernoulli_(1 - p, generator=g) for g in draws])
    return wrapped(x * noise.to(x.device).div_(1 - p))


def register(rule: Rule, *functions: Any) -> None:
    RULES.update({function: rule for function in functions if function is not None})


def both(names: str) -> list[Any]:
    """A function of torch and the method of Tensor by that name, where there are such."""
    places = (torch, Tensor)
    return [getattr(place, name) for name in names.split() for place in places if hasattr(place, name)]


RULES: dict[Any, Rule] = {}
register(
    elementwise,
    *both(
        "add sub mul div true_divide neg pow exp exp_ log log_ log1p sqrt rsqrt abs square reciprocal sigmoid tanh "
        "relu relu_ clamp clamp_ clamp_min clamp_max clip where lerp lerp_ maximum minimum eq ne lt le gt ge "
        "logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not isfinite isnan isinf cos sin floor "
        "round sign clone detach zeros_like ones_like full_like empty_like remainder fmod xlogy nan_to_num add_ "
        "sub_ mul_ div_ copy_ zero_ fill_ neg_ float double half bfloat16 long int bool contiguous softplus erf "
        "positive __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __neg__ __pow__ "
        "__rpow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __rand__ __or__ __ror__ __invert__ __xor__ "
        "__mod__ __abs__ __iadd__ __isub__ __imul__ __idiv__ __itruediv__ requires_grad_ alias rsub logaddexp"
    ),
    F.relu, F.relu6, F.hardswish, F.hardsigmoid, F.hardtanh, F.gelu, F.silu, F.mish, F.leaky_relu, F.elu, F.selu,
    F.celu, F.softplus, F.softsign, F.sigmoid, F.tanh, F.logsigmoid,
)  # fmt: skip
register(converting, Tensor.to, Tensor.type_as)
register(plain, *both("is_floating_point is_complex element_size data_ptr untyped_storage is_contiguous"))
register(constant, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty, Tensor.new_tensor)
register(reducing, *both("sum mean amax amin any all prod logsumexp argmax argmin"))
register(along, *both("softmax log_softmax cumsum"), F.softmax, F.log_softmax)
register(reshaping, Tensor.reshape, Tensor.view)
register(flattening, *both("flatten"))
register(moving, *both("transpose permute unsqueeze"))
register(joining, torch.cat, torch.stack, torch.concat)
register(indexing, Tensor.__getitem__)
register(assigning, Tensor.__setitem__)
register(gradient, torch.autograd.grad)
register(linear, F.linear)
register(convolution, F.conv1d, F.conv2d, F.conv3d)
register(
    pooling, F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d,
    F.adaptive_max_pool2d, torch.max_pool2d, torch.max_pool1d,
)  # fmt: skip
register(batch_norm, F.batch_norm)
register(cross_entropy, F.cross_entropy)
register(dropout, F.dropout)
register(of_lists, *(getattr(torch, name) for name in dir(torch) if name.startswith("_foreach_")))
register(norms, torch._foreach_norm)
