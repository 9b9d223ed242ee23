"""Numbers beside the paper's, as they come to stand in a table: from records that are written here by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_table import SMALL_TABLE, small_cell

from fedtailor.papers import TABLES, page
from fedtailor.papers.counting import number_of
from fedtailor.papers.kept import Kept, read_table
from fedtailor.papers.outcome import Outcome, outcome
from fedtailor.papers.preset import Cell, Number, Reading, instead
from fedtailor.papers.published import Key
from fedtailor.papers.record import Record
from fedtailor.papers.reproduction import summary
from fedtailor.registry import WrongInput

SHORT = "2 rounds"


def record(cell: Cell, seed: int, micro: float, tests: int = 450, complete: bool = True) -> Record:
    """Of a run whose accuracy over all rows was best in its second round."""
    return Record(
        work=cell.work, seed=seed, complete=complete, versions={"fedtailor": "0.1.0", "torch": "2"},
        clients=("a", "b", "c"), fingerprint="f", parameters={"total": 25}, point="trained", plan={}, rounds=(1, 2, 3),
        macro={"accuracy": [0.1, 0.2, 0.3]}, micro={"accuracy": [0.0, micro, micro / 2]}, validation={},
        bytes=(1, 2, 3), seconds=(1.0, 2.0, 3.0), steps=(1, 2, 3), end={"accuracy": [0.5, 0.6, 0.7]},
        end_counts=(tests - 2, 1, 1), learned={},
    )  # fmt: skip


def judged(cell: Cell) -> Cell:
    """As if nothing differed from the paper."""
    return replace(cell, differences=(), comparable=True)


FEDAVG, FEDMCSA = judged(small_cell("FedAvg", "FedAvg()")), judged(small_cell("FedMCSA", "FedMCSA(sigma=50.0)"))
LOCAL = judged(small_cell("Local", "Local()", printed=False))


def made(records: Mapping[str, Mapping[int, Record]]) -> Outcome:
    return outcome(SMALL_TABLE, "full", [FEDAVG, FEDMCSA, LOCAL], lambda cell: records.get(cell.row, {}))


def lines(found: Outcome) -> dict[str, tuple[str, ...]]:
    [block] = page.blocks(found)
    return {row[0]: row[1:] for row in block.rows}


def test_a_column_of_other_data_is_not_compared() -> None:
    """Though the rest of the cell is; and a table that claims nothing has no list of claims."""
    other = replace(FEDAVG, numbers=tuple(replace(number, comparable=False) for number in FEDAVG.numbers))
    found = outcome(replace(SMALL_TABLE, claims=()), "full", [other], lambda cell: {0: record(cell, 0, 0.92)})
    assert [line.verdict for line in found.lines] == ["not compared"]
    assert "Claims:" not in page.as_markdown(found) and "Claims:" in page.as_markdown(made({}))


def test_a_number_stands_beside_the_papers_and_that_of_training_alone() -> None:
    """FedMCSA's table 2 prints 92.39 and 98.82; by hand, 92 and 93 have the mean 92.5 and the deviation 0.71."""
    found = made({
        "FedAvg": {0: record(FEDAVG, 0, 0.92), 1: record(FEDAVG, 1, 0.93)}, "FedMCSA": {0: record(FEDMCSA, 0, 0.97)},
        "Local": {0: record(LOCAL, 0, 0.98)},
    })  # fmt: skip
    assert lines(found) == {
        "FedAvg": ("trained", "92.50 ± 0.71", "98.00", "92.39", "+0.11", "met", ""),
        "FedMCSA": ("trained", "97.00", "98.00", "98.82", "\N{MINUS SIGN}1.82", "below", ""),
        "Local": ("trained", "98.00", "", "", "", "", ""),
    }
    assert (found.done, found.of, found.seeds) == (3, 5, [0, 1])
    assert [line.found_in for line in found.lines] == [(2, 2), (2,), (2,)]
    verdicts = {text: verdict for text, verdict, _ in page.claim_lines(found)}
    assert verdicts["FedMCSA is better than FedAvg"] == "holds"
    assert verdicts["FedMCSA is better than training alone (our question, not the paper's)"] == "does not hold"
    assert "2 seeds" in page.coverage(found) and "± the standard deviation over seeds" in page.caption(found)


def test_a_run_that_is_not_complete_has_no_number() -> None:
    found = made({"FedAvg": {0: record(FEDAVG, 0, 0.92)}, "FedMCSA": {0: record(FEDMCSA, 0, 0.99, complete=False)}})
    assert set(lines(found)) == {"FedAvg"} and found.done == 1
    assert {verdict for _, verdict, _ in page.claim_lines(found)} == {"not run"}
    assert "one seed, so no deviation of ours" in page.coverage(found)


def test_fewer_rows_than_the_paper_tested_on_are_noted_and_not_judged() -> None:
    """The cell is to be tested on 450 rows; 90 are a fifth of them."""
    found = made({"FedAvg": {0: record(FEDAVG, 0, 0.9239, tests=90)}, "FedMCSA": {0: record(FEDMCSA, 0, 0.9882, 445)}})
    assert list(found.notes) == ["20% of MNIST is at hand: tested on 90 rows, not 450"]
    assert lines(found)["FedAvg"][4:] == ("+0.00", "not compared", "1")
    assert lines(found)["FedMCSA"][4:] == ("+0.00", "met", ""), "a few rows fewer are no other setting"
    assert "| `fedmcsa:table2` | full | 2 of 5 | 1 of 1 | 1 of 1 |" in summary([Kept(found, "", (), ())])


def test_what_stands_in_is_shown_without_a_difference() -> None:
    cell = SMALL_TABLE.cells("quick")[-1]
    each = Number("CIFAR10/MLR, a", Reading(over="a"), Key("FedAvg", "CIFAR10/MLR"))
    own = replace(cell, numbers=(*cell.numbers, each), stand_in_settings={"lr": 0.01}, comparable=True)
    other = instead(own)
    assert other.settings == {**cell.settings, "lr": 0.01} and not other.comparable
    assert other.numbers == cell.numbers, "a client of the stand-in is none of the paper's"
    found = outcome(SMALL_TABLE, "quick", [other], lambda cell: {0: record(cell, 0, 0.9)})
    assert lines(found)["FedAvg"][1:6] == ("90.00", "", "34.81", "", "not compared")


def test_a_kept_record_of_other_work_is_refused(tmp_path: Path) -> None:
    cell = SMALL_TABLE.cells("quick")[0]
    place = tmp_path / "fedmcsa-table2" / "quick" / f"{cell.folder}-seed-0.json"
    record(cell, 0, 0.9).write(place)
    assert read_table(tmp_path, SMALL_TABLE, "quick").found.done == 1
    replace(record(cell, 0, 0.9), work={**cell.work, "lr": 0.7}).write(place)
    with pytest.raises(WrongInput, match="is of other work than its name says; keep it again"):
        read_table(tmp_path, SMALL_TABLE, "quick")


@pytest.mark.parametrize("name", ["pfedla:table2", "fedala:table1"])
def test_counted_numbers_are_those_printed(name: str) -> None:
    """Parameters, and the weights that ALA learns, written as the paper writes them; what differs is known."""
    found = outcome(TABLES[name], "full", [], lambda cell: {}, {c: number_of(c) for c in TABLES[name].counts})
    differ = {counted.count.row for counted in found.counted if counted.verdict != "exact"}
    expected: dict[str, Any] = {"pfedla:table2": {"LeNet + CA"}}
    assert len(found.counted) >= 4 and differ == expected.get(name, set())
