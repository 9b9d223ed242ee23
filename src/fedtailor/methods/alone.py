"""Local: every client trains alone; nothing is sent. What any federation has to beat.

    client i: goes on with its own w_i, E epochs of SGD on f_i

Deviations: none. All names are personal, so that nothing is left to send or to average.
The optimiser's momentum starts afresh each round, as it does for every method, so that the budget is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor.arch import Arch
from fedtailor.method import Method
from fedtailor.registry import register


@register("method", "Local", "Single", "LocalTrain")
@dataclass(frozen=True, repr=False)
class Local(Method):
    """Training alone: no exchange at all."""

    point = "trained"
    paper = "baseline"

    def personal(self, arch: Arch) -> frozenset[str]:
        return frozenset(arch.names)
