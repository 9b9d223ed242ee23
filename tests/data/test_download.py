"""Fetching from a server on this machine: progress, going on, checks, and what is said when it fails."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedtailor import registry
from fedtailor.data.download import ORIGINS, STARTS, NotFetched, Remote, fetch

CONTENT = gzip.compress(bytes(range(256)) * 4000, mtime=0)
SHA = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves CONTENT, and misbehaves as it is told to."""

    ranges = True  # it can go on in the middle
    stops_after: int | None = None  # bytes of a reply, though it promised all
    content = CONTENT

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that a test cuts off is no news."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        if self.path != "/file.gz":
            return self.send_error(404)
        content, start = self.server.content, 0
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: self.server.stops_after])

    def log_message(self, *_: object) -> None:
        """Quietly."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def remote(server: Server, file: str = "file.gz", **about: object) -> Remote:
    address = f"http://127.0.0.1:{server.server_port}/{file}"
    return Remote(file, address, **{"size": len(CONTENT), "checksum": SHA, **about})  # type: ignore[arg-type]


def test_a_file_is_fetched_once_and_progress_is_told(server: Server, tmp_path: Path) -> None:
    path, told = tmp_path / "set" / "file.gz", []
    assert fetch(remote(server), path, lambda done, size: told.append((done, size)))
    assert path.read_bytes() == CONTENT and not list(path.parent.glob("*.part"))
    assert told[0] == (0, len(CONTENT)) and told[-1] == (len(CONTENT), len(CONTENT)) and told == sorted(told)
    assert not fetch(remote(server), path)
    assert len(server.asked) == 1


def test_what_broke_off_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    path, told = tmp_path / "file.gz", []
    server.stops_after = 1000
    with pytest.raises(NotFetched, match=r"ended after 1,000 of .*; 1,000 bytes .* kept, so run the same command"):
        fetch(remote(server), path)
    assert not path.exists()
    server.stops_after = None
    assert fetch(remote(server), path, lambda done, size: told.append(done))
    assert path.read_bytes() == CONTENT
    assert server.asked == [("/file.gz", None), ("/file.gz", "bytes=1000-")] and told[0] == 1000


def test_a_server_that_cannot_go_on_starts_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.gz.part").write_bytes(b"of another version")
    server.ranges = False
    assert fetch(remote(server), tmp_path / "file.gz")
    assert (tmp_path / "file.gz").read_bytes() == CONTENT


def test_a_complete_part_is_only_checked_and_one_that_is_too_long_is_no_good(server: Server, tmp_path: Path) -> None:
    path, part = tmp_path / "file.gz", tmp_path / "file.gz.part"
    part.write_bytes(CONTENT)
    assert fetch(remote(server), path) and server.asked == []
    path.unlink()
    part.write_bytes(CONTENT + b"more")
    assert fetch(remote(server), path) and path.read_bytes() == CONTENT
    path.unlink()
    part.write_bytes(CONTENT)
    assert fetch(remote(server, size=None), path) and path.read_bytes() == CONTENT, "the server has no more: 416"


@pytest.mark.parametrize(("content", "about", "words"), [
    (b"<html>an error page</html>", {"size": None}, r"it is no .gz file; it was deleted"),
    (CONTENT[:-9] + b"\0" * 9, {}, r"its sha256 checksum is another; it was deleted"),
    (CONTENT[:-9] + b"\0" * 9, {"checksum": "md5:" + "0" * 32}, r"its md5 checksum is another"),
    (CONTENT + b"more", {}, r"offers \d,?\d* bytes and should offer .*another file, or a page"),
    (b"<html>an error page</html>", {}, r"offers 26 bytes and should offer"),
])  # fmt: skip
def test_what_is_not_the_file_is_deleted(
    content: bytes, about: dict[str, object], words: str, server: Server, tmp_path: Path
) -> None:
    server.content = content
    with pytest.raises(NotFetched, match=words):
        fetch(remote(server, **about), tmp_path / "file.gz")
    assert list(tmp_path.iterdir()) == []


def test_without_a_published_checksum_size_and_format_are_checked(server: Server, tmp_path: Path) -> None:
    assert fetch(remote(server, size=None, checksum="unknown"), tmp_path / "file.gz")
    server.content = b"PK\x03\x04 a zip"
    with pytest.raises(NotFetched, match=r"it is no .gz file"):
        fetch(remote(server, size=None, checksum="unknown"), tmp_path / "other" / "file.gz")


def test_a_file_that_was_there_is_checked_and_never_deleted(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(NotFetched, match=r"file.gz is not what .* should give: it has .*; delete it and"):
        fetch(remote(server), path)
    assert path.exists()


def test_no_server_and_no_file_say_so_and_how_to_go_on(server: Server, tmp_path: Path) -> None:
    with pytest.raises(NotFetched, match=r"could not be fetched \(Not Found\); 0 bytes .*put the file at .*gone.gz"):
        fetch(remote(server, "gone.gz"), tmp_path / "gone.gz")
    closed = Remote("a.zip", "http://127.0.0.1:9/a.zip")
    with pytest.raises(NotFetched, match=r"could not be fetched \(.*refused"):
        fetch(closed, tmp_path / "a.zip")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(NotFetched, match="could not be fetched"):
        fetch(remote(server), tmp_path / "file" / "file.gz")


# ---------- what is stated of the sets ----------


def test_every_origin_belongs_to_a_source_and_is_complete() -> None:
    assert set(ORIGINS) <= set(registry.names("data"))
    assert len(ORIGINS) >= 14
    for name, origin in ORIGINS.items():
        assert origin.licence, name
        assert origin.files or "{folder}" in origin.by_hand, name
        for file in origin.files:
            assert file.address.startswith(("http://", "https://")) and file.address.endswith(file.name), name
            kind, _, digest = file.checksum.partition(":")
            assert (kind, len(digest)) in {("sha256", 64), ("md5", 32), ("unknown", 0)}, name
            assert set(digest) <= set("0123456789abcdef") and Path(file.name).suffix in {*STARTS, ".csv"}, name


def test_every_format_begins_as_it_is_checked(tmp_path: Path) -> None:
    import bz2
    import zipfile

    from scipy.io import savemat

    (tmp_path / "a.bz2").write_bytes(bz2.compress(b"a"))
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a"))
    savemat(tmp_path / "a.mat", {"a": [1]})
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", "a")
    for suffix, start in STARTS.items():
        assert (tmp_path / f"a{suffix}").read_bytes().startswith(start)
