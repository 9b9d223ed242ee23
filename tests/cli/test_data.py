"""`data show` and `data get`, against a server on this machine."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import struct
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from calling import Call

from fedtailor.data.download import ORIGINS, Remote

FILES = {"train-images-idx3-ubyte.gz": (20, 28, 28), "train-labels-idx1-ubyte.gz": (20,),
         "t10k-images-idx3-ubyte.gz": (6, 28, 28), "t10k-labels-idx1-ubyte.gz": (6,)}  # fmt: skip


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "home"


@pytest.fixture
def published(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """MNIST in small, on a server of this machine; the folder that it serves."""
    folder = tmp_path / "published"
    folder.mkdir()
    for name, shape in FILES.items():
        values = np.arange(np.prod(shape)) % (10 if len(shape) == 1 else 256)
        header = struct.pack(">HBB", 0, 8, len(shape)) + b"".join(struct.pack(">I", n) for n in shape)
        (folder / name).write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        remotes = tuple(
            Remote(name, f"http://127.0.0.1:{server.server_port}/{name}", (folder / name).stat().st_size,
                   "sha256:" + hashlib.sha256((folder / name).read_bytes()).hexdigest()) for name in FILES
        )  # fmt: skip
        monkeypatch.setitem(ORIGINS, "mnist", dataclasses.replace(ORIGINS["mnist"], files=remotes))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder
        server.shutdown()
        thread.join()


def test_show_tells_terms_addresses_sizes_and_what_to_do(call: Call, home: Path) -> None:
    told = call("data", "show", "mnist")
    assert told.code == 0
    for words in (
        "mnist(scale='range')", "licence  CC BY-SA 3.0", "train-images-idx3-ubyte.gz (not there)", "9,912,422 bytes",
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-labels-idx1-ubyte.gz", "mnist.npz (not there)",
        "mnist is not at hand", "`fedtailor data get mnist`",
    ):  # fmt: skip
        assert words in told.out, words


def test_get_fetches_checks_and_reads_and_show_tells_what_is_in_it(call: Call, home: Path, published: Path) -> None:
    got = call("data", "get", "mnist")
    assert got.code == 0, got.err
    assert {path.name for path in (home / "mnist").iterdir()} == set(FILES)
    assert "licence: CC BY-SA" in got.err and got.err.count("sha256 as published") == 4
    assert "rows     26 of 1 x 28 x 28 bytes" in got.out
    shown = call("data", "show", "mnist(scale='pixel')")
    assert "rows     26 of 1 x 28 x 28 numbers" in shown.out and "(at hand)" in shown.out
    assert "classes  10: 0, 1, 2" in shown.out and "model    cnn4, trained with rounds 100" in shown.out
    assert "split by pathological" in shown.out
    assert "was there" in call("data", "get", "MNIST").err


def test_a_wrong_file_and_a_server_that_is_gone_end_with_1(call: Call, home: Path, published: Path) -> None:
    (published / "t10k-images-idx3-ubyte.gz").write_bytes(b"something else")
    got = call("data", "get", "mnist")
    assert got.code == 1 and "t10k-images-idx3-ubyte.gz offers 14 bytes and should offer" in got.err
    assert "Traceback" not in got.err
    (published / "t10k-images-idx3-ubyte.gz").unlink()
    got = call("data", "get", "mnist")
    assert got.code == 1 and "could not be fetched" in got.err and "run the same command again" in got.err
    assert (home / "mnist" / "train-images-idx3-ubyte.gz").exists(), "what is right stays"


def test_what_has_to_be_fetched_by_hand_is_told_exactly(call: Call, home: Path) -> None:
    got = call("data", "get", "office_home")
    assert got.code == 1
    assert f"save OfficeHomeDataset_10072016.zip in {home / 'office_home'}" in got.err
    assert "https://www.hemanthdv.org/officeHomeDataset.html" in got.err
    assert "by hand  its authors ask to be told the use: follow" in call("data", "show", "office_home").out


def test_ones_own_data_are_shown_with_their_sites(call: Call, home: Path) -> None:
    Path("t.csv").write_text("site,x,y\nnorth,1,a\nsouth,2,b\n")
    shown = call("data", "show", "table('t.csv', label='y', site='site')")
    assert shown.code == 0
    assert "rows     2 of 1 numbers" in shown.out and "sites    north, south" in shown.out
    needs = call("data", "show", "table")
    assert needs.code == 0 and "Give path and label, as in: fedtailor data show" in needs.out
    Path("t.csv").write_text("site,x,y\nnorth,one,a\n")
    wrong = call("data", "show", "table('t.csv', label='y', site='site')")
    assert wrong.code == 2 and "t.csv, line 2: 'one' under 'x' is no number" in wrong.err


def test_wrong_names_and_doings_end_with_2(call: Call, home: Path) -> None:
    assert call("data", "fetch", "mnist").code == 2
    got = call("data", "show", "mnits")
    assert got.code == 2 and "did you mean mnist" in got.err
    got = call("data", "get", "digits")
    assert got.code == 0 and "needs no file" in got.err


def test_an_interrupted_download_says_how_to_go_on(
    call: Call, home: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedtailor.data.download.fetch", interrupted)
    got = call("data", "get", "mnist")
    assert got.code == 130 and "the same command goes on there" in got.err


def test_a_run_on_data_that_are_not_there_says_how_to_get_them(call: Call, home: Path) -> None:
    ended = call("run", "--data", "cifar10", "--rounds", 1)
    assert ended.code == 2 and "`fedtailor data get cifar10`" in ended.err
