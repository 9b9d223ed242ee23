"""The networks of the workloads in plain torch, for software that knows nothing of this package.

Tensors have the names and shapes of those in this package's networks, so that values can be handed over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn


def mlr(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(numbers(shape), classes)))


def dnn(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(), hidden=nn.Linear(numbers(shape), 100), relu=nn.ReLU(), head=nn.Linear(100, classes)
        )
    )


def cnn4(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(shape[0], 32, 5), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2), flatten=nn.Flatten(),
            fc1=nn.Linear(64 * pixels(shape), 512), relu3=nn.ReLU(), head=nn.Linear(512, classes),
        )
    )  # fmt: skip


def lenet_bn(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(shape[0], 6, 5), bn1=nn.BatchNorm2d(6), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5), bn2=nn.BatchNorm2d(16), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(), fc1=nn.Linear(16 * pixels(shape), 120), bn3=nn.BatchNorm1d(120), relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84), bn4=nn.BatchNorm1d(84), relu4=nn.ReLU(), head=nn.Linear(84, classes),
        )
    )  # fmt: skip


class Recurrent(nn.Module):
    """Two layers of 128 gated units, and a linear layer on the last state of the second."""

    def __init__(self, classes: int, features: int):
        super().__init__()
        self.gru1 = nn.GRU(features, 128, batch_first=True)
        self.gru2 = nn.GRU(128, 128, batch_first=True)
        self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru2(self.gru1(x)[0])[0][:, -1])


def gru(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Recurrent(classes, shape[1])


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a short cut."""

    def __init__(self, before: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or before != channels:
            convolution = nn.Conv2d(before, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.downsample(x))


def resnet18(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """ResNet-18 in its usual layout: a 7 x 7 stem of stride 2 and a pooling, then four stages of two blocks."""
    widths = (64, 128, 256, 512)
    stages = [
        nn.Sequential(Block(before, width, 1 if place == 0 else 2), Block(width, width, 1))
        for place, (before, width) in enumerate(zip((64, *widths), widths, strict=False))
    ]
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(shape[0], 64, 7, 2, padding=3, bias=False), bn1=nn.BatchNorm2d(64), relu=nn.ReLU(),
            maxpool=nn.MaxPool2d(3, 2, padding=1),
            **{f"layer{number}": stage for number, stage in enumerate(stages, 1)},
            avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(512, classes),
        )
    )  # fmt: skip


MODELS: dict[str, Callable[[int, tuple[int, ...]], nn.Module]] = {
    "mlr": mlr, "dnn": dnn, "cnn4": cnn4, "lenet_bn": lenet_bn, "gru": gru, "resnet18": resnet18,
}  # fmt: skip


def numbers(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def pixels(shape: tuple[int, ...]) -> int:
    """Pixels left of an image after two times a 5 x 5 convolution without padding and a halving."""
    height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
    return height * width
