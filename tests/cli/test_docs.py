"""The how-to pages of the command line show commands, files and plugins that work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from calling import FINDS_US, Call

from fedtailor.cli.options import read_file

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
NAMES = ("compare", "resume", "run-file", "plugin", "own-data", "explain", "federate", "reproduce", "tune")


def blocks(page: str, language: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", NAMES)
def test_commands_and_options_exist(page: str, call: Call) -> None:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("fedtailor")]
    assert lines
    for line in lines:
        _, *rest = shlex.split(line)
        command = [rest.pop(0) for _ in range(2 if rest[0] in ("federation", "state") else 1)]
        shown = call(*command, "--help")
        assert shown.code == 0, line
        for option in (part for part in rest if part.startswith("--")):
            assert f"{option} " in shown.out, line


def test_the_file_is_read(call: Call) -> None:
    [text] = blocks("run-file", "toml")
    Path("experiment.toml").write_text(text, encoding="utf-8")
    settings = read_file(Path("experiment.toml"))
    assert settings["cohort"] == 0.5 and settings["finish_epochs"] == 2 and len(settings["method"]) == 3


def test_the_plugins_run(call: Call) -> None:
    plugins = []
    for text in blocks("plugin", "python"):
        name = text.split("\n", 1)[0].removeprefix("# ")
        Path(name).write_text(text, encoding="utf-8")
        plugins += ["--plugin", name]
    assert plugins[1::2] == ["my_method.py", "my_model.py", "my_data.py"]
    ended = call("run", *plugins, "--data", "halves", "--method", "Cautious(part=0.2)", "--rounds", 2, "--out", "mine")
    assert ended.code == 0, ended.err
    assert "Cautious" in ended.out
    shape = ("--data", "digits", "--model", "wide(hidden=9)", "--method", "Cautious")
    ended = call("inspect", *plugins, *shape)
    assert ended.code == 0, ended.err
    assert "9 x 2352" in ended.out


def run_file(text: str) -> str:
    """Put a page's Python file where it says, and run it; gives what it printed."""
    name = text.split("\n", 1)[0].removeprefix("# ")
    Path(name).write_text(text, encoding="utf-8")
    ended = subprocess.run([sys.executable, name], capture_output=True, text=True, env={**os.environ, **FINDS_US})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.usefixtures("without_report")
def test_own_pictures_and_tables_to_the_letter(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one round for the page's twenty, and the models at the end."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd() / "cache"))
    make, keep = blocks("own-data", "python")
    run_file(make)
    lines = [line for block in blocks("own-data", "sh") for line in block.splitlines() if line.startswith("fedtailor")]
    shown = call(*shlex.split(lines[0])[1:])
    told = re.findall(r"```\n(pictures\(path.*?)```", (PAGES / "own-data.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown.out == told[0]
    for line in lines[1:]:
        _, command, *rest = shlex.split(line)
        if "patients.csv" in line:
            continue  # the other way to write the same
        ended = call(command, *rest, *(("--rounds", 1, "--quiet") if command in ("run", "compare") else ()))
        assert ended.code == 0, ended.err
        if command == "predict":
            assert ended.out.startswith("file,row,label,probability\n") and len(ended.out.splitlines()) > 3
    printed = run_file(keep)
    assert re.fullmatch(r"north: \d+\.\d% of 46 right\n", printed) and float(printed[7:].partition("%")[0]) > 70
    assert sorted(path.name for path in Path().glob("*.pt")) == ["coast.pt", "north.pt", "south.pt"]


def test_the_plugins_method_keeps_the_laws(call: Call) -> None:
    from fedtailor import check_method, registry
    from fedtailor.cli.options import load_plugins

    Path("my_method.py").write_text(blocks("plugin", "python")[0], encoding="utf-8")
    load_plugins(["my_method.py"])
    check_method(registry.parse("method", "Cautious"))
