"""Letters: a message with its sender, its receiver and its number, sealed with a code that only the two can make.

Every site shares a secret with the server. The code is over the whole letter: the header is covered by it, and the
header holds the digest of the body. So a letter that was changed, that is for somebody else or of another federation is
refused whatever the transport thinks of it; what was sent before is refused by its number.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtailor import __version__
from fedtailor.deploy import wire
from fedtailor.deploy.wire import BadMessage, Packed, Room
from fedtailor.record import to_json, write_atomically
from fedtailor.tree import State

FORMAT = 1
MAGIC = b"fedtailor-letter-"
MOST_HEAD = 16 << 20  # bytes
RESERVED = 1000  # numbers of letters that are put aside at a time


class Refused(BadMessage):
    """A letter that is not taken: changed, misdirected, sent before, or of another version."""


@dataclass(frozen=True)
class Letter:
    """What one side says to the other."""

    sender: str
    to: str
    number: int  # a server's letters are numbered upwards; an answer has the number of what it answers
    kind: str
    about: Mapping[str, Any] = field(default_factory=dict)  # plain values
    state: State = field(default_factory=dict)  # tensors


@dataclass(frozen=True)
class Sealed:
    """A letter as it travels."""

    head: bytes
    body: bytes | bytearray

    @property
    def digest(self) -> str:
        """The same for the same letter: the head holds the digest of the body."""
        return hashlib.sha256(self.head).hexdigest()


@dataclass(frozen=True)
class Seal:
    """Seals and opens the letters between the server and one site of one federation."""

    federation: str
    secret: bytes

    def close(self, letter: Letter, packed: Packed | None = None) -> Sealed:
        """A sealed letter; `packed` is its state, where that was packed before."""
        packed = packed or wire.pack(letter.state)
        content = {
            "federation": self.federation, "from": letter.sender, "to": letter.to, "number": letter.number,
            "kind": letter.kind, "about": letter.about, "schema": packed.schema, "body": packed.digest,
            "fedtailor": __version__,
        }  # fmt: skip
        text = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        if len(text) > MOST_HEAD:
            raise ValueError(f"the head of the letter has {len(text)} bytes; at most {MOST_HEAD} can be sent")
        start = MAGIC + b"%d\n" % FORMAT
        return Sealed(start + self.code(start + text) + text, packed.body)

    def open(self, sealed: Sealed, *, sender: str, to: str, room: Room = wire.anywhere) -> Letter:
        """The letter, if it is one from `sender` to `to` as it was sealed; its tensors go to where `room` says."""
        start = MAGIC + b"%d\n" % FORMAT
        head = sealed.head
        if len(head) > MOST_HEAD + 100:
            raise Refused("its head is too large")
        if not head.startswith(start):
            raise Refused(_wrong_format(head))
        code, text = head[len(start) : len(start) + 32], head[len(start) + 32 :]
        if not hmac.compare_digest(code, self.code(start + text)):
            raise Refused("its code is wrong: it was changed, or sealed with another key")
        try:
            content = json.loads(text)
            if hashlib.sha256(sealed.body).hexdigest() != content["body"]:
                raise Refused("its body was changed")
            for name, value in (("federation", self.federation), ("from", sender), ("to", to)):
                if content[name] != value:
                    raise Refused(f"it is misdirected: {name} {str(content[name])[:50]!r}, not {value!r}")
            number, kind, about = content["number"], content["kind"], content["about"]
            if type(number) is not int or not isinstance(kind, str) or not isinstance(about, dict):
                raise Refused("its head is not that of a letter")
            state = wire.unpack(content["schema"], sealed.body, room)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise error if isinstance(error, BadMessage) else Refused(f"it cannot be read: {error!r:.100}") from None
        return Letter(sender, to, number, kind, about, state)

    def code(self, content: bytes) -> bytes:
        return hmac.new(self.secret, content, hashlib.sha256).digest()


def _wrong_format(head: bytes) -> str:
    other = head[len(MAGIC) : len(MAGIC) + 12].split(b"\n")[0]
    if head.startswith(MAGIC) and other.isdigit():
        return (
            f"it is of message format {other.decode()} and this fedtailor {__version__} reads format {FORMAT}; "
            "install the same version of fedtailor at the server and at every site"
        )
    return "it is not a letter"


class Numbers:
    """The numbers of the server's letters: they grow for ever, through crashes too."""

    def __init__(self, path: Path):
        self.path = path
        self.last = self.reserved = json.loads(path.read_text())["reserved"] if path.exists() else 0

    def next(self) -> int:
        self.last += 1
        if self.last > self.reserved:
            self.reserved = self.last + RESERVED
            write_atomically(self.path, to_json({"reserved": self.reserved}))
        return self.last
