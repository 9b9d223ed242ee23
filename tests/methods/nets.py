"""Networks with the parts that are easy to get wrong: norms under any name, tied, frozen and reused tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def normed() -> nn.Module:
    """linear, batch norm, linear; in float32, with the same values each time."""
    torch.default_generator.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


NORM_OF_NORMED = {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}


class Block(nn.Module):
    """Named as in a residual network: the norm of the short cut is `downsample.1`, others are `n1` and `after`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 1)
        self.n1 = nn.BatchNorm1d(2)
        self.downsample = nn.Sequential(nn.Conv1d(1, 2, 1), nn.BatchNorm1d(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.n1(self.conv(x)) + self.downsample(x))


class Residual(nn.Module):
    """A block, a layer called `bn_free` that is no norm, a group norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(Block())
        self.bn_free = nn.Linear(4, 4)
        self.after = nn.GroupNorm(2, 4)
        self.fc = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.after(self.bn_free(self.layer1(x.unsqueeze(1)).flatten(1))))


NORMS_OF_RESIDUAL = {
    *(f"layer1.0.{path}.{leaf}" for path in ("n1", "downsample.1")
      for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    "after.weight", "after.bias",
}  # fmt: skip


class Tied(nn.Module):
    """Two layers that share one matrix, and a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(2, 2, bias=False)
        self.again = nn.Linear(2, 2, bias=False)
        self.again.weight = self.up.weight
        self.head = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.up(x)))))


class Frozen(nn.Module):
    """A body that was trained before and is not to move, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.default_generator.manual_seed(4)
        self.body = nn.Linear(2, 50).requires_grad_(False)
        self.middle = nn.Linear(50, 2)
        self.head = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(torch.tanh(self.body(x)))))
