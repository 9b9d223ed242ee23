"""What is installed, kept and told."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import beside_peers
import pytest
from peers import environments, stand_in, table
from peers.environments import NotInstalled, python_of
from peers.line import Failed
from peers.measure import Differs
from peers.peak import FLOP
from peers.workloads import ONE, TESTED, WORKLOADS


def entrant(software: str, *passed: float, **facts: Any) -> dict[str, Any]:
    return {"software": software, "passed": list(passed), "processor": [one / 2 for one in passed], **facts}


def piece(mode: str = ONE, **entrants: dict[str, Any]) -> dict[str, Any]:
    ours = entrant("fedtailor 1", 0.1, 0.2, 0.9, trainers=10, plan={"runner": "stacked"})
    return {
        "workload": "W1 MLR", "mode": mode, "flop": 2e10, "data": "random numbers", "date": "2000-01-01", "seconds": 1,
        "apart": {"float64": {"ours": 2e-9}, "float32": {"ours": 3e-5}}, "entrants": {"ours": ours, **entrants},
    }  # fmt: skip


def cells(lines: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_ratio_is_that_of_the_median_rounds() -> None:
    """Medians 0.2 and 1.3: 6.5 times, above the aim of 6. The other's are 0.2 and 1.0: 5 times. By hand it takes half
    as long as ours. FLOP / 0.25 s is the peak; ours reaches 2e10 / 0.2 s = 100 GFLOP/s."""
    one = piece(
        fluke=entrant("fluke", 1.3, 1.2, 9.0), pfl=entrant("pfl", 1.0, 1.0, 0.1), plain=entrant("torch", 0.6),
        by_hand=entrant("torch", 0.1), peak=entrant("torch", 0.25),
    )  # fmt: skip
    heads, _, row = cells(table.speed([one], ONE))
    found = dict(zip(heads, row, strict=True))
    assert found["fluke"] == "6.50 (aim 6)" and found["pfl"] == "5.00 (aim 6, missed)" and found["plain loop"] == "3.00"
    assert found["processor time"] == "6.50, 5.00, 3.00, 0.50" and found["ours, ms"] == "200.0"
    assert found["by hand"] == "0.50 (aim 0.85, missed)"
    peak = FLOP / 0.25 / 1e9
    assert found["GFLOP/s of the peak"] == f"100 of {peak:.0f}, {100 / peak:.0%}" and found["repetitions"] == "3"


def test_software_that_is_missing_leaves_its_cell_empty() -> None:
    heads, _, row = cells(table.speed([piece(TESTED, pfl=entrant("pfl", 2.0))], TESTED))
    found = dict(zip(heads, row, strict=True))
    assert found["fluke"] == "" and found["pfl"] == "10.0 (aim 8)" and "plain loop" not in found
    assert table.speed([piece(TESTED)], ONE) == [], "there is nothing to tell of a mode that was not measured"


def test_a_methods_cost_is_that_of_a_client_that_trains() -> None:
    """FedMCSA trains 20 clients in 0.5 s and FedAvg 10 in 0.2 s: 0.025 / 0.02 = 1.25 times, and 1.1 is allowed."""
    plan = {"plan": {"runner": "stacked"}}
    one = piece(
        "methods", FedMCSA=entrant("fedtailor 1", 0.5, trainers=20, **plan),
        FedProx=entrant("fedtailor 1", 0.21, trainers=10, **plan),
    )  # fmt: skip
    _, _, *rows = cells(table.dearness([one]))
    assert rows == [
        ["W1 MLR", "FedProx", "1.05 (at most 1.1)", "1.05", "all clients in a stack"],
        ["W1 MLR", "FedMCSA", "1.25 (at most 1.1, missed)", "1.25", "all clients in a stack"],
    ]


def test_the_document_says_what_was_measured_and_what_was_not() -> None:
    about = {"date": "2001-02-03", "machine": "2 cores", "command": "python it", "load": 0.1}
    text = table.document([piece(plain=entrant("torch", 1), peak=entrant("torch", 1))], about, {"PFLlib": "not by pip"})
    for part in ("2001-02-03", "2 cores", "`python it`", "fedtailor 1", "PFLlib is missing: not by pip"):
        assert part in text, part
    assert "2e-09" in text and "3e-05" in text, "how far the results are apart"
    assert TESTED not in text and table.TITLES[ONE] in text


# ---------- the command ----------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Titles of the pieces measured; nothing is installed, and fluke is not to be had."""
    done: list[str] = []

    def measure(workload: Any, mode: str, entrants: Any, effort: Any, cache: Path) -> dict[str, Any]:
        done.append(f"{workload.name}, {mode}")
        if workload.name == "W1 DNN" and mode == ONE and any(one.adapter == "pfl" for one in entrants):
            raise Failed("pfl", "ended: for no reason")
        if workload.name == "W1 DNN" and mode == TESTED:
            raise Differs("ours does not compute what the plain loop does")
        facts = {"trainers": 10, "plan": {"runner": "stacked"}}
        others = {one.name: entrant(one.name, 1.0, **facts) for one in entrants if one.name != "ours"}
        return {**piece(mode, **others), "workload": workload.name}

    def python(name: str, cache: Path) -> Path:
        if name == "fluke":
            raise NotInstalled("fluke-fl==0.8.1 cannot be installed: no network")
        return Path(sys.executable)

    monkeypatch.setattr(beside_peers, "measured", measure)
    monkeypatch.setattr(beside_peers, "python_of", python)
    monkeypatch.delenv("FEDTAILOR_DATA", raising=False)
    return done


def test_what_was_measured_is_kept(measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["W1 MLR", "--cache", str(tmp_path)]
    titles = [f"W1 MLR, {mode}" for mode in (*WORKLOADS[0].modes, "methods")]
    assert beside_peers.main(arguments) == 0
    assert measured == titles
    said = capsys.readouterr()
    assert "cannot be installed: no network. Going on without it" in said.err and "fluke is missing" in said.out
    assert beside_peers.main(arguments) == 0
    assert measured == titles, "nothing is measured twice"
    assert capsys.readouterr().out == said.out
    beside_peers.main([*arguments, "--again"])
    assert measured == [*titles, *titles]
    found = json.loads(next(tmp_path.glob("results/*/beside_peers.json")).read_text())
    assert [one["mode"] for one in found["pieces"]] == [*WORKLOADS[0].modes, "methods"]


def test_what_fails_does_not_end_the_rest(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert beside_peers.main(["W1 DNN", "--cache", str(tmp_path)]) == 1
    assert measured == [f"W1 DNN, {mode}" for mode in (ONE, *WORKLOADS[1].modes, "methods")]
    said = capsys.readouterr().err
    assert "pfl ended: for no reason. Going on without it" in said and "not measured: ours does not compute" in said
    found = json.loads(next(tmp_path.glob("results/*/beside_peers.json")).read_text())
    assert [one["mode"] for one in found["pieces"]] == [ONE, WORKLOADS[1].modes[1], "methods"]
    assert set(found["pieces"][0]["entrants"]) == {"ours", "plain", "by_hand", "peak"}
    assert set(found["pieces"][1]["entrants"]) == {"ours", "plain", "pfl", "peak"}


def test_what_was_measured_of_other_code_or_data_is_not_kept(
    measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["W1 MLR, one", "--cache", str(tmp_path)]
    beside_peers.main(arguments)
    monkeypatch.setattr(beside_peers, "origin", lambda workload: "Fashion-MNIST")
    beside_peers.main(arguments)
    monkeypatch.setattr(beside_peers, "origin", lambda workload: "random numbers")
    monkeypatch.setattr(beside_peers, "code", lambda: "another")
    beside_peers.main(arguments)
    assert len(measured) == 3


def test_the_code_is_known_by_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "inner" / "one.py"
    file.parent.mkdir()
    file.write_text("a = 1")
    monkeypatch.setattr(beside_peers.fedtailor, "__file__", str(tmp_path / "__init__.py"))
    before = beside_peers.code()
    assert beside_peers.code() == before
    file.write_text("a = 2")
    assert beside_peers.code() != before


def test_a_piece_that_does_not_exist_is_refused(measured: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        beside_peers.main(["W9"])
    assert caught.value.code == 2 and "W5 ResNet-18, one core" in capsys.readouterr().err


# ---------- environments ----------


def test_software_that_pip_cannot_find_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(NotInstalled, match=r"pfl==0\.6\.0 cannot be installed: ERROR: No matching distribution"):
        python_of("pfl", tmp_path)
    assert not (tmp_path / "environments" / "pfl" / "installed").exists()


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], peer: environments.Peer) -> None:
        commands.append(command)
        (tmp_path / "environments" / "fluke").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(environments, "run", run)
    first = python_of("fluke", tmp_path)
    assert len(commands) == 3 and commands[-1][-2:] == ["--no-deps", environments.PEERS["fluke"].package]
    assert python_of("fluke", tmp_path) == first and len(commands) == 3
    assert python_of("ours", tmp_path) == Path(sys.executable) and len(commands) == 3


@pytest.fixture
def path() -> Iterator[None]:
    """The places where modules are looked for, put back."""
    finders, modules = list(sys.meta_path), set(sys.modules)
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.usefixtures("path")
def test_empty_modules_stand_in_for_what_is_not_installed() -> None:
    sys.modules.pop("colorsys", None)
    stand_in.stand_in("nowhere", "colorsys")
    deep = importlib.import_module("nowhere.at.all")

    class Child(deep.Parent):  # type: ignore[name-defined, misc]
        pass

    assert Child().__class__.__mro__[1].__name__ == "Parent" and deep.style.use()
    assert importlib.import_module("colorsys").rgb_to_hsv(0, 0, 1)[2] == 1, "what is installed is not replaced"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("somewhere_else")
