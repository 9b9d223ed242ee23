"""Which runner a run gets: a rule, so that the same run takes the same one everywhere.

Measured on CPU against one client after the other: stacks gain 3.1 times for logistic regression, 2.2 for one hidden
layer, 1.4 to 2.2 for LeNet with and without attention, and lose (0.8) for the CNN with 64 channels, whose own products
are large enough to keep a core busy. `benchmarks/stacked.py` measures it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fedtailor.arch import Arch
from fedtailor.registry import WrongInput
from fedtailor.runners import Runner
from fedtailor.runners.sequential import Sequential
from fedtailor.runners.stacked import Stacked
from fedtailor.runners.workers import Workers

SMALL_MODEL = 2_000_000  # parameters; below it one thread is as fast as several, and steadier
NARROW = 32  # channels up to which a convolution leaves a core idle

KINDS: dict[str, type[Sequential | Stacked]] = {"sequential": Sequential, "stacked": Stacked}


def planned(asked: str, workers: int | None, arch: Arch, clients: int) -> Runner:
    """The runner for `clients` clients a round with this network."""
    parameters = sum(p.numel() for p in arch.net.parameters())
    threads = 1 if parameters < SMALL_MODEL or (workers or 1) > 1 else torch.get_num_threads()
    if asked == "auto":
        convolutions = [m for m in arch.net.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
        narrow = all(m.out_channels <= NARROW for m in convolutions)
        asked = "stacked" if clients > 1 and narrow and parameters < SMALL_MODEL else "sequential"
    return made(KINDS[asked](threads), workers or 1)


def again(plan: Mapping[str, Any]) -> Runner:
    """The runner that a record tells of: a resumed run takes the one it began with."""
    if plan.get("runner") not in KINDS:
        raise WrongInput(f"the run's runner {plan.get('runner')!r} is unknown here; use the version that wrote the run")
    return made(KINDS[plan["runner"]](plan["threads"]), plan.get("workers", 1))


def made(within: Sequential | Stacked, workers: int) -> Runner:
    return Workers(within, workers) if workers > 1 else within
