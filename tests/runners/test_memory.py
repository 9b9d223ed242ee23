"""What a step frees is there for the next one."""

from __future__ import annotations

import resource

import pytest
import torch

from fedtailor.runners import memory
from fedtailor.runners.sequential import working

NUMBERS, TENSORS = 1_000_000, 16  # 64 megabytes in all


def step() -> None:
    """So much is in use at once, and then is not."""
    _ = [torch.ones(NUMBERS) for _ in range(TENSORS)]


@pytest.mark.skipif(memory.library() is None, reason="the C library is not the GNU one")
def test_a_step_is_not_given_memory_anew() -> None:
    with working(1):
        step()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(3):
            step()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < TENSORS * NUMBERS * 4 / resource.getpagesize(), "fewer pages in three steps than one step takes"
