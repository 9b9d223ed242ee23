"""ResNet-18, with torchvision's names: the network of PartialFed's photographs and of FedALA's Tiny-ImageNet."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fedtailor.nn.attention import Slot
from fedtailor.nn.convolutional import HeConv
from fedtailor.nn.pretrained import ImageNetScale, load_weights
from fedtailor.nn.shape import Input, check_image, check_rgb, check_sizes
from fedtailor.registry import register

SMALLEST = 32  # the stem and three stages halve it to one pixel
STAGES = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a short cut, with a place for attention before they meet, as in SE-ResNets."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = HeConv(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU()
        self.conv2 = HeConv(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.attention = Slot(outside)
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(HeConv(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.attention(self.bn2(self.conv2(out)))
        met: Tensor = self.relu(out + (x if self.downsample is None else self.downsample(x)))
        return met


@register("model", "resnet18", "resnet")
def resnet18(
    *, classes: int, shape: tuple[int, ...], pretrained: str | None = None, strict: bool = True
) -> nn.Sequential:
    """ResNet-18 (He et al., 2016): a stem, four stages of two residual blocks, one linear layer."""
    check_sizes("resnet18", classes, shape)
    check_image("resnet18", shape, SMALLEST)
    parts: OrderedDict[str, nn.Module] = OrderedDict(input=Input(shape))
    if pretrained is not None:
        check_rgb("resnet18", shape)
        parts["scale"] = ImageNetScale()
    parts |= OrderedDict(
        conv1=HeConv(shape[0], 64, 7, 2, 3, bias=False),
        bn1=nn.BatchNorm2d(64),
        maxpool=nn.MaxPool2d(3, 2, 1),  # before the ReLU: the same, on a quarter of the numbers
        relu=nn.ReLU(),
    )
    inside = 64
    for number, channels in enumerate(STAGES, 1):
        stride = 1 if number == 1 else 2
        blocks = (BasicBlock(inside, channels, stride), BasicBlock(channels, channels, 1))
        parts[f"layer{number}"] = nn.Sequential(*blocks)
        inside = channels
    parts |= OrderedDict(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(512, classes))
    net = nn.Sequential(parts)
    if pretrained is not None:
        load_weights(net, "resnet18", pretrained, head="fc", strict=strict)
    return net
