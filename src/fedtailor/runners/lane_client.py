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
from fedtailor.local import Batch, Client, Descent, Job, Pull
from fedtailor.nn.attention import CA, AttentionBlock, Hybrid, Slot
from fedtailor.nn.shape import Input
from fedtailor.runners.chain import Chain
from fedtailor.runners.lane_batches import BatchTable, shares
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
        yield from self.filled(Job(epochs=epochs, steps=steps, stream=stream))

    def batch_of(self, index: Tensor, weights: Tensor | None) -> Batch:
        x, y = lanes(self.rows_at(index)), lanes(self.y[index])
        if weights is None:
            return Batch(x, y, 0)
        differs: Any = Differs("batches")
        return FilledBatch(differs, differs, 0, x, y, lanes(weights))

    def work(self, epochs: int | None, steps: int | None) -> tuple[int | None, int | None]:
        return (self.epochs, self.steps_asked) if epochs is None and steps is None else (epochs, steps)

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
        penalties = [*self.penalties, *([job.penalty] if job.penalty else [])]
        if chain and self.fixed is None and chain.can(theta, job, self.opt, penalties):
            return self.along_chain(chain, theta, job, [pull for pull in penalties if isinstance(pull, Pull)])
        if self.fixed is not None or len({lane.size for lane in self.lanes}) == 1:
            return super().descend(theta, job, state)
        return self.unequally(theta, job, state)

    def along_chain(self, chain: Chain, theta: Tree, job: Job, pulls: Sequence[Pull]) -> Descent:
        """Plain descent on a chain of linear layers: no graph is kept, and no gradient stored."""
        rate = self.lr if job.lr is None else job.lr
        assert isinstance(rate, float | int), "asked of the chain"
        values = {name: raw(tensor) for name, tensor in theta.items()}
        wide, table = self.x.flatten(1), self.table(job)
        records: list[tuple[Tensor | slice, Tensor]] = []
        for index, counts in table.runs():
            _, n, width = index.shape
            links, weights = chain.links(values, n), shares(counts, next(iter(values.values())))
            springs = [spring for pull in pulls for spring in springs_of(pull, values, n)]
            room = wide.new_empty(n * width, wide.shape[1])  # of a batch, and again of the next: nothing keeps one
            x, found, pulled = room.view(n, width, -1), [], []
            for rows, labels in zip(index.flatten(1), self.y[index].unsqueeze(3), strict=True):
                torch.index_select(wide, 0, rows, out=room)
                for _ in range(self.steps_per_batch):
                    apart = [value - anchor for value, anchor, _ in springs]
                    found.append(chain.step(links, x, labels, weights, rate, self.opt.weight_decay))
                    for (value, _, mu), far in zip(springs, apart, strict=True):
                        value.sub_(far, alpha=rate * mu)
                        pulled.append(torch.linalg.vector_norm(far.flatten(1), dim=1).square_().mul_(mu / 2))
            log_p = torch.stack(found).squeeze(3)
            losses = -(log_p.mean(2) if weights is None else (log_p * weights).sum(2))
            if pulled:
                losses += torch.stack(pulled).view(len(losses), -1, n).sum(1)
            records += [(slice(0, n), losses_before) for losses_before in losses]
        steps = [self.steps_per_batch * len(lengths) for lengths in table.lengths]
        return LaneDescent(theta, {}, LaneLosses(records, steps))

    def table(self, job: Job) -> BatchTable:
        """The batches' rows of each lane."""
        work = self.work(job.epochs, job.steps)
        return BatchTable.of(
            [partial(self.order, lane, job.stream) for lane in self.lanes],
            [schedule.batch_lengths(lane.size, self.batch, self.smallest) for lane in self.lanes],
            [self.steps_of(lane, *work) for lane in self.lanes],
        )

    def filled(self, job: Job) -> Iterator[tuple[Tensor, Tensor | None]]:
        """[lanes, rows] of each batch, of the lanes that are not done; and what each row counts, where some only fill
        it up."""
        for index, counts in self.table(job).runs():
            weights = shares(counts, torch.empty(0, dtype=torch.float64, device=index.device))
            yield from ((rows, weights) for rows in index)

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
            for index, weights in self.filled(job):
                yield [(slice(0, len(index)), self.batch_of(index, weights))]
            return
        for steps, counts in self.table(job).runs():
            alike: list[tuple[Tensor | slice, int]] = []
            for length in dict.fromkeys(counts):
                places = [lane for lane, count in enumerate(counts) if count == length]
                alike.append((slice(0, len(places)) if places[-1] < len(places) else torch.tensor(places), length))
            for rows in steps:
                cut = [(which, rows[which, :length]) for which, length in alike]
                yield [(which, self.batch_of(index, None)) for which, index in cut]

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


def springs_of(pull: Pull, values: Tree, n: int) -> Iterator[tuple[Tensor, Tensor, float]]:
    """What is pulled of the first n lanes, whereto and how strongly."""
    for name in (name for name in values if name in pull.names):
        anchor = pull.anchor[name]
        yield values[name][:n], raw(anchor)[:n] if is_lanes(anchor) else anchor, pull.mu


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
