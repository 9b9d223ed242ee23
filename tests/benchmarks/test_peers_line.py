"""Two processes and the line between them."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from peers import line
from peers.line import Failed, Process

ADAPTER = """
import os, sys, time
from peers.line import Line

print("I am here")
os.write(1, b"not only by print\\n")
ends = Line()
for path, options in ends.bundles():
    done = 0
    for _ in ends.rounds(lambda: {"done": [done], **options}, lambda: {"software": "a clock"}):
        print("round")
        time.sleep(options["nap"])
        if options["nap"] > 1:
            raise ValueError("too long a nap")
        done += 1
"""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """An adapter that sleeps, and counts its rounds."""
    package = tmp_path / "peers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sleeper.py").write_text(ADAPTER)
    shutil.copy(line.__file__, package)
    monkeypatch.setattr(line, "FOLDER", tmp_path)
    with closing(Process(Path(sys.executable), "sleeper", tmp_path / "sleeper.log", True, tmp_path)) as process:
        assert process.hear() == {"here": True}
        yield process


def prepare(process: Process, nap: float) -> None:
    assert process.ask(do="prepare", bundle="anything", options={"nap": nap}) == {"ready": True}


def test_rounds_are_done_when_asked_for_and_timed(process: Process, tmp_path: Path) -> None:
    prepare(process, 0.02)
    time.sleep(0.1)  # waiting for an order is no part of a round
    began = time.perf_counter()
    answer = process.ask(do="rounds", count=3)
    assert 0.06 <= answer["passed"] <= time.perf_counter() - began
    assert answer["processor"] < 0.03, "sleeping takes no processor time"
    assert process.ask(do="tell") == {"software": "a clock"}
    process.ask(do="rounds", count=2)
    process.ask(do="save", path=str(tmp_path / "state.npz"))
    with np.load(tmp_path / "state.npz") as saved:
        assert saved["done"].tolist() == [5] and float(saved["nap"]) == 0.02


def test_another_preparation_starts_anew(process: Process, tmp_path: Path) -> None:
    prepare(process, 0.0)
    process.ask(do="rounds", count=4)
    prepare(process, 0.0)
    process.ask(do="rounds", count=1)
    process.ask(do="save", path=str(tmp_path / "state.npz"))
    with np.load(tmp_path / "state.npz") as saved:
        assert saved["done"].tolist() == [1]


def test_what_an_adapter_prints_goes_to_its_log(process: Process) -> None:
    prepare(process, 0.0)
    process.ask(do="rounds", count=1)
    process.close()
    assert process.process.returncode == 0
    assert sorted(process.log.read_text().splitlines()) == ["I am here", "not only by print", "round"]


def test_an_adapter_that_fails_says_why(process: Process) -> None:
    prepare(process, 1.1)
    with pytest.raises(Failed, match=r"sleeper ended: ValueError: too long a nap \(more in .*sleeper.log\)") as caught:
        process.ask(do="rounds", count=1)
    assert caught.value.adapter == "sleeper"
    process.process.wait(10)
    with pytest.raises(Failed, match="sleeper ended"):
        process.ask(do="tell")


def test_an_adapter_that_is_silent_is_not_waited_for_for_ever(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(process, 0.8)
    monkeypatch.setattr(line, "PATIENCE", 0.1)
    with pytest.raises(Failed, match=r"sleeper said nothing for 0\.1 s"):
        process.ask(do="rounds", count=1)


def test_one_core_means_one_core_and_thread(process: Process) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("needs an operating system that can pin a process")
    assert len(os.sched_getaffinity(process.process.pid)) == 1
