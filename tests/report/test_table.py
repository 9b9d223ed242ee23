"""The table against a recomputation from the files, in plain Python."""

from __future__ import annotations

import io
import json
import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table as RichTable

from fedtailor.registry import WrongInput
from fedtailor.report.read import read
from fedtailor.report.table import Table, as_html, as_markdown, as_rich, tabulate

Make = Callable[..., Path]


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def last(folder: Path) -> dict[str, Any]:
    return rows_in(folder)[-1]["test"]


def line(table: Table, label: str) -> Any:
    return next(row for row in table.rows if row["method"].text == label)


def printed(table: RichTable, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_every_number_is_that_of_the_files(make_comparison: Make) -> None:
    folder = make_comparison(["FedBN()", "FedAvg()", "Local()"], seeds=3)
    (comparison,) = read([folder])
    table = tabulate(comparison)
    for label in ("FedBN", "FedAvg", "Local"):
        row = line(table, label)
        finals = [last(folder / label.lower() / f"seed-{seed}") for seed in range(3)]
        macros = [statistics.fmean(final["accuracy"]) for final in finals]
        micros = [
            sum(a * c for a, c in zip(final["accuracy"], final["count"], strict=True)) / sum(final["count"])
            for final in finals
        ]
        tenths = [statistics.fmean(sorted(final["accuracy"])[:2]) for final in finals]  # 12 clients: 1.2, so two
        assert row["macro"].value == pytest.approx(statistics.fmean(macros))
        assert row["macro"].spread == pytest.approx(statistics.stdev(macros))
        assert row["macro"].text == f"{100 * statistics.fmean(macros):.1f} ± {100 * statistics.stdev(macros):.1f}"
        assert row["micro"].value == pytest.approx(statistics.fmean(micros))
        assert row["worst"].value == pytest.approx(statistics.fmean(min(final["accuracy"]) for final in finals))
        assert row["tenth"].value == pytest.approx(statistics.fmean(tenths))
        assert row["std"].value == pytest.approx(statistics.fmean(statistics.pstdev(f["accuracy"]) for f in finals))
        assert row["seconds"].value == pytest.approx(13 * 0.5)
        assert row["seeds"].text == "3"


def test_the_difference_to_local_is_paired_by_client_and_seed(make_comparison: Make) -> None:
    folder = make_comparison(["FedAvg()", "Local()"], seeds=3)
    (comparison,) = read([folder])
    row = line(tabulate(comparison), "FedAvg")
    pairs = [
        list(
            zip(
                last(folder / f"fedavg/seed-{s}")["accuracy"], last(folder / f"local/seed-{s}")["accuracy"], strict=True
            )
        )
        for s in range(3)
    ]
    differences = [statistics.fmean(pairs[s][i][0] - pairs[s][i][1] for s in range(3)) for i in range(12)]
    worse = statistics.fmean(sum(a < b for a, b in seed) for seed in pairs)
    assert worse > 0, "the fixture should hold a client that is worse off"
    assert row["gain"].value == pytest.approx(statistics.fmean(differences))
    assert row["worse"].value == pytest.approx(worse)
    assert row["worse"].text == f"{worse:.1f} of 12".replace(".0", "")
    draw = random.Random(5)
    means = sorted(statistics.fmean(draw.choices(differences, k=12)) for _ in range(4000))
    width = means[3900] - means[100]
    assert row["gain"].interval[0] == pytest.approx(means[100], abs=0.1 * width)
    assert row["gain"].interval[1] == pytest.approx(means[3900], abs=0.1 * width)
    assert line(tabulate(comparison), "Local")["gain"].text == "reference"


def test_without_local_nothing_is_made_up(make_comparison: Make) -> None:
    (comparison,) = read([make_comparison(["FedBN()", "FedAvg()"])])
    for row in tabulate(comparison).rows:
        assert (row["gain"].text, row["worse"].text) == ("not computed", "not computed")
        assert (row["gain"].value, row["worse"].value) == (None, None)


def test_local_under_other_seeds_is_no_reference(make_run: Make) -> None:
    (comparison,) = read([make_run("FedBN()", seed=1), make_run("Local()", seed=2)])
    assert line(tabulate(comparison), "FedBN")["gain"].text == "not computed"


def dip(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Best on test in round 5, best on validation in round 8."""
    for row in rows:
        flat = {5: (0.9, 0.5), 8: (0.8, 0.95)}.get(0 if row.get("finish") else row["round"], (0.6, 0.6))
        for part, level in zip(("test", "validation"), flat, strict=True):
            row[part] = {**row[part], "accuracy": [level] * len(row[part]["count"])}
    return rows


@pytest.mark.parametrize(
    ("how", "value", "point"),
    [
        ("last", 0.6, "received, end of run"),
        ("best", 0.9, "received, round 5 (best)"),
        ("best_on_validation", 0.8, "received, round 8 (best on validation)"),
    ],
)
def test_the_round_is_the_selected_one_and_is_stated(make_run: Make, how: Any, value: float, point: str) -> None:
    (comparison,) = read([make_run(rows=dip)])
    (row,) = tabulate(comparison, how).rows
    assert row["macro"].value == pytest.approx(value)
    assert row["point"].text == point


def test_best_on_validation_needs_validation_rows(make_run: Make) -> None:
    (comparison,) = read([make_run(rows=lambda rows: [{**row, "validation": None} for row in rows])])
    with pytest.raises(WrongInput, match="validation"):
        tabulate(comparison, "best_on_validation")


def test_every_row_states_its_point_and_the_caption_explains_it(make_comparison: Make) -> None:
    (comparison,) = read([make_comparison(["FedBN()", "Local()"])])
    table = tabulate(comparison)
    assert line(table, "FedBN")["point"].text.startswith("received, ")
    assert line(table, "Local")["point"].text.startswith("trained, ")
    for words in ("test rows", "(macro)", "received = ", "trained = ", "different points", "95 %"):
        assert words in table.caption
    for text in (as_markdown(table), as_html(table)):
        assert "received, end of run" in text and "trained, end of run" in text and table.caption.split(";")[1] in text


def test_a_run_cut_short_does_not_enter_the_mean_of_finished_ones(make_run: Make) -> None:
    whole, cut = make_run(seed=0), make_run(seed=1, rows=lambda rows: rows[:4])
    (comparison,) = read([whole, cut])
    (row,) = tabulate(comparison).rows
    assert row["seeds"].text == "1 of 2"
    assert row["macro"].value == pytest.approx(statistics.fmean(last(whole)["accuracy"]))
    (comparison,) = read([cut])
    (row,) = tabulate(comparison).rows
    assert row["macro"].value == pytest.approx(statistics.fmean(last(cut)["accuracy"]))
    assert row["point"].text == "received, round 4"


def test_a_run_without_rows_is_present_without_numbers(make_comparison: Make) -> None:
    folder = make_comparison(["FedBN()", "FedAvg()"], seeds=1)
    (folder / "fedavg/seed-0/rows.jsonl").write_text("")
    (comparison,) = read([folder])
    row = line(tabulate(comparison), "FedAvg")
    assert (row["macro"].text, row["point"].text, row["seconds"].text) == ("no result", "not tested yet", "not yet")


def test_traffic_is_per_exchange_and_leaves_out_the_last_delivery(make_run: Make) -> None:
    def partial(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows[:-1]:
            row["cohort"] = [0, 1, 2]
            row["down"] = [2000] * 3 + [0] * 9
            row["up"] = [500] * 3 + [0] * 9
        rows[-1]["down"] = [10**9] * 12
        return rows

    (comparison,) = read([make_run(rows=partial)])
    (row,) = tabulate(comparison).rows
    assert row["traffic"].text == "2 kB / 500 B"
    (comparison,) = read([make_run("Local()")])
    assert tabulate(comparison).rows[0]["traffic"].text == "none"
    (comparison,) = read([make_run("Centralised()")])
    assert tabulate(comparison).rows[0]["traffic"].text == "rows pooled"


def test_best_comes_first_and_worse_off_turns_where_lower_is_better(make_run: Make) -> None:
    def error(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            for part in ("test", "validation"):
                tested = row[part]
                row[part] = {"rmse": [2 - a for a in tested["accuracy"]], "count": tested["count"]}
        return rows

    methods = ("FedAvg()", "FedBN()", "Local()")
    options: dict[str, Any] = {"rows": error, "primary": "rmse", "higher_is_better": False}
    (comparison,) = read([make_run(method, **options) for method in methods])
    table = tabulate(comparison)
    assert [row["method"].text for row in table.rows] == ["FedBN", "FedAvg", "Local"]
    assert [row.best for row in table.rows] == [True, False, False]
    gain = line(table, "FedBN")["gain"]
    assert gain.value < 0 and gain.text.startswith("\N{MINUS SIGN}")
    assert line(table, "FedBN")["worse"].text == "0 of 12"
    assert "lower is better" in table.caption


def test_a_diverged_client_hides_behind_no_mean(make_run: Make) -> None:
    def diverge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            row["test"] = {**row["test"], "accuracy": [None, *row["test"]["accuracy"][1:]]}
        return rows

    (comparison,) = read([make_run(rows=diverge), make_run("Local()")])
    table = tabulate(comparison)
    row = line(table, "FedBN")
    assert math.isnan(row["macro"].value) and row["macro"].text == "diverged"
    assert row["worse"].value >= 1
    assert [row["method"].text for row in table.rows] == ["Local", "FedBN"]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 220])
def test_a_narrow_terminal_gets_fewer_columns_and_is_told(make_comparison: Make, width: int) -> None:
    (comparison,) = read([make_comparison(["FedBN()", "Ditto(lam=1.0)", "Local()"])])
    table = tabulate(comparison)
    text = printed(as_rich(table, width), width)
    assert max(map(len, text.splitlines())) <= width
    for row in table.rows:
        assert row["method"].text in text and row["macro"].text in text
    left_out = [column.title for column in table.columns if column.title.split()[0] not in text]
    assert bool(left_out) == (width < 200)
    for title in left_out:
        assert title.lower() in " ".join(text.split())


def test_a_long_name_is_broken_and_hides_no_number(make_comparison: Make) -> None:
    long = "Proximal(LocalAttention(FedAvg(), kind='hybrid', private=True), mu=0.01, anchor='fixed', inner_steps=1)"
    (comparison,) = read([make_comparison([long, "Local()"])])
    table = tabulate(comparison)
    text = printed(as_rich(table, 80), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert all(row["macro"].text in text for row in table.rows)
    assert "anchor='fixed'" in text and "…" not in text


def test_markup_in_names_is_only_text(make_run: Make) -> None:
    (comparison,) = read([make_run("A|B <i>[bold]x()"), make_run("Local()")])
    table = tabulate(comparison)
    name = next(row["method"].text for row in table.rows if row.role != "alone")
    assert "<i>" in name and "|" in name
    lines = [text for text in as_markdown(table).splitlines() if text.startswith("|")]
    assert len({text.replace("\\|", "").count("|") for text in lines}) == 1
    assert "<i>" not in as_markdown(table) and "<i>" not in as_html(table)
    assert "[bold]" in printed(as_rich(table), 200)
