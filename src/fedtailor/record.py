"""The run folder: what was run, a row per round, and checkpoints. Its format is documented and versioned.

A checkpoint is one safetensors file (never pickle) that carries a digest of its own contents. It is written beside
its final name, synced, and renamed, so that a crash at any moment leaves the previous one; one that does not match
its digest is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedtailor import sparse, tree
from fedtailor.registry import WrongInput
from fedtailor.shards import BadShard, Shards, Told, pieces
from fedtailor.sparse import Sparse
from fedtailor.store import Kept
from fedtailor.tree import State, Tree

FORMAT = 1
KEPT_CHECKPOINTS = 2

Row = dict[str, Any]


class BadCheckpoint(Exception):
    """A checkpoint that is cut short or does not match its digest."""


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path):
        self.path = path
        self.shards = Shards()  # of the newest checkpoint

    @classmethod
    def create(cls, path: Path, info: Mapping[str, Any]) -> RunFolder:
        folder = cls(path)
        if (path / "run.json").exists():
            raise WrongInput(
                f"{path} already holds a run; `fedtailor resume {path}` goes on with it, or choose another folder"
            )
        if (path / "rows.jsonl").exists() or folder.checkpoints():
            raise WrongInput(f"{path} holds what is left of another run; choose another folder")
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            write_atomically(path / "run.json", to_json({"format": FORMAT, **info}, indent=1))
        except OSError as error:
            raise WrongInput(f"cannot write into {path}: {error.strerror}; choose another folder with --out") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        folder = cls(path)
        folder.info()
        return folder

    def info(self) -> dict[str, Any]:
        """The contents of run.json, of a version that can be read."""
        try:
            info: dict[str, Any] = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
            if not isinstance(info, dict):
                raise ValueError("it does not describe a run")
        except FileNotFoundError:
            raise WrongInput(f"{self.path} is not a run folder: it has no run.json") from None
        except (ValueError, OSError) as error:
            raise WrongInput(f"{self.path}/run.json cannot be read ({error}); the run must be started again") from None
        if info.get("format") != FORMAT:
            raise WrongInput(
                f"{self.path} is a run of format {info.get('format')!r}, written by fedtailor {info.get('fedtailor')}; "
                f"this fedtailor reads format {FORMAT}: use the version that wrote it"
            )
        return info

    def note(self, **facts: Any) -> None:
        """Add facts to run.json: its status, its seconds."""
        write_atomically(self.path / "run.json", to_json({**self.info(), **facts}, indent=1))

    def rows(self) -> list[Row]:
        """The rows so far; a last line that was cut short is left out."""
        try:
            *lines, _ = (self.path / "rows.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        found: list[Row] = []
        for number, line in enumerate(lines, start=1):
            try:
                found.append(json.loads(line.decode("utf-8"), object_hook=sparse.from_json))
            except ValueError:
                raise WrongInput(
                    f"{self.path}/rows.jsonl is damaged in line {number}; the run must be started again"
                ) from None
        return found

    def append(self, row: Row) -> None:
        with open(self.path / "rows.jsonl", "ab") as file:
            file.write(to_json(row))

    def keep_rows(self, rows: Iterable[Row]) -> None:
        """Replace the rows: a resumed run repeats those after its checkpoint."""
        write_atomically(self.path / "rows.jsonl", b"".join(to_json(row) for row in rows))

    def checkpoints(self) -> list[Path]:
        """The checkpoints, newest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"), reverse=True)

    def save(self, round: int, state: State, kept: Kept | None = None) -> None:
        """Write a checkpoint; what sites keep is in the state, or, of very many, in `kept` and goes into shards."""
        with open(self.path / "rows.jsonl", "ab") as rows:
            os.fsync(rows.fileno())  # a checkpoint never outlives the rows before it
        folder, shards, about = self.path / "checkpoints", self.shards, {}
        if kept is not None:
            shards, missing = shards.following(round, kept)
            for name, layout, numbers in missing:
                told = Told(pieces(kept, layout, numbers, round))
                write_atomically(folder / name, told)
                shards.files[name] = told.about()
            state, about = {**state, "index": shards.index()}, shards.about()
        write_atomically(folder / f"round-{round:06d}.safetensors", pack(round, state, about))
        self.shards = shards
        for old in self.checkpoints()[KEPT_CHECKPOINTS:]:
            old.unlink()
        self.sweep()

    def sweep(self) -> None:
        """Remove shards that no checkpoint needs."""
        shards = list((self.path / "checkpoints").glob("sites-*.safetensors"))
        needed = {name for path in self.checkpoints() for name in shards_of(path)} if shards else ()
        for path in shards:
            if path.name not in needed:
                path.unlink()

    def load(self) -> tuple[int, State, list[str]]:
        """The newest good checkpoint, and a word on each newer one that is not; round 0 where none was made."""
        warnings: list[str] = []
        for path in self.checkpoints():
            try:
                about, state = opened(path.read_bytes())
                round = int(about["round"])
                if "shards" in about:
                    self.shards = Shards.told(round, about["shards"], state.pop("index"))
                    state["clients"] = self.shards.states(path.parent)
                return round, state, warnings
            except (BadCheckpoint, BadShard) as error:
                warnings.append(f"the checkpoint {path.name} is damaged ({error}); going on from the one before it")
        if warnings:
            raise WrongInput(f"no checkpoint of {self.path} is good any more; start the run again in another folder")
        return 0, {}, warnings

    def forget_after(self, round: int) -> None:
        """Remove checkpoints that could not be read: those of the rounds made again must count as newer."""
        for path in self.checkpoints():
            if int(path.stem.removeprefix("round-")) > round:
                path.unlink()
        self.sweep()


def shards_of(path: Path) -> Collection[str]:
    """The shards that a checkpoint needs, by its header alone; none of one that cannot be read."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        files: dict[str, Any] = json.loads(header["__metadata__"].get("shards", '{"files": {}}'))["files"]
    except (OSError, ValueError, KeyError, OverflowError, MemoryError):
        return ()
    return files


def pack(round: int, state: State, more: Mapping[str, str] = {}) -> bytes:
    """A state as one safetensors file, with `more` to say of it. Tensors that are one and the same are written once.

    The order of the names is kept, for a sum over tensors depends on it in its last bits.
    """
    unique: Tree = {}
    first: dict[tuple[Any, ...], str] = {}
    leaves: list[tuple[str, str | None]] = []  # path, and the name its values are under; None: an empty sub-state
    for path, tensor in tree.leaves(state):
        if tensor is None:
            leaves.append((path, None))
            continue
        name = first.setdefault(tree.identity(tensor), path)
        leaves.append((path, name))
        if name == path:
            unique[path] = tensor.detach().cpu().contiguous().clone()
    about = {"format": str(FORMAT), "round": str(round), "leaves": json.dumps(leaves), **more}
    return safetensors.torch.save(unique, {**about, "digest": digest(unique, about)})


def unpack(data: bytes) -> tuple[int, State]:
    about, state = opened(data)
    return int(about["round"]), state


def opened(data: bytes) -> tuple[Mapping[str, str], State]:
    """What a checkpoint says of itself, and its state."""
    try:
        tensors: Tree = safetensors.torch.load(data)
        length = int.from_bytes(data[:8], "little")
        about: dict[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
        stated = about.pop("digest")
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise BadCheckpoint(f"cut short or not a checkpoint: {error}") from None
    if stated != digest(tensors, about):
        raise BadCheckpoint("its contents do not match its digest")
    named = json.loads(about["leaves"])
    return about, tree.grown((path, None if name is None else tensors[name]) for path, name in named)


def digest(tensors: Tree, about: Mapping[str, str]) -> str:
    total = hashlib.sha256(repr(sorted(about.items())).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        total.update(tree.buffer(tensor))
    return total.hexdigest()


def write_atomically(path: Path, data: bytes | Iterable[bytes]) -> None:
    """After a crash at any moment, `path` has its old contents or the new ones, never a part."""
    beside = path.with_name(path.name + ".tmp")
    with open(beside, "wb") as file:
        for piece in [data] if isinstance(data, bytes) else data:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def to_json(value: Any, indent: int | None = None) -> bytes:
    """One line (or an indented text) of JSON; tensors become lists, and what is no finite number null."""
    text = json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False, default=Sparse.to_json)
    return (text + "\n").encode()


def plain(value: Any) -> Any:
    if type(value) in (int, bool, str) or value is None or (type(value) is float and math.isfinite(value)):
        return value  # most are, and the questions below take longer
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Sparse):
        return Sparse(value.length, {at: plain(entry) for at, entry in value.entries.items()}, value.otherwise)
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
