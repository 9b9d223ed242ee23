"""A list over very many clients, most of which have the same entry: those that sat a round out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

MANY = 1000  # clients; of fewer, a plain list is as good


class Sparse(Sequence[Any]):
    """Read like a list; holds, and is written as, the entries that are not `otherwise`."""

    __slots__ = ("entries", "length", "otherwise")
    __hash__ = None  # type: ignore[assignment]  # like a list's

    def __init__(self, length: int, entries: Mapping[int, Any], otherwise: Any):
        self.length, self.otherwise = length, otherwise
        self.entries = dict(entries)

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        places = range(self.length)[at]
        return self.entries.get(places, self.otherwise) if isinstance(places, int) else [self[i] for i in places]

    def __iter__(self) -> Iterator[Any]:
        return (self.entries.get(i, self.otherwise) for i in range(self.length))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sparse) and (self.length, self.otherwise) == (other.length, other.otherwise):
            return self.entries == other.entries
        return isinstance(other, list | Sparse) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"Sparse({self.length}, {self.entries}, {self.otherwise!r})"

    def to_json(self) -> dict[str, Any]:
        return {"of": self.length, "else": self.otherwise, "at": {str(at): entry for at, entry in self.entries.items()}}


def spread(length: int, entries: Mapping[int, Any], otherwise: Any) -> list[Any] | Sparse:
    """A list of this length with these entries."""
    if length > MANY and 2 * len(entries) < length:
        return Sparse(length, entries, otherwise)
    return [entries.get(i, otherwise) for i in range(length)]


def from_json(found: dict[str, Any]) -> Any:
    """For json.loads: what `to_json` gave, as it was; any other object as it is."""
    if found.keys() == {"of", "else", "at"}:
        return Sparse(found["of"], {int(at): entry for at, entry in found["at"].items()}, found["else"])
    return found
