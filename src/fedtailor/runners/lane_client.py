"""Several clients seen as one: what their hooks ask for is answered for all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor import schedule
from fedtailor.arch import Arch
from fedtailor.lanes import is_lanes, lanes, raw, selected
from fedtailor.local import Batch, Client, Descent, Job
from fedtailor.nn.attention import CA, AttentionBlock, Hybrid, Slot
from fedtailor.nn.shape import Input
from fedtailor.runners.chain import Chain
from fedtailor.runners.lane_batches import BatchTable
from fedtailor.runners.lane_losses import LaneLosses, LaneMeter, Unequal, same
from fedtailor.tree import State, Tree

# Layers that treat each row for itself: a batch may be filled up with rows that count nothing.
ROW_BY_ROW = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Flatten, nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.MaxPool2d,
    nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity, nn.LayerNorm, nn.GroupNorm, nn.Embedding, nn.Sequential,
    nn.ModuleDict, nn.ModuleList, Input, Slot, Hybrid, AttentionBlock,
)  # fmt: skip


class Differs:
    """Stands for what is not the same for all clients: their numbers, or rows of different lengths."""

    def __init__(self, what: str):
        self.what = what

    def refuse(self, *_: Any, **__: Any) -> Any:
        raise Unequal(f"the clients' {self.what} differ")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    __len__ = __getitem__ = __iter__ = __index__ = __int__ = __float__ = __eq__ = __lt__ = __add__ = __radd__ = refuse
    __mul__ = __rmul__ = __sub__ = __rsub__ = __mod__ = __format__ = __str__ = __hash__ = refuse
    __torch_function__ = refuse


@dataclass(frozen=True)
class LaneDescent(Descent):
    """What a descent of unequal lanes reached."""

    losses: LaneLosses  # type: ignore[assignment]

    @property
    def mean_loss(self) -> Tensor:
        meter = LaneMeter(records=self.losses.records)
        like = next(iter(self.theta.values()))
        means = meter.totals(len(self.losses.steps))[1]
        return lanes(torch.tensor([mean or 0.0 for mean in means], dtype=torch.float64, device=raw(like).device))


@dataclass(frozen=True)
class LaneClient(Client):
    """Several clients as one; what differs between them and cannot be stacked raises `Unequal`."""

    lanes: tuple[Client, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Client]) -> LaneClient:
        common = {f.name: getattr(parts[0], f.name) for f in fields(Client)}
        common |= {"rows": rows_of(parts), "number": Differs("numbers"), "meter": LaneMeter()}
        return cls(**common, lanes=tuple(parts))

    def with_lanes(self, parts: Sequence[Client]) -> LaneClient:
        return replace(self, lanes=tuple(parts), rows=rows_of(parts))

    @property
    def size(self) -> int:
        return same((c.size for c in self.lanes), "sizes")

    @property
    def steps(self) -> int:
        batches = same((self.steps_of(c, self.epochs, self.steps_asked) for c in self.lanes), "steps")
        return batches * self.steps_per_batch

    def steps_of(self, lane: Client, epochs: int | None, steps: int | None) -> int:
        return schedule.steps_of(lane.size, self.batch, epochs, steps, self.smallest)

    def batches(self, epochs: int | None = None, steps: int | None = None, stream: int = 0) -> Iterator[Batch]:
        if self.fixed is not None:
            yield from super().batches(epochs, steps, stream)
            return
        step = 0
        for index, weights in self.shared_out(*self.work(epochs, steps), stream):
            batch = self.batch_of(index, weights)
            for _ in range(self.steps_per_batch):
                yield replace(batch, step=step)
                step += 1

    def shared_out(self, epochs: int | None, steps: int | None, stream: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The rows of each batch of all lanes: of one size, or of as many steps and with rows that can be filled up."""
        if len({self.steps_of(lane, epochs, steps) for lane in self.lanes}) > 1 or not row_by_row(self.arch):
            same((lane.size for lane in self.lanes), "sizes")
        for _, index, weights in self.filled(Job(epochs=epochs, steps=steps, stream=stream)):
            yield index, weights

    def batch_of(self, index: Tensor, weights: Tensor | None) -> Batch:
        x, y = lanes(self.rows_at(index)), lanes(self.y[index])
        if weights is None:
            return Batch(x, y, 0)
        differs: Any = Differs("batches")
        return FilledBatch(differs, differs, 0, x, y, lanes(weights))

    def work(self, epochs: int | None, steps: int | None) -> tuple[int | None, int | None]:
        return (self.epochs, self.steps_asked) if epochs is None and steps is None else (epochs, steps)

    def indices(self, epochs: int | None, steps: int | None, stream: int) -> Iterator[Tensor]:
        """The rows of each batch, [lanes, rows], of clients of one size."""
        size = self.size
        left = schedule.steps_of(size, self.batch, epochs, steps, self.smallest)
        lengths = schedule.batch_lengths(size, self.batch, self.smallest)
        epoch = 0
        while left > 0:
            orders = torch.stack([self.order(lane, stream, epoch) for lane in self.lanes])
            full = size // lengths[0]
            whole = orders[:, : full * lengths[0]].view(len(orders), full, -1).transpose(0, 1).contiguous()
            last = [orders[:, full * lengths[0] :]] if len(lengths) > full else []
            yield from [*whole, *last][:left]
            left, epoch = left - len(lengths), epoch + 1

    def rows_at(self, index: Tensor) -> Tensor:
        """x[index], whole rows copied."""
        return self.x.index_select(0, index.flatten()).view(*index.shape, *self.x.shape[1:])

    def order(self, lane: Client, stream: int, epoch: int) -> Tensor:
        return schedule.epoch_order(self.seed, self.round, lane.number, stream, epoch, lane.rows)

    def holdout(self, share: float) -> tuple[Client, Client]:
        rest, held = zip(*(lane.holdout(share) for lane in self.lanes), strict=True)
        return self.with_lanes(rest), self.with_lanes(held)

    def sample(self, share: float) -> Client:
        return self.with_lanes([lane.sample(share) for lane in self.lanes])

    def with_public_rows(self) -> Client:
        return self.with_lanes([lane.with_public_rows() for lane in self.lanes])

    def any(self, condition: Tensor) -> bool:
        return bool(raw(condition).any())

    def random(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        return lanes(torch.stack([lane.random(purpose, shape) for lane in self.lanes]))

    def loss(self, model: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        if not isinstance(batch, FilledBatch):
            return super().loss(model, batch)
        out, buffers = self.arch.apply(model, batch.filled_x)
        losses = self.task.losses(out, batch.filled_y)
        loss = (losses * batch.weights.to(losses.dtype)).sum()
        for penalty in self.penalties:
            loss = loss + penalty(model)
        return loss, buffers

    def descend(self, theta: Tree, job: Job, state: State) -> Descent:
        count = len(self.lanes)
        theta = {n: t if is_lanes(t) else lanes(t.expand(count, *t.shape).clone()) for n, t in theta.items()}
        chain = Chain.of(self.arch, self.task)
        if chain and self.fixed is None and not self.penalties and chain.can(theta, job, self.opt):
            return self.along_chain(chain, theta, job)
        if self.fixed is not None or len({lane.size for lane in self.lanes}) == 1:
            return super().descend(theta, job, state)
        return self.unequally(theta, job, state)

    def along_chain(self, chain: Chain, theta: Tree, job: Job) -> Descent:
        """Plain descent on a chain of linear layers: no graph is kept, and no gradient stored."""
        rate = self.lr if job.lr is None else job.lr
        assert isinstance(rate, float | int), "asked of the chain"
        records: list[tuple[Tensor | slice, Tensor]] = []
        values = {name: raw(tensor) for name, tensor in theta.items()}
        wide = self.x.flatten(1)
        room = wide.new_empty(0, wide.shape[1])  # of a batch, used again for the next: nothing keeps one
        for n, index, weights in self.filled(job):
            if index.numel() > len(room):
                room = wide.new_empty(index.numel(), wide.shape[1])
            x = torch.index_select(wide, 0, index.flatten(), out=room[: index.numel()]).view(*index.shape, -1)
            y = self.y[index]
            for _ in range(self.steps_per_batch):
                records.append((slice(0, n), chain.step(values, x, y, weights, rate, self.opt.weight_decay)))
        steps = [sum(losses.shape[0] > i for _, losses in records) for i in range(len(self.lanes))]
        return LaneDescent(theta, {}, LaneLosses(records, steps))

    def table(self, job: Job) -> BatchTable:
        """The batches' rows of each lane."""
        work = self.work(job.epochs, job.steps)
        return BatchTable.of(
            [partial(self.order, lane, job.stream) for lane in self.lanes],
            [schedule.batch_lengths(lane.size, self.batch, self.smallest) for lane in self.lanes],
            [self.steps_of(lane, *work) for lane in self.lanes],
        )

    def filled(self, job: Job) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """The lanes that are not done, [lanes, rows] of a batch, and the rows' weights where some only fill it up."""
        if len({lane.size for lane in self.lanes}) == 1:
            for index in self.indices(*self.work(job.epochs, job.steps), job.stream):
                yield len(index), index, None
            return
        kind = self.x.dtype if self.x.is_floating_point() else torch.float64
        for rows, counts in self.table(job):
            weights = None
            if min(counts) < max(counts):
                lengths = torch.tensor(counts, device=rows.device)[:, None]
                weights = (torch.arange(rows.shape[1], device=rows.device) < lengths).to(kind) / lengths.to(kind)
            yield len(counts), rows, weights

    def unequally(self, theta: Tree, job: Job, state: State) -> Descent:
        """The loop for clients of different sizes: those with most steps come first, those that are done drop out."""
        values = {name: raw(tensor) for name, tensor in theta.items()}
        records: list[tuple[Tensor | slice, Tensor]] = []
        memory = state
        step = 0
        for group in self.groups(job):
            for _ in range(self.steps_per_batch):
                for which, batch in group:
                    memory, loss = self.some(values, job, memory, which, replace(batch, step=step))
                    records.append((which, loss))
                step += 1
        steps = [0] * len(self.lanes)
        for which, _ in records:
            for lane in range(len(steps))[which] if isinstance(which, slice) else which.tolist():
                steps[lane] += 1
        return LaneDescent({n: lanes(t) for n, t in values.items()}, memory, LaneLosses(records, steps))

    def groups(self, job: Job) -> Iterator[list[tuple[Tensor | slice, Batch]]]:
        """For each step the lanes that take it, in groups with batches of one length, or filled up to one."""
        if job.loss is None and row_by_row(self.arch):
            for n, index, weights in self.filled(job):
                yield [(slice(0, n), self.batch_of(index, weights))]
            return
        for rows, counts in self.table(job):
            group: list[tuple[Tensor | slice, Batch]] = []
            for length in dict.fromkeys(counts):
                places = [lane for lane, count in enumerate(counts) if count == length]
                which = slice(0, len(places)) if places[-1] == len(places) - 1 else torch.tensor(places)
                index = rows[which, :length]
                group.append((which, Batch(lanes(self.rows_at(index)), lanes(self.y[index]), 0)))
            yield group

    def some(
        self, values: Tree, job: Job, memory: State, which: Tensor | slice, batch: Batch
    ) -> tuple[State, Tensor]:
        """One step of some lanes; `values` are moved in place."""
        part = {name: lanes(t[which].detach()) for name, t in values.items()}
        free = job.trained(part, self.arch, batch.step)
        part = {name: t.requires_grad_(name in free) for name, t in part.items()}
        count = len(next(iter(values.values()))[which])
        with selected(count, which):
            loss, new = job.step(self, part, free, batch, rows_of_state(memory, which))
        for name, tensor in part.items():
            old, moved = values[name][which], raw(tensor.detach())
            if old.data_ptr() != moved.data_ptr():  # else it was moved where it is
                values[name][which] = moved
        return put_back(memory, new, which, len(self.lanes)), raw(loss)


@dataclass(frozen=True)
class FilledBatch(Batch):
    """A batch in which some rows of shorter lanes count nothing: for `loss`, and for nobody who would count them."""

    filled_x: Tensor
    filled_y: Tensor
    weights: Tensor


def rows_of(parts: Sequence[Client]) -> Any:
    alike = len({part.size for part in parts}) == 1
    return lanes(torch.stack([part.rows for part in parts])) if alike else Differs("sizes")


def row_by_row(arch: Arch) -> bool:
    return all(isinstance(module, ROW_BY_ROW) and not isinstance(module, CA) for module in arch.net.modules())


def rows_of_state(state: State, which: Tensor | slice) -> State:
    return {
        key: rows_of_state(value, which) if isinstance(value, dict) else lanes(raw(value)[which])
        for key, value in state.items()
    }


def put_back(old: State, new: State, which: Tensor | slice, count: int) -> State:
    """The optimiser's memory of all lanes, with that of some replaced; zero where there was none, as it begins."""
    kept: State = {}
    for key, value in new.items():
        if isinstance(value, dict):
            kept[key] = put_back(old.get(key, {}), value, which, count)
            continue
        rows = raw(value)
        whole = raw(old[key]).clone() if key in old else rows.new_zeros(count, *rows.shape[1:])
        whole[which] = rows
        kept[key] = lanes(whole)
    return kept
