"""Letters: what was changed, misdirected, sent before or of another version is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.deploy import envelope
from fedtailor.deploy.envelope import Letter, Numbers, Refused, Seal, Sealed
from fedtailor.deploy.settings import SERVER
from fedtailor.deploy.store import Journal, Store
from fedtailor.deploy.wire import BadMessage

SEAL = Seal("clinic", b"secret of north".ljust(32))
LETTER = Letter(SERVER, "north", 7, "train", {"round": 3, "base": 2}, {"model": {"w": torch.arange(6.0)}, "extra": {}})
SEALED = SEAL.close(LETTER)


def open_(sealed: Sealed, seal: Seal = SEAL, **names: Any) -> Letter:
    return seal.open(sealed, **{"sender": SERVER, "to": "north", **names})


def test_a_letter_arrives() -> None:
    letter = open_(SEALED)
    assert (letter.number, letter.kind, letter.about) == (7, "train", {"round": 3, "base": 2})
    assert letter.state["model"]["w"].tolist() == list(range(6)) and letter.state["extra"] == {}


@given(st.data())
def test_any_change_is_refused(data: Any) -> None:
    part = data.draw(st.sampled_from(["head", "body"]))
    whole = getattr(SEALED, part)
    place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(whole)
    changed[place] ^= 1 << bit
    with pytest.raises(Refused):
        open_(dataclasses.replace(SEALED, **{part: bytes(changed)}))


@given(st.data())
def test_any_part_of_a_letter_is_refused(data: Any) -> None:
    part = data.draw(st.sampled_from(["head", "body"]))
    whole = getattr(SEALED, part)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Refused):
        open_(dataclasses.replace(SEALED, **{part: whole[:cut]}))


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_any_bytes_are_refused(head: bytes, body: bytes) -> None:
    for start in (b"", envelope.MAGIC, envelope.MAGIC + b"1\n"):
        with pytest.raises(Refused):
            open_(Sealed(start + head, body))


@given(st.binary(max_size=200))
def test_what_a_friend_sealed_is_still_read_with_care(text: bytes) -> None:
    start = envelope.MAGIC + b"1\n"
    with pytest.raises(BadMessage):
        open_(Sealed(start + SEAL.code(start + text) + text, b""))


@pytest.mark.parametrize(
    ("names", "seal"),
    [
        ({"to": "south"}, SEAL),
        ({"sender": "south"}, SEAL),
        ({"sender": "north", "to": SERVER}, SEAL),
        ({}, Seal("other", SEAL.secret)),
    ],
    ids=["to another", "from another", "reflected", "of another federation"],
)
def test_a_misdirected_letter_is_refused(names: dict[str, str], seal: Seal) -> None:
    with pytest.raises(Refused, match="misdirected"):
        open_(SEALED, seal, **names)


def test_another_key_is_refused() -> None:
    with pytest.raises(Refused, match="another key"):
        open_(SEALED, Seal("clinic", b"secret of south".ljust(32)))


def test_another_format_names_both() -> None:
    other = SEALED.head.replace(b"letter-1\n", b"letter-2\n", 1)
    with pytest.raises(Refused, match=r"message format 2 and this fedtailor .* reads format 1"):
        open_(Sealed(other, SEALED.body))


def test_a_body_of_another_letter_is_refused() -> None:
    other = SEAL.close(dataclasses.replace(LETTER, state={"model": {"w": torch.ones(6)}, "extra": {}}))
    with pytest.raises(Refused, match="body"):
        open_(Sealed(SEALED.head, other.body))


def test_numbers_never_come_twice(tmp_path: Path) -> None:
    first = Numbers(tmp_path / "numbers.json")
    given = [first.next() for _ in range(envelope.RESERVED + 5)]
    again = Numbers(tmp_path / "numbers.json")  # as after kill -9: nothing was said at the end
    assert given == sorted(set(given)) and again.next() > given[-1]


def test_the_journal_admits_what_is_new_and_what_a_crash_cut_off(tmp_path: Path) -> None:
    store = Store(tmp_path, "clinic")
    journal = Journal(store, "key")
    assert journal.admits(5, "five")
    journal.take(5, "five")
    crashed = Journal(store, "key")
    assert crashed.admits(5, "five") and not crashed.admits(5, "other") and not crashed.admits(4, "four")
    crashed.answered()
    after = Journal(store, "key")
    assert not after.admits(5, "five") and not after.admits(4, "four") and after.admits(6, "six")
    assert Journal(store, "new key").admits(1, "one")
