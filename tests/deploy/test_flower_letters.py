"""Letters in and out of Flower's objects, which a site may have made by hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedtailor.deploy.envelope import Sealed

pytest.importorskip("flwr")
pytestmark = [pytest.mark.federation, pytest.mark.filterwarnings("ignore")]

if True:  # what follows is there only with Flower
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
    from flwr.supercore.task_identity import TaskIdentity

    from fedtailor.deploy.flower_letters import CHUNK, NO_LETTER, TooLarge, array, letter_of


def objects_of(sealed: Sealed) -> tuple[Any, dict[str, bytes]]:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    record = ArrayRecord({"head": array(sealed.head), "body": array(bytes(sealed.body))})
    message = Message(RecordDict({"letter": record}), 1, "train")
    return get_object_tree(message), {name: part.deflate() for name, part in get_all_nested_objects(message).items()}


BODIES = {
    "nothing": b"", "a byte": b"x", "a chunk": os.urandom(CHUNK), "more": os.urandom(2 * CHUNK + 1),
    "the same chunk": bytes(2 * CHUNK),
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_what_goes_in_comes_out(body: bytes) -> None:
    objects, contents = objects_of(Sealed(b"head", body))
    found = letter_of(objects, contents.get, 1 << 30)
    assert found == Sealed(b"head", body)
    with pytest.raises(TooLarge):
        letter_of(objects, contents.get, len(body) + 3)
    assert letter_of(objects, contents.get, len(body) + 4) == found


OBJECTS, CONTENTS = objects_of(Sealed(b"a head", b"a body of a few bytes"))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=300)
@given(st.data())
def test_objects_made_by_hand_are_read_or_refused(data: Any) -> None:
    """Bits flipped, cut off, replaced by others or by nothing: a letter or a refusal, and nothing else."""
    contents = dict(CONTENTS)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(contents)))
        change: Callable[[bytes], bytes | None] = data.draw(
            st.sampled_from([flip(data), cut(data), lambda content: None, lambda content: data.draw(st.binary())])
        )
        contents[name] = change(contents[name] or b"-") or b""
    try:
        found = letter_of(OBJECTS, contents.get, 1 << 20)
    except (TooLarge, *NO_LETTER):
        return
    assert isinstance(found, Sealed) and isinstance(found.head, bytes) and len(found.body) <= 1 << 20


def flip(data: Any) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        return bytes(changed)

    return change


def cut(data: Any) -> Callable[[bytes], bytes]:
    return lambda content: content[: data.draw(st.integers(0, len(content)))]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shape": [21]', b'"shape": [99]'),  # more bytes than come
        (b'"shape": [21]', b'"shape": [-1]'),
        (b'"shape": [21]', b'"shape": [2e9]'),
        (b'"shape": [21]', b'"shape": 21'),
        (b'"arraychunk_ids": [0]', b'"arraychunk_ids": [9]'),
        (b'"arraychunk_ids": [0]', b'"arraychunk_ids": [0, 0, 0]'),
        (b'"arraychunk_ids": [0]', b'"arraychunk_ids": ["0"]'),
        (b'"arraychunk_ids": [0]', b'"arraychunk_ids": ' + b"[" * 100_000),
    ],
)
def test_a_description_that_is_not_true_is_refused(old: bytes, new: bytes) -> None:
    changed = {name: content.replace(old, new) for name, content in CONTENTS.items()}
    assert changed != CONTENTS
    with pytest.raises((TooLarge, *NO_LETTER)):
        letter_of(OBJECTS, changed.get, 1 << 20)
