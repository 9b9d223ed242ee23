"""What any registered method shows of itself can be read, put into tables and drawn, by the convention alone."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedtailor import registry
from fedtailor.contract import Method
from fedtailor.method import overrides
from fedtailor.record import to_json
from fedtailor.report.learned.lessons import Cells, Courses, Curves, Learned, Maps, learned_by
from fedtailor.report.learned.numbers import tables
from fedtailor.report.learned.section import draw
from fedtailor.report.read import read
from fedtailor.toy import run, toy_driver

# what each paper's own figure or table needs, by the shape it takes
FIGURES = {
    "pFedLA()": {"mixture": Cells},  # table 11
    "pFedLA(Ditto())": {"mixture": Cells, "mixture of v": Cells},
    "pFedLA(kind='se')": {"mean mask": Courses},
    "FedHAM(p=1)": {"alpha": Maps, "beta": Cells, "gradient norm": Courses},  # figure 5, the two layers
    "FedMCSA()": {"attention": Maps},  # of each component
    "PartialFedAdaptive()": {"probability of loading globally": Courses},  # figure 3
    "FedALA(p=2)": {"ALA weights": Cells, "ALA loss": Curves},  # figure 3
    "FedFomo()": {"affinity": Maps, "weights": Maps},
    "APPLE()": {"p": Maps},
    "FedAMP()": {"attention": Maps},
    "ALA(LocalAttention(FedBN()), p=2)": {"ALA weights": Cells, "ALA loss": Curves, "mixture": Cells},
}


def shown_by(method: Method, folder: Path) -> list[Learned]:
    """What is read back of a record of three rounds on the toy federation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        driver = run(toy_driver(method), 3)
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_bytes(to_json({"format": 1, **driver.info()}))
    (folder / "rows.jsonl").write_bytes(b"".join(to_json(row) for row in driver.rows))
    [comparison] = read([folder])
    return learned_by(comparison)


@pytest.mark.parametrize("text", FIGURES)
def test_the_papers_figures_can_be_drawn(text: str, tmp_path: Path) -> None:
    [found] = shown_by(registry.parse("method", text), tmp_path)
    kinds = {lesson.what: type(lesson) for lesson in found.lessons}
    assert FIGURES[text].items() <= kinds.items()
    assert found.unread == ()
    for lesson in found.lessons:
        assert isinstance(draw(lesson, found.sites), Figure)
        for table in tables(lesson, found.sites):
            assert table.rows and all(len(row) == len(table.head) for row in table.rows)


@pytest.mark.parametrize("name", registry.names("method"))
def test_nothing_is_recorded_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    from test_every_method import example

    method = example(name)
    found = shown_by(method, tmp_path)
    assert all(one.unread == () for one in found)
    shows = overrides(method, "explain") or overrides(method, "explain_server")
    assert bool(found) is (shows and not name.startswith("FedHAM")), "FedHAM is warming up in the first ten rounds"


def test_the_parts_are_named_after_the_network(tmp_path: Path) -> None:
    [mcsa] = shown_by(registry.parse("method", "FedMCSA()"), tmp_path / "a")
    assert isinstance(mcsa.lessons[0], Maps)
    assert [drawn.part for drawn in mcsa.lessons[0].maps] == ["0", "5"], "convolution and head of the toy network"
    cohort = json.loads((tmp_path / "a/rows.jsonl").read_text().splitlines()[-1])["cohort"]
    assert mcsa.lessons[0].maps[0].columns == tuple(cohort), "the clients that sent last"
    [partial] = shown_by(registry.parse("method", "PartialFedAdaptive()"), tmp_path / "b")
    assert isinstance(partial.lessons[0], Courses)
    assert partial.lessons[0].parts == ("0", "1", "5")
