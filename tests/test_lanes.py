"""What is done on `Lanes` is what is done on each client's value alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.arch import Arch
from fedtailor.lanes import OneByOne, drawing_from, is_lanes, lanes, raw, selected
from fedtailor.nn import make
from fedtailor.nn.attention import CA, ECA, SE

COUNT = 3


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(COUNT, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def each(function: Callable[..., Any], *stacked: Tensor) -> Tensor:
    return torch.stack([function(*(one[i] for one in stacked)) for i in range(COUNT)])


def agree(function: Callable[..., Any], *stacked: Tensor) -> None:
    """The same values, and the same gradients of every client's own objective."""
    floats = [s for s in stacked if s.is_floating_point()]
    free = [s.clone().requires_grad_() for s in floats]
    ready = iter(free)
    alone = each(function, *(next(ready) if s.is_floating_point() else s for s in stacked))
    together = [lanes(s.clone()).requires_grad_(s.is_floating_point()) for s in stacked]
    out = function(*together)
    assert is_lanes(out)
    assert out.shape == alone.shape[1:], "the shape is that of one client's value"
    torch.testing.assert_close(raw(out), alone)
    if not alone.requires_grad:
        return
    slopes = torch.autograd.grad(alone.square().sum(), free, allow_unused=True)
    moved = [t for t in together if t.requires_grad]
    for a, b in zip(slopes, torch.autograd.grad(out.square().sum(), moved, allow_unused=True), strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(raw(b), a)


OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a scalar times a matrix": (lambda a, b: a * b, (values(), values(2, 4))),
    "a row plus a matrix": (lambda a, b: b + a, (values(4), values(2, 4))),
    "with a constant of more dimensions": (lambda a: a - torch.ones(2, 1, 4, dtype=torch.float64), (values(4),)),
    "with a number": (lambda a: 1 - a / 2, (values(4),)),
    "where": (lambda a, b: torch.where(a > 0, b, 0.0), (values(), values(2, 4))),
    "lerp by a scalar": (lambda a, b, w: a + w * (b - a), (values(4), values(4, seed=1), values())),
    "clamp": (lambda a: a.clamp(0, 1), (values(2, 4),)),
    "sum of all": (lambda a: a.square().sum(), (values(2, 4),)),
    "sum of a scalar": (lambda a: a.sum(), (values(),)),
    "mean of the first": (lambda a: a.mean(0), (values(2, 4),)),
    "mean of the last, kept": (lambda a: a.mean(-1, keepdim=True), (values(2, 4),)),
    "mean of two": (lambda a: a.mean((1, 2)), (values(2, 4, 5),)),
    "any": (lambda a: (a > 1).any(), (values(2, 4),)),
    "softmax": (lambda a: a.softmax(1), (values(2, 4),)),
    "torch.softmax": (lambda a: torch.softmax(a, dim=0), (values(4),)),
    "log_softmax": (lambda a: F.log_softmax(a, -1), (values(2, 4),)),
    "std": (lambda a: a.std(0, unbiased=False), (values(5),)),
    "reshape": (lambda a: a.reshape(4, 2), (values(2, 4),)),
    "flatten": (lambda a: a.flatten(1), (values(2, 4, 3),)),
    "flatten a scalar": (lambda a: a.flatten(), (values(),)),
    "transpose": (lambda a: a.T, (values(2, 4),)),
    "unsqueeze": (lambda a: a.unsqueeze(0) + a.unsqueeze(-1), (values(4),)),
    "cat": (lambda a, b: torch.cat([a.flatten(), b.flatten()]), (values(2, 4), values(3))),
    "cat with a constant": (lambda a: torch.cat([a, torch.ones(2, dtype=torch.float64)]), (values(3),)),
    "stack": (lambda a, b: torch.stack([a, b], 1), (values(4), values(4, seed=1))),
    "index": (lambda a: a[1:, None, 0], (values(3, 4),)),
    "index by rows": (lambda a: a[torch.tensor([2, 0])], (values(3, 4),)),
    "index by one's own rows": (lambda a, i: a[i], (values(5, 2), torch.tensor([[0, 4], [1, 1], [3, 2]]))),
    "index by one's own number": (lambda a, i: a[i], (values(5), torch.tensor([4, 0, 2]))),
    "rows of common data": (lambda i: torch.arange(8.0)[i], (torch.tensor([[0, 4], [1, 1], [3, 2]]),)),
    "matmul": (lambda a, b: a @ b, (values(2, 4), values(4, 3))),
    "a vector product": (lambda a, b: a @ b, (values(2, 4), values(4))),
    "a matrix and a common one": (lambda a: a @ torch.ones(4, 2, dtype=torch.float64), (values(3, 4),)),
    "a common vector and a matrix": (lambda a: torch.ones(3, dtype=torch.float64) @ a, (values(3, 4),)),
    "two vectors": (torch.matmul, (values(4), values(4, seed=1))),
    "matmul over leading dimensions": (lambda a, b: a @ b, (values(5, 2, 4), values(4, 3))),
    "matmul of many with many": (lambda a, b: a @ b, (values(5, 1, 2, 4), values(6, 4, 3))),
    "mm": (torch.mm, (values(2, 4), values(4, 3))),
    "mv": (torch.mv, (values(2, 4), values(4))),
    "unbind": (lambda a: sum(a.unbind(1), torch.zeros(2, dtype=torch.float64)), (values(2, 4),)),
    "split": (lambda a: a.split([1, 3], 1)[1] * torch.split(a, 1, dim=1)[0], (values(2, 4),)),
    "chunk": (lambda a: a.chunk(2, -1)[0] - torch.chunk(a, 2, dim=-1)[1], (values(2, 4),)),
    "padding with zeros": (lambda a: F.pad(a, (1, 0, 2, 1)), (values(2, 4),)),
    "padding with copies": (lambda a: F.pad(a, (1, 1), mode="replicate"), (values(2, 4),)),
    "std of all": (lambda a: a.std() + a.var(1, correction=0).sum(), (values(2, 4),)),
    "tensordot of matrices": (lambda a, b: torch.tensordot(a, b, dims=1), (values(2, 4), values(4, 2, 3))),
    "tensordot of nothing": (lambda a, b: torch.tensordot(a, b, dims=1), (values(4), values(4, 0, 3))),
    "tensordot over two": (lambda a, b: torch.tensordot(a, b, dims=2), (values(2, 4), values(2, 4, 3))),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=1), (values(4), values(4, 2, 3))),
    "index_copy": (
        lambda a, b: a.index_copy(0, torch.tensor([1, 3]), b), (values(5, 2), values(2, 2, seed=1))),
    "index_copy at one's own": (
        lambda a, i, b: a.index_copy(0, i, b), (values(5), torch.tensor([[0, 4], [1, 2], [3, 2]]), values(2))),
    "histogram-like counting": (lambda a: torch.stack([(a > c).sum() for c in (-1, 0, 1)]), (values(9),)),
    "xlogy": (lambda a: -torch.xlogy(a.exp(), a.exp()).sum(), (values(4),)),
    "linear": (F.linear, (values(6, 4), values(3, 4), values(3))),
    "linear on a row": (F.linear, (values(4), values(3, 4), values(3))),
    "linear without bias": (F.linear, (values(6, 4), values(3, 4))),
    "linear of common weights": (lambda x: F.linear(x, torch.eye(4, dtype=torch.float64)[:3]), (values(6, 4),)),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), (values(2, 3, 7, 6), values(4, 3, 3, 3), values(4))),
    "grouped convolution": (
        lambda x, w: F.conv2d(x, w, groups=2), (values(2, 4, 5, 5), values(6, 2, 3, 3))),
    "convolution along a line": (lambda x, w: F.conv1d(x, w, padding=1), (values(2, 1, 6), values(1, 1, 3))),
    "of many channels": (
        lambda x, w, b: F.conv1d(x, w, b, padding=(2,)), (values(2, 4, 6), values(5, 4, 4), values(5))),
    "of one place": (lambda x, w, b: F.conv1d(x, w, b), (values(2, 4, 6), values(5, 4, 1), values(5))),
    "of a long line": (lambda x, w: F.conv1d(x, w, padding=1), (values(2, 64, 400), values(2, 64, 3))),
    "in steps": (lambda x, w: F.conv1d(x, w, stride=2), (values(2, 4, 6), values(5, 4, 2))),
    "in groups": (lambda x, w: F.conv1d(x, w, groups=2), (values(2, 4, 6), values(6, 2, 2))),
    "with gaps": (lambda x, w: F.conv1d(x, w, dilation=(2,)), (values(2, 4, 6), values(5, 4, 2))),
    "as long as before": (lambda x, w: F.conv1d(x, w, padding="same"), (values(2, 4, 6), values(5, 4, 3))),
    "max pooling": (lambda x: F.max_pool2d(x, 2), (values(2, 3, 6, 6),)),
    "adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, (2, 2)), (values(2, 3, 6, 6),)),
    "batch norm of common statistics": (
        lambda x, w, b: F.batch_norm(x, torch.zeros(3).double(), torch.ones(3).double(), w, b),
        (values(5, 3, 2, 2), values(3), values(3))),
    "layer norm": (lambda x, w: F.layer_norm(x, (4,), w), (values(5, 4), values(4))),
    "embedding": (lambda i, w: F.embedding(i, w), (torch.randint(0, 6, (COUNT, 2, 4)), values(6, 3))),
    "embedding with padding": (
        lambda i, w: F.embedding(i, w, padding_idx=-2), (torch.randint(0, 6, (COUNT, 2, 40)), values(6, 3))),
    "embedding scaled by frequency": (
        lambda i, w: F.embedding(i, w, scale_grad_by_freq=True), (torch.randint(0, 6, (COUNT, 9)), values(6, 3))),
    "embedding in a common table": (
        lambda i: F.embedding(i, torch.arange(18.0).view(6, 3), padding_idx=0), (torch.randint(0, 6, (COUNT, 9)),)),
    "embedding of common words": (lambda w: F.embedding(torch.tensor([[0, 5], [5, 1]]), w), (values(6, 3),)),
    "cross entropy": (F.cross_entropy, (values(6, 4), torch.randint(0, 4, (COUNT, 6)))),
    "cross entropies": (
        lambda o, y: F.cross_entropy(o, y, reduction="none"), (values(6, 4), torch.randint(0, 4, (COUNT, 6)))),
    "smoothed cross entropy": (
        lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1), (values(6, 4), torch.randint(0, 4, (COUNT, 6)))),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_each_clients_own(name: str) -> None:
    function, stacked = OPERATIONS[name]
    agree(function, *stacked)


@pytest.mark.parametrize("block", [SE(8), ECA(8), CA(8), nn.GroupNorm(2, 8)])
def test_blocks_of_attention_and_norm(block: nn.Module) -> None:
    arch = Arch(block.double())
    x = values(4, 8, 5, 5)
    models = [{n: t + 0.1 * i for n, t in arch.values().items() if t.is_floating_point()} for i in range(COUNT)]
    counters = {n: t for n, t in arch.values().items() if not t.is_floating_point()}
    alone = torch.stack([arch.apply({**m, **counters}, one)[0] for m, one in zip(models, x, strict=True)])
    stack = {n: lanes(torch.stack([m[n] for m in models])) for n in models[0]}
    stack |= {n: lanes(torch.stack([t] * COUNT)) for n, t in counters.items()}
    torch.testing.assert_close(raw(arch.apply(stack, lanes(x))[0]), alone)


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "GRU": lambda: nn.GRU(4, 5, batch_first=True),
    "GRU of three layers": lambda: nn.GRU(4, 5, num_layers=3, batch_first=True),
    "GRU both ways, steps first": lambda: nn.GRU(4, 5, num_layers=2, bidirectional=True),
    "GRU without biases": lambda: nn.GRU(4, 5, bias=False),
    "LSTM": lambda: nn.LSTM(4, 5, num_layers=2, batch_first=True),
    "LSTM both ways": lambda: nn.LSTM(4, 5, bidirectional=True),
    "LSTM with projections": lambda: nn.LSTM(4, 5, proj_size=2),
    "RNN": lambda: nn.RNN(4, 5, num_layers=2),
    "RNN with ReLU": lambda: nn.RNN(4, 5, nonlinearity="relu", batch_first=True),
    "GRU with dropout": lambda: nn.GRU(4, 5, num_layers=3, dropout=0.4),
    "LSTM with dropout": lambda: nn.LSTM(4, 5, num_layers=2, dropout=0.4, batch_first=True, bidirectional=True),
}


class Flat(nn.Module):
    """The outputs of a recurrent layer and its last state, as one."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out, last = self.layer(x)
        return torch.cat([out.flatten(), *(one.flatten() for one in (last if isinstance(last, tuple) else (last,)))])


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name: str) -> None:
    """Outputs, last states and gradients; and dropout between layers from each client's own generator."""
    arch = Arch(Flat(RECURRENT[name]()).double())
    models = [arch.draw(frozenset(arch.names), i) for i in range(COUNT)]
    x = values(3, 6, 4)
    stack = {n: lanes(torch.stack([m[n] for m in models])).requires_grad_() for n in arch.names}
    with drawing_from(lambda: [7, 8, 9]):
        out, _ = arch.apply(stack, lanes(x))
    slopes = torch.autograd.grad(out.square().sum(), [stack[n] for n in arch.names])
    for i, model in enumerate(models):
        own = {n: t.clone().requires_grad_() for n, t in model.items()}
        torch.manual_seed(7 + i)
        alone, _ = arch.apply(own, x[i])
        torch.testing.assert_close(raw(out)[i], alone)
        expected = torch.autograd.grad(alone.square().sum(), [own[n] for n in arch.names])
        for found, slope in zip(slopes, expected, strict=True):
            torch.testing.assert_close(raw(found)[i], slope)


def test_an_embedding_that_changes_its_weights_is_refused() -> None:
    with pytest.raises(OneByOne, match="max_norm"):
        F.embedding(lanes(torch.zeros(COUNT, 2, dtype=torch.int64)), lanes(values(6, 3)), max_norm=1.0)


NETWORKS = {
    "mlr": (5,), "dnn": (5,), "cnn4": (1, 16, 16), "lenet_bn": (3, 16, 16), "gru(hidden=3)": (4, 5),
    "mobilenet_v2": (3, 32, 32),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_their_gradients_and_buffers(name: str) -> None:
    shape = NETWORKS[name]
    arch = Arch(make(name, classes=4, shape=shape, seed=0).double())
    draw = [arch.draw(frozenset(arch.names) - arch.buffers, i) for i in range(COUNT)]
    models = [{**arch.values(), **{n: t.double() for n, t in own.items()}} for own in draw]
    x, y = values(6, *shape), torch.randint(0, 4, (COUNT, 6))
    stack = {n: lanes(torch.stack([m[n] for m in models])).requires_grad_(n in arch.trainable) for n in arch.names}
    with drawing_from(lambda: [7, 8, 9]):
        out, buffers = arch.apply(stack, lanes(x))
    free = sorted(arch.trainable)
    slopes = torch.autograd.grad(F.cross_entropy(out, lanes(y)), [stack[n] for n in free])
    for i, model in enumerate(models):
        own = {n: t.clone().requires_grad_(n in arch.trainable) for n, t in model.items()}
        torch.manual_seed(7 + i)
        alone, moved = arch.apply(own, x[i])
        expected = torch.autograd.grad(F.cross_entropy(alone, y[i]), [own[n] for n in free])
        for found, slope in zip(slopes, expected, strict=True):
            torch.testing.assert_close(raw(found)[i], slope)
        for n in arch.buffers:
            torch.testing.assert_close(raw(buffers[n])[i], moved[n])


def test_feature_maps_stay_in_place_between_layers() -> None:
    """The stack of a convolution's output is a view with channels last: no copy stands between layers."""
    x = lanes(values(2, 3, 8, 8))
    conv = F.conv2d(x, lanes(values(4, 3, 3, 3)))
    after = F.max_pool2d(F.relu(conv), 2)
    assert raw(after).permute(1, 3, 4, 0, 2).is_contiguous()


def test_each_lane_has_its_own_dropout() -> None:
    x = values(40, 5)
    with drawing_from(lambda: [7, 8, 9]):
        out = raw(F.dropout(lanes(x), 0.3, True))
    for seed, own, dropped in zip((7, 8, 9), x, out, strict=True):
        torch.manual_seed(seed)
        assert torch.equal(F.dropout(own, 0.3, True), dropped)
    assert torch.equal(raw(F.dropout(lanes(x), 0.3, False)), x)
    with pytest.raises(OneByOne):
        F.dropout(lanes(x), 0.3, True)


def test_values_of_all_lanes_stand_for_those_of_some() -> None:
    whole, some = lanes(values(4)), lanes(values(4, seed=1)[1:])
    with pytest.raises(OneByOne, match="different numbers of clients"):
        whole + some
    with selected(2, torch.tensor([2, 0])):
        assert torch.equal(raw(whole * some), values(4)[[2, 0]] * values(4, seed=1)[1:])
        assert torch.equal(raw(whole.lerp(some, 0.0)), values(4)[[2, 0]])
        assert raw(torch.tensordot(whole, some, dims=1)).shape == (2,)
    with selected(2, slice(0, 2)):
        assert torch.equal(raw(torch.cat([whole, some])), torch.cat([values(4)[:2], values(4, seed=1)[1:]], 1))


def test_what_looks_at_values_is_refused() -> None:
    x = lanes(torch.tensor([[1.0, -1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [-1.0, 0.0, 0.0, 0.0]]))
    for look in (
        lambda: bool(x.sum() > 0), lambda: float(x.sum()), lambda: int(x[0]), lambda: x.tolist(), lambda: x[0].item(),
        lambda: x[x > 0], lambda: x.nonzero(), lambda: 1 if x.mean() else 2, lambda: torch.zeros(4).add_(x),
    ):  # fmt: skip
        with pytest.raises((OneByOne, RuntimeError)):
            look()


def test_types_and_lists() -> None:
    x = lanes(values(2, 4))
    assert (x.ndim, len(x), x.numel(), x.size(-1), x.is_floating_point()) == (2, 2, 8, 4, True)
    assert raw(torch.zeros(()).to(x)).dim() == 0, "y.to(x) takes the type of x and no lanes"
    assert raw(x.sum().to(x)).shape == (COUNT,)
    assert len(list(x)) == 2 and next(iter(x)).shape == (4,)
    a, b = lanes(values(2)), lanes(values(2, seed=1))
    torch._foreach_add_([a], [b], alpha=-1.0)
    assert torch.equal(raw(a), values(2) - values(2, seed=1))
    c = lanes(torch.zeros(COUNT, 4))
    c[1] = lanes(torch.arange(float(COUNT)))
    assert torch.equal(raw(c)[:, 1], torch.arange(float(COUNT)))
    assert "lanes(" in repr(x)
