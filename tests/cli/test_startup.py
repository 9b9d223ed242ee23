"""What needs no PyTorch does not wait for it: help, lists, and the word on a wrong command, option or value."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from calling import FINDS_US

HEAVY = ("torch", "sklearn", "numpy", "matplotlib")
ASKED = {
    "--help": 0, "--version": 0, "run --help": 0, "list methods": 0, "list methods ditto": 0, "list data": 0,
    "list models": 0, "list partitions": 0, "list nothing": 2, "nothing": 2, "run --nothing": 2, "run --rounds none": 2,
    "reproduce list": 0,
    "explain --help": 0, "explain nowhere": 2,
    "compare --method fedbn --rounds 0": 2, "run --cohort 2.0": 2,
    "reproduce fedmcsa:table9": 2,
}  # fmt: skip
SCRIPT = """
import sys
from fedtailor.cli import main
code = main(sys.argv[1:])
print(code, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def loaded(script: str, *arguments: str) -> list[str]:
    """The last line that a fresh process writes: its exit code, and the packages it has imported."""
    told = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env={**os.environ, **FINDS_US}
    )
    assert told.returncode == 0, told.stderr
    return told.stderr.splitlines()[-1].split()


@pytest.mark.parametrize("asked", ASKED)
def test_answers_without_the_heavy_libraries(asked: str) -> None:
    code, *packages = loaded(SCRIPT, *asked.split())
    assert int(code) == ASKED[asked]
    assert "typer" in packages and not set(packages) & set(HEAVY)


def test_importing_the_package_imports_nothing_heavy() -> None:
    told = "import sys, fedtailor; from fedtailor import registry; print(0, *sys.modules, file=sys.stderr)"
    assert not set(loaded(told)) & set(HEAVY)
    every = "import sys, fedtailor; fedtailor.FedAvg; from fedtailor import *; print(FedBN(), load, file=sys.stderr)"
    assert loaded(every)[0] == "FedBN()"


def test_tables_and_pages_of_them_leave_matplotlib_alone() -> None:
    """Where nothing is drawn."""
    told = "import sys, fedtailor.papers.reproduction, fedtailor.papers.kept; print(0, *sys.modules, file=sys.stderr)"
    assert "matplotlib" not in loaded(told)


def test_a_page_of_counts_alone_is_written_without_matplotlib(tmp_path: Path) -> None:
    from fedtailor.papers import TABLES

    table = TABLES["pfedla:table2"]
    (tmp_path / "pfedla-table2").mkdir()
    rows = json.dumps([[count.row, count.column, 45_178] for count in table.counts])
    (tmp_path / "pfedla-table2" / "counts.json").write_text(rows, encoding="utf-8")
    code, *packages = loaded(SCRIPT, "reproduce", "report", str(tmp_path), "--out", str(tmp_path / "page.md"))
    assert code == "0" and "45,178" in (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "matplotlib" not in packages and not (tmp_path / "page").exists()


def test_setting_a_run_up_leaves_scikit_learn_alone() -> None:
    """Only what clusters, and the digits, need it."""
    told = "import sys, fedtailor.cli, fedtailor.contract, fedtailor.compare; print(0, *sys.modules, file=sys.stderr)"
    packages = loaded(told)
    assert "torch" in packages and not {"sklearn", "matplotlib"} & set(packages)
