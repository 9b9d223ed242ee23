"""The losses of clients that are trained as one: of all of them, or of those that take a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedtailor.lanes import OneByOne, lanes, raw
from fedtailor.local import Meter

T = TypeVar("T")


class Unequal(OneByOne):
    """Something that is not the same for all clients of a chunk."""


def same(values: Iterable[T], what: str) -> T:
    first, *rest = values
    if any(value != first for value in rest):
        raise Unequal(f"the clients' {what} differ")
    return first


@dataclass
class LaneMeter(Meter):
    """Losses of all lanes, or of some, step by step."""

    records: list[tuple[Tensor | slice, Tensor]] = field(default_factory=list)

    def add(self, losses: Sequence[Tensor]) -> None:
        if isinstance(losses, LaneLosses):
            self.records += losses.records
        else:
            self.records += [(slice(None), raw(loss)) for loss in losses]

    def table(self, count: int) -> Tensor:
        """[steps, lanes], NaN where a lane had no step."""
        if not self.records:
            return torch.zeros(0, count)
        if self.together(count):
            return torch.stack([losses for _, losses in self.records]).cpu()
        table = torch.full((len(self.records), count), torch.nan, dtype=torch.float64)
        for row, (which, losses) in zip(table, self.records, strict=True):
            row[which] = losses.to(row)
        return table

    def together(self, count: int) -> bool:
        """Whether all lanes took every step."""
        return bool(self.records) and all(losses.shape[0] == count for _, losses in self.records)

    def taken(self, count: int) -> Tensor:
        """bool [steps, lanes]: who took which step."""
        taken = torch.zeros(len(self.records), count, dtype=torch.bool)
        for row, (which, _) in zip(taken, self.records, strict=True):
            row[which] = True
        return taken

    def totals(self, count: int) -> tuple[list[int], list[float | None]]:
        """Steps and mean loss of each lane."""
        if self.together(count):
            return [len(self.records)] * count, self.table(count).mean(0).tolist()
        table, taken = self.table(count), self.taken(count)
        steps = taken.sum(0)
        means = torch.where(taken, table, 0.0).sum(0) / steps.clamp(min=1)
        return steps.tolist(), [mean if n else None for mean, n in zip(means.tolist(), steps.tolist(), strict=True)]

    def extremes(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The first and the last loss of each lane, 0 where there is none; and whether all are finite."""
        if self.together(count):
            table = self.table(count)
            return table[0], table[-1], table.isfinite().all(0)
        table, taken = self.table(count), self.taken(count)
        if not len(table):
            return torch.zeros(count), torch.zeros(count), torch.ones(count, dtype=torch.bool)
        order = torch.arange(len(table))[:, None]
        first = torch.where(taken, order, len(table)).amin(0).clamp(max=len(table) - 1)
        last = torch.where(taken, order, 0).amax(0)
        some = taken.any(0)
        ends = [torch.where(some, table.gather(0, at[None])[0], 0.0) for at in (first, last)]
        return ends[0], ends[1], (table.isfinite() | ~taken).all(0)


class LaneLosses(Sequence[Tensor]):
    """The losses of a descent in which lanes take different numbers of steps."""

    def __init__(self, records: list[tuple[Tensor | slice, Tensor]], steps: list[int]):
        self.records, self.steps = records, steps

    def __len__(self) -> int:
        return same(self.steps, "numbers of steps")

    def __bool__(self) -> bool:
        return same([steps > 0 for steps in self.steps], "having rows enough for a step")

    def __getitem__(self, at: Any) -> Any:
        if at != -1 or not all(self.steps):
            raise Unequal("the clients' numbers of steps differ")
        last = torch.empty(len(self.steps), dtype=self.records[0][1].dtype, device=self.records[0][1].device)
        for which, losses in self.records:
            last[which] = losses
        return lanes(last)
