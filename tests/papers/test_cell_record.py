"""What is read off a run: by hand, from rows that are written here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_table import small_cell

from fedtailor.papers.preset import Reading
from fedtailor.papers.record import Record, best_round, of_run, read_off, read_record
from fedtailor.registry import WrongInput

# two clients with 10 and 30 test rows
COUNT = [10, 30]


def row(number: int, accuracy: list[float] | None, **more: Any) -> dict[str, Any]:
    tested = None if accuracy is None else {"accuracy": accuracy, "precision": [0.5, 0.25], "count": COUNT}
    checked = accuracy and {"accuracy": [1 - (a or 1) for a in accuracy], "precision": [0.5, 0.5], "count": [5, 5]}
    return {
        "round": number, "cohort": [0], "trainers": [0, 1], "point": "trained", "test": tested, "validation": checked,
        "train_loss": [1.0, 1.0], "steps": [3, 4], "down": [100, 0], "up": [50, 0], "explain": {}, "stopped": [],
        "seconds": {"train": 2.0, "evaluate": 9.0, "total": 11.0}, **more,
    }  # fmt: skip


# means over clients 0.5, 0.6, 0.55; over rows 0.45, 0.5, 0.6
ROWS = [
    row(1, [0.6, 0.4]),
    row(2, None),
    row(3, [0.8, 0.4], explain={"clients": {"1": {"global/s1": 0.7, "global/s2": [0.1, 0.2], "other": 1.0}}}),
    row(4, [0.45, 0.65]),
    row(4, [0.5, 0.7], finish=True),
]
INFO = {
    "format": 1, "method": "FedAvg()", "spec": {"seed": 3}, "primary": "accuracy", "higher_is_better": True,
    "data": {"name": "d", "fingerprint": "f", "clients": ["left", "right"]}, "fedtailor": "0.1.0", "torch": "2",
    "numpy": "2", "python": "3", "point": "trained", "plan": {"runner": "stacked"}, "parameters": {"total": 25},
}  # fmt: skip


def folder(place: Path, rows: list[dict[str, Any]]) -> Path:
    place.mkdir()
    (place / "run.json").write_text(json.dumps(INFO), encoding="utf-8")
    (place / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return place


@pytest.fixture
def record(tmp_path: Path) -> Record:
    found = of_run(folder(tmp_path / "run", ROWS), replace(small_cell("FedAvg", "FedAvg()"), learned="global/"), 3)
    assert found is not None
    return found


def test_means_of_the_tested_rounds(record: Record) -> None:
    assert record.complete and record.rounds == (1, 3, 4)
    assert record.macro["accuracy"] == pytest.approx([0.5, 0.6, 0.55])
    assert record.micro["accuracy"] == pytest.approx([0.45, 0.5, 0.6])
    assert record.macro["precision"] == pytest.approx([0.375] * 3)
    assert record.validation["accuracy"] == pytest.approx([0.5, 0.4, 0.45])
    assert record.bytes == (150, 450, 600) and record.steps == (7, 21, 28) and record.seconds == (2.0, 6.0, 8.0)
    assert record.learned == {"s1": [[None, None], [None, 0.7], [None, None]]}


def test_readings(record: Record) -> None:
    assert read_off(record, Reading(over="micro", select="best")) == pytest.approx(60)
    assert best_round(record, Reading(over="micro", select="best")) == 4
    assert read_off(record, Reading(over="macro", select="best")) == pytest.approx(60)
    assert best_round(record, Reading(over="macro", select="best")) == 3
    assert read_off(record, Reading(select="best_on_validation")) == pytest.approx(50), "best on validation is round 1"
    assert read_off(record, Reading()) == pytest.approx(60), "the models that the clients end with"
    assert read_off(record, Reading(over="micro")) == pytest.approx(100 * (0.5 * 10 + 0.7 * 30) / 40)
    assert read_off(record, Reading(over="right")) == pytest.approx(70)
    assert read_off(record, Reading(metric="precision", select="best_on_validation")) == pytest.approx(37.5)
    assert best_round(record, Reading()) is None


def test_what_it_took(record: Record) -> None:
    def until(target: float, quantity: str) -> float | None:
        return read_off(record, Reading(select="when", target=target, quantity=quantity))  # type: ignore[arg-type]

    assert until(55, "rounds") == 3
    assert until(55, "minutes") == pytest.approx(0.1)
    # 450 bytes of two clients, there and back, in models of 25 numbers of four bytes
    assert until(55, "models") == pytest.approx(450 / (2 * 2 * 100))
    assert until(99, "rounds") is None


def test_what_was_learned(record: Record) -> None:
    last = replace(record, learned={"s1": [[None, 0.1], [0.2, 0.6]]})
    assert read_off(last, Reading(metric="learned/s1")) == pytest.approx(40)
    assert read_off(last, Reading(metric="learned/s1", over="right")) == pytest.approx(60)
    assert read_off(last, Reading(metric="learned/s9")) is None


def test_a_client_that_diverged_hides_in_no_mean(tmp_path: Path) -> None:
    rows = [row(1, [0.6, 0.4]), row(2, [0.6, None]), row(2, [0.6, None], finish=True)]  # type: ignore[list-item]
    found = of_run(folder(tmp_path / "run", rows), small_cell("FedAvg", "FedAvg()"), 0)
    assert found is not None and found.macro["accuracy"] == [0.5, None]
    assert read_off(found, Reading()) is None and read_off(found, Reading(over="micro")) is None
    assert read_off(found, Reading(select="best")) == pytest.approx(50)


def test_a_run_that_has_not_come_far(tmp_path: Path) -> None:
    assert of_run(tmp_path / "none", small_cell("FedAvg", "FedAvg()"), 0) is None
    assert of_run(folder(tmp_path / "begun", ROWS[1:2]), small_cell("FedAvg", "FedAvg()"), 0) is None
    found = of_run(folder(tmp_path / "half", ROWS[:2]), small_cell("FedAvg", "FedAvg()"), 0)
    assert found is not None and not found.complete and read_off(found, Reading()) is None


def test_writing_and_reading(record: Record, tmp_path: Path) -> None:
    record.write(tmp_path / "deep" / "record.json")
    assert read_record(tmp_path / "deep" / "record.json") == record


@pytest.mark.parametrize("damage", ["[]", "{", '{"format": 9}', '{"format": 1}', "null"])
def test_a_damaged_record(tmp_path: Path, damage: str) -> None:
    (tmp_path / "record.json").write_text(damage, encoding="utf-8")
    with pytest.raises(WrongInput, match="is no record"):
        read_record(tmp_path / "record.json")
