"""Where the files of data sets are, and how they are read without ever being executed.

A set is kept in a folder of its own below the data folder, as it was published; or as a compact copy, one file there.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.registry import WrongInput

Array = NDArray[Any]


def home() -> Path:
    """The data folder: what FEDTAILOR_DATA names, or one in the user's own folders."""
    named = os.environ.get("FEDTAILOR_DATA")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "fedtailor"


def cache() -> Path:
    """Where decoded pictures are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedtailor"


def first_of(name: str, *choices: Sequence[Path]) -> Sequence[Path]:
    """The first choice all of whose files are there; `name` is the set's, for the message where there is none."""
    for files in choices:
        if all(file.exists() for file in files):
            return files
    looked = " or ".join(str(files[0]) for files in choices)
    raise WrongInput(
        f"{name} is not at hand (looked for {looked}); `fedtailor data get {name}` fetches it or says how to, and "
        "FEDTAILOR_DATA names the folder where data are kept"
    )


def read_npz(path: Path, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Arrays of a NumPy file; one that holds Python objects is refused, as reading it could run anything."""
    found: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                name = entry.removesuffix(".npy")
                if names is None or name in names:
                    with archive.open(entry) as file:
                        found[name] = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise WrongInput(f"{path} cannot be read as a NumPy file ({error}); write it again with numpy.savez") from None
    lacking = [name for name in names or () if name not in found]
    if lacking:
        raise WrongInput(f"{path} holds no array {lacking[0]!r}, only {', '.join(found)}")
    return found


def check_labels(name: str, path: Path, labels: Array, rows: int, classes: int) -> None:
    """One label for each row, none without a class."""
    if len(labels) != rows:
        raise WrongInput(f"{path}: {len(labels)} labels for {rows} rows of {name}; the file is damaged, fetch it again")
    if rows and int(labels.max()) >= classes:
        raise WrongInput(f"{path}: a label {int(labels.max())}, but {name} has {classes} classes")


def numbered(words: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Each word's number among the different ones in alphabetical order, and these."""
    kinds = sorted(set(words))
    number = {kind: place for place, kind in enumerate(kinds)}
    return np.fromiter(map(number.__getitem__, words), np.int64, len(words)), tuple(kinds)


def below(folder: Path) -> Iterator[Path]:
    """Every file below a folder in a steady order, hidden ones left out."""
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for file in sorted(files):
            if not file.startswith("."):
                yield Path(parent) / file
