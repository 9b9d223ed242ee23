"""A client's view of itself, and `descend`, the one local loop of the project.

Almost every paper is a choice of *what is descended on* (`theta`) and *how it becomes a model* (`build`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from fedtailor import schedule, tree
from fedtailor.arch import Arch
from fedtailor.task import Task
from fedtailor.tree import State, Tree

Penalty = Callable[[Tree], Tensor]
Loss = Callable[[Tree, "Batch"], tuple[Tensor, Tree]]


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum, weight decay and clipping of the gradient's norm."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0  # 0: no clipping

    def step(self, theta: Tree, grads: Tree, state: State, lr: float | Mapping[str, float]) -> State:
        """Move `theta` in place; returns the new optimiser state."""
        names, values, slopes = list(grads), [theta[name] for name in grads], list(grads.values())
        if self.clip:
            slopes = clipped(slopes, self.clip)
        if self.weight_decay:
            slopes = list(torch._foreach_add(slopes, values, alpha=self.weight_decay))
        if self.momentum:
            old = state.get("momentum", {})
            new = {n: old[n] * self.momentum + g if n in old else g for n, g in zip(names, slopes, strict=True)}
            slopes, state = list(new.values()), {"momentum": {**old, **new}}
        descend_by(values, slopes, names, lr)
        return state


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), with bias correction."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def step(self, theta: Tree, grads: Tree, state: State, lr: float | Mapping[str, float]) -> State:
        """Move `theta` in place; returns the new optimiser state."""
        new: State = {"m": dict(state.get("m", {})), "v": dict(state.get("v", {})), "t": dict(state.get("t", {}))}
        moves = []
        for name, g in grads.items():
            t = new["t"].get(name, torch.zeros((), device=g.device)) + 1
            m = new["m"].get(name, torch.zeros_like(g)).lerp(g, 1 - self.beta1)
            v = new["v"].get(name, torch.zeros_like(g)).lerp(g * g, 1 - self.beta2)
            new["m"][name], new["v"][name], new["t"][name] = m, v, t
            moves.append(m / (1 - self.beta1**t) / ((v / (1 - self.beta2**t)).sqrt() + self.eps))
        descend_by([theta[name] for name in grads], moves, list(grads), lr)
        return new


class Optimiser(Protocol):
    """A rule for steps; its state is a tree like any other."""

    def step(self, theta: Tree, grads: Tree, state: State, lr: float | Mapping[str, float]) -> State:
        """Move `theta` in place; returns the new optimiser state."""
        ...


def clipped(slopes: list[Tensor], limit: float) -> list[Tensor]:
    """The gradient, scaled down to norm `limit` where it is longer."""
    norm = torch.stack(list(torch._foreach_norm(slopes))).norm()
    scale = (limit / norm.clamp(min=1e-12)).clamp(max=1.0)
    return [g * scale for g in slopes]


def descend_by(values: list[Tensor], moves: list[Tensor], names: list[str], lr: float | Mapping[str, float]) -> None:
    if isinstance(lr, Mapping):
        moves = [move * (lr[name]) for name, move in zip(names, moves, strict=True)]
        torch._foreach_sub_(values, moves)
    else:
        torch._foreach_add_(values, moves, alpha=-lr)


@dataclass(frozen=True)
class Batch:
    """One mini-batch: inputs, labels, and its number in the descent."""

    x: Tensor
    y: Tensor
    step: int


@dataclass(frozen=True, eq=False)
class Pull:
    """A penalty of mu/2 ||theta - anchor||^2 over some names. Its slope, mu (theta - anchor), need not be found by
    differentiating: a runner may know it by this class."""

    mu: float
    anchor: Tree
    names: Collection[str]

    def __call__(self, theta: Tree) -> Tensor:
        return self.mu / 2 * tree.sqdist(theta, self.anchor, self.names)


@dataclass
class Meter:
    """What the driver reads off a client's descents: their steps and losses."""

    steps: int = 0
    losses: list[Tensor] = field(default_factory=list)

    def add(self, losses: list[Tensor]) -> None:
        self.steps += len(losses)
        self.losses += losses


@dataclass(frozen=True)
class Client:
    """All that a client hook may know: its own data and settings, never another client, never the server."""

    arch: Arch
    task: Task
    x: Tensor
    y: Tensor
    rows: Tensor  # this client's training rows of x and y
    seed: int
    number: int  # keys the client's randomness, and nothing else
    round: int  # from 1
    rounds: int
    lr: float  # this round's rate
    batch: int  # 0: the whole local set
    epochs: int | None
    steps_asked: int | None
    opt: SGD
    shared: frozenset[str]  # trained parameters that the server sees, under the outermost method
    private: frozenset[str]  # names that never leave
    smallest: int = 1  # a shorter batch is left out: 2 where the model has batch norm
    public: Tensor | None = None  # rows that everybody may use, where the federation has any
    penalties: tuple[Penalty, ...] = ()
    fixed: Batch | None = None  # a view of one batch: every step is on it
    steps_per_batch: int = 1  # how often each batch is given
    meter: Meter = field(default_factory=Meter, compare=False)

    @property
    def size(self) -> int:
        return self.rows.shape[0]

    @property
    def steps(self) -> int:
        """Optimiser steps of this round's ordinary local work."""
        batches = schedule.steps_of(self.size, self.batch, self.epochs, self.steps_asked, self.smallest)
        return batches * self.steps_per_batch

    def batches(self, epochs: int | None = None, steps: int | None = None, stream: int = 0) -> Iterator[Batch]:
        """This round's batches: every epoch in its own order; `stream` numbers independent orders.

        Without arguments, the run's local work. A last batch that is not full is used as it is.
        """
        if self.fixed is not None:
            yield from (replace(self.fixed, step=step) for step in range(1 if steps is None else steps))
            return
        if epochs is None and steps is None:
            epochs, steps = self.epochs, self.steps_asked
        left = schedule.steps_of(self.size, self.batch, epochs, steps, self.smallest)
        lengths = schedule.batch_lengths(self.size, self.batch, self.smallest)
        step, epoch = 0, 0
        while step < left:
            order = schedule.epoch_order(self.seed, self.round, self.number, stream, epoch, self.rows)
            start = 0
            for length in lengths[: left - step]:
                rows = order[start : start + length]
                x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
                for again in range(self.steps_per_batch):
                    yield Batch(x, y, step * self.steps_per_batch + again)
                start, step = start + length, step + 1
            epoch += 1

    def each_batch(self) -> Iterator[Client]:
        """This round's batches as views of one batch each, for methods that take several steps on every batch."""
        for batch in self.batches():
            yield self.only(batch)

    def only(self, batch: Batch) -> Client:
        """A view of one batch: every step is on it."""
        return replace(self, fixed=batch)

    def streams(self, n: int) -> Iterator[tuple[Batch, ...]]:
        """`n` independent batches at a time, as many times as the run's local work has steps."""
        return zip(*(self.batches(stream=stream) for stream in range(n)), strict=True)

    def holdout(self, share: float) -> tuple[Client, Client]:
        """Two clients: one without a fixed `share` of the training rows, and one that has only that."""
        order = torch.from_numpy(schedule.rng(self.seed, "holdout", self.number).permutation(self.size))
        count = min(max(1, round(share * self.size)), self.size - 1) if self.size > 1 else 0
        held, rest = self.rows[order[:count]], self.rows[order[count:]]
        return replace(self, rows=rest), replace(self, rows=held)

    def sample(self, share: float) -> Client:
        """The client with a random `share` of its rows, drawn anew each round, at least one."""
        order = torch.from_numpy(schedule.rng(self.seed, "sample", self.round, self.number).permutation(self.size))
        return replace(self, rows=self.rows[order[: max(1, round(share * self.size))]])

    def with_public_rows(self) -> Client:
        """A client whose rows are the public ones: its batches are public batches."""
        assert self.public is not None, "checked when the run was set up"
        return replace(self, rows=self.public)

    def any(self, condition: Tensor) -> bool:
        """Whether a condition holds (for any client, where several are trained as one): the one way to stop early."""
        return bool(condition.any())

    def loss(self, model: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """The local objective of a model on a batch, and the buffers as the pass leaves them."""
        out, buffers = self.arch.apply(model, batch.x)
        loss = self.task.loss(out, batch.y)
        for penalty in self.penalties:
            loss = loss + penalty(model)
        return loss, buffers

    def descend(self, theta: Tree, job: Job, state: State) -> Descent:
        """The loop of `descend`, which moves `theta`: a step on each batch."""
        free: list[str] | None = None
        losses = []
        for batch in self.batches(job.epochs, job.steps, job.stream):
            names = job.trained(theta, self.arch, batch.step) if free is None or callable(job.only) else free
            if names != free:
                theta = {name: tensor.detach().requires_grad_(name in names) for name, tensor in theta.items()}
                free = names
            objective, state = job.step(self, theta, free, batch, state)
            losses.append(objective)
        return Descent({name: tensor.detach() for name, tensor in theta.items()}, state, losses)

    def with_penalty(self, penalty: Penalty) -> Client:
        """The same client with a term of the model added to its objective."""
        return replace(self, penalties=(*self.penalties, penalty))

    def random(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Uniform numbers in [0, 1), a function of seed, round, client and purpose."""
        draws = torch.rand(shape, generator=schedule.torch_rng(self.seed, "client", purpose, self.round, self.number))
        return draws.to(self.x.device)


@dataclass(frozen=True)
class Descent:
    """What `descend` reached."""

    theta: Tree
    opt_state: State
    losses: list[Tensor]  # the objective before each step

    @property
    def mean_loss(self) -> Tensor:
        """The mean objective over the steps; 0 where there was none."""
        return torch.stack(self.losses).mean() if self.losses else torch.zeros(())


@dataclass(frozen=True)
class Job:
    """What a descent minimises, and how: the arguments of `descend`."""

    loss: Loss | None = None
    build: Callable[[Tree, Batch], Tree] | None = None
    penalty: Penalty | None = None
    correct: Tree | None = None
    project: Callable[[Tree], Tree] | None = None
    absorb: Callable[[Tree, Tree], Tree] | None = None
    only: Collection[str] | Callable[[int], Collection[str]] | None = None
    opt: Optimiser | None = None
    lr: float | Mapping[str, float] | None = None
    epochs: int | None = None
    steps: int | None = None
    stream: int = 0

    def trained(self, theta: Tree, arch: Arch, step: int) -> list[str]:
        """The names that a step moves."""
        if self.only is None:
            own = theta.keys() - set(arch.names)
            return [name for name in theta if name in arch.trainable or name in own]
        chosen = self.only(step) if callable(self.only) else self.only
        return [name for name in theta if name in chosen]

    def step(self, client: Client, theta: Tree, free: list[str], batch: Batch, state: State) -> tuple[Tensor, State]:
        """One step: moves `theta` in place; gives the objective before it, and the optimiser's new state."""
        model = self.build(theta, batch) if self.build else theta
        objective, buffers = (self.loss or client.loss)(model, batch)
        if self.penalty:
            objective = objective + self.penalty(theta)
        movable = free if objective.requires_grad else []
        slopes = torch.autograd.grad(objective, [theta[n] for n in movable], allow_unused=True) if movable else ()
        with torch.no_grad():
            grads = {name: g for name, g in zip(movable, slopes, strict=True) if g is not None}
            if self.correct:
                grads = {name: g + self.correct[name] if name in self.correct else g for name, g in grads.items()}
            if grads:
                rate = client.lr if self.lr is None else self.lr
                state = (self.opt or client.opt).step(theta, grads, state, rate)
            theta.update(self.absorb(theta, buffers) if self.absorb else {n: buffers[n] for n in buffers if n in theta})
            if self.project:
                projected = self.project(theta)
                for name in free:
                    theta[name].copy_(projected[name])
        return objective.detach(), state


def descend(
    client: Client,
    theta: Tree,
    *,
    loss: Loss | None = None,
    build: Callable[[Tree, Batch], Tree] | None = None,
    penalty: Penalty | None = None,
    correct: Tree | None = None,
    project: Callable[[Tree], Tree] | None = None,
    absorb: Callable[[Tree, Tree], Tree] | None = None,
    only: Collection[str] | Callable[[int], Collection[str]] | None = None,
    opt: Optimiser | None = None,
    lr: float | Mapping[str, float] | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    stream: int = 0,
    opt_state: State | None = None,
) -> Descent:
    """min_theta  loss(build(theta), batch) + penalty(theta);   g <- g + correct;   theta <- project(theta).

    `loss` is the client's unless another is given, and `theta` is not touched. What is trained: the names `only` (which
    may depend on the step), or else the model's trainable parameters and every tensor of `theta` that is no part of the
    model (a method's own unknowns). Buffers follow the forward passes: into the entries of their names, or where
    `absorb(theta, buffers)` puts them.
    """
    job = Job(loss, build, penalty, correct, project, absorb, only, opt, lr, epochs, steps, stream)
    descent = client.descend({name: tensor.detach().clone() for name, tensor in theta.items()}, job, opt_state or {})
    client.meter.add(descent.losses)
    return descent
