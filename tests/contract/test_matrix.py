"""Every method from the command line on both federations of the package, and the page that says so.

`PYTHONPATH=tests python tests/contract/test_matrix.py` prints the table of docs/methods/matrix.md.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from small import method_named

from fedtailor import data, registry
from fedtailor.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "matrix.md"
DATA = {"digits": "lenet_bn", "synthetic": "mlr"}  # and the model that each states
IMAGES = "digits"
SMALL = ("--rounds", "2", "--steps", "1", "--batch", "0", "--cohort", "2", "--eval-every", "2", "--quiet")


@dataclass(frozen=True)
class Ended:
    """How a command ended, what it wrote, and the rows of the run."""

    code: int
    out: str
    err: str
    rows: list[dict]


def run(folder: Path, method: str, source: str, model: str | None = None) -> Ended:
    out, err = io.StringIO(), io.StringIO()
    place = folder / f"{source}-{model}"
    chosen = () if model is None else ("--model", model)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["run", "--data", source, "--method", method, *chosen, *SMALL, "--out", str(place)])
    rows = place / "rows.jsonl"
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.is_file() else []
    return Ended(code, out.getvalue(), err.getvalue(), [json.loads(line) for line in lines])


def has_run(ended: Ended) -> bool:
    """Whether two rounds were run and every client's final model tested, and the table shows a mean; or else a refusal
    in one line, before anything was run."""
    if ended.code == 0:
        accuracy = ended.rows[-1]["test"]["accuracy"]
        assert [row["round"] for row in ended.rows] == [1, 2, 2] and ended.rows[-1]["finish"]
        assert all(0 <= value <= 1 for value in accuracy)
        assert re.search(rf"│ +{100 * sum(accuracy) / len(accuracy):.1f} +│", ended.out), ended.out
        return True
    assert ended.code == 2, ended.err
    refusals = [line for line in ended.err.splitlines() if not line.startswith("note: ")]
    assert len(refusals) == 1 and refusals[0].startswith("error: ") and not ended.out and not ended.rows, ended.err
    return False


def outcome(folder: Path, name: str, source: str) -> str:
    """What the page says of a method and a federation."""
    method = repr(method_named(name))
    ended = run(folder, method, source)
    if has_run(ended):
        return "yes"
    named = re.search(r"such as (\w+)", ended.err)
    assert named and named.group(1) in registry.names("model"), ended.err
    model = named.group(1)
    other = run(folder, method, source, model)
    if has_run(other):
        return f"with `{model}`"
    assert re.search(rf"{model} takes images .* use \w+", other.err), other.err
    assert has_run(run(folder, method, IMAGES, model))
    return f"no: `{model}` takes images"


def row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the rows takes longer than most of these runs."""
    monkeypatch.setattr(data, "load", load)


load = functools.cache(data.load)


@pytest.mark.parametrize("source", DATA)
@pytest.mark.parametrize("name", registry.names("method"))
def test_runs_or_names_a_model_that_does_and_the_page_says_so(name: str, source: str, tmp_path: Path) -> None:
    assert load(source).model == DATA[source]
    assert rows_of_page()[name][list(DATA).index(source)] == outcome(tmp_path, name, source)


def test_the_page_has_every_method_and_no_other() -> None:
    assert list(rows_of_page()) == registry.names("method")


def test_the_index_tells_of_every_method_what_it_says_of_itself() -> None:
    said = {
        name: cells
        for names, cells in rows_of_page(PAGE.with_name("index.md")).items()
        for name in names.split("]")[0].strip("[").split(", ")
    }
    assert sorted(said, key=str.lower) == registry.names("method")
    for name, (_, _, _, sees, tested) in said.items():
        method = method_named(name)  # a plug-in around FedAvg
        if sees != "as the inner method":
            assert sees.startswith({"Local": "nothing", "Centralised": "everything"}.get(name, method.sees)), name
        if tested != "as the inner method":
            assert tested.startswith(method.point), name


def rows_of_page(page: Path = PAGE) -> dict[str, list[str]]:
    """The cells of the first table by method."""
    table = re.search(r"^\|---.*\n((?:\|.*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert table
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.group(1).splitlines()]
    return {first: rest for first, *rest in cells}


if __name__ == "__main__":
    data.load = load
    print(row("method", [f"`{source}` (`{model}`)" for source, model in DATA.items()]))
    print("|---" * (1 + len(DATA)) + "|")
    for name in registry.names("method"):
        with tempfile.TemporaryDirectory() as folder:
            print(row(name, [outcome(Path(folder), name, source) for source in DATA]), flush=True)
