"""Fetching published files: with progress, going on where it broke off, and checked.

`ORIGINS` says of every set where it comes from, under which licence, and how to know that a file is the right one. A
checksum stands here only where its publisher, or a widely used catalogue of checksums, states it.
"""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.data.files import home

UNKNOWN = "unknown"
CHUNK = 1 << 18
TIMEOUT = 30  # seconds without a byte
STARTS = {".gz": b"\x1f\x8b", ".zip": b"PK\x03\x04", ".bz2": b"BZh", ".mat": b"MATLAB 5.0"}  # what formats begin with

Progress = Callable[[int, int | None], None]  # bytes so far, and in all where that is known


class NotFetched(RuntimeError):
    """A download that failed; what was fetched is kept where it is of use."""


@dataclass(frozen=True)
class Remote:
    """One published file."""

    name: str
    address: str
    size: int | None = None  # bytes; None: not stated anywhere
    checksum: str = UNKNOWN  # "sha256:..." or "md5:..."


@dataclass(frozen=True)
class Origin:
    """Where a set comes from, and on what terms."""

    licence: str
    files: tuple[Remote, ...] = ()
    by_hand: str = ""  # what to fetch, and where to put it, where no file may or can be fetched automatically
    compact: str = ""  # the name of a compact copy, which is read as well

    @property
    def size(self) -> int | None:
        sizes = [file.size for file in self.files]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)


ORIGINS: dict[str, Origin] = {}


def originate(name: str, origin: Origin) -> Origin:
    """Note where a set comes from."""
    ORIGINS[name] = origin
    return origin


def place(name: str, file: str) -> Path:
    """Where a file of a set is kept."""
    return home() / name / file


def fetch(remote: Remote, path: Path, progress: Progress = lambda done, size: None) -> bool:
    """Get a file unless it is there already; whether it was fetched. What was begun is kept beside it as `.part`."""
    if path.exists():
        check(remote, path, path)
        return False
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        receive(remote, part, progress)
    except (urllib.error.URLError, OSError) as error:
        kept = part.stat().st_size if part.exists() else 0
        raise NotFetched(
            f"{remote.address} could not be fetched ({reason(error)}); {kept:,} bytes of it are kept, so run the same "
            f"command again, or put the file at {path} by other means"
        ) from error
    check(remote, part, path)
    part.rename(path)
    return True


def reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__


def receive(remote: Remote, part: Path, progress: Progress) -> None:
    """Append what is missing, or start again where the server does not go on in the middle."""
    have = part.stat().st_size if part.exists() else 0
    if remote.size is not None and have >= remote.size:
        if have == remote.size:
            return  # complete, and only not checked yet
        part.unlink()
        have = 0
    request = urllib.request.Request(remote.address, headers={"User-Agent": "fedtailor"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with answer(request, part, have) as reply:
        if reply.status != 206:  # the whole file, whatever was asked for
            have = 0
        told = reply.headers.get("Content-Length")
        size = have + int(told) if told else remote.size
        if remote.size is not None and size != remote.size:
            part.unlink(missing_ok=True)
            raise NotFetched(
                f"{remote.address} offers {size:,} bytes and should offer {remote.size:,}: another file, or a page "
                "that says why there is none"
            )
        with part.open("ab" if have else "wb") as file:
            progress(have, size)
            while chunk := reply.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(have, size)
    if size is not None and have < size:
        raise OSError(f"the connection ended after {have:,} of {size:,} bytes")


def answer(request: urllib.request.Request, part: Path, have: int) -> Any:
    """The server's reply; where it has nothing after what we have, that is of no use and is asked for anew."""
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        part.unlink()
        request.remove_header("Range")
        return urllib.request.urlopen(request, timeout=TIMEOUT)


def check(remote: Remote, file: Path, path: Path) -> None:
    """Refuse a file that is not the one expected; one that was just fetched is deleted."""
    wrong = fault(remote, file)
    if not wrong:
        return
    if file != path:
        file.unlink()
        raise NotFetched(f"what {remote.address} gave is not {path.name}: {wrong}; it was deleted")
    raise NotFetched(f"{path} is not what {remote.address} should give: {wrong}; delete it and fetch it again")


def fault(remote: Remote, file: Path) -> str:
    """What is wrong with a file, in words; nothing where all that is known of it holds."""
    size = file.stat().st_size
    if remote.size is not None and size != remote.size:
        return f"it has {size:,} bytes and should have {remote.size:,}"
    expected = STARTS.get(Path(remote.name).suffix, b"")
    with file.open("rb") as opened:
        if opened.read(len(expected)) != expected:
            return f"it is no {Path(remote.name).suffix} file"
    if remote.checksum == UNKNOWN:
        return ""
    kind, _, digest = remote.checksum.partition(":")
    return "" if digest_of(file, kind) == digest else f"its {kind} checksum is another"


def digest_of(file: Path, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
