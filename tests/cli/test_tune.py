"""`fedtailor tune`: choose, then compare, and say what was chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import Call

pytestmark = pytest.mark.usefixtures("without_report")

TUNE = ("tune", "--method", "Ditto(lam=0.5)", "--method", "fedavg", "--rounds", 2, "--budget", 1, "--out", "mine")


def test_it_writes_what_it_chose_into_the_runs(toy: Call) -> None:
    ended = toy(*TUNE)
    assert ended.code == 0, ended.err
    found = json.loads(Path("mine/tuning.json").read_text(encoding="utf-8"))
    assert found["budget"] == 1 and set(found["methods"]) == {"Local", "Ditto(lam=0.5)", "FedAvg"}
    for label, folder in (("Ditto(lam=0.5)", "ditto-lam-0.5"), ("FedAvg", "fedavg"), ("Local", "local")):
        run = json.loads(Path(f"mine/{folder}/seed-0/run.json").read_text(encoding="utf-8"))
        chosen = found["methods"][label]["chosen"]
        assert run["tuning"] == found["methods"][label]
        assert run["method"] == chosen["method"] and run["spec"]["lr"] == chosen["lr"]
        assert f"{label}: chosen {chosen['method']}" in ended.err
    ditto = found["methods"]["Ditto(lam=0.5)"]
    assert ditto["asked"] == {"method": "Ditto(lam=0.5)", "lr": 0.1} and ditto["candidates"] == 12
    assert "validation rows" in ditto["chosen_by"] and all("score" in one for one in ditto["trials"])
    assert "Ditto" in ended.out

    again = toy(*TUNE)
    assert again.code == 0 and "chosen" not in again.err and "3 of 3 runs are complete already" in again.err
    other = toy(*TUNE[:-4], "--budget", 2, "--out", "mine")
    assert other.code == 2 and "another search" in other.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("tune",), "no method was given to tune"),
        (("tune", "--method", "fedavg", "--budget", "much"), "is not a number"),
        (("tune", "--method", "fedavg", "--budget", 0), "above 0"),
        (("tune", "--method", "fedavg", "--partition", "iid(clients=4, validation=0.0)"), "no validation rows"),
        (("tune", "--method", "fedbn"), "fedavg|norm"),
    ],
)
def test_wrong_input(toy: Call, arguments: tuple[object, ...], told: str) -> None:
    ended = toy(*arguments)
    assert ended.code == 2 and any(word in ended.err.lower() for word in told.split("|")), ended.err
    assert not Path("runs").exists()
