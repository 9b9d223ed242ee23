"""A federation in one process: sites and server talk through plain memory, sealed letters and all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtailor import Federation, Method, RunSpec
from fedtailor.deploy.coordinator import Coordinator
from fedtailor.deploy.envelope import Numbers, Seal, Sealed
from fedtailor.deploy.link import Lost
from fedtailor.deploy.mail import Events, Mail
from fedtailor.deploy.member import Member
from fedtailor.deploy.outline import one_site
from fedtailor.deploy.settings import Form, Settings

FEDERATION = "8d3f0c0e"


def secret(name: str) -> bytes:
    return name.encode().ljust(32, b".")


@dataclass
class MemoryLink:
    """Hands every letter over at once; `between` may lose or change what passes."""

    members: dict[str, Member]
    marks: dict[str, str] = field(default_factory=dict)
    between: Callable[[str, Sealed, Callable[[Sealed], Sealed | None]], Sealed | Lost | None] | None = None
    passed: list[tuple[str, Sealed, Sealed | None]] = field(default_factory=list)

    def plan(self) -> Mapping[str, Any]:
        return {"link": "memory"}

    def online(self) -> Mapping[str, str]:
        return {name: self.marks.get(name, "1") for name in self.members}

    def exchange(self, letters: Mapping[str, Callable[[], Sealed]], deadline: float) -> Iterator[tuple[str, Any]]:
        for name, letter in letters.items():
            sealed = letter()
            if name not in self.members:
                yield name, Lost("it is away")
                continue
            member = self.members[name]
            answer = self.between(name, sealed, member.answer) if self.between else member.answer(sealed)
            if isinstance(answer, Sealed):
                self.passed.append((name, sealed, answer))
                member.sent()
            yield name, answer or Lost("no answer")


def form_of(federation: Federation) -> Form:
    return Form.of(federation)


def settings_of(federation: Federation, **options: Any) -> Settings:
    return Settings(
        name="test", id=FEDERATION, host="localhost", port=1, form=form_of(federation), run={},
        **{"quorum": 1, "patience": 0.0, **options},
    )  # fmt: skip


def member_of(federation: Federation, name: str, folder: Path, **options: Any) -> Member:
    own = one_site(federation, name, name)
    return Member(name, Seal(FEDERATION, secret(name)), "key", own, folder / name, **options)


def mail_of(federation: Federation, link: MemoryLink, folder: Path, **options: Any) -> Mail:
    return Mail(
        link, settings_of(federation, **options), federation.clients, [str(group) for group in federation.groups],
        lambda name: Seal(FEDERATION, secret(name)),
        Numbers(folder / "numbers.json"), Events(folder / "events.jsonl"),
    )  # fmt: skip


def coordinate(spec: RunSpec, federation: Federation, folder: Path, **options: Any) -> tuple[Coordinator, MemoryLink]:
    """A coordinator and its sites, ready for the first round."""

    def told(text: str) -> None:
        said.append(text)
        assert "asking again" not in text, said

    said: list[str] = []
    members = {name: member_of(federation, name, folder / "state", explain=True) for name in federation.clients}
    link = MemoryLink(members)
    mail = mail_of(federation, link, folder, **options)
    mail.events.say = told
    for member in members.values():
        member.say = said.append
    mail.greet()
    return Coordinator(spec, mail, folder / "rows.json"), link


def is_possible(method: Method) -> bool:
    """Whether a method can run where nobody has everybody's rows."""
    return not method.pools and not method.public_share
