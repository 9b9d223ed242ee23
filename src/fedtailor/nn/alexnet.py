"""AlexNet, with batch norm for pictures of 224 x 224 pixels or so, and without for those of 28 x 28."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from fedtailor.nn.convolutional import normed_block
from fedtailor.nn.pretrained import ImageNetScale, load_weights
from fedtailor.nn.shape import Input, check_image, check_rgb, check_sizes
from fedtailor.registry import register

SMALLEST = 63  # below, the last pooling has nothing to pool
SMALLEST_SMALL = 8  # three halvings leave one pixel
# what torchvision calls the five convolutions, whose sizes are the same
TORCHVISION = {"features.0": "conv1", "features.3": "conv2", "features.6": "conv3", "features.8": "conv4",
               "features.10": "conv5"}  # fmt: skip


@register("model", "alexnet_bn", "alexnet")
def alexnet_bn(
    *,
    classes: int,
    shape: tuple[int, ...],
    attention_at: Literal["block", "conv"] = "block",
    pretrained: str | None = None,
    strict: bool = True,
) -> nn.Sequential:
    """AlexNet with batch norm after every layer but the last: the network of pFedLA and PartialFed for photographs."""
    check_sizes("alexnet_bn", classes, shape)
    check_image("alexnet_bn", shape, SMALLEST)
    if pretrained is not None:
        check_rgb("alexnet_bn", shape)

    # pFedLA, table 8: its third row (64 -> 128) does not chain with its neighbours, and its last convolution lacks the
    # attention that table 11 lists; the printed counts are those of five convolutions with attention after each
    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2)

    net = nn.Sequential(
        OrderedDict(
            input=Input(shape),
            **({} if pretrained is None else {"scale": ImageNetScale()}),
            **normed_block(1, nn.Conv2d(shape[0], 64, 11, stride=4, padding=2), pool(), attention_at),
            **normed_block(2, nn.Conv2d(64, 192, 5, padding=2), pool(), attention_at),
            **normed_block(3, nn.Conv2d(192, 384, 3, padding=1), None, attention_at),
            **normed_block(4, nn.Conv2d(384, 256, 3, padding=1), None, attention_at),
            **normed_block(5, nn.Conv2d(256, 256, 3, padding=1), pool(), attention_at),
            average=nn.AdaptiveAvgPool2d(6),
            flatten=nn.Flatten(),
            fc1=nn.Linear(256 * 6 * 6, 4096),
            bn6=nn.BatchNorm1d(4096),
            relu6=nn.ReLU(),
            fc2=nn.Linear(4096, 4096),
            bn7=nn.BatchNorm1d(4096),
            relu7=nn.ReLU(),
            head=nn.Linear(4096, classes),
        )
    )
    if pretrained is not None:
        # the linear layers too have the sizes of torchvision's, but there no norm followed them
        load_weights(net, "alexnet_bn", pretrained, head="classifier", modules=TORCHVISION, strict=strict)
    return net


@register("model", "alexnet_small")
def alexnet_small(*, classes: int, shape: tuple[int, ...]) -> nn.Sequential:
    """AlexNet for pictures of 28 x 28 pixels, without batch norm: the network of FedHAM for V-MNIST."""
    check_sizes("alexnet_small", classes, shape)
    check_image("alexnet_small", shape, SMALLEST_SMALL)
    left = (shape[1] // 8) * (shape[2] // 8)  # pixels after three halvings
    return nn.Sequential(
        OrderedDict(
            input=Input(shape),
            conv1=nn.Conv2d(shape[0], 64, 3, padding=1),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(64, 192, 3, padding=1),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            conv3=nn.Conv2d(192, 384, 3, padding=1),
            relu3=nn.ReLU(),
            conv4=nn.Conv2d(384, 256, 3, padding=1),
            relu4=nn.ReLU(),
            conv5=nn.Conv2d(256, 256, 3, padding=1),
            pool5=nn.MaxPool2d(2),
            relu5=nn.ReLU(),
            flatten=nn.Flatten(),
            dropout1=nn.Dropout(0.5),
            fc1=nn.Linear(256 * left, 1024),
            relu6=nn.ReLU(),
            dropout2=nn.Dropout(0.5),
            fc2=nn.Linear(1024, 512),
            relu7=nn.ReLU(),
            head=nn.Linear(512, classes),
        )
    )
