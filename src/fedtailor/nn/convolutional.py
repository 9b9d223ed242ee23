"""Two small convolutional networks for images of shape (channels, height, width)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from fedtailor.nn.attention import Slot
from fedtailor.nn.shape import Input, check_image, check_sizes
from fedtailor.registry import register

KERNEL = 5
# ReLU comes after max pooling here: the same numbers and gradients, for both keep the order of values, at a quarter of
# the pixels.

SMALLEST = 16  # two times a 5 x 5 convolution without padding and a halving leave one pixel of 16


class HeConv(nn.Conv2d):
    """A convolution that starts as in residual networks: normal, its variance two over what goes out of a channel."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


@register("model", "cnn4")
def cnn4(*, classes: int, shape: tuple[int, ...]) -> nn.Sequential:
    """Two 5 x 5 convolutions (32, 64 channels) and two linear layers (512 units): the CNN of FedALA."""
    check_sizes("cnn4", classes, shape)
    check_image("cnn4", shape, SMALLEST)
    return nn.Sequential(
        OrderedDict(
            input=Input(shape),
            conv1=nn.Conv2d(shape[0], 32, KERNEL),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, KERNEL),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * _pixels_left(shape), 512),
            relu3=nn.ReLU(),
            head=nn.Linear(512, classes),
        )
    )


@register("model", "lenet_bn", "lenet")
def lenet_bn(
    *, classes: int, shape: tuple[int, ...], attention_at: Literal["block", "conv"] = "block"
) -> nn.Sequential:
    """LeNet with batch norm after every layer but the last: the network of pFedLA and FedBN for digits."""
    check_sizes("lenet_bn", classes, shape)
    check_image("lenet_bn", shape, SMALLEST)
    return nn.Sequential(
        OrderedDict(
            input=Input(shape),
            # pFedLA, table 7, prints padding 1, but its FC(256) needs 16 x 4 x 4 and hence no padding
            **normed_block(1, nn.Conv2d(shape[0], 6, KERNEL), nn.MaxPool2d(2), attention_at),
            **normed_block(2, nn.Conv2d(6, 16, KERNEL), nn.MaxPool2d(2), attention_at),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * _pixels_left(shape), 120),
            bn3=nn.BatchNorm1d(120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            bn4=nn.BatchNorm1d(84),
            relu4=nn.ReLU(),
            head=nn.Linear(84, classes),
        )
    )


def normed_block(
    number: int, conv: nn.Conv2d, pool: nn.Module | None, attention_at: Literal["block", "conv"]
) -> dict[str, nn.Module]:
    """Convolution, batch norm, pooling and ReLU, with a place for attention after all of them ("block", as in
    pFedLA's tables) or after the convolution and its norm ("conv", nearer to its text)."""
    channels = conv.out_channels
    layer = {f"conv{number}": conv, f"bn{number}": nn.BatchNorm2d(channels)}
    rest: dict[str, nn.Module] = {**({f"pool{number}": pool} if pool else {}), f"relu{number}": nn.ReLU()}
    place = {f"attention{number}": Slot(channels)}
    return {**layer, **place, **rest} if attention_at == "conv" else {**layer, **rest, **place}


def _pixels_left(shape: tuple[int, ...]) -> int:
    """Pixels of a feature map after two times a convolution without padding and a halving."""
    height, width = (((side - KERNEL + 1) // 2 - KERNEL + 1) // 2 for side in shape[1:])
    return height * width
