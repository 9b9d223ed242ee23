"""Rules for operations on values: what broadcasts, what reduces, what moves dimensions; and the rule for the rest."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedtailor.lanes.value import (
    DEFAULT,
    Function,
    Lanes,
    OneByOne,
    aligned,
    both,
    depth,
    is_lanes,
    raw,
    register,
    stacked_shape,
    stacks,
    wrapped,
)


def elementwise(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Operations that broadcast: a client's value of fewer dimensions gets them after the lanes."""
    if len(args) == 1 and not kwargs:  # the commonest, and nothing to broadcast over
        out = func(*args)
        return args[0] if out is args[0] else wrapped(out)
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    if len(tensors) > 1 and not alike(tensors):
        most = max(map(depth, tensors))
        laned = [t for t in tensors if type(t) is Lanes]
        ready = iter(aligned(laned) if len(laned) > 1 else laned)

        def fitted(value: Any) -> Any:
            if type(value) is not Lanes:
                return value
            chosen = next(ready)
            missing = most - depth(value)
            if missing:
                shape = stacked_shape(chosen)
                return chosen.reshape(shape[0], *(1,) * missing, *shape[1:])
            return chosen

        out = func(*map(fitted, args), **{key: fitted(value) for key, value in kwargs.items()})
    else:
        out = func(*args, **kwargs)
    return args[0] if out is args[0] else wrapped(out)


def alike(tensors: Sequence[Tensor]) -> bool:
    """Whether all are lanes of as many clients and of as many dimensions, and so broadcast as they are. Most do."""
    first = stacked_shape(tensors[0])
    for tensor in tensors:
        shape = stacked_shape(tensor)
        if type(tensor) is not Lanes or shape[0] != first[0] or len(shape) != len(first):
            return False
    return True


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


def parting(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """unbind, split and chunk along a dimension."""
    x, *rest = args
    position = 0 if func in (Tensor.unbind, torch.unbind) else 1
    dim = kwargs.get("dim", rest[position] if len(rest) > position else 0)
    return wrapped(func(x, *rest[:position], **{**kwargs, "dim": shifted(dim)}))


def padding(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """F.pad counts dimensions from the last, so that the lanes are never meant."""
    if not is_lanes(args[0]) or len(args[1]) > 2 * depth(args[0]) or kwargs.get("mode", "constant") != "constant":
        return unknown(func, args, kwargs)
    return wrapped(func(*args, **kwargs))


def product(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Matrix products, of vectors too, and over further leading dimensions."""
    x, y, *rest = args
    deep = [depth(x), depth(y)]
    if rest or kwargs or min(deep) == 0:
        return unknown(func, args, kwargs)
    cut = stacks(*(value for value in (x, y) if is_lanes(value)))
    count, ready = len(cut[0]), iter(cut)
    x, y = (next(ready) if is_lanes(value) else value.expand(count, *value.shape) for value in (x, y))
    x = x.unsqueeze(1) if deep[0] == 1 else x
    y = y.unsqueeze(-1) if deep[1] == 1 else y
    most = max(x.ndim, y.ndim)
    x, y = (value.reshape(count, *(1,) * (most - value.ndim), *value.shape[1:]) for value in (x, y))
    out = torch.matmul(x, y)
    out = out.squeeze(-2) if deep[0] == 1 else out
    return wrapped(out.squeeze(-1) if deep[1] == 1 else out)


def contraction(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """tensordot over one dimension: the last of the one, the first of the other."""
    x, y, *rest = args
    if (rest or [kwargs.get("dims", 2)]) != [1] or not all(map(is_lanes, (x, y))):
        return unknown(func, args, kwargs)
    x, y = stacks(x, y)
    before, after = x.shape[1:-1], y.shape[2:]
    out = torch.bmm(x.reshape(len(x), before.numel(), x.shape[-1]), y.reshape(len(y), y.shape[1], after.numel()))
    return wrapped(out.reshape(len(x), *before, *after))


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
register(reducing, *both("sum mean amax amin any all prod logsumexp argmax argmin std var"))
register(along, *both("softmax log_softmax cumsum"), F.softmax, F.log_softmax)
register(reshaping, Tensor.reshape, Tensor.view)
register(flattening, *both("flatten"))
register(moving, *both("transpose permute unsqueeze"))
register(parting, *both("unbind split chunk"))
register(padding, F.pad)
register(product, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm, torch.mv, Tensor.mv)
register(contraction, torch.tensordot)
register(joining, torch.cat, torch.stack, torch.concat)
register(indexing, Tensor.__getitem__)
register(assigning, Tensor.__setitem__)
register(gradient, torch.autograd.grad)
register(of_lists, *(getattr(torch, name) for name in dir(torch) if name.startswith("_foreach_")))
register(norms, torch._foreach_norm)
DEFAULT.append(unknown)
