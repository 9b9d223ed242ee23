"""What ends a run too early: Ctrl-C, an error in the user's method, divergence, a damaged checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from calling import FINDS_US, Call, untimed

pytestmark = pytest.mark.usefixtures("without_report")

MOODY = ("--method", "Moody", "--rounds", 4, "--runner", "sequential")  # as conftest has it in this process


def test_ctrl_c_says_how_to_resume_and_resuming_completes(toy: Call, call: Call, plugin: Path) -> None:
    """A process of its own, sent the signal that Ctrl-C sends."""
    command = [sys.executable, "-m", "fedtailor", "run", "--plugin", plugin, "--data", "toy", *MOODY, "--out", "mine"]
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **FINDS_US, "MOODY_SLEEPS": "0.2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # also where tests run detached
    )
    rows = Path("mine/rows.jsonl")
    deadline = time.monotonic() + 60
    while not (rows.exists() and rows.read_text(encoding="utf-8")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err and "error:" not in err
    resume = f"fedtailor resume mine --plugin={plugin}"
    assert resume in err
    assert 1 <= len(untimed(Path("mine"))) < 4

    ended = call(*resume.split()[1:])
    assert ended.code == 0, ended.err
    assert "going on after round" in ended.err
    assert toy("run", *MOODY, "--out", "uninterrupted").code == 0
    assert untimed(Path("mine")) == untimed(Path("uninterrupted"))


def test_ctrl_c_in_a_comparison(toy: Call, call: Call, plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOODY_STOPS", "3")
    ended = toy("compare", *MOODY, "--method", "fedavg", "--seeds", 2, "--out", "mine")
    assert ended.code == 130
    assert "error:" not in ended.err
    assert f"fedtailor resume mine --plugin={plugin}" in ended.err
    assert untimed(Path("mine/local/seed-0"))[-1].get("finish"), "what was before it is complete"
    assert len(untimed(Path("mine/moody/seed-0"))) == 2
    assert not Path("mine/fedavg/seed-0").exists()

    monkeypatch.delenv("MOODY_STOPS")
    ended = call("resume", "mine", "--plugin", plugin)
    assert ended.code == 0, ended.err
    assert "1 of 6 runs are complete already" in ended.err
    for label in ("local", "moody", "fedavg"):
        for seed in (0, 1):
            assert untimed(Path(f"mine/{label}/seed-{seed}"))[-1].get("finish")
    assert toy("run", *MOODY, "--out", "whole").code == 0
    assert untimed(Path("mine/moody/seed-0")) == untimed(Path("whole"))


def test_the_same_command_goes_on_with_a_comparison(toy: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("compare", *MOODY, "--out", "mine")
    monkeypatch.setenv("MOODY_STOPS", "2")
    assert toy(*command).code == 130
    monkeypatch.delenv("MOODY_STOPS")
    assert toy(*command).code == 0
    before = untimed(Path("mine/moody/seed-0"))
    ended = toy(*command)
    assert ended.code == 0
    assert "2 of 2 runs are complete already" in ended.err
    assert untimed(Path("mine/moody/seed-0")) == before


def test_a_complete_run_is_said_to_be_and_can_be_extended(toy: Call, call: Call, plugin: Path) -> None:
    assert toy("run", "--rounds", 2, "--out", "mine").code == 0
    ended = call("resume", "mine", "--plugin", plugin)
    assert ended.code == 0
    assert "complete" in ended.err and "--rounds" in ended.err
    assert call("resume", "mine", "--plugin", plugin, "--rounds", 4).code == 0
    assert toy("run", "--rounds", 4, "--out", "long").code == 0
    assert untimed(Path("mine")) == untimed(Path("long"))


def test_a_comparison_can_be_extended(toy: Call, call: Call, plugin: Path) -> None:
    assert toy("compare", "--method", "fedavg", "--rounds", 1, "--out", "mine").code == 0
    ended = call("resume", "mine", "--plugin", plugin)
    assert ended.code == 0
    assert "complete" in ended.err
    assert call("resume", "mine", "--plugin", plugin, "--rounds", 3).code == 0
    for method in ("fedavg", "local"):
        assert toy("run", "--method", method, "--rounds", 3, "--out", method).code == 0
        assert untimed(Path(f"mine/{method}/seed-0")) == untimed(Path(method))


def test_an_error_of_the_users_method(toy: Call, call: Call, plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOODY_FAILS", "3")
    ended = toy("run", *MOODY, "--out", "mine")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    for told in ("ZeroDivisionError: no such luck", "toy.py", "in fit", "round 3", "client 0", "Moody()"):
        assert told in errors[0]
    assert "ZeroDivisionError" in Path("mine/traceback.txt").read_text(encoding="utf-8")
    assert len(untimed(Path("mine"))) == 2, "what was reached is kept"
    monkeypatch.delenv("MOODY_FAILS")
    assert call("resume", "mine", "--plugin", plugin).code == 0


def test_divergence(toy: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOODY_EXPLODES", "2")
    ended = toy("run", *MOODY, "--out", "mine")
    assert ended.code == 1
    assert "diverged" in ended.err and "on_nan=drop" in ended.err and "Traceback" not in ended.err
    assert len(untimed(Path("mine"))) == 1


def test_one_that_diverges_does_not_stop_the_others(toy: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOODY_EXPLODES", "2")
    ended = toy("compare", *MOODY, "--method", "fedavg", "--out", "mine")
    assert ended.code == 1
    assert "error: Moody, seed 0: training diverged" in ended.err
    assert untimed(Path("mine/fedavg/seed-0"))[-1].get("finish")
    assert "FedAvg" in ended.out and "Moody" in ended.out


@pytest.mark.parametrize("damage", ["cut short", "a bit changed"])
def test_a_damaged_checkpoint_is_passed_over(
    damage: str, toy: Call, call: Call, plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ("run", *MOODY, "--checkpoint-every", 1)
    assert toy(*whole, "--out", "whole").code == 0
    monkeypatch.setenv("MOODY_STOPS", "4")
    assert toy(*whole, "--out", "mine").code == 130
    monkeypatch.delenv("MOODY_STOPS")
    _, last = sorted(Path("mine/checkpoints").iterdir())
    _spoil(last, damage)
    ended = call("resume", "mine", "--plugin", plugin)
    assert ended.code == 0, ended.err
    assert f"note: the checkpoint {last.name} is damaged" in ended.err
    assert "going on after round 2" in ended.err
    assert untimed(Path("mine")) == untimed(Path("whole"))


def test_without_a_checkpoint_yet_the_run_starts_again(
    toy: Call, call: Call, plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash before the first one; what was made again is the same."""
    assert toy("run", *MOODY, "--out", "whole").code == 0
    monkeypatch.setenv("MOODY_STOPS", "4")
    assert toy("run", *MOODY, "--out", "mine").code == 130
    monkeypatch.delenv("MOODY_STOPS")
    for checkpoint in Path("mine/checkpoints").iterdir():
        checkpoint.unlink()
    ended = call("resume", "mine", "--plugin", plugin)
    assert ended.code == 0, ended.err
    assert "starts again from round 1" in ended.err
    assert untimed(Path("mine")) == untimed(Path("whole"))


def _spoil(path: Path, damage: str) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut short" else data[:-1] + bytes([data[-1] ^ 1]))
