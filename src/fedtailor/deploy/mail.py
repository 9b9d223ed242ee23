"""The server's side of the letters: numbered, sealed for one site each, and only the right answer taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedtailor import __version__, tree
from fedtailor.deploy import wire
from fedtailor.deploy.envelope import Letter, Numbers, Seal, Sealed
from fedtailor.deploy.link import Link, Lost
from fedtailor.deploy.settings import SERVER, Settings
from fedtailor.deploy.wire import BadMessage, Packed, Room
from fedtailor.record import to_json
from fedtailor.tree import State

GREETING = 60.0  # seconds for an answer that takes no training
AGAIN = 10.0  # seconds, at least, until a site that gave no good answer to hello is greeted again

Part = tuple[Mapping[str, Any], State]  # a question: what about, and tensors


class Stopped(KeyboardInterrupt):
    """The federation was asked to stop; what was reached is kept."""


class Events:
    """What happens, one line of JSON each, and on the terminal."""

    def __init__(self, path: Path | None, say: Callable[[str], None] = lambda text: None):
        self.path, self.say = path, say

    def note(self, what: str, site: str = "", reason: str = "", **facts: Any) -> None:
        self.say(": ".join(part for part in (site, what, reason) if part))
        if self.path is not None:
            entry = {"time": time.time(), "event": what, "site": site, "reason": reason, **facts}
            with open(self.path, "ab") as file:
                file.write(to_json({key: value for key, value in entry.items() if value != ""}))


@dataclass
class Guest:
    """What the server knows of a site that has said hello."""

    mark: str  # of the connection it said it on
    visit: int  # a number of its own for each hello
    rows: tuple[int, int, int]  # for training, validation and testing
    have: tuple[int, ...]  # rounds of which it has a state


@dataclass
class Mail:
    """Letters to the sites of one federation, and their answers."""

    link: Link
    settings: Settings
    names: Sequence[str]  # the sites by number
    groups: Sequence[str]  # and the group that each belongs to
    seal_of: Callable[[str], Seal | None]  # None: revoked
    numbers: Numbers
    events: Events
    stop: Callable[[], bool] = lambda: False
    guests: dict[str, Guest] = field(default_factory=dict)
    not_before: dict[str, float] = field(default_factory=dict)  # when a site that did not answer hello is greeted again

    def ask(
        self, kind: str, parts: Mapping[str, Part], deadline: float,
        room_of: Callable[[str], Room] = lambda name: wire.anywhere,
    ) -> Iterator[tuple[str, Letter]]:  # fmt: skip
        """Ask sites, each its own question; gives the answers that are in order, their tensors where `room_of` says."""
        seals = {name: seal for name in parts if (seal := self.seal_of(name)) is not None}
        numbers = {name: self.numbers.next() for name in seals}
        letters = self.letters(kind, parts, seals, numbers)
        for name, answer in self.link.exchange(letters, deadline):
            if isinstance(answer, Lost):
                self.events.note("no answer", name, str(answer), asked=kind)
                continue
            try:
                letter = seals[name].open(answer, sender=name, to=SERVER, room=room_of(name))
                del answer  # a model is not to be here twice while it is looked at
                number = numbers[name]
                if letter.number != number:
                    raise BadMessage(f"it answers letter {letter.number}, not {number}: it was sent before")
                if letter.kind == "refused":
                    raise BadMessage(str(letter.about.get("reason"))[:300])
                if letter.kind != kind:
                    raise BadMessage(f"it is an answer to {letter.kind[:50]!r}, not to {kind!r}")
            except BadMessage as error:
                self.guests.pop(name, None)  # to be greeted again before the next letter
                self.events.note("no good answer", name, str(error), asked=kind)
                continue
            yield name, letter

    def letters(
        self, kind: str, parts: Mapping[str, Part], seals: Mapping[str, Seal], numbers: Mapping[str, int]
    ) -> dict[str, Callable[[], Sealed]]:
        """Letters that are sealed when they are sent."""
        packed: dict[tuple[int, ...], Packed] = {}
        return {
            name: partial(self.close, seal, Letter(SERVER, name, numbers[name], kind, *parts[name]), packed)
            for name, seal in seals.items()
        }

    def close(self, seal: Seal, letter: Letter, packed: dict[tuple[int, ...], Packed]) -> Sealed:
        """Seal a letter; the tensors of equal messages are packed once."""
        key = tuple(id(tensor) for _, tensor in tree.leaves(letter.state))
        if key not in packed:
            packed.clear()
            packed[key] = wire.pack(letter.state)
        return seal.close(letter, packed[key])

    def online(self) -> dict[str, str]:
        """The sites that are there and have a key that is good."""
        return {name: mark for name, mark in self.link.online().items() if name in self.names and self.seal_of(name)}

    def greet(self) -> list[str]:
        """Say hello to those who have come; gives their names."""
        new = {
            name: mark for name, mark in self.online().items()
            if (name not in self.guests or self.guests[name].mark != mark)
            and self.not_before.get(name, 0.0) <= time.monotonic()
        }  # fmt: skip
        about = {"form": self.settings.form.to_dict(), "name": self.settings.name, "fedtailor": __version__}
        welcome: list[str] = []
        began = time.monotonic()
        for name, letter in self.ask("hello", dict.fromkeys(new, (about, {})), GREETING):
            try:
                self.guests[name] = guest = read_guest(letter, new[name])
            except BadMessage as error:
                self.events.note("not let in", name, str(error))
                continue
            welcome.append(name)
            self.events.note("joined", name, rows=guest.rows, have=guest.have)
        now = time.monotonic()
        for name in new.keys() - set(welcome):
            self.not_before[name] = now + max(AGAIN, now - began)  # nobody keeps the others waiting most of the time
        return welcome

    def wait(self, wanted: Sequence[str], least: int, patience: float) -> None:
        """Wait until all of `wanted` are guests; after `patience` seconds, until `least` of all sites are."""
        end = time.monotonic() + patience
        told = False
        while not self.missing(wanted, least, time.monotonic() < end):
            if self.stop():
                raise Stopped
            if not told:
                told = True
                away = [name for name in wanted if name not in self.here()]
                self.events.note("waiting", reason=f"for {', '.join(away) or 'more sites'}")
            time.sleep(0.2)

    def missing(self, wanted: Sequence[str], least: int, patient: bool) -> bool:
        """Whether it is time to go on."""
        self.greet()
        here = self.here()
        return len(here) >= least and (not patient or all(name in here for name in wanted))

    def here(self) -> list[str]:
        """Guests that are online on the connection on which they said hello."""
        online = self.online()
        return [name for name, guest in self.guests.items() if online.get(name) == guest.mark]


def read_guest(letter: Letter, mark: str) -> Guest:
    """What a site says of itself, checked."""
    about = letter.about
    if about.get("fedtailor") != __version__:
        raise BadMessage(
            f"it has fedtailor {str(about.get('fedtailor'))[:30]}, the server {__version__}; install the same version"
        )
    rows, have = _counts(about.get("rows")), _counts(about.get("have"))
    if len(rows) != 3 or rows[0] < 1:
        raise BadMessage("it has no training row")
    return Guest(mark, letter.number, (rows[0], rows[1], rows[2]), tuple(sorted(have)))


def _counts(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(count) is int and 0 <= count < 2**40 for count in value):
        raise BadMessage("its hello is not one")
    return value
