"""The rows of all batches of several clients, in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor

from fedtailor.runners.lane_losses import Unequal


@dataclass(frozen=True)
class BatchTable:
    """`rows[step, lane]` are the rows of a batch, of which the first `lengths[lane][step]` count; the others are some
    row of that client's, so that nothing foreign is computed with."""

    rows: Tensor
    lengths: list[list[int]]

    @classmethod
    def of(
        cls, orders: Sequence[Callable[[int], Tensor]], epochs: Sequence[list[int]], steps: Sequence[int]
    ) -> BatchTable:
        """From each lane's order of its rows in an epoch, the lengths of an epoch's batches, and its steps."""
        if any(a < b for a, b in pairwise(steps)):
            raise Unequal("a client has more steps than one with more rows")
        width = max((max(lengths, default=0) for lengths in epochs), default=0)
        tables, found = [], []
        for order, lengths, most in zip(orders, epochs, steps, strict=True):
            rounds = -(-most // len(lengths)) if lengths else 0
            some = [filled(order(epoch), lengths, width) for epoch in range(rounds)]
            tables.append(torch.cat(some)[:most] if some else torch.empty(0, width, dtype=torch.int64))
            found.append((lengths * rounds)[:most])
        return cls(torch.nn.utils.rnn.pad_sequence(tables), found)

    def runs(self) -> Iterator[tuple[Tensor, list[int]]]:
        """Steps in a row of the same lanes, which come first, with batches as long: their rows [steps, lanes, rows],
        and how many rows of each lane's batches count."""
        counts = [[lengths[step] for lengths in self.lengths if len(lengths) > step] for step in range(len(self.rows))]
        start = 0
        for now, alike in groupby(counts):
            end = start + len(list(alike))
            yield self.rows[start:end, : len(now), : max(now)], now
            start = end


def shares(counts: Sequence[int], like: Tensor) -> Tensor | None:
    """What each row of a batch of so many counts in their mean [lanes, rows]; None where all count alike."""
    if min(counts) == max(counts):
        return None
    lengths = torch.tensor(counts, device=like.device).unsqueeze(1)
    return (torch.arange(max(counts), device=like.device) < lengths).to(like.dtype) / lengths


def filled(order: Tensor, lengths: list[int], width: int) -> Tensor:
    """[batches, width]: an epoch's batches below each other, short ones filled up."""
    first = lengths[0]
    missing = len(lengths) * first - sum(lengths)
    whole = torch.cat([order[: sum(lengths)], order[:1].expand(missing)]) if missing else order[: sum(lengths)]
    table = whole.view(len(lengths), first)
    return table if first == width else torch.cat([table, table[:, :1].expand(-1, width - first)], 1)
