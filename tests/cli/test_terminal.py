"""What is seen: help that teaches, plain lines without a terminal, a live line on one, a table and nothing else."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from calling import FINDS_US, Call

import fedtailor
from fedtailor.cli import app, main

COMMANDS = (
    "demo", "run", "compare", "resume", "tune", "report", "explain", "list", "inspect", "cite", "data", "reproduce",
    "serve", "join", "export", "predict",
)  # fmt: skip


def examples(text: str) -> list[str]:
    """The command lines in a help text."""
    return [line.strip(" │") for line in text.splitlines() if line.strip(" │").startswith("fedtailor ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(command: str, call: Call) -> None:
    ended = call(command, "--help")
    assert ended.code == 0
    shown = examples(ended.out)
    assert shown
    for example in shown:
        program, name, *rest = shlex.split(example)
        assert (program, name) == ("fedtailor", command)
        for option in (part for part in rest if part.startswith("--")):
            assert option in ended.out, "an example uses an option that is not there"
    assert max(map(len, ended.out.splitlines())) <= 100


def test_the_commands_are_those_of_the_documentation(call: Call) -> None:
    ended = call("--help")
    assert ended.code == 0
    assert {command.name for command in app.registered_commands} == set(COMMANDS)
    for command in COMMANDS:
        assert re.search(rf"^│ {command} ", ended.out, re.MULTILINE)
    assert call().out == ended.out, "without a command, the same"


def test_version(call: Call) -> None:
    ended = call("--version")
    assert (ended.code, ended.out) == (0, f"fedtailor {fedtailor.__version__}\n")


def test_plain_lines_without_a_terminal(toy: Call) -> None:
    ended = toy("run", "--method", "fedavg", "--rounds", 40, "--out", "mine")
    assert ended.code == 0
    assert "\x1b" not in ended.err + ended.out and "\r" not in ended.err + ended.out
    lines = [line for line in ended.err.splitlines() if re.match(r"FedAvg: round \d+ of 40, accuracy [\d.]+ %", line)]
    assert len(lines) == 10
    assert all("rounds/s" in line for line in lines)
    assert all(" left" in line for line in lines[:-1])
    before = ended.err.split("FedAvg: round")[0]
    for told in (
        "4 clients",
        "mlr",
        "tested: received",
        "40, each with all 4 clients",
        "optimiser steps",
        "memory",
        "mine",
    ):
        assert told in before, "said before it starts"
    assert "Mean" in ended.out
    assert "fedtailor report mine" in ended.err


def test_a_method_is_called_as_it_was_written(toy: Call, call: Call, plugin: Path) -> None:
    """FedMCSA is a composition of others, and nobody who wrote its name need know."""
    ended = toy("run", "--method", "FedMCSA(sigma=9.0)", "--rounds", 1, "--out", "one")
    assert ended.code == 0, ended.err
    assert "FedMCSA(sigma=9.0)" in ended.out
    went_on = call("resume", "one", "--rounds", 2, "--plugin", plugin)
    assert went_on.code == 0 and "FedMCSA(sigma=9.0): going on after round 1" in went_on.err
    both = toy("compare", "--method", "fedmcsa", "--method", "FedMCSA(sigma=9.0)", "--rounds", 1, "--out", "two")
    assert both.code == 0
    shown = call("report", "one", "two")
    for told in (ended, went_on, both, shown):
        assert "Proximal" not in told.out and "Proximal" not in told.err
    assert "FedMCSA(sigma=9.0)" in Path("two/report.html").read_text(encoding="utf-8")


def test_no_line_ends_in_spaces(toy: Call) -> None:
    """Where the output goes into a file, nothing fills lines up."""
    ended = toy("compare", "--method", "fedavg", "--rounds", 1, "--out", "mine")
    written = (ended.out + ended.err + toy("inspect").out).splitlines()
    assert len(written) > 20 and [line for line in written if line != line.rstrip()] == []


def test_why_the_last_number_is_another_than_that_of_the_last_round(toy: Call) -> None:
    ended = toy("run", "--method", "fedavg", "--rounds", 4, "--lr", 0.3, "--out", "mine")
    [round] = re.findall(r"round 4 of 4, accuracy ([\d.]+) %", ended.err)
    [final] = re.findall(r"done, accuracy ([\d.]+) % with the final models", ended.err)
    assert round != final
    assert "(a round's is of what a client received, before its training)" in ended.err
    alone = toy("run", "--method", "local", "--rounds", 1, "--out", "alone")
    assert "with the final models, 1 round in" in alone.err, "the same model, and nothing to explain"


def test_a_run_of_few_rounds_says_each(toy: Call) -> None:
    ended = toy("run", "--method", "fedavg", "--rounds", 3, "--out", "mine")
    assert ended.err.count("FedAvg: round") == 3


def test_quiet_leaves_the_table(toy: Call) -> None:
    ended = toy("run", "--rounds", 1, "--quiet")
    assert ended.code == 0
    assert ended.err == ""
    assert "Mean" in ended.out and "site by site" not in ended.out


def test_the_table_of_a_single_run_is_whole(toy: Call) -> None:
    ended = toy("run", "--rounds", 1, "--quiet")
    lines = [line for line in ended.out.splitlines() if line[0] in "┏┃┡│└"]
    assert len(lines) >= 5
    assert all(line.rstrip()[-1] in "┓┃┩│┘" for line in lines)


def test_the_table_fits(toy: Call) -> None:
    wide = ("--method", "fedavg", "--method", "Ditto(lam=0.5)")
    ended = toy("compare", *wide, "--seeds", 2, "--rounds", 1, "--out", "mine")
    assert ended.code == 0
    assert "mine/report.html" in ended.err
    assert Path("mine/report.html").is_file()
    assert max(map(len, ended.out.splitlines())) <= 100
    for told in ("Local", "FedAvg", "Ditto", "±", "Worse off", "site by site", "client-3"):
        assert told in ended.out


def test_a_live_line_on_a_terminal(plugin: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fedtailor", "run", "--plugin", str(plugin), "--data", "toy", "--rounds", "3"]
    environment = {**os.environ, **FINDS_US, "MOODY_SLEEPS": "0.1", "TERM": "xterm", "COLUMNS": "100"}
    command += ["--method", "Moody", "--runner", "sequential"]  # which shows each client
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            written += (part := os.read(ours, 65536))
        except OSError:  # the other end is closed
            break
        if not part:
            break
    assert process.wait(timeout=60) == 0
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode())
    assert "\x1b[?25l" in written.decode(), "the cursor is hidden while it runs"
    assert written.decode().rindex("\x1b[?25h") > written.decode().rindex("\x1b[?25l"), "and comes back"
    assert re.search(r"Moody .*2/3  accuracy [\d.]+ %, [\d.]+ rounds/s, [\d.]+ s left", text)
    assert "Moody: done, accuracy" in text


def test_an_interrupt_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedtailor.data.load", stop)
    assert main(["run"]) == 130
    assert "before anything was started" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_error_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedtailor.data.load", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["run"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: KeyError: 'surprise'; the traceback is in ")
    assert "Traceback" in Path(err.split(" is in ")[1].strip()).read_text(encoding="utf-8")
