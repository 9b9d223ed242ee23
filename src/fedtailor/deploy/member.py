"""A site's side: takes the server's letters one by one, trains with what is installed here, and keeps its own state.

Nothing that the server sends is executed: a letter holds numbers, names of tensors, and the run's settings as text that
is looked up among the methods and models registered here.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtailor import __version__, tree
from fedtailor.data.federation import Federation
from fedtailor.deploy import wire
from fedtailor.deploy.envelope import Letter, Refused, Seal, Sealed
from fedtailor.deploy.outline import check_form, outline
from fedtailor.deploy.settings import SERVER, Form, check_method
from fedtailor.deploy.store import Journal, Store, StoreError
from fedtailor.deploy.wire import BadMessage
from fedtailor.driver import Driver
from fedtailor.method import Received
from fedtailor.registry import WrongInput
from fedtailor.runners.sequential import Sequential
from fedtailor.site import finished, model_of, take_exam, take_part
from fedtailor.spec import RunSpec
from fedtailor.tree import State

Answer = tuple[dict[str, Any], State]


class Place(Driver):
    """A run as one of its sites sees it: everything that is set up, and one client of all."""

    def __init__(self, spec: RunSpec, federation: Federation, me: int, threads: int):
        self.me = me
        super().__init__(spec, federation, Sequential(threads))
        self.server: State = {}

    def first_kept(self, number: int) -> State:
        return super().first_kept(number) if number == self.me else {}


class Member:
    """One site of one federation."""

    def __init__(
        self, name: str, seal: Seal, key: str, own: Federation, folder: Path, *, explain: bool = False,
        threads: int = 1, device: str = "cpu", say: Callable[[str], None] = lambda text: None,
    ):  # fmt: skip
        self.name, self.seal, self.own = name, seal, own
        self.explain, self.threads, self.device, self.say = explain, threads, device, say
        self.store = Store(folder, seal.federation)
        self.journal = Journal(self.store, key)
        self.place: Place | None = None
        self.finished = False
        self.unsent: tuple[str, Sealed] | None = None  # an answer that was made and has not arrived
        if about := self.store.noted("about"):
            self.take_place(about)

    def answer(self, sealed: Sealed) -> Sealed | None:
        """The answer to a letter; nothing to one that is not the server's."""
        try:
            letter = self.seal.open(sealed, sender=SERVER, to=self.name)
            if not self.journal.admits(letter.number, sealed.digest):
                raise Refused("it was sent before")
        except BadMessage as error:
            self.say(f"a letter was refused: {error}")
            return None
        if self.unsent is not None and self.unsent[0] == sealed.digest:
            return self.unsent[1]
        try:
            self.journal.take(letter.number, sealed.digest)
            about, state = self.do(letter)
            kind = letter.kind
        except Exception as error:
            # What an error says may hold data or paths, so only what is ours to word leaves.
            ours = isinstance(error, WrongInput | BadMessage)
            where = "with its stored state" if isinstance(error, StoreError) else "in its training"
            reason = str(error) if ours else f"{type(error).__name__} {where}; its own log says more"
            self.say(f"error: {letter.kind} failed: {type(error).__name__}: {error}")
            kind, about, state = "refused", {"reason": reason}, {}
        answer = self.seal.close(Letter(self.name, SERVER, letter.number, kind, about, state))
        self.unsent = (sealed.digest, answer) if kind != "refused" else None
        return answer

    def sent(self) -> bool:
        """Note that the answer has arrived; whether that was the last one."""
        self.unsent = None
        try:
            self.journal.answered()
        except StoreError as error:
            self.say(f"error: {error}")
        return self.finished

    def do(self, letter: Letter) -> Answer:
        what: dict[str, Callable[[Mapping[str, Any], State], Answer]] = {
            "hello": self.hello, "welcome": self.welcome, "train": self.train, "outbox": self.outbox,
            "examine": self.examine, "finish": self.finish,
        }  # fmt: skip
        if letter.kind not in what:
            raise BadMessage(f"this fedtailor {__version__} knows no letter {letter.kind[:50]!r}")
        return what[letter.kind](letter.about, letter.state)

    def hello(self, about: Mapping[str, Any], state: State) -> Answer:
        if about.get("fedtailor") != __version__:
            raise BadMessage(
                f"the server has fedtailor {about.get('fedtailor')} and site {self.name} has {__version__}; install "
                "the same version"
            )
        check_form(self.own, Form.from_dict(about["form"]))
        self.say(f"the server of {about['name']} is there")
        own = self.own
        rows = [len(own.train[0]), len(own.validation[0]), len(own.test[0])]
        versions = {"fedtailor": __version__, "torch": torch.__version__, "python": platform.python_version()}
        return {"rows": rows, "have": self.store.rounds(), **versions}, {}

    def welcome(self, about: Mapping[str, Any], state: State) -> Answer:
        self.take_place(about)
        self.store.note("about", about)
        return {}, {}

    def take_place(self, about: Mapping[str, Any]) -> None:
        """Set up the run as the server tells it, with the methods and models installed here."""
        form = Form.from_dict(about["form"])
        check_form(self.own, form)
        spec = replace(RunSpec.from_dict(about["spec"]), device=self.device)
        check_method(spec.method, "mean")
        names, groups, held = about["clients"], about["groups"], about["held"]
        whole = outline(about["name"], form, names, groups, held, spec.model, about["me"], self.own)
        if about["clients"][about["me"]] != self.name:
            raise BadMessage("the server takes this site for another one")
        place = Place(spec, whole, about["me"], self.threads)
        found = {path: wire.outline(tensor) for path, tensor in place.initial.items()}
        if found != about["tensors"]:
            told = about["tensors"]
            odd = sorted(path for path in found.keys() | told.keys() if found.get(path) != told.get(path))
            raise BadMessage(
                f"the model {spec.model} is another one at site {self.name} (its {odd[0]!r} is "
                f"{found.get(odd[0])}, at the server {told.get(odd[0])}); install the same plugin"
            )
        self.place = place
        self.say(f"takes part with {spec.method!r}, {spec.rounds} rounds, {len(about['clients'])} sites")

    def train(self, about: Mapping[str, Any], state: State) -> Answer:
        place, kept, got = self.ready(about, state)
        round, base = about["round"], about["base"]
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            reply = take_part(place.sites[place.me], kept, got, round, about["examine"])
        finally:
            torch.set_num_threads(before)
        told = {"steps": reply.steps, "train_seconds": reply.train_seconds, "exam_seconds": reply.exam_seconds}
        if reply.kept is None:
            self.say(f"round {round}: training diverged; the state of round {base} stays")
            return {**told, "diverged": True}, {}
        self.store.save(round, reply.kept, base)
        answer: State = {"exam": reply.exam.get(place.me, {}), "explain": dict(reply.explain) if self.explain else {}}
        if reply.loss is not None:
            answer["loss"] = torch.tensor(reply.loss, dtype=torch.float64)
        if place.common.method.trains != "all":
            answer["upload"] = reply.upload
        elif about["early"]:
            answer["upload"] = reply.kept["outbox"]
        loss = "" if reply.loss is None else f", loss {reply.loss:.4f}"
        self.say(f"round {round} of {place.spec.rounds}: {reply.steps} steps in {reply.train_seconds:.1f} s{loss}")
        return told, answer

    def outbox(self, about: Mapping[str, Any], state: State) -> Answer:
        return {}, {"upload": self.kept(about["base"])["outbox"]}

    def examine(self, about: Mapping[str, Any], state: State) -> Answer:
        place, kept, got = self.ready(about, state)
        site = place.sites[place.me]
        exam = take_exam(site, model_of(site, kept, got, about["round"]))
        return {}, {"exam": exam.get(place.me, {})}

    def finish(self, about: Mapping[str, Any], state: State) -> Answer:
        place, kept, got = self.ready(about, state)
        assert got is not None
        site = place.sites[place.me]
        model = finished(site, kept, got)
        exam = take_exam(site, model)
        self.store.save_final(about["round"], model)
        what = {"round": about["round"], "point": place.common.point, "columns": self.own.columns}
        self.store.note("result", {**what, **self.metrics(exam)})
        self.finished = True
        self.say(f"the federation has finished; the personal model is in {self.store.path}")
        return {}, {"exam": exam.get(place.me, {})}

    def metrics(self, exam: Mapping[int, Any]) -> dict[str, Any]:
        assert self.place is not None
        return {part: self.place.task.metrics(counts) for part, counts in exam.get(self.place.me, {}).items()}

    def ready(self, about: Mapping[str, Any], state: State) -> tuple[Place, State, Received | None]:
        """The state that a round goes on from, and the message that came with it."""
        kept = self.kept(about["base"])
        assert self.place is not None
        place = self.place
        if not about["message"]:
            return place, kept, None
        names = frozenset(place.arch.names) - place.private
        model, peers = dict(state["model"]), dict(state["peers"])
        for what, tensors, lead in (("model", model, 0), ("peers", peers, 1)):
            for name, tensor in tensors.items():
                shape = tuple(place.initial[name].shape) if name in names else None
                if not isinstance(tensor, Tensor) or shape != tuple(tensor.shape)[lead:]:
                    raise BadMessage(f"the {what} of the message has a {name!r} that is none of this model")
        wire.check_finite(state, "message")
        state = place.on_device(state)
        got = Received(
            state["model"], state["extra"], state["peers"], state.get("ids"), place.me, dict(about["static"])
        )
        return place, kept, got

    def kept(self, base: int) -> State:
        if self.place is None:
            raise BadMessage(f"site {self.name} was not welcomed yet")
        if base == 0:
            return self.place.first_kept(self.place.me)
        return tree.transform(lambda t: t.to(self.device), self.store.load(base))
