"""Letters in Flower's terms: one record of two arrays of bytes, however many tensors the letter holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from flwr.app import Array, ArrayRecord
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_children_ids_from_object_content

from fedtailor.deploy.envelope import Sealed

NO_LETTER = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # what bad objects may raise


class TooLarge(Exception):
    """A letter of more bytes than may be."""


def array(data: bytes | bytearray) -> Array:
    return Array("uint8", (len(data),), "bytes", bytes(data))


def letter_of(message: Any, content: Callable[[str], bytes | None], largest: int) -> Sealed:
    """The letter in a message, from the tree of its objects and their contents.

    Each chunk goes to its place as it is read. Flower's own way makes three copies of the whole, which are large.
    """
    [records] = message.children
    [record] = records.children
    names = json.loads(get_object_body(read(content, record.object_id), ArrayRecord))
    head = joined(content, names["head"], largest)
    return Sealed(bytes(head), joined(content, names["body"], largest - len(head)))


def joined(content: Callable[[str], bytes | None], name: str, largest: int) -> bytearray:
    """The bytes of an array."""
    whole = read(content, name)
    about, chunks = json.loads(get_object_body(whole, Array)), get_object_children_ids_from_object_content(whole)
    [size], order = about["shape"], about["arraychunk_ids"]
    if size > largest:
        raise TooLarge
    data = bytearray(size)
    places = range(0, size, CHUNK)
    if len(order) != len(places):
        raise ValueError(f"it tells of {size} bytes in {len(order)} chunks")
    for start, number in zip(places, order, strict=True):
        place = memoryview(data)[start : start + CHUNK]
        place[:] = get_object_body(read(content, chunks[number]), ArrayChunk)  # of another length: a ValueError
    return data


def read(content: Callable[[str], bytes | None], name: str) -> bytes:
    found = content(name)
    if not found:
        raise LookupError(name)
    return found
