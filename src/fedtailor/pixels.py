"""Pictures kept as bytes, a quarter of the memory, and what a network takes: numbers from -1 to 1."""

from __future__ import annotations

import torch
from torch import Tensor


def unpacked(x: Tensor, kind: torch.dtype) -> Tensor:
    """Bytes as numbers from -1 to 1 of a type; what is not bytes as it is."""
    return x.to(kind) / 127.5 - 1 if x.dtype is torch.uint8 else x
