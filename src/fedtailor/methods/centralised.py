"""Centralised: one model trained on the union of all clients' rows, tested at each of them. A bound, not a federation.

    w: T rounds of E epochs of SGD on the union of all D_i

Deviations: none. The driver pools the training rows (`pools`); a real federation refuses this method, for its data
do not leave the sites.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor.method import Method
from fedtailor.registry import register


@register("method", "Centralised", "Centralized", "All")
@dataclass(frozen=True, repr=False)
class Centralised(Method):
    """All rows in one place: what sharing the data would give."""

    point = "trained"
    pools = True
    paper = "baseline"
