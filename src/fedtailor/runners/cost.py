"""What a round costs, roughly and without a clock: steps, and products of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedtailor.arch import Arch
from fedtailor.schedule import steps_of
from fedtailor.site import Common

STEP = 2e-4  # seconds of Python and small kernels in a step of one client
PRODUCTS = 1e10  # multiplications with an addition a second, on one core
PASSES = 3  # forward, and twice as much backward


def round_cost(common: Common, sizes: Sequence[int], trainers: int, sample: Tensor) -> float:
    """Seconds of a round on one core in which `trainers` of the clients of these sizes train; `sample` is one row."""
    rows = [min(common.batch or size, size) for size in sizes]
    steps = round_steps(common, sizes, trainers)
    return steps * (STEP + PASSES * sum(rows) / len(rows) * products(common.arch, sample) / PRODUCTS)


def round_steps(common: Common, sizes: Sequence[int], trainers: int) -> float:
    """Steps of all clients in a round, where each client takes those that the run asks for."""
    smallest = 2 if common.arch.statistics else 1
    steps = [steps_of(size, common.batch, common.epochs, common.steps, smallest) for size in sizes]
    return trainers * sum(steps) / len(steps)


@torch.no_grad()
def products(arch: Arch, sample: Tensor) -> float:
    """Products in the forward pass of one row: each weight of a layer counts at each place where it is used."""
    counted: list[float] = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor | tuple[Tensor, ...]) -> None:
        weights = [p.numel() for p in module.parameters(recurse=False) if p.ndim > 1]
        if weights and not isinstance(module, nn.Embedding):
            first = out[0] if isinstance(out, tuple) else out
            outputs = first.shape[1] if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) else first.shape[-1]
            counted.append(sum(weights) * first.numel() / outputs)

    hooks = [module.register_forward_hook(count) for module in arch.net.modules()]
    try:
        arch.apply(arch.values(), sample, train=False)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counted)
