"""A plugin for the tests: LeNet that takes its time in training, as long as the environment says; and plain models."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn

from fedtailor import register
from fedtailor.nn import lenet_bn


def pause(module: nn.Module, inputs: Any) -> None:
    if module.training:
        time.sleep(float(os.environ.get("FEDTAILOR_PAUSE", "0")))


@register("model", "paused_lenet")
def paused_lenet(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """LeNet with batch norm, and a pause before each step."""
    net = lenet_bn(classes=classes, shape=shape)
    net.register_forward_pre_hook(pause)
    return net


class Parts(nn.Module):
    """A linear model whose size is in any number of tensors, all of them used in every pass."""

    def __init__(self, classes: int, shape: tuple[int, ...], numbers: int, tensors: int) -> None:
        super().__init__()
        self.head = nn.Linear(shape[0] * shape[1] * shape[2], classes)
        length = numbers // tensors
        self.parts = nn.ParameterList([nn.Parameter(torch.empty(length)) for _ in range(tensors)])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for part in self.parts:
                part.uniform_(-1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rest = sum(part[:1].sum() for part in self.parts)
        out: torch.Tensor = self.head(x.flatten(1)) + 0 * rest
        return out


@register("model", "parts")
def parts(classes: int, shape: tuple[int, ...], megabytes: float = 1.0, tensors: int = 1) -> nn.Module:
    """A model of so many megabytes in so many tensors."""
    return Parts(classes, shape, int(megabytes * 250_000), tensors)
