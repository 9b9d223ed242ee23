"""The simulator's driver, with its clients at remote sites.

`Driver.step` is untouched: where it holds what a client keeps, this one holds a *ticket*, the number of the round whose
state the site is to go on from. A ticket moves on only when an answer was taken, so a site whose answer was lost, late
or bad starts its next round from the state before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedtailor import schedule, tree
from fedtailor.arch import Arch
from fedtailor.deploy import replies, robust, slots, wire
from fedtailor.deploy.envelope import Letter
from fedtailor.deploy.mail import GREETING, Mail, Part
from fedtailor.deploy.outline import outline
from fedtailor.deploy.replies import Reader
from fedtailor.deploy.wire import BadMessage, Room
from fedtailor.driver import Driver
from fedtailor.method import Fed, Received
from fedtailor.record import to_json, write_atomically
from fedtailor.runners import Exams, Work
from fedtailor.site import Reply, Site
from fedtailor.spec import RunSpec
from fedtailor.tree import State, Tree

T = TypeVar("T")


class Coordinator(Driver):
    """A run whose clients are sites."""

    def __init__(self, spec: RunSpec, mail: Mail, rows_file: Path):
        self.mail, self.rows_file = mail, rows_file
        self.rows_of = read_rows(rows_file) | {name: guest.rows for name, guest in mail.guests.items()}
        settings = mail.settings
        self.outline = outline(settings.name, settings.form, mail.names, mail.groups, self.held(), spec.model)
        self.remote = Remote(self)
        super().__init__(spec, self.outline, self.remote)
        self.first_length = robust.length(tree.drop(self.initial, self.private))
        self.let_go_of_first_values()
        self.combine = robust.read(mail.settings.combine)
        self.note_rows()

    def held(self) -> tuple[int, ...]:
        """Training rows of each site; 1 until it says how many."""
        return tuple(self.rows_of[name][0] if name in self.rows_of else 1 for name in self.mail.names)

    def let_go_of_first_values(self) -> None:
        """Of the network and of its first model only names, types and shapes are needed here, where nobody trains."""
        self.initial = slots.outlines_of(self.initial)
        self.arch = Arch(self.arch.net.to("meta"))
        self.common = replace(self.common, arch=self.arch)
        self.sites = [self.site(i) for i in range(self.data.n)]

    def note_rows(self) -> None:
        """Take over how many rows the sites say they have."""
        self.rows_of |= {name: guest.rows for name, guest in self.mail.guests.items()}
        write_atomically(self.rows_file, to_json(self.rows_of))
        self.outline = replace(self.outline, held=self.held())
        self.data = self.federation = self.outline

    def first_kept(self, number: int) -> State:
        return ticket(0)

    def outboxes(self, cohort: Sequence[int]) -> dict[int, State]:
        """The uploads of sites that all train: most have come with the last round's answer."""
        found = {i: self.remote.boxes[i] for i in cohort if i in self.remote.boxes}
        missing: dict[int, Part] = {i: ({"base": self.base(i)}, {}) for i in cohort if i not in found}
        reader = self.reader({})
        need = self.mail.settings.quorum - len(found)
        read = self.remote.gather("outbox", missing, need, lambda i, answer: reader.upload(answer.state.get("upload")))
        found |= dict(read)
        self.remote.boxes.clear()
        return dict(sorted(found.items()))

    def aggregate(self, fed: Fed, server: State, uploads: Mapping[int, State]) -> State:
        fed = self.fed(fed.round)  # a site that came in this round has said only now how many rows it has
        if self.combine.name != "mean" and uploads:
            cohort = sorted(uploads)
            payload = self.common.method.send(fed, server, torch.tensor(cohort))
            uploads = self.combine(uploads, self.message(payload, 0, cohort[0]).model)
        return super().aggregate(fed, server, uploads)

    def stacked(self, uploads: Sequence[State]) -> State:
        return slots.stack(uploads)

    def reader(self, sent: Tree) -> Reader:
        """Reads answers to a message with the model `sent`; without one, the first model says what is long."""
        length = robust.length(sent) if sent else self.first_length
        return Reader(
            self.task, len(self.federation.classes), self.example(), self.private,
            self.mail.settings.norm_limit * (1 + length),
        )  # fmt: skip

    def example(self) -> Tree:
        """A model as it is uploaded, without its values."""
        return tree.drop(self.initial, self.private)

    def base(self, i: int) -> int:
        """The round whose state a site goes on from."""
        return int(self.kept[i]["round"])

    def welcome(self, name: str) -> Part:
        """What a site must know to play its part."""
        settings = self.mail.settings
        tensors = {path: wire.outline(tensor) for path, tensor in self.initial.items()}
        return {
            "spec": self.spec.to_dict(), "name": settings.name, "clients": list(self.mail.names),
            "groups": list(self.mail.groups), "me": self.mail.names.index(name), "held": self.held(),
            "form": settings.form.to_dict(), "tensors": tensors,
        }, {}  # fmt: skip

    def admit(self, names: Sequence[str]) -> list[str]:
        """Tell those who have come what they must know; and see which of their states is the one to go on from."""
        self.note_rows()
        admitted = []
        for name, _ in self.mail.ask("welcome", {name: self.welcome(name) for name in names}, GREETING):
            i, have = self.mail.names.index(name), self.mail.guests[name].have
            best = max((round for round in have if round <= self.base(i)), default=0)
            if best != self.base(i):
                reason = f"it has no state of round {self.base(i)} and goes on from that of round {best}"
                self.mail.events.note("state lost", name, reason)
                self.kept[i] = ticket(best)
            admitted.append(name)
        return admitted

    def info(self) -> dict[str, Any]:
        found = super().info()
        rows = [self.rows_of.get(name, (0, 0, 0)) for name in self.mail.names]
        sizes = {"validation_sizes": [r[1] for r in rows], "test_sizes": [r[2] for r in rows]}
        return {**found, "data": {**found["data"], **sizes, "label_counts": []}}


class Remote:
    """Has the clients of a round trained at their sites."""

    def __init__(self, driver: Coordinator):
        self.driver, self.mail = driver, driver.mail
        self.admitted: dict[str, int] = {}  # the visit on which a site was welcomed
        self.boxes: dict[int, State] = {}  # uploads that came before they were asked for
        self.present = set(self.mail.names)  # in the last round; those who drop out are waited for a while

    def plan(self) -> Mapping[str, Any]:
        return {"runner": "federation", **self.mail.link.plan()}

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        driver, parts, sent = self.driver, dict[int, Part](), Tree()
        everybody = driver.common.method.trains == "all"
        drawn = schedule.draw_cohort(driver.spec.seed, round + 1, driver.data.n, driver.cohort_size)
        for one in work:
            i = one.site.number
            early = everybody and i in drawn and round < driver.spec.rounds
            sent = one.got.model if one.got is not None and not sent else sent
            parts[i] = question(round, int(one.kept["round"]), one.got, examine=examine, early=early)
        reader, need = driver.reader(sent), min(self.mail.settings.quorum, len(parts))
        self.boxes.clear()
        room = slots.Slots(drawn if everybody else parts, driver.example())
        came = dict(self.gather("train", parts, need, lambda i, answer: reader.reply(i, round, answer), room))
        for i, reason in replies.outliers(came).items():
            self.drop(i, reason)
            del came[i]
        for i, reply in came.items():
            if everybody and reply.upload is not None:
                self.boxes[i] = reply.upload
                reply = replace(reply, upload=None)
            elif reply.kept is not None and reply.upload is None and not everybody:
                self.drop(i, "it sent no upload")
                continue
            yield reply

    def begin(self, sites: Sequence[Site]) -> None:
        pass

    def end(self) -> None:
        pass

    def examine(self, work: Iterable[Work], round: int, final: bool = False) -> Iterator[tuple[int, Exams]]:
        settings, reader = self.mail.settings, self.driver.reader({})
        if final:
            self.mail.wait(self.mail.names, settings.quorum, settings.patience)
        parts = {one.site.number: question(round, int(one.kept["round"]), one.got) for one in work}
        kind, need = ("finish", settings.quorum) if final else ("examine", 0)
        found = dict(self.gather(kind, parts, need, lambda i, answer: reader.exam(i, answer.state.get("exam"))))
        yield from sorted(found.items())

    def drop(self, i: int, reason: str) -> None:
        self.mail.events.note("dropped", self.mail.names[i], reason)

    def gather(
        self, kind: str, parts: Mapping[int, Part], need: int, read: Callable[[int, Letter], T],
        room: slots.Slots | None = None,
    ) -> Iterator[tuple[int, T]]:  # fmt: skip
        """Good answers of the sites that are there; asks again until `need` of them have come."""
        mail, names, came = self.mail, self.mail.names, set[int]()

        def room_of(name: str) -> Room:
            return room.of(names.index(name)) if room else wire.anywhere

        waiting = dict(parts)
        while waiting:
            dropped = [names[i] for i in waiting if names[i] in self.present]
            mail.wait(dropped, 0, mail.settings.patience if need > 0 else 0.0)
            self.admit()
            self.present = set(mail.here())
            asked = {names[i]: self.ticketed(i, part) for i, part in waiting.items() if self.is_ready(names[i])}
            for name, answer in mail.ask(kind, asked, mail.settings.deadline, room_of):
                i = names.index(name)
                del waiting[i]
                try:
                    good = read(i, answer)
                except BadMessage as error:
                    self.drop(i, str(error))
                    continue
                came.add(i)
                yield i, good
            if len(came) >= need:
                return
            reason = f"{len(came)} of {need} answers needed have come"
            mail.events.note("asking again", reason=reason)
            waiting = waiting or {i: part for i, part in parts.items() if i not in came}
            time.sleep(1.0)
            mail.wait([], 1, 0.0)

    def ticketed(self, i: int, part: Part) -> Part:
        """The question with the ticket as it is now: a site may turn out to have lost a state."""
        about, state = part
        return {**about, "base": min(about["base"], self.driver.base(i))}, state

    def is_ready(self, name: str) -> bool:
        return name in self.mail.guests and self.admitted.get(name) == self.mail.guests[name].visit

    def admit(self) -> None:
        """Welcome the guests that are here and were not welcomed since they said hello."""
        new = [name for name in self.mail.here() if not self.is_ready(name)]
        for name in self.driver.admit(new) if new else []:
            self.admitted[name] = self.mail.guests[name].visit


def ticket(round: int) -> State:
    """What stands for the state that a site keeps after a round."""
    return {"round": torch.tensor(round)}


def question(round: int, base: int, got: Received | None, **more: Any) -> Part:
    """What a site is asked in a round."""
    about = {"round": round, "base": base, "message": got is not None, **more}
    if got is None:
        return about, {}
    ids: dict[str, Tensor] = {} if got.peer_ids is None else {"ids": got.peer_ids}
    return {**about, "static": dict(got.static)}, {"model": got.model, "extra": got.extra, "peers": got.peers, **ids}


def read_rows(path: Path) -> dict[str, tuple[int, int, int]]:
    """How many rows sites said to have when they were last here."""
    found: dict[str, list[int]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: (rows[0], rows[1], rows[2]) for name, rows in found.items()}
