"""What carries letters between the server and the sites, whatever it is made of.

The server's end offers letters to sites and gives what they answer; a site's end hands over one letter after the other
and takes the answer. Neither looks inside. `flower_server` and `flower_site` are made of Flower; tests have one of
plain memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from fedtailor.deploy.envelope import Sealed


class Lost(Exception):
    """A letter that will not be answered: its site is gone, or could not read it."""


class Link(Protocol):
    """The server's end."""

    def plan(self) -> Mapping[str, Any]:
        """What it is made of, for the record."""
        ...

    def online(self) -> Mapping[str, str]:
        """The sites that are there, each with a mark that changes when it was away and came back."""
        ...

    def exchange(
        self, letters: dict[str, Callable[[], Sealed]], deadline: float
    ) -> Iterator[tuple[str, Sealed | Lost]]:
        """The answers as they come, each site's once; ends when all came, or `deadline` seconds after the start.

        Letters are made when they are sent, and taken out of `letters`, so that not all of them are in memory at
        once, nor any while the answers come. A site that is restarted while it works on a letter is given it again.
        What comes later is thrown away.
        """
        ...


class Post(Protocol):
    """A site's end."""

    def serve(self, answer: Callable[[Sealed], Sealed | None], sent: Callable[[], bool]) -> None:
        """Hand over letters and send the answers until `sent`, called after each, says that it is enough.

        Goes on for ever through lost connections; a letter without an answer is reported as lost.
        """
        ...
