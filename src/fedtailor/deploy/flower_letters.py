"""Letters in Flower's terms: one record of two arrays of bytes, however many tensors the letter holds."""

from __future__ import annotations

from typing import Any

from flwr.app import Array

from fedtailor.deploy.envelope import Sealed


def array(data: bytes) -> Array:
    return Array("uint8", (len(data),), "bytes", data)


def sealed_of(message: Any) -> Sealed:
    """The letter in a message."""
    record = message.content["letter"]
    return Sealed(record["head"].data, record["body"].data)
