"""Loops written for one network each, as fast as we know how: what a general runner is held against.

The logistic regression and the network with one hidden layer train all clients of a round in one stack with the
backward pass written out, and a weight's gradient is added to it in the product that makes it. LeNet trains them as
groups of one convolution, with channels last in memory; the larger CNN one after the other, likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.runners import memory
from peers.bundle import Bundle
from peers.line import Line

Values = dict[str, Tensor]


class ByHand:
    """FedAvg around a local training of one's own: `train(values, orders)` gives the stacked values of the clients."""

    def __init__(self, bundle: Bundle):
        settings = bundle.settings
        self.bundle, self.lr, self.batch = bundle, settings.lr, settings.batch
        self.x, self.y = bundle.x, bundle.y
        floating = torch.float64 if settings.double else torch.float32
        self.model = {n: v.to(floating) for n, v in bundle.values.items() if v.is_floating_point()}
        self.random = torch.Generator().manual_seed(0)
        self.train = TRAINED[settings.model](self)

    def round(self) -> None:
        settings, train = self.bundle.settings, self.bundle.train
        drawn = torch.randperm(len(train), generator=self.random)[: settings.cohort].sort().values.tolist()
        rows = [train[client] for client in drawn]
        sizes = torch.tensor([len(each) for each in rows], dtype=torch.float64)
        if not settings.ordered:
            rows = [each[torch.randperm(len(each), generator=self.random)] for each in rows]
        trained = self.train(self.model, rows)
        self.model = {n: torch.tensordot((sizes / sizes.sum()).to(v), v, 1) for n, v in trained.items()}

    def stack(self, values: Values, count: int) -> Values:
        return {name: value.expand(count, *value.shape).clone() for name, value in values.items()}


def dense(run: ByHand) -> Callable[[Values, Sequence[Tensor]], Values]:
    """Linear layers with ReLUs between them, of clients of one size."""
    rows_of, lr = run.x.flatten(1), run.lr
    names = ["hidden", "head"] if "hidden.weight" in run.model else ["head"]

    def step(layers: Sequence[tuple[Tensor, Tensor]], x: Tensor, y: Tensor) -> None:
        inputs = [x]
        for place, (w, b) in enumerate(layers):
            z = torch.baddbmm(b, inputs[-1], w.mT)
            if place < len(layers) - 1:
                inputs.append(z.relu_())
        slope = z.sub_(z.amax(2, keepdim=True)).exp_()
        slope.div_(slope.sum(2, keepdim=True)).scatter_add_(2, y, minus_one.expand_as(y)).mul_(1 / y.shape[1])
        for place in range(len(layers) - 1, -1, -1):
            w, b = layers[place]
            below = torch.bmm(slope, w).mul_(inputs[place] > 0) if place else slope
            w.baddbmm_(slope.mT, inputs[place], alpha=-lr)
            b.sub_(slope.sum(1, keepdim=True), alpha=lr)
            slope = below

    minus_one = -torch.ones((), dtype=rows_of.dtype)

    def train(values: Values, orders: Sequence[Tensor]) -> Values:
        count = len(orders)
        new = run.stack(values, count)
        layers = [(new[f"{name}.weight"], new[f"{name}.bias"].unsqueeze(1)) for name in names]
        index = torch.stack(list(orders))
        labels = run.y[index].unsqueeze(2)
        for start in range(0, index.shape[1], run.batch):
            some = index[:, start : start + run.batch]
            x = rows_of.index_select(0, some.flatten()).view(count, some.shape[1], -1)
            step(layers, x, labels[:, start : start + run.batch])
        return new

    return train


def descend(values: Values, loss: Tensor, lr: float, over: int = 1) -> None:
    """One step; the loss is a mean over clients, and each one's own is `over` times as much."""
    trained = [value for value in values.values() if value.requires_grad]
    slopes = torch.autograd.grad(loss, trained)
    with torch.no_grad():
        torch._foreach_add_(trained, list(slopes), alpha=-lr * over)


def channels_last(x: Tensor) -> Tensor:
    """[rows, channels, height, width] seen over memory in which channels come last, for a single channel too."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def cnn4(run: ByHand) -> Callable[[Values, Sequence[Tensor]], Values]:
    """One client after the other. The ReLUs come after the pooling, which is the same on a quarter of the numbers."""
    rows_of = run.x.permute(0, 2, 3, 1).contiguous()

    def forward(v: Values, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.conv2d(x.permute(0, 3, 1, 2), v["conv1.weight"], v["conv1.bias"]), 2).relu()
        h = F.max_pool2d(F.conv2d(h, v["conv2.weight"], v["conv2.bias"]), 2).relu().flatten(1)
        h = F.linear(h, v["fc1.weight"], v["fc1.bias"]).relu()
        return F.linear(h, v["head.weight"], v["head.bias"])

    def train(values: Values, orders: Sequence[Tensor]) -> Values:
        found = []
        for order in orders:
            new = {n: channels_last(v) if v.dim() == 4 else v.clone() for n, v in values.items()}
            new = {n: v.clone(memory_format=torch.preserve_format).requires_grad_() for n, v in new.items()}
            for some in torch.split(order, run.batch):
                loss = F.cross_entropy(forward(new, rows_of.index_select(0, some)), run.y[some])
                descend(new, loss, run.lr)
            found.append(new)
        return {n: torch.stack([one[n].detach() for one in found]) for n in values}

    return train


def lenet_bn(run: ByHand) -> Callable[[Values, Sequence[Tensor]], Values]:
    """All clients at once, of one size; their channels are groups of one convolution and of one norm."""
    rows_of = run.x.permute(0, 2, 3, 1).contiguous()

    def norm(v: Values, name: str, h: Tensor) -> Tensor:
        weight, bias, mean, var = (v[f"{name}.{part}"].flatten() for part in ("weight", "bias", *STATISTICS))
        return F.batch_norm(h, mean, var, weight, bias, training=True, momentum=0.1)

    def conv(v: Values, number: int, h: Tensor, count: int) -> Tensor:
        weight, bias = v[f"conv{number}.weight"].flatten(0, 1), v[f"conv{number}.bias"].flatten()
        return F.max_pool2d(norm(v, f"bn{number}", F.conv2d(h, weight, bias, groups=count)), 2).relu()

    def dense(v: Values, name: str, h: Tensor) -> Tensor:
        return torch.baddbmm(v[f"{name}.bias"].unsqueeze(1), h, v[f"{name}.weight"].mT)

    def normed(v: Values, number: int, bn: int, h: Tensor) -> Tensor:
        z = dense(v, f"fc{number}", h).transpose(0, 1)
        return norm(v, f"bn{bn}", z.flatten(1)).view(z.shape).transpose(0, 1).relu()

    def forward(v: Values, x: Tensor, count: int) -> Tensor:
        h = conv(v, 2, conv(v, 1, x, count), count)
        h = h.unflatten(1, (count, -1)).flatten(2).transpose(0, 1)
        return dense(v, "head", normed(v, 2, 4, normed(v, 1, 3, h)))

    def train(values: Values, orders: Sequence[Tensor]) -> Values:
        count = len(orders)
        new = run.stack(values, count)
        for name, value in new.items():
            value.requires_grad_(not name.endswith(STATISTICS))
        index = torch.stack(list(orders), 1)  # [rows, clients]: a row of the batch has all clients' channels
        for some in torch.split(index, run.batch):
            x = rows_of[some].permute(0, 2, 3, 1, 4).flatten(3).permute(0, 3, 1, 2)
            out = forward(new, x, count)
            loss = F.cross_entropy(out.flatten(0, 1), run.y[some].mT.flatten())
            descend(new, loss, run.lr, over=count)
        return {name: value.detach() for name, value in new.items()}

    return train


STATISTICS = ("running_mean", "running_var")
TRAINED = {"mlr": dense, "dnn": dense, "cnn4": cnn4, "lenet_bn": lenet_bn}


def main() -> None:
    torch.set_float32_matmul_precision("medium")  # on CPU the faster of two libraries, and as exact in float32
    memory.keep_freed()
    line = Line()
    for path, options in line.bundles():
        loop = ByHand(Bundle.load(path, **options))
        facts = {"software": f"torch {torch.__version__}", "threads": torch.get_num_threads()}
        for _ in line.rounds(lambda loop=loop: loop.model, lambda facts=facts: facts):
            loop.round()


if __name__ == "__main__":
    main()
