from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.registry import WrongInput
from fedtailor.report.read import read, read_run

Make = Callable[..., Path]


def edit(folder: Path, file: str, change: Callable[[dict[str, Any]], Any]) -> Path:
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))
    return folder


def test_a_run_is_read_as_written(make_run: Make) -> None:
    run = read_run(make_run("Ditto(lam=1.0)", seed=3, rounds=5))
    assert (run.label, run.method, run.family, run.seed) == ("Ditto", "Ditto(lam=1.0)", "Ditto", 3)
    assert (run.reached, run.wanted, run.complete, run.torn) == (5, 5, True, False)
    assert len(run.rounds) == 5 and len(run.rows) == 6


def test_a_half_written_last_line_is_left_out(make_run: Make) -> None:
    folder = make_run()
    lines = (folder / "rows.jsonl").read_text().splitlines()
    (folder / "rows.jsonl").write_text("\n".join(lines[:4]) + "\n" + lines[4][:37])
    run = read_run(folder)
    assert (run.torn, run.complete, run.reached, len(run.rows)) == (True, False, 4, 4)


def test_a_run_that_has_just_begun_has_no_rows(make_run: Make) -> None:
    folder = make_run()
    (folder / "rows.jsonl").unlink()
    run = read_run(folder)
    assert (run.rows, run.reached, run.complete) == ((), 0, False)


@pytest.mark.parametrize("line", ["not json", "[1, 2]", '{"no": "round"}', '{"round": 2, "test": {"accuracy": [1]}}'])
def test_a_broken_line_in_the_middle_is_an_error_that_names_it(make_run: Make, line: str) -> None:
    folder = make_run()
    lines = (folder / "rows.jsonl").read_text().splitlines()
    (folder / "rows.jsonl").write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
    with pytest.raises(WrongInput, match=r"line 3 of rows\.jsonl in .*FedBN-0"):
        read_run(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda info: info.update(format=2), "format 2 .*reads format 1"),
        (lambda info: info.pop("format"), "format None"),
        (lambda info: info.pop("primary"), "lacks primary"),
        (lambda info: info["data"].pop("clients"), "lacks clients"),
        (lambda info: info.update(spec=[]), "`data` and `spec` must be objects"),
    ],
)
def test_a_broken_description_is_an_error_that_names_the_folder(make_run: Make, change: Any, told: str) -> None:
    with pytest.raises(WrongInput, match=told) as caught:
        read([edit(make_run(), "run.json", change)])
    assert "FedBN-0" in str(caught.value)


def test_what_is_no_run_is_an_error(tmp_path: Path, make_run: Make) -> None:
    with pytest.raises(WrongInput, match="no folder was given"):
        read([])
    with pytest.raises(WrongInput, match=r"there is no folder .*nowhere"):
        read([tmp_path / "nowhere"])
    with pytest.raises(WrongInput, match=r"it has no run\.json"):
        read([tmp_path])
    folder = make_run()
    (folder / "run.json").write_text('{"format": 1, ')
    with pytest.raises(WrongInput, match="cannot be read"):
        read([folder])
    (folder / "run.json").write_text("[]")
    with pytest.raises(WrongInput, match="must hold one object"):
        read([folder])


def test_broken_comparisons_are_errors(make_comparison: Make) -> None:
    folder = make_comparison(["FedBN()"])
    for change, told in (
        (lambda plan: plan.pop("runs"), "lacks runs"),
        (lambda plan: plan.update(runs=["fedbn"]), "needs a `path`"),
        (lambda plan: plan.update(runs=[{"path": "none"}]), "no run of the comparison"),
        (lambda plan: plan.update(format=7), "format 7"),
    ):
        original = (folder / "comparison.json").read_text()
        with pytest.raises(WrongInput, match=told):
            read([edit(folder, "comparison.json", change)])
        (folder / "comparison.json").write_text(original)


def test_a_comparison_is_gathered_by_method(make_comparison: Make) -> None:
    (comparison,) = read([make_comparison(["FedBN()", "Ditto(lam=1.0)", "Local()"], seeds=3)])
    assert [entry.label for entry in comparison.entries] == ["FedBN", "Ditto(lam=1.0)", "Local"]
    assert [[run.seed for run in entry.runs] for entry in comparison.entries] == [[0, 1, 2]] * 3
    assert [entry.is_alone for entry in comparison.entries] == [False, False, True]
    assert len(comparison.commands) == 1 and comparison.commands[0].startswith("fedtailor compare")
    assert len(comparison.groups) == 6


def test_runs_that_have_not_started_are_told(make_comparison: Make) -> None:
    folder = make_comparison(["FedBN()", "Local()"], seeds=2)
    (folder / "local/seed-1/run.json").unlink()
    (comparison,) = read([folder])
    assert comparison.missing == ("Local, seed 1",)
    assert len(comparison.runs) == 3


def test_a_folder_given_twice_counts_once(make_run: Make) -> None:
    folder = make_run()
    (comparison,) = read([folder, folder])
    assert len(comparison.runs) == 1


def test_labels_differ_where_entries_do(make_run: Make) -> None:
    folders = [
        make_run("Ditto(lam=1.0)", name="a"),
        make_run("Ditto(lam=0.1)", name="b"),
        make_run("FedBN()", name="c", spec={"lr": 0.1}),
        make_run("FedBN()", name="d", spec={"lr": 0.2}),
        make_run("FedAvg()", name="e"),
        make_run("FedAvg()", name="f"),  # the same again, not a further seed
        make_run("FedAvg()", name="g", seed=1),
    ]
    (comparison,) = read(folders)
    seeds = {entry.label: [run.seed for run in entry.runs] for entry in comparison.entries}
    one, other = [label for label in seeds if label.startswith("FedAvg")]
    assert seeds.pop(one) == [0, 1] and one.endswith("/e]")
    assert seeds.pop(other) == [0] and other.endswith("/f]")
    assert seeds == {"Ditto(lam=1.0)": [0], "Ditto(lam=0.1)": [0], "FedBN, lr 0.1": [0], "FedBN, lr 0.2": [0]}


def test_other_data_are_another_comparison(make_run: Make) -> None:
    first, second = read([make_run(clients=12), make_run("Local()", clients=6)])
    assert (len(first.clients), len(second.clients)) == (12, 6)


def test_of_several_local_runs_the_nearest_is_the_reference(make_run: Make) -> None:
    folders = [
        make_run("Local()", name="l1", spec={"lr": 0.1}),
        make_run("Local()", name="l2", spec={"lr": 0.2}),
        make_run("FedBN()", name="b", spec={"lr": 0.2}),
    ]
    (comparison,) = read(folders)
    assert comparison.alone(comparison.entries[2])[0].spec["lr"] == 0.2
    assert comparison.alone(comparison.entries[0]) == {}


def test_a_tested_client_without_a_number_diverged_and_one_without_rows_has_none(make_run: Make) -> None:
    def hide(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            test = {name: list(column) for name, column in row["test"].items()}
            test["accuracy"][0] = test["accuracy"][1] = None
            test["count"][1] = 0
            row["test"] = test
        return rows

    accuracy = read_run(make_run(rows=hide)).rows[-1]["test"]["accuracy"]
    assert math.isnan(accuracy[0]) and accuracy[1] is None and accuracy[2] > 0


def test_stopped_clients_are_named_with_their_first_round(make_run: Make) -> None:
    def stop(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows[3]["stopped"], rows[5]["stopped"] = [1], [1, 0]
        return rows

    assert read_run(make_run(rows=stop)).stopped == {"plain-1": 4, "plain-0": 6}
    assert read_run(make_run("Centralised()", rows=lambda r: [*r[:-1], {**r[-1], "stopped": [0]}])).stopped == {
        "the pooled client": 12
    }
