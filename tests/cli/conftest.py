"""The command line called in this process, in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import PLUGIN, Call, Ended, forget_plugins

from fedtailor.cli import main


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test's plugins register is forgotten after it, so that no other test meets it."""
    forget_plugins(monkeypatch)


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plugin") / "toy.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """`call("run", "--rounds", 2)` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        return Ended(code, written.out, written.err)

    return call


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons write no page: its figures take longer than all runs of the toy data."""
    monkeypatch.setattr("fedtailor.report.html.write_report", lambda folders, out: Path(out) / "report.html")


@pytest.fixture
def toy(call: Call, plugin: Path) -> Call:
    """`toy("run", "--rounds", 2)` on the toy data."""
    return lambda command, *arguments: call(command, "--plugin", plugin, "--data", "toy", *arguments)
