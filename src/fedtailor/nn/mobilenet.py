"""MobileNetV2, with torchvision's names, and a place for attention inside each of its 17 bottlenecks."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fedtailor.nn.attention import Slot
from fedtailor.nn.convolutional import HeConv
from fedtailor.nn.pretrained import ImageNetScale, load_weights
from fedtailor.nn.shape import Input, check_image, check_rgb, check_sizes
from fedtailor.registry import register

SMALLEST = 32  # five halvings leave one pixel
STEM, LAST = 32, 1280
BOTTLENECKS = (  # expansion, channels, repeats, first stride
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


class Bottleneck(nn.Module):
    """1 x 1 convolution to more channels, 3 x 3 within each channel, attention, 1 x 1 to few channels; and a short cut
    where the shapes allow one."""

    def __init__(self, inside: int, outside: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = inside * expansion
        parts = [normed(inside, wide, 1)] if expansion != 1 else []
        parts.append(normed(wide, wide, 3, stride, groups=wide))
        named = OrderedDict((str(place), part) for place, part in enumerate(parts))
        named["attention"] = Slot(wide)  # by its own name, so that what follows keeps torchvision's number
        named[str(len(parts))] = HeConv(wide, outside, 1, bias=False)
        named[str(len(parts) + 1)] = nn.BatchNorm2d(outside)
        self.conv = nn.Sequential(named)
        self.shortcut = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.shortcut else out


def normed(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    """A convolution with its norm and ReLU6."""
    conv = HeConv(inside, outside, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outside), nn.ReLU6())


@register("model", "mobilenet_v2", "mobilenet")
def mobilenet_v2(
    *, classes: int, shape: tuple[int, ...], dropout: float = 0.2, pretrained: str | None = None, strict: bool = True
) -> nn.Sequential:
    """MobileNetV2 (Sandler et al., 2018): 17 inverted bottlenecks, each with a place for attention: pFedLA's."""
    check_sizes("mobilenet_v2", classes, shape)
    check_image("mobilenet_v2", shape, SMALLEST)
    features = [normed(shape[0], STEM, 3, 2)]
    inside = STEM
    for expansion, channels, repeats, first in BOTTLENECKS:
        for repeat in range(repeats):
            features.append(Bottleneck(inside, channels, expansion, 1 if repeat else first))
            inside = channels
    features.append(normed(inside, LAST, 1))
    parts: OrderedDict[str, nn.Module] = OrderedDict(input=Input(shape))
    if pretrained is not None:
        check_rgb("mobilenet_v2", shape)
        parts["scale"] = ImageNetScale()
    parts |= OrderedDict(
        features=nn.Sequential(*features),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Sequential(nn.Dropout(dropout), nn.Linear(LAST, classes)),
    )
    net = nn.Sequential(parts)
    if pretrained is not None:
        load_weights(net, "mobilenet_v2", pretrained, head="classifier", strict=strict)
    return net
