"""One client's side of a round: merge what is personal, start, fit, take away what is personal, be examined.

Every runner and every real site runs these functions and no others, so that a method means the same everywhere.
What a site keeps between rounds is one state of tensors, `kept`:

    personal   the values that never leave          method    the method's own state
    trained    the model after local training, where it is tested or trained on without a message
    anchor     the last message's model, where clients train without one
    outbox     the upload that waits until the client is next drawn, where all clients train
    held       the model last tested, for clients outside the cohort of a method that does not broadcast
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedtailor import schedule, tree
from fedtailor.arch import Arch
from fedtailor.local import SGD, Client, Meter, descend
from fedtailor.method import Fitted, Method, Point, Received
from fedtailor.task import Task
from fedtailor.tree import State, Tree

EXPLODED = 1e6  # a loss that grew by this factor within a round counts as diverged
EXAM_BATCH = 1024

Statistics = dict[str, Tensor]
Exam = dict[str, Statistics]  # "test" and "validation"


@dataclass(frozen=True)
class Common:
    """What all sites of a run share."""

    method: Method
    arch: Arch
    task: Task
    point: Point
    private: frozenset[str]
    shared: frozenset[str]
    keeps: frozenset[str]  # slots of `kept` beside "personal" and "method"
    seed: int
    rounds: int
    lr: float
    lr_decay: float
    batch: int
    epochs: int | None
    steps: int | None
    finish_epochs: int
    opt: SGD
    public: Tensor | None  # rows that everybody may use


@dataclass(frozen=True)
class Site:
    """One client with its data; `exams` are the rows it is tested on, by the number of the site reported."""

    common: Common
    number: int
    x: Tensor
    y: Tensor
    rows: Tensor
    exams: Mapping[int, Mapping[str, Tensor]]

    def randomness(self, purpose: str, round: int) -> AbstractContextManager[None]:
        """The random numbers that a forward pass draws, for one purpose."""
        return randomness(self.common.seed, purpose, round, self.number)

    def diverged(self, meter: Meter, fitted: Fitted) -> bool:
        return diverged(meter, fitted)

    def client(self, round: int, purpose: str = "") -> Client:
        """What the hooks see; another `purpose` draws other random numbers."""
        run = self.common
        return Client(
            arch=run.arch, task=run.task, x=self.x, y=self.y, rows=self.rows,
            seed=schedule.torch_seed(run.seed, purpose) if purpose else run.seed,
            number=self.number, round=round, rounds=run.rounds, lr=run.lr * run.lr_decay ** (round - 1),
            batch=run.batch, epochs=run.epochs, steps_asked=run.steps, opt=run.opt,
            shared=run.shared, private=run.private,
            smallest=2 if run.arch.statistics else 1, public=run.public,
        )  # fmt: skip


@dataclass(frozen=True)
class Reply:
    """What comes back from one client's round; `upload` and `kept` are None where its training diverged."""

    number: int
    upload: State | None
    kept: State | None
    steps: int
    loss: float | None
    exam: Mapping[int, Exam]
    explain: Mapping[str, Tensor] = field(default_factory=dict)
    train_seconds: float = 0.0
    exam_seconds: float = 0.0


@dataclass(frozen=True)
class Played:
    """What a round of training gives, before it is tested."""

    fitted: Fitted
    upload: State
    kept: State
    tested: Tree
    explain: Mapping[str, Tensor]


def take_part(site: Site, kept: State, got: Received | None, round: int, examine: bool) -> Reply:
    """One client's round, with its exam."""
    began = time.perf_counter()
    played, meter = play(site, kept, got, round, examine)
    trained_in = time.perf_counter() - began
    if played is None:
        return Reply(site.number, None, None, meter.steps, None, {}, train_seconds=trained_in)
    began = time.perf_counter()
    exam = take_exam(site, played.tested) if examine else {}
    loss = float(torch.stack(meter.losses).mean()) if meter.losses else None
    return Reply(
        site.number, played.upload, played.kept, meter.steps, loss, exam, played.explain, trained_in,
        time.perf_counter() - began,
    )  # fmt: skip


def play(site: Site, kept: State, got: Received | None, round: int, examine: bool) -> tuple[Played | None, Meter]:
    """A round of training, or nothing where it diverged. Without a message the client goes on from what it kept."""
    run, method = site.common, site.common.method
    client = site.client(round)
    if got is None:
        got = Received(model=kept["anchor"], me=site.number)
        model, state = kept["trained"], kept["method"]
    else:
        got = replace(got, model={**got.model, **kept["personal"]})
        with site.randomness("start", round):
            model, state = method.start(client, kept["method"], got)
    client = replace(client, meter=type(client.meter)())  # what is reported is the training, not the start
    with site.randomness("fit", round):  # anew: a start may draw for as long as any of the clients beside it goes on
        fitted = method.fit(client, state, model, got)
    fitted = Fitted(tree.detach(fitted.model), tree.detach(fitted.state), tree.detach(fitted.extra))
    if site.diverged(client.meter, fitted):
        return None, client.meter

    upload = {"model": tree.drop(fitted.model, run.private), "extra": without(fitted.extra, run.private)}
    own = tree.pick(fitted.model, run.private)
    tested = model if run.point == "received" else fitted.model
    if run.point == "adapted" and (examine or "held" in run.keeps):
        tested = adapted(site, fitted.state, replace(got, model=model), round)
    slots = {"trained": fitted.model, "anchor": got.model, "outbox": upload, "held": tested}
    after = {"personal": own, "method": fitted.state, **{slot: slots[slot] for slot in sorted(run.keeps)}}
    explain = tree.detach(method.explain(client, fitted.state, got)) if examine else {}
    return Played(fitted, upload, after, tested, explain), client.meter


def model_of(site: Site, kept: State, got: Received | None, round: int) -> Tree:
    """The model a client that is not training now would be tested with; moves no state.

    `got` is a message that was broadcast or delivered to it; without one, it has what it last held.
    """
    run = site.common
    if run.point == "trained":
        model: Tree = kept["trained"]
        return model
    if got is None:
        held: Tree = kept["held"]
        return held
    got = replace(got, model={**got.model, **kept["personal"]})
    with site.randomness("start", round):
        model, state = run.method.start(site.client(round), kept["method"], got)
    return adapted(site, state, replace(got, model=model), round) if run.point == "adapted" else model


def finished(site: Site, kept: State, got: Received) -> Tree:
    """The model a client ends with: its tested model after the last delivery, tuned for `finish_epochs`."""
    run = site.common
    model = model_of(site, kept, got, run.rounds + 1)
    if run.finish_epochs:
        with site.randomness("finish", run.rounds):
            client = site.client(run.rounds + 1, "finish")
            model = descend(client, model, epochs=run.finish_epochs).theta
    return tree.transform(torch.clone, tree.detach(model))


def adapted(site: Site, state: State, got: Received, round: int) -> Tree:
    with site.randomness("adapted", round):
        model = site.common.method.personalised(site.client(round, "adapted"), state, got)
    assert model is not None, "checked when the run was set up"
    return tree.detach(model)


def take_exam(site: Site, model: Tree) -> dict[int, Exam]:
    """Sufficient statistics of a model on each list of rows the site is tested on."""
    return {
        number: {part: statistics(site, model, rows) for part, rows in parts.items() if len(rows)}
        for number, parts in site.exams.items()
    }


@torch.no_grad()
def statistics(site: Site, model: Tree, rows: Tensor) -> Statistics:
    total: Statistics = {}
    for some in torch.split(rows, EXAM_BATCH):
        out, _ = site.common.arch.apply(model, site.x.index_select(0, some), train=False)
        part = site.common.task.statistics(out, site.y[some])
        total = {name: total[name] + part[name] if total else part[name] for name in part}
    return total


def diverged(meter: Meter, fitted: Fitted) -> bool:
    """Whether a loss or a result is not a finite number, or the loss exploded."""
    if meter.losses:
        losses = torch.stack(meter.losses)
        if not bool(losses.isfinite().all()) or bool(losses[-1] > EXPLODED * (1 + losses[0].abs())):
            return True
    results = tree.flatten({"model": fitted.model, "extra": fitted.extra}).values()
    return not all(bool(finite(t[None])) for t in results if t.is_floating_point())


def finite(rows: Tensor) -> Tensor:
    """Whether all numbers of each row are finite: their sum tells it at once, unless it is not finite itself."""
    rows = rows.unsqueeze(1).flatten(1)
    by_sum = rows.sum(1).isfinite()
    return by_sum if bool(by_sum.all()) else rows.isfinite().all(1)


def without(state: Mapping[str, Any], names: frozenset[str]) -> State:
    """A nested state less every tensor of these names, at any depth."""
    return {
        key: without(value, names) if isinstance(value, Mapping) else value
        for key, value in state.items()
        if isinstance(value, Mapping) or key not in names
    }


@contextmanager
def randomness(seed: int, *purpose: int | str) -> Iterator[None]:
    """Torch's global generator (dropout draws from it) set for one purpose, and put back."""
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=devices):
        drawn = schedule.torch_seed(seed, "torch", *purpose)
        torch.default_generator.manual_seed(
            drawn
        )  # torch.manual_seed takes a millisecond where there is no accelerator
        if devices:
            torch.cuda.manual_seed_all(drawn)
        yield
