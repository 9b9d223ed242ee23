"""Attention for feature maps of shape (rows, channels, height, width), and the place in a network where it may stand.

A block computes a mask `a` from the map `h` and gives a * h. `Slot` declares a place and changes nothing: a network
with slots is the plain network, until a method puts blocks into them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, reduce
from math import log2

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.registry import WrongInput

WIDE = 64  # channels from which on SE reduces by 16 rather than 4
FLOOR = 8  # the least width inside CA


class Slot(nn.Identity):
    """A place for attention on a feature map of so many channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 4 or input.shape[1] != self.channels:
            raise WrongInput(
                f"a Slot({self.channels}) was given a tensor of shape {tuple(input.shape)}; it takes feature maps of "
                f"shape (rows, {self.channels}, height, width)"
            )
        return input

    def extra_repr(self) -> str:
        return f"{self.channels}"


class Means:
    """A feature map's means, each taken once for all blocks that look at it. They are sums, divided when they are few:
    the gradient of a mean would be written out at every pixel."""

    def __init__(self, h: Tensor) -> None:
        self.map = h

    @cached_property
    def along_x(self) -> Tensor:
        """[rows, channels, height]"""
        return self.map.sum(3) / self.map.shape[3]

    @cached_property
    def along_y(self) -> Tensor:
        """[rows, channels, width]"""
        return self.map.sum(2) / self.map.shape[2]

    @cached_property
    def of_channels(self) -> Tensor:
        """[rows, channels]"""
        return self.along_x.mean(2)


class AttentionBlock(nn.Module):
    """What may stand in a slot: a mask of the feature map, and their product (Eq. 6 of pFedLA)."""

    def mask(self, h: Tensor) -> Tensor:
        """Numbers from 0 to 1 that broadcast over `h`."""
        return self.mask_of(Means(h))

    def mask_of(self, means: Means) -> Tensor:
        raise NotImplementedError

    def forward(self, h: Tensor) -> Tensor:
        return self.mask(h) * h


class SE(AttentionBlock):
    """Squeeze and excitation (Hu et al., CVPR 2018): a = sigmoid(U2 relu(U1 z)), z the mean of each channel.

    No biases: only so do the parameters come to the printed counts.
    """

    def __init__(self, channels: int, reduction: int | None = None) -> None:
        super().__init__()
        hidden = max(1, channels // (reduction or (16 if channels >= WIDE else 4)))
        self.squeeze = nn.Linear(channels, hidden, bias=False)
        self.excite = nn.Linear(hidden, channels, bias=False)

    def mask_of(self, means: Means) -> Tensor:
        a: Tensor = self.excite(F.relu(self.squeeze(means.of_channels))).sigmoid()
        return a[:, :, None, None]


def adaptive_kernel(channels: int) -> int:
    """The kernel that ECA's authors choose: |(log2 C + 1) / 2|, and one more where that is even."""
    nearest = int((log2(channels) + 1) / 2)
    return nearest if nearest % 2 else nearest + 1


class ECA(AttentionBlock):
    """Efficient channel attention (Wang et al., CVPR 2020): one filter slides over the means of the channels.

    By default of the adaptive length, but at least 3: with 1, a channel would not see its neighbours.
    """

    def __init__(self, channels: int, kernel: int | None = None) -> None:
        super().__init__()
        length = max(3, adaptive_kernel(channels)) if kernel is None else kernel
        self.filter = nn.Conv1d(1, 1, length, padding=length // 2, bias=False)

    def mask_of(self, means: Means) -> Tensor:
        a: Tensor = self.filter(means.of_channels[:, None])[:, 0].sigmoid()
        return a[:, :, None, None]


class CA(AttentionBlock):
    """Coordinate attention (Hou et al., CVPR 2021): a[c, y, x] = a_h[c, y] * a_w[c, x].

    a_h comes from the mean along x at each y, a_w from the mean along y at each x.
    """

    def __init__(self, channels: int, reduction: int = 32, hidden: int | None = None) -> None:
        super().__init__()
        width = max(FLOOR, channels // reduction) if hidden is None else hidden
        self.reduce = nn.Conv1d(channels, width, 1)
        self.norm = nn.BatchNorm1d(width)
        self.to_rows = nn.Conv1d(width, channels, 1)
        self.to_columns = nn.Conv1d(width, channels, 1)

    def mask_of(self, means: Means) -> Tensor:
        line = torch.cat([means.along_x, means.along_y], 2)  # height + width positions
        line = F.hardswish(self.norm(self.reduce(line)))
        height = means.along_x.shape[2]
        along_y: Tensor = self.to_rows(line[:, :, :height]).sigmoid()
        along_x: Tensor = self.to_columns(line[:, :, height:]).sigmoid()
        return along_y[:, :, :, None] * along_x[:, :, None, :]


class Hybrid(AttentionBlock):
    """Several blocks side by side, mixed by the softmax of learnable logits `u`, which start at zero (Eqs. 7, 8)."""

    def __init__(self, blocks: Mapping[str, AttentionBlock]) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.empty(len(blocks)))
        self.blocks = nn.ModuleDict(blocks)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.u)

    def mask_of(self, means: Means) -> Tensor:
        masks = [block.mask_of(means) for block in self.blocks.values()]  # type: ignore[operator]
        mixed: Tensor = reduce(torch.add, (share * a for share, a in zip(self.u.softmax(0), masks, strict=True)))
        return mixed
