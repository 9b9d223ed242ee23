"""A payload taken apart: what each client of an exchange is sent, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from fedtailor import tree
from fedtailor.method import Payload, Received


class Delivery(Sequence[Received]):
    """A payload for all sites; the message of each is unpacked when asked for."""

    def __init__(self, payload: Payload, n: int, unpack: Callable[[int, int], Received]):
        self.payload, self.n, self.unpack = payload, n, unpack

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self.n:
            raise IndexError(number)
        return self.unpack(number, number)


def message(payload: Payload, place: int, number: int, private: frozenset[str]) -> Received:
    """A client's own part of a payload, as it is sent: without anything personal."""
    content = {**payload.common, **tree.transform(lambda t: t[place], payload.own)}
    check_impersonal(content, private, "message")
    peers, ids = payload.peers, None
    if payload.peer_ids is not None:
        ids = payload.peer_ids[place]
        ids = ids[ids >= 0]
        peers = tree.rows(payload.peers, ids)
    extra = {key: value for key, value in content.items() if key != "model"}
    return Received(content.get("model", {}), extra, peers, ids, number, payload.static)


def kind(payload: Payload, place: int) -> Hashable:
    """Equal for clients whose messages have one shape: as many peers, and the same numbers to branch on."""
    peers = None if payload.peer_ids is None else int((payload.peer_ids[place] >= 0).sum())
    return tuple(sorted(payload.static.items())), peers


def broadcast(payload: Payload) -> Received | None:
    """What every client would be sent, where it is the same for all."""
    if payload.own or payload.peers:
        return None
    extra = {key: value for key, value in payload.common.items() if key != "model"}
    return Received(payload.common.get("model", {}), extra, static=payload.static)


def check_impersonal(state: Mapping[str, Any], private: frozenset[str], what: str) -> None:
    """Law 3: nothing personal on the wire."""
    leaked = {path.rsplit("/", 1)[-1] for path in tree.flatten(state)} & private if private else frozenset[str]()
    if leaked:
        raise RuntimeError(
            f"the {what} holds personal tensors: {', '.join(sorted(leaked))}; this is a fault of the method"
        )


def sizes_of_messages(payload: Payload, count: int) -> list[int]:
    """Bytes of each client's part of a payload as it would be encoded, found without unpacking it."""
    content = tree.nbytes({**payload.common, **tree.transform(lambda t: t[0], payload.own)})
    if payload.peer_ids is None:
        return [content] * count
    peer = tree.nbytes(tree.transform(lambda t: t[:1], payload.peers))
    return [content + seen * peer for seen in (payload.peer_ids >= 0).sum(1).tolist()]
