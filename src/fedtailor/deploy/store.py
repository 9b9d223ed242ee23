"""What a site keeps on its disk: its state after each of its last rounds, for each federation.

A state is written beside its name, synced and renamed, and carries its own digest: a crash at any moment leaves the old
states or the new one, never a part. A round names the round it goes on from, so a round that is repeated after a crash,
or whose answer never arrived, starts from the same state again: nothing is stepped twice.

    STATE/lock                     held while the site runs
    STATE/FEDERATION/about.json    what the server said of the federation
    STATE/FEDERATION/journal.json  the last letter taken, and whether it was answered
    STATE/FEDERATION/round-000012.safetensors
    STATE/FEDERATION/final.safetensors
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.record import BadCheckpoint, pack, to_json, unpack, write_atomically
from fedtailor.registry import WrongInput
from fedtailor.tree import State

KEPT = 3  # states up to the one that the server knows of
_NAME = re.compile(r"round-(\d{6,})\.safetensors")


class StoreError(Exception):
    """A state that cannot be written or read; the text says why, and what stays as it was."""


class Store:
    """The states of one site in one federation."""

    def __init__(self, folder: Path, federation: str):
        self.path = folder / federation
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise WrongInput(f"cannot write into {folder}: {error.strerror}; choose another folder") from None

    def rounds(self) -> list[int]:
        """The rounds of which there is a state, ascending."""
        return sorted(int(match[1]) for file in self.path.iterdir() if (match := _NAME.fullmatch(file.name)))

    def save(self, round: int, state: State, base: int) -> None:
        """Keep the state after `round`, which went on from that after `base`.

        What was made from `base` before is of no use: its answer did not arrive, or the server went back.
        """
        self._write(self._file(round), pack(round, state), f"the state after round {round}")
        older = [other for other in self.rounds() if other <= base]
        for other in self.rounds():
            if (other > base and other != round) or other in older[:-KEPT]:
                self._file(other).unlink(missing_ok=True)

    def load(self, round: int) -> State:
        """The state after a round; one that is damaged is put aside, and counts as lost."""
        return self._load(self._file(round), f"the state after round {round}")

    def save_final(self, round: int, model: State) -> None:
        """Keep the model that the site ends with."""
        self._write(self.path / "final.safetensors", pack(round, model), "the final model")

    def load_final(self) -> State | None:
        path = self.path / "final.safetensors"
        return self._load(path, "the final model") if path.exists() else None

    def rollback(self, round: int) -> list[int]:
        """Forget all after `round`; gives the rounds forgotten."""
        rounds = self.rounds()
        if round not in rounds:
            have = ", ".join(map(str, rounds)) or "none"
            raise WrongInput(f"{self.path} has no state of round {round}; there is {have}")
        self.load(round)
        later = [other for other in rounds if other > round]
        for other in later:
            self._file(other).unlink()
        (self.path / "final.safetensors").unlink(missing_ok=True)
        return later

    def note(self, name: str, facts: Mapping[str, Any]) -> None:
        self._write(self.path / f"{name}.json", to_json(facts, indent=1), f"{name}.json")

    def noted(self, name: str) -> dict[str, Any]:
        """Facts noted before; none where there are none, or no longer."""
        try:
            found = json.loads((self.path / f"{name}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _file(self, round: int) -> Path:
        return self.path / f"round-{round:06d}.safetensors"

    def _write(self, path: Path, data: bytes, what: str) -> None:
        try:
            write_atomically(path, data)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(path.with_name(path.name + ".tmp"))
            reason = error.strerror or str(error)
            raise StoreError(
                f"{what} cannot be written into {self.path}: {reason}; make room there, the earlier states are as "
                "they were"
            ) from None

    def _load(self, path: Path, what: str) -> State:
        try:
            round, state = unpack(path.read_bytes())
            if (match := _NAME.fullmatch(path.name)) and int(match[1]) != round:
                raise BadCheckpoint(f"it is that of round {round}")
        except FileNotFoundError:
            raise StoreError(f"{what} is not in {self.path}") from None
        except BadCheckpoint as error:
            os.replace(path, path.with_name(f"{path.name}.damaged"))
            raise StoreError(f"{what} in {self.path} is damaged ({error}) and was put aside") from None
        except OSError as error:
            raise StoreError(f"{what} cannot be read from {self.path}: {error.strerror}") from None
        return state


class Journal:
    """Which letter of the server was taken last: an older one, and one that was answered, is not taken again."""

    def __init__(self, store: Store, key: str):
        """`key` names the secret: with a new one the numbers may start anew."""
        self.store, self.key = store, key
        found = store.noted("journal")
        fresh = {"key": key, "number": 0, "digest": "", "answered": True}
        self.last: dict[str, Any] = found if found.get("key") == key and found.keys() == fresh.keys() else fresh

    def admits(self, number: int, digest: str) -> bool:
        """Whether a letter is new, or the very one that a crash kept from being answered."""
        last = self.last
        return bool(number > last["number"] or (digest == last["digest"] and not last["answered"]))

    def take(self, number: int, digest: str) -> None:
        self._note(number=number, digest=digest, answered=False)

    def answered(self) -> None:
        self._note(answered=True)

    def _note(self, **facts: Any) -> None:
        self.last = {**self.last, **facts}
        self.store.note("journal", self.last)


def stores(folder: Path) -> list[Store]:
    """The federations that a site keeps states of."""
    if not folder.is_dir():
        raise WrongInput(f"there is no folder {folder}; give the one that `fedtailor join --state` was given")
    return [Store(folder, path.name) for path in sorted(folder.iterdir()) if (path / "journal.json").exists()]
