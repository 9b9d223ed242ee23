"""Rules for layers: a linear layer is one batched product, a convolution or a norm one over all clients' channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.lanes.rules import unknown
from fedtailor.lanes.value import (
    Function,
    OneByOne,
    _selection,
    depth,
    is_lanes,
    lanes,
    raw,
    register,
    stacks,
    wrapped,
)


def linear(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, weight, bias = (*args, *(kwargs.get(k) for k in ("weight", "bias")[len(args) - 1 :]))[:3]
    if not is_lanes(x) or (bias is not None and is_lanes(bias) is not is_lanes(weight)) or depth(x) < 2:
        return unknown(func, args, kwargs)
    if not is_lanes(weight):
        return wrapped(func(x, weight, bias))
    x, weight, *rest = stacks(x, weight, *([] if bias is None else [bias]))
    rows = x.reshape(len(x), -1, x.shape[-1])
    return wrapped(affine(rows, weight, *rest).reshape(*x.shape[:-1], -1))


def affine(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[lanes, rows, inputs] times [lanes, outputs, inputs], as one batched product."""
    return torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)


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
    if x.ndim == weight.ndim == 4 and x.numel() * weight.shape[3] <= FEW and usual(given):
        return wrapped(by_windows(x, weight, *rest, padding=given.get("padding", 0)))
    count = len(x)
    given["groups"] = given.get("groups", 1) * count
    out = func(merged(x), weight.flatten(0, 1), rest[0].flatten() if rest else None, **given)
    return parted(out, count)


FEW = 1 << 17  # numbers: below, a convolution takes longer to prepare than to compute


def usual(given: dict[str, Any]) -> bool:
    """Whether a convolution along one dimension goes from place to place, over all channels."""
    steps = (given.get(name, 1) in (1, (1,)) for name in ("stride", "dilation"))
    return all(steps) and given.get("groups", 1) == 1 and not isinstance(given.get("padding"), str)


def by_windows(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, padding: int | tuple[int]) -> Tensor:
    """A convolution along one dimension: one batched product of what the kernel sees at each place."""
    [beside] = padding if isinstance(padding, tuple) else (padding,)
    x = F.pad(x, (beside, beside)) if beside else x
    width = weight.shape[3]
    windows = x.unfold(3, width, 1).transpose(2, 3).flatten(3) if width > 1 else x.transpose(2, 3)
    out = affine(windows.flatten(1, 2), weight.flatten(2), bias)
    return out.view(*windows.shape[:3], -1).transpose(2, 3)


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


PLAIN_CROSS_ENTROPY = {
    "weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "label_smoothing": 0.0
}  # fmt: skip


def cross_entropy(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out, y, *rest = args
    reduction = kwargs.get("reduction", "mean")
    usual = is_lanes(out) and is_lanes(y) and depth(out) == 2 and depth(y) == 1 and not y.is_floating_point()
    if rest or not usual or any(kwargs.get(k, plain) != plain for k, plain in PLAIN_CROSS_ENTROPY.items()):
        return unknown(func, args, kwargs)
    out, y = stacks(out, y)
    losses = func(out.flatten(0, 1), y.flatten(), reduction="none").view(len(out), -1)
    return wrapped(losses if reduction == "none" else losses.mean(1) if reduction == "mean" else losses.sum(1))


def embedding(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All clients' tables under each other as one; the row of padding has no gradient. Gradients are dense."""
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get("max_norm") is not None:
        raise OneByOne("an embedding with max_norm, which changes its weights as it is read")
    index, table, padding = given["input"], given["weight"], given.get("padding_idx")
    if not is_lanes(table):
        rest = {name: value for name, value in given.items() if name not in ("input", "weight")}
        return wrapped(func(index.as_subclass(Tensor), table, **rest))
    if not is_lanes(index):
        index = lanes(index.expand(len(raw(table)), *index.shape))
    index, table = stacks(index, table)
    count, words = table.shape[:2]
    below = torch.arange(0, count * words, words, device=index.device).view(-1, *(1,) * (index.ndim - 1))
    out = torch.embedding(table.flatten(0, 1), index + below, -1, given.get("scale_grad_by_freq", False), False)
    if padding is not None:
        out = torch.where((index == padding % words).unsqueeze(-1), out.detach(), out)
    return wrapped(out)


_generators: list[Callable[[], list[torch.Generator]]] = []


@contextmanager
def drawing_from(seeds: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Dropout draws each lane's mask from a generator of its own; they are made when the first is drawn."""
    _generators.append(cache(lambda: [torch.Generator().manual_seed(seed) for seed in seeds()]))
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
    draws, [x] = _generators[-1](), stacks(x)
    if len(x) != len(draws):
        which = _selection[-1][1]
        places = range(len(draws))[which] if isinstance(which, slice) else which.tolist()
        draws = [draws[place] for place in places]
    # as torch draws it for one client: contiguous noise of the input's shape
    noise = torch.stack([torch.empty(x.shape[1:], dtype=x.dtype).bernoulli_(1 - p, generator=g) for g in draws])
    return wrapped(x * noise.to(x.device).div_(1 - p))


register(linear, F.linear)
register(convolution, F.conv1d, F.conv2d, F.conv3d)
register(
    pooling, F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d,
    F.adaptive_max_pool2d, torch.max_pool2d, torch.max_pool1d,
)  # fmt: skip
register(batch_norm, F.batch_norm)
register(cross_entropy, F.cross_entropy)
register(embedding, F.embedding)
register(dropout, F.dropout)
