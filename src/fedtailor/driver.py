"""The round: cohort, send, train, aggregate, examine.

`Driver` holds four values that each round replaces together: the round's number, the server's state, what each site
keeps, and the rows. Whatever interrupts a round leaves those of the round before.
"""

from __future__ import annotations

import platform
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import torch

import fedtailor
from fedtailor import messages, schedule, task, tree
from fedtailor.arch import Arch
from fedtailor.data.federation import Federation
from fedtailor.messages import Delivery, check_impersonal, sizes_of_messages
from fedtailor.method import Fed, MethodNote, Payload, Received, overrides, short
from fedtailor.nn import make
from fedtailor.record import Row, RunFolder, plain
from fedtailor.registry import WrongInput
from fedtailor.runners import Runner, States, Work, planner
from fedtailor.site import Common, Exam, Reply, Site, finished, randomness
from fedtailor.sparse import spread
from fedtailor.spec import RunSpec, check_device
from fedtailor.store import Kept
from fedtailor.task import Marks
from fedtailor.tree import State, Tree


class Diverged(RuntimeError):
    """Training gave a loss or a value that is not a number, and the run's policy is to stop."""


class Callback:
    """What a run tells those who listen; override what you need."""

    def on_start(self, driver: Driver) -> None: ...
    def on_client(self, driver: Driver, done: int, of: int) -> None: ...
    def on_round(self, driver: Driver, row: Row) -> None: ...
    def on_end(self, driver: Driver, row: Row) -> None: ...


class Driver:
    """One run: everything that is set up once, and the state that rounds move."""

    def __init__(self, spec: RunSpec, federation: Federation, runner: Runner | None = None):
        method = spec.method
        self.spec, self.federation = spec, federation
        check_device(spec.device)
        data = federation.pooled() if method.pools else federation
        if method.public_share and not len(data.public):
            data = data.with_public(method.public_share, spec.seed)
        self.data = data.to(spec.device)
        self.task = task.of(federation.task)
        net = make(
            spec.model or federation.model, classes=self.task.outputs(len(federation.classes)),
            shape=tuple(federation.x.shape[1:]), seed=spec.seed, words=federation.words,
        )  # fmt: skip
        base = Arch(net).values()
        self.arch = Arch(method.build(net).to(spec.device))
        self.private = method.personal(self.arch) & frozenset(self.arch.names)
        if spec.buffers == "local":
            self.private |= self.arch.statistics
        added = frozenset(self.arch.names) - base.keys()
        drawn = self.arch.draw(added - self.arch.buffers, spec.seed)
        self.initial: Tree = {**self.arch.values(), **self.on_device(base), **drawn}
        for note in method.notes(self.arch, self.data.n):
            warnings.warn(note, MethodNote, stacklevel=2)
        point = spec.point or method.point
        if point == "adapted" and not overrides(method, "personalised"):
            raise WrongInput(f"{method!r} has no adapted model to test; choose point=received or point=trained")
        self.common = Common(
            method=method, arch=self.arch, task=self.task, point=point, private=self.private,
            shared=self.arch.trainable - self.private, keeps=frozenset(), seed=spec.seed, rounds=spec.rounds,
            lr=spec.lr, lr_decay=spec.lr_decay, batch=spec.batch, epochs=spec.epochs, steps=spec.steps, opt=spec.opt,
            finish_epochs=method.finish_epochs if spec.finish_epochs is None else spec.finish_epochs,
            public=self.data.public if method.public_share else None,
        )  # fmt: skip
        with randomness(spec.seed, "server", 0):  # a server that trains draws from it, where the model has dropout
            self.server: State = tree.detach(method.init_server(self.fed(0), tree.drop(self.initial, self.private)))
        probe = method.send(self.fed(1), self.server, torch.arange(1))
        own_start = overrides(method, "start") and not method.init_all
        self.broadcasts = not (own_start or probe.own or probe.peers)
        waits = {"trained", "anchor", "outbox"} if method.trains == "all" else set()
        held = {"trained"} if point == "trained" else set() if self.broadcasts else {"held"}
        self.common = replace(self.common, keeps=frozenset(waits | held))
        self.sites = [self.site(i) for i in range(self.data.n)]
        self.cohort_size = 1 if method.pools else spec.cohort_size(self.data.n)
        trainers = self.data.n if method.trains == "all" else self.cohort_size
        self.round = 0
        self.rows: list[Row] = []
        self.met: frozenset[int] = frozenset()  # clients that have been in a cohort
        self.kept = Kept(self.data.n, self.first_kept)
        self.listeners: Sequence[Callback] = ()
        self.runner, self.because = (runner, "") if runner else planner.planned(
            planner.Question(
                spec.runner, spec.workers, self.common, self.data.sizes.tolist(), trainers,
                self.data.x[self.data.train[0][:1]], self.first_work,
            )
        )  # fmt: skip
        self.runner.begin(self.sites)

    def on_device(self, state: State) -> State:
        return tree.transform(lambda t: t.to(self.spec.device), state)

    @staticmethod
    def size_of(model: Tree) -> int:
        return sum(tensor.numel() for tensor in model.values())

    def site(self, number: int) -> Site:
        """A client with its data; a pooled one is tested at every site."""
        data, tested = self.data, self.data.tested
        examined = range(tested.n) if self.common.method.pools else (number,)
        exams = {j: {"test": tested.test[j], "validation": tested.validation[j]} for j in examined}
        return Site(self.common, number, data.x, data.y, data.train[number], exams)

    def fed(self, round: int) -> Fed:
        data, public = self.data, self.common.public
        sizes = data.sizes.to(torch.float64)
        everybody = None
        if public is not None:
            everybody = Site(self.common, data.n, data.x, data.y, public, {}).client(max(1, round))
        return Fed(self.arch, data.n, sizes, data.groups, round, self.spec.rounds, self.spec.seed, everybody)

    def public_due(self, number: int) -> int:
        """Bytes of the public rows, which a client is sent with its first message."""
        public, data = self.common.public, self.data
        if public is None or number in self.met:
            return 0
        return tree.nbytes({"x": data.x[public], "y": data.y[public]})

    def first_kept(self, number: int) -> State:
        """What a site holds before its first round."""
        method, arch = self.common.method, self.arch
        own = arch.draw(method.own_init(arch) - arch.buffers, self.spec.seed, number)
        model = {**self.initial, **own}
        outbox = {"model": tree.drop(model, self.private), "extra": {}}
        slots: State = {"trained": model, "anchor": model, "outbox": outbox, "held": model}
        return {
            "personal": tree.pick(model, self.private),
            "method": method.init_client(self.fed(0), model),
            **{slot: slots[slot] for slot in sorted(self.common.keeps)},
        }

    def step(self) -> Row:
        """One round. Nothing of the driver changes before its end."""
        began = time.perf_counter()
        number, method, n = self.round + 1, self.common.method, self.data.n
        fed = self.fed(number)
        cohort = schedule.draw_cohort(self.spec.seed, number, n, self.cohort_size)
        server, uploads = self.server, dict[int, State]()
        if method.trains == "all":  # the drawn clients first send what they trained since they were last drawn
            uploads = self.outboxes(cohort)
            server = self.aggregate(fed, server, uploads)
        payload, work = self.work_of(fed, server, cohort)
        sizes = sizes_of_messages(payload, len(cohort))
        down = {i: size + self.public_due(i) for i, size in zip(cohort, sizes, strict=True)}
        examine = number % self.spec.eval_every == 0 or number == self.spec.rounds
        kept = self.kept.copy()
        replies: dict[int, Reply] = {}
        for reply in self.collect(work, number, examine, kept):
            if reply.upload is not None:
                uploads[reply.number] = reply.upload
            replies[reply.number] = replace(reply, upload=None)
        stopped = sorted(i for i, reply in replies.items() if reply.kept is None)
        if stopped and (self.spec.on_nan == "stop" or len(stopped) == len(replies)):
            raise Diverged(self.explain_divergence(stopped, number))
        good = {i: reply for i, reply in sorted(replies.items()) if reply.kept is not None}
        if method.trains != "all":
            server = self.aggregate(fed, server, uploads)
        up = {i: tree.nbytes(upload) for i, upload in uploads.items()}
        uploads.clear()  # they are as large as models
        trained_at = time.perf_counter()
        marks = self.task.marks((site, exam) for reply in good.values() for site, exam in reply.exam.items())
        explain: dict[str, Any] = {}
        if examine:
            marks |= self.task.marks(self.examine_others([i for i in range(n) if i not in good], payload, kept, number))
            explain = {"server": method.explain_server(fed, server)}
            explain["clients"] = {i: dict(reply.explain) for i, reply in good.items() if reply.explain}
        examining = sum(reply.exam_seconds for reply in good.values()) + time.perf_counter() - trained_at
        total = time.perf_counter() - began
        row: Row = {
            "round": number, "cohort": cohort, "trainers": [part.site.number for part in work],
            "point": self.common.point, **self.results(marks),
            "train_loss": spread(n, {i: reply.loss for i, reply in good.items()}, None),
            "steps": spread(n, {i: reply.steps for i, reply in replies.items()}, 0),
            "down": spread(n, down, 0), "up": spread(n, up, 0),
            "explain": {key: value for key, value in explain.items() if value}, "stopped": stopped,
            "seconds": {"train": total - examining, "evaluate": examining, "total": total},
        }  # fmt: skip
        row = plain(row)  # what is kept in memory is what a record gives back
        self.round, self.server, self.kept, self.rows = number, server, kept, [*self.rows, row]
        self.met |= set(cohort)
        return row

    def work_of(self, fed: Fed, server: State, cohort: Sequence[int]) -> tuple[Payload, list[Work]]:
        """What the server sends, and each trainer's part of the round."""
        payload = self.common.method.send(fed, server, torch.tensor(cohort))
        sent = {i: (partial(self.message, payload, at, i), messages.kind(payload, at)) for at, i in enumerate(cohort)}
        trainers = range(self.data.n) if self.common.method.trains == "all" else cohort
        return payload, [Work(self.sites[i], self.kept, *sent.get(i, ())) for i in trainers]

    def first_work(self) -> list[Work]:
        """The work of the first round, which moves nothing: for the planner."""
        cohort = schedule.draw_cohort(self.spec.seed, 1, self.data.n, self.cohort_size)
        return self.work_of(self.fed(1), self.server, cohort)[1]

    def outboxes(self, cohort: Sequence[int]) -> dict[int, State]:
        """What the drawn clients trained since they were last drawn, where all clients train."""
        return {i: self.kept[i]["outbox"] for i in cohort}

    def collect(self, work: Sequence[Work], number: int, examine: bool, kept: Kept) -> Iterator[Reply]:
        """The replies, whose states go into `kept` as they come: they need not all be in memory."""
        all_train = self.common.method.trains == "all"
        for done, reply in enumerate(self.runner.train(work, number, examine), start=1):
            if reply.kept is not None:
                kept.put(reply.number, reply.kept, number)
                yield replace(reply, kept={}, upload=None if all_train else reply.upload)
            else:
                yield reply
            for listener in self.listeners:
                listener.on_client(self, done, len(work))

    def aggregate(self, fed: Fed, server: State, uploads: Mapping[int, State]) -> State:
        """The method's aggregation over the uploads that came, in the order of the clients' numbers."""
        if not uploads:
            return server
        numbers = sorted(uploads)
        index = torch.tensor(numbers)
        how = self.common.method.weighting if self.spec.weighting == "auto" else self.spec.weighting
        weights = fed.sizes[index] if how == "size" else torch.ones(len(numbers), dtype=torch.float64)
        stacked = {"model": {}, "extra": {}, **self.stacked([uploads[i] for i in numbers])}
        check_impersonal(stacked, self.private, "upload")
        return tree.detach(self.common.method.aggregate(fed, server, stacked, weights / weights.sum(), index))

    def stacked(self, uploads: Sequence[State]) -> State:
        return tree.stack(uploads)

    def message(self, payload: Payload, place: int, number: int) -> Received:
        """A client's own part of a payload."""
        return messages.message(payload, place, number, self.private)

    def broadcast(self, payload: Payload) -> Received | None:
        """The message that a client outside the cohort would have got, where it is the same for all."""
        return messages.broadcast(payload) if self.broadcasts else None

    def examine_others(
        self, others: Sequence[int], payload: Payload, kept: States, number: int
    ) -> Iterator[tuple[int, Exam]]:
        """Exams of clients that did not take part, with the model broadcast or what they last held."""
        got = self.broadcast(payload)
        work = [Work(self.sites[i], kept, None if got is None else partial(replace, got, me=i)) for i in others]
        for _, exams in self.runner.examine(work, number):
            yield from exams.items()

    def final_exams(self, delivery: Delivery) -> Iterator[tuple[int, Exam]]:
        """Exams of the models that clients end with."""
        sent = [(partial(delivery.__getitem__, i), messages.kind(delivery.payload, i)) for i in range(self.data.n)]
        work = [Work(site, self.kept, *sent[i]) for i, site in enumerate(self.sites)]
        for _, exams in self.runner.examine(work, self.spec.rounds, final=True):
            yield from exams.items()

    def results(self, marks: Marks) -> dict[str, Any]:
        """Metrics per site: `{"test": {"accuracy": [...], ..., "count": [...]}, "validation": ...}`."""
        n = self.data.tested.n
        found: dict[str, Any] = {}
        for part in ("test", "validation"):
            of_part = {site: marks[site][part] for site in sorted(marks) if part in marks[site]}
            names = next(iter(of_part.values()), {})
            found[part] = {
                name: spread(n, {site: mark[name] for site, mark in of_part.items()}, 0 if name == "count" else None)
                for name in names
            } or None
        return found

    def last_delivery(self) -> Delivery:
        """The messages that would follow the last round: every site gets its model."""
        index = torch.arange(self.data.n)
        payload = self.common.method.send(self.fed(self.spec.rounds + 1), self.server, index)
        return Delivery(payload, self.data.n, partial(self.message, payload))

    def final(self, number: int, delivery: Sequence[Received] | None = None) -> Tree:
        """The model that a client ends with."""
        delivery = delivery or self.last_delivery()
        return finished(self.sites[number], self.kept[number], delivery[number])

    def finish(self) -> Row:
        """The last row: every site's final model, examined. Moves no state, so that a run can be extended."""
        began = time.perf_counter()
        delivery = self.last_delivery()
        marks = self.task.marks(self.final_exams(delivery))
        n, total = self.data.n, time.perf_counter() - began
        steps = [
            schedule.steps_of(rows, self.spec.batch, self.common.finish_epochs, None, self.sites[0].client(1).smallest)
            for rows in self.data.sizes.tolist()
        ]
        row: Row = {
            "round": self.round, "finish": True, "cohort": list(range(n)), "trainers": [], "point": self.common.point,
            **self.results(marks), "train_loss": [None] * n, "steps": steps if self.common.finish_epochs else [0] * n,
            "down": sizes_of_messages(delivery.payload, n), "up": [0] * n, "explain": {},
            "stopped": [], "seconds": {"train": 0.0, "evaluate": total, "total": total},
        }  # fmt: skip
        row = plain(row)
        self.rows = [*self.rows, row]
        return row

    def explain_divergence(self, stopped: Sequence[int], number: int) -> str:
        names = ", ".join(self.data.clients[i] for i in stopped)
        return (
            f"training diverged at {names} in round {number}: the loss or a value is not a finite number, or exploded; "
            f"kept the state of round {self.round}. Try a smaller lr (now {self.spec.lr}), clip=1, or on_nan=drop"
        )

    @property
    def kept(self) -> Kept:
        """What every site keeps."""
        return self._kept

    @kept.setter
    def kept(self, states: Sequence[State]) -> None:
        kept = states if isinstance(states, Kept) else Kept(self.data.n, self.first_kept)
        if kept is not states:
            for i, state in enumerate(states):
                kept[i] = state
        self._kept = kept

    @property
    def state(self) -> State:
        """All that the run has come to."""
        return {"server": self.server, "clients": {f"{i:05d}": kept for i, kept in enumerate(self.kept)}}

    def save(self, folder: RunFolder) -> None:
        """Write a checkpoint; a client that never trained is as at first, and is left out."""
        state = {"server": self.server}
        if self.kept.shelf is not None:
            return folder.save(self.round, state, self.kept)
        folder.save(self.round, {**state, "clients": {f"{i:05d}": self.kept[i] for i in self.kept.replaced()}})

    def restore(self, round: int, state: State, rows: Sequence[Row]) -> None:
        self.round, self.server = round, self.on_device(state["server"])
        self.kept = Kept(self.data.n, self.first_kept)
        for i, kept in state["clients"].items():
            self.kept.put(int(i), self.on_device(kept), round)
        self.rows = [row for row in rows if row["round"] <= round and not row.get("finish")]
        self.met = frozenset(i for row in self.rows for i in row["cohort"])

    def memory(self) -> int:
        """An estimate of the bytes a run needs beside the libraries: data, states, uploads of a round, one training."""
        model = tree.nbytes(self.initial)
        states = tree.nbytes(self.server)
        states += tree.nbytes(self.kept[0]) * (self.data.n if self.kept.shelf is None else self.cohort_size)
        return tree.nbytes({"x": self.data.x, "y": self.data.y}) + 2 * states + (self.cohort_size + 4) * model

    def info(self) -> dict[str, Any]:
        """What run.json says of the run."""
        method, data = self.common.method, self.federation
        private = self.size_of(tree.pick(self.initial, self.private & self.arch.trainable))
        total = self.size_of(tree.pick(self.initial, frozenset(self.arch.names) - self.arch.buffers))
        return {
            "fedtailor": fedtailor.__version__, "torch": torch.__version__, "numpy": np.__version__,
            "python": platform.python_version(), "method": repr(method), "label": short(method),
            "point": self.common.point, "finish_epochs": self.common.finish_epochs,
            "sees": method.sees, "citation": method.citation, "spec": self.spec.to_dict(),
            "data": {
                "source": data.source, "name": data.name, "fingerprint": data.fingerprint(), "clients": data.clients,
                "groups": data.groups, "group_names": data.group_names, "classes": data.classes, "task": data.task,
                "sizes": data.sizes, "validation_sizes": [len(r) for r in data.validation],
                "test_sizes": [len(r) for r in data.test], "label_counts": data.label_counts(), "licence": data.licence,
            },
            "model": self.spec.to_dict()["model"] or data.model,
            "plan": {**self.runner.plan(), **({"because": self.because} if self.because else {})},
            "parameters": {"total": total, "shared": total - private, "personal": private},
            "command": shlex.join(sys.argv), "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "primary": self.task.primary, "higher_is_better": self.task.higher_is_better, "status": "running",
        }  # fmt: skip
