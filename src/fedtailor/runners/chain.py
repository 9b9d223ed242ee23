"""Plain gradient descent on a chain of linear layers and ReLUs, of several clients at once, with the backward pass
written out: the product that gives a weight's gradient adds it to the weight, so that no gradient is stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtailor.arch import Arch
from fedtailor.local import SGD, Job
from fedtailor.nn.shape import Input
from fedtailor.pixels import unpacked
from fedtailor.task import Task
from fedtailor.tree import Tree


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

    def can(self, theta: Tree, job: Job, opt: SGD) -> bool:
        """Whether a descent is a plain one on this chain."""
        plain = job == Job(lr=job.lr, epochs=job.epochs, steps=job.steps, stream=job.stream)
        own = {name for layer in self.layers for name in layer if name}
        return plain and not isinstance(job.lr, dict) and theta.keys() == own and not opt.momentum and not opt.clip

    def step(
        self, values: Tree, x: Tensor, y: Tensor, weights: Tensor | None, lr: float, weight_decay: float
    ) -> Tensor:
        """One step of the first lanes; gives their losses before it."""
        n = len(x)
        params = [(values[w][:n], None if b is None else values[b][:n]) for w, b in self.layers]
        inputs = [unpacked(x, params[0][0].dtype)]
        for place, (w, b) in enumerate(params):
            z = torch.bmm(inputs[-1], w.mT) if b is None else torch.baddbmm(b.unsqueeze(1), inputs[-1], w.mT)
            if place < len(params) - 1:
                inputs.append(z.relu_())
        log_p = z.log_softmax(2)
        losses = -log_p.gather(2, y.unsqueeze(2)).squeeze(2)
        weights = None if weights is None else weights.to(losses.dtype)
        slope = log_p.exp_()
        slope.scatter_(2, y.unsqueeze(2), -1.0, reduce="add")
        slope = slope.mul_(1 / y.shape[1] if weights is None else weights.unsqueeze(2))
        shrink = 1 - lr * weight_decay
        for place in reversed(range(len(params))):
            w, b = params[place]
            below = torch.bmm(slope, w).mul_(inputs[place] > 0) if place else slope
            w.baddbmm_(slope.mT, inputs[place], beta=shrink, alpha=-lr)
            if b is not None:
                (b if shrink == 1 else b.mul_(shrink)).sub_(slope.sum(1), alpha=lr)
            slope = below
        return losses.mean(1) if weights is None else (losses * weights).sum(1)
