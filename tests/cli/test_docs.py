"""The how-to pages of the command line show commands, files and plugins that work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from calling import Call

from fedtailor.cli.options import read_file

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
NAMES = ("compare", "resume", "run-file", "plugin")


def blocks(page: str, language: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", NAMES)
def test_commands_and_options_exist(page: str, call: Call) -> None:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("fedtailor")]
    assert lines
    for line in lines:
        _, command, *rest = shlex.split(line)
        shown = call(command, "--help")
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


def test_the_plugins_method_keeps_the_laws(call: Call) -> None:
    from fedtailor import check_method, registry
    from fedtailor.cli.options import load_plugins

    Path("my_method.py").write_text(blocks("plugin", "python")[0], encoding="utf-8")
    load_plugins(["my_method.py"])
    check_method(registry.parse("method", "Cautious"))
