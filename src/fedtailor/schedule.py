"""All randomness: each draw is a pure function of (seed, what it is for, round, client).

So cohorts, batches, noise and masks are the same in every runner, chunk, process and client order, and a run that is
resumed at round 50 draws what it would have drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def rng(seed: int, *purpose: int | str) -> np.random.Generator:
    """NumPy's generator for one purpose: `rng(seed, "batches", round, client)`."""
    return np.random.Generator(np.random.Philox(key=_digest(seed, purpose)))


def torch_rng(seed: int, *purpose: int | str) -> torch.Generator:
    """Torch's generator for one purpose."""
    return torch.Generator().manual_seed(torch_seed(seed, *purpose))


def torch_seed(seed: int, *purpose: int | str) -> int:
    return _digest(seed, purpose) >> 65  # 63 bits: what manual_seed takes


def _digest(seed: int, purpose: Sequence[int | str]) -> int:
    text = repr((int(seed), *(part if isinstance(part, str) else int(part) for part in purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def draw_cohort(seed: int, round: int, n: int, size: int) -> list[int]:
    """`size` of `n` clients, without replacement, in ascending order."""
    if size >= n:
        return list(range(n))
    return sorted(int(i) for i in rng(seed, "cohort", round).choice(n, size, replace=False))


def steps_of(rows: int, batch: int, epochs: int | None, steps: int | None, smallest: int) -> int:
    """Optimiser steps of one client in a round: those asked for, or whole epochs over its rows."""
    per_epoch = len(batch_lengths(rows, batch, smallest))
    if per_epoch == 0:
        return 0
    return steps if steps is not None else per_epoch * (1 if epochs is None else epochs)


def batch_lengths(rows: int, batch: int, smallest: int = 1) -> list[int]:
    """Lengths of an epoch's batches: full ones and the rest, which is left out if shorter than `smallest`.

    Batch norm cannot train on one sample, so a model that has it is given `smallest=2`.
    """
    size = min(batch, rows) if batch > 0 else rows  # 0: the whole local set
    if size == 0:
        return []
    lengths = [size] * (rows // size) + ([rows % size] if rows % size else [])
    return [length for length in lengths if length >= smallest]


def epoch_order(seed: int, round: int, client: int, stream: int, epoch: int, rows: Tensor) -> Tensor:
    """The rows of one client in the order of one epoch."""
    order = rng(seed, "batches", round, client, stream, epoch).permutation(len(rows))
    return rows[torch.from_numpy(order)]
