"""Plain gradient descent on a chain of linear layers and ReLUs, of several clients at once, with the backward pass
written out: the product that gives a weight's gradient adds it to the weight, so that no gradient is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtailor.arch import Arch
from fedtailor.local import SGD, Job, Penalty, Pull
from fedtailor.nn.shape import Input
from fedtailor.pixels import unpacked
from fedtailor.task import Task
from fedtailor.tree import Tree

Link = tuple[Tensor, Tensor | None]  # weight [lanes, outputs, inputs], and bias [lanes, 1, outputs]


@dataclass(frozen=True)
class Chain:
    """Linear layers with ReLUs between them, trained by cross entropy."""

    layers: tuple[tuple[str, str | None], ...]  # names of weight and bias

    @classmethod
    def of(cls, arch: Arch, task: Task) -> Chain | None:
        """The chain that a network is, if it is one."""
        net = arch.net
        if task.name != "classification" or type(net) is not nn.Sequential:
            return None
        layers: list[tuple[str, str | None]] = []
        expected: tuple[type[nn.Module], ...] = (nn.Linear,)
        for path, module in net.named_children():
            if type(module) in (Input, nn.Flatten, nn.Identity) and not layers:
                continue
            if type(module) not in expected:
                return None
            if type(module) is nn.Linear:
                layers.append((f"{path}.weight", f"{path}.bias" if module.bias is not None else None))
            expected = (nn.ReLU,) if type(module) is nn.Linear else (nn.Linear,)
        names = {name for layer in layers for name in layer if name}
        return cls(tuple(layers)) if layers and expected == (nn.ReLU,) and names == arch.trainable else None

    def can(self, theta: Tree, job: Job, opt: SGD, penalties: Sequence[Penalty]) -> bool:
        """Whether a descent is a plain one on this chain, or one that is pulled somewhere."""
        plain = job == Job(lr=job.lr, epochs=job.epochs, steps=job.steps, stream=job.stream, penalty=job.penalty)
        own = {name for layer in self.layers for name in layer if name}
        pulled = all(isinstance(penalty, Pull) for penalty in penalties)
        fits = plain and pulled and not isinstance(job.lr, dict) and theta.keys() == own
        return fits and not opt.momentum and not opt.clip

    def links(self, values: Tree, n: int) -> list[Link]:
        """The layers of the first n lanes, on their own memory."""
        return [(values[w][:n], None if b is None else values[b][:n].unsqueeze(1)) for w, b in self.layers]

    def step(
        self, links: Sequence[Link], x: Tensor, y: Tensor, weights: Tensor | None, lr: float, weight_decay: float
    ) -> Tensor:
        """One step, on labels y [lanes, rows, 1]; gives the logarithms of their probabilities before it.

        The softmax is written out, for torch's own takes longer on few classes.
        """
        inputs = [unpacked(x, links[0][0].dtype)]
        for place, (w, b) in enumerate(links):
            z = torch.bmm(inputs[-1], w.mT) if b is None else torch.baddbmm(b, inputs[-1], w.mT)
            if place < len(links) - 1:
                inputs.append(z.relu_())
        z = z.sub_(z.amax(2, keepdim=True))
        found = z.gather(2, y)
        slope = z.exp_()
        total = slope.sum(2, keepdim=True)
        slope = slope.div_(total).scatter_(2, y, -1.0, reduce="add")
        slope = slope if weights is None else slope.mul_(weights.unsqueeze(2))
        rate = lr / y.shape[1] if weights is None else lr
        shrink = 1 - lr * weight_decay
        for place in reversed(range(len(links))):
            w, b = links[place]
            below = torch.ops.aten.threshold_backward(torch.bmm(slope, w), inputs[place], 0) if place else slope
            w.baddbmm_(slope.mT, inputs[place], beta=shrink, alpha=-rate)
            if b is not None:
                (b if shrink == 1 else b.mul_(shrink)).sub_(slope.sum(1, keepdim=True), alpha=rate)
            slope = below
        return found.sub_(total.log_())
