"""The sentence on top must follow from the numbers below it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.report.outcomes import outcomes
from fedtailor.report.read import read
from fedtailor.report.verdict import headline, notices

Make = Callable[..., Path]


def level(*accuracies: float) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Rows in which the clients stand at these accuracies, repeated."""

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            n = len(row["test"]["count"])
            row["test"] = {**row["test"], "accuracy": [accuracies[i % len(accuracies)] for i in range(n)]}
        return rows

    return change


def said(*folders: Path) -> str:
    (comparison,) = read(folders)
    return headline(comparison, outcomes(comparison))


def test_a_clear_gain(make_run: Make) -> None:
    text = said(make_run(rows=level(0.8, 0.9, 0.5, 0.4)), make_run("Local()", rows=level(0.5)))  # one ties
    assert text.startswith("FedBN helps 6 of 12 sites: +15.0 points over training alone (95 % interval +")
    assert "the only method that shares, with 65.0 % accuracy on average over 12 sites" in text


def test_a_clear_loss(make_run: Make) -> None:
    text = said(make_run(rows=level(0.4)), make_run("FedAvg()", rows=level(0.3)), make_run("Local()", rows=level(0.5)))
    assert text.startswith(
        "Training alone is best. FedBN, the best of the 2 methods that share, stands at \N{MINUS SIGN}10.0"
    )
    assert text.endswith("helps 0 of 12 sites.")


def test_an_open_question(make_run: Make) -> None:
    text = said(make_run(rows=level(0.1, 0.92)), make_run("Local()", rows=level(0.5)))
    assert text.startswith("No method clearly beats training alone.") and "it helps 6 of 12 sites" in text


def test_lower_is_better(make_run: Make) -> None:
    def error(*levels: float) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
        def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            for row in level(*levels)(rows):
                for part in ("test", "validation"):
                    row[part] = {
                        "rmse": row["test"].get("accuracy", row["test"].get("rmse")),
                        "count": row[part]["count"],
                    }
            return rows

        return change

    options: dict[str, Any] = {"primary": "rmse", "higher_is_better": False}
    text = said(make_run(rows=error(0.2, 0.25), **options), make_run("Local()", rows=error(0.5), **options))
    assert text.startswith("FedBN helps 12 of 12 sites: \N{MINUS SIGN}0.275 rmse against training alone")
    text = said(make_run(rows=error(0.9), **options), make_run("Local()", rows=error(0.5), **options))
    assert text.startswith("Training alone is best.")


def test_pooling_is_not_sharing(make_run: Make) -> None:
    text = said(
        make_run("Centralised()", rows=level(0.9)), make_run(rows=level(0.8)), make_run("Local()", rows=level(0.5))
    )
    assert text.startswith("FedBN helps 12 of 12")
    assert "no method that shares was run" in said(make_run("Local()", rows=level(0.5)))


def test_without_local_or_rows(make_run: Make) -> None:
    assert "is not computed" in said(make_run())
    assert "No round has been tested yet" in said(make_run(rows=lambda rows: []))


def test_an_unfinished_result_says_so(make_run: Make) -> None:
    assert said(make_run(rows=lambda rows: rows[:5])).startswith("So far: ")


@pytest.mark.parametrize(
    ("status", "told"),
    [("interrupted", "was interrupted"), ("failed", "failed"), ("running", "is not finished")],
)
def test_what_a_reader_must_know_is_told(make_run: Make, make_comparison: Make, status: str, told: str) -> None:
    folder = make_comparison(["FedBN()", "FedAvg()", "Local()"], seeds=2)

    def trouble(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows[2]["stopped"] = [3]
        return rows[:7]

    cut = make_run("Ditto(lam=1.0)", seed=1, rows=trouble, status=status, fedtailor="0.0.9", spec={"epochs": 5})
    (folder / "local/seed-1/run.json").unlink()
    (comparison,) = read([folder, cut])
    text = " ".join(notices(comparison, outcomes(comparison)))
    assert f"Ditto, seed 1 {told}: it is on record up to round 7 of 12, and its numbers are of that state." in text
    assert "training became NaN and was stopped at inverted-3 (round 3)" in text
    assert "Local, seed 1 has not started" in text
    assert "Not all methods had the same number of local epochs: 1 for FedBN, FedAvg and Local; 5 for Ditto." in text
    assert "0.0.9 and 0.1.0" in text
    assert "FedBN was run with 2 seeds and Local with 1 of them" in text


def test_local_tuning_of_some_methods_is_told(make_run: Make) -> None:
    tuned = make_run("FedAvgFT()", finish_epochs=5)
    (comparison,) = read([make_run(), tuned, make_run("Local()"), make_run("Ditto(lam=1.0)", finish_epochs=5)])
    [text] = notices(comparison, outcomes(comparison))
    assert text == (
        "Not all methods had the same number of epochs of local tuning after the last round: none for FedBN and Local; "
        "5 for FedAvgFT and Ditto. That is part of some methods; --finish-epochs N gives all the same."
    )


def test_nothing_is_told_where_all_is_well(make_comparison: Make) -> None:
    (comparison,) = read([make_comparison(["FedBN()", "Local()", "Centralised()"])])
    assert notices(comparison, outcomes(comparison)) == []
