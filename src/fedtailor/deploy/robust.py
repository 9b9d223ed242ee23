"""Ways of combining uploads that a few odd ones cannot bend much, for methods that only need sums.

Such a method never looks at a single upload, only at their mean. So every upload is replaced by the robust centre of
all (or by one of bounded length), and the method's own aggregation does the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.method import Method
from fedtailor.registry import WrongInput
from fedtailor.tree import State, Tree

_WRITTEN = re.compile(r"(mean|median|trimmed_mean|norm_bound)(?:\(([0-9.eE+-]+)\))?")
ALLOWED = "mean, median, trimmed_mean(share cut off at each end, below 0.5) or norm_bound(length)"


@dataclass(frozen=True)
class Combine:
    """How uploads become one."""

    name: str
    number: float

    def __call__(self, uploads: Mapping[int, State], sent: Tree) -> dict[int, State]:
        """What the method aggregates in place of the uploads; `sent` is the model that the sites began with."""
        if self.name == "mean" or not uploads:
            return dict(uploads)
        if self.name == "norm_bound":
            return {number: self.bounded(upload, sent) for number, upload in uploads.items()}
        stacked = tree.stack([uploads[number] for number in sorted(uploads)])
        centre = tree.transform(self.centre, stacked)
        return dict.fromkeys(uploads, centre)

    def centre(self, stacked: Tensor) -> Tensor:
        """Of each value over the uploads; counters take the largest, as in a mean."""
        if not stacked.is_floating_point():
            return stacked.amax(0)
        ordered = stacked.double().sort(0).values
        n = len(ordered)
        cut = (n - 1) // 2 if self.name == "median" else min(math.floor(self.number * n), (n - 1) // 2)
        return ordered[cut : n - cut].mean(0).to(stacked.dtype)

    def bounded(self, upload: State, sent: Tree) -> State:
        """The upload with its step from what was sent, and whatever else it holds, cut to the length."""
        model: Tree = upload["model"]
        steps = {n: model[n].double() - sent[n].double() for n in sent if n in model and model[n].is_floating_point()}
        scale = self.scale(list(steps.values()))
        near = {n: (sent[n].double() + scale * steps[n]).to(t.dtype) if n in steps else t for n, t in model.items()}
        extra = tree.flatten(upload.get("extra", {}))
        shrink = self.scale([t.double() for t in extra.values() if t.is_floating_point()])
        short = {n: (shrink * t.double()).to(t.dtype) if t.is_floating_point() else t for n, t in extra.items()}
        return {**upload, "model": near, "extra": tree.unflatten(short)}

    def scale(self, parts: list[Tensor]) -> float:
        length = math.sqrt(sum(float(part.square().sum()) for part in parts))
        return min(1.0, self.number / length) if length else 1.0


def read(written: str) -> Combine:
    """`trimmed_mean(0.1)`."""
    match = _WRITTEN.fullmatch(written.strip())
    needs = match is not None and match[1] in ("trimmed_mean", "norm_bound")
    try:
        number = float(match[2]) if match and match[2] else math.nan
    except ValueError:
        number = math.nan
    if match is None or needs == math.isnan(number) or (not needs and match[2]):
        raise WrongInput(f"combine = {written!r} is not possible; write {ALLOWED}")
    if (match[1] == "trimmed_mean" and not 0 <= number < 0.5) or (
        match[1] == "norm_bound" and not 0 < number < math.inf
    ):
        raise WrongInput(f"combine = {written!r} is not possible; write {ALLOWED}")
    return Combine(match[1], number)


def check(written: str, method: Method) -> None:
    """That a method can do with sums, if they are to be robust ones."""
    if read(written).name != "mean" and method.sees != "sums":
        raise WrongInput(
            f'combine = {written!r} replaces single uploads, and {method!r} looks at them; write combine = "mean"'
        )


def length(state: State) -> float:
    """The Euclidean norm of all floating values."""
    floating = [t for t in tree.flatten(state).values() if t.is_floating_point()]
    # in blocks, for each is copied in double
    blocks = (block for t in floating for block in torch.split(t.reshape(-1), tree.BLOCK))
    return math.hypot(*(float(torch.linalg.vector_norm(block, dtype=torch.float64)) for block in blocks))
