"""The figures of reproduced tables: what is drawn is what the records say."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import OTHER, PROBLEM, SETTINGS, every_cell, made_outcome, made_record
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from fedtailor.papers import TABLES
from fedtailor.papers.drawing import USUAL, Across, Bars, Courses, Learned, Panel, Sweep
from fedtailor.papers.figures import WIDTHS, pictures, write, write_small
from fedtailor.papers.figures.courses import NAME
from fedtailor.papers.figures.picture import Picture
from fedtailor.papers.outcome import Outcome
from fedtailor.papers.preset import Cell, Number, Problem, Reading, Table
from fedtailor.papers.record import Record
from fedtailor.report.style import MARKED, PRINT, SERIES_LIGHT

LAST, BEST = Reading(), Reading(over="micro", select="best")


def cell(row: str, problem: Problem = PROBLEM, *numbers: Number) -> Cell:
    method = "Local()" if row == "Local" else "FedAvg()"
    settings = {**SETTINGS, "lr": 0.1 + 0.01 * len(row)}  # another folder for every row
    return Cell(row, problem, method, settings, numbers or (Number(problem.name, LAST),))


def table_of(*cells: Cell, **more: Any) -> Table:
    return Table("fedmcsa", "table2", "A table", lambda scale: cells, **more)


USUAL_TABLE = table_of(cell("FedAvg"), cell("FedALA"), cell("Local"))


def named(found: Outcome, name: str) -> Picture:
    return {picture.name: picture for picture in pictures(found)}[name]


def drawn(found: Outcome, name: str, width: float = 7.0) -> Figure:
    return named(found, name).draw(PRINT, width)


def line(figure: Figure, label: str, panel: int = 0) -> Any:
    [one] = [line for line in figure.axes[panel].lines if line.get_label() == label]
    return one


def labels(figure: Figure, panel: int = 0) -> list[str]:
    return [str(one.get_label()) for one in figure.axes[panel].lines if not str(one.get_label()).startswith("_")]


def texts(figure: Figure, panel: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


def sup(figure: Figure) -> tuple[str, str]:
    return figure.get_supxlabel(), figure.get_supylabel()


# ---------- accuracy over rounds, traffic and time ----------


def test_a_line_is_the_mean_over_seeds_of_what_the_records_say() -> None:
    other = {"macro": {"accuracy": [0.4, 0.7, 0.8]}, "end": {"accuracy": [0.7, 0.8, 0.9]}}
    found = made_outcome(USUAL_TABLE, {"FedAvg": [{}, other], "FedALA": [{}], "Local": [{}]})
    figure = drawn(found, "rounds")
    assert sup(figure) == ("round", "accuracy (%)")
    assert labels(figure) == ["FedAvg", "FedALA", "Local"] and len(figure.axes) == 1
    assert line(figure, "FedAvg").get_xdata().tolist() == [2, 4, 6]
    assert line(figure, "FedAvg").get_ydata().tolist() == pytest.approx([30, 60, 70])
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(70 + 10 * 2**0.5)  # of 60 and 80, with n - 1
    marks = [tuple(one.get_ydata()) for one in figure.axes[0].lines if len(one.get_xdata()) == 1]
    assert marks[0] == pytest.approx((70,)), "what the clients end with: 60 and 80"
    assert line(figure, "Local").get_color() == PRINT.alone
    assert texts(figure) == ["FedAvg", "FedALA", "Local"], "each line is named at its end"
    told = named(found, "rounds").caption
    assert "mean over clients" in told and "standard deviation over seeds" in told and "larger mark" in told


def test_it_is_drawn_as_the_number_of_the_table_is_read() -> None:
    best = table_of(*(replace(one, numbers=(Number("x", BEST),)) for one in USUAL_TABLE.cells("full")))
    found = made_outcome(best, {"FedAvg": [{}], "Local": [{}]})
    figure = drawn(found, "rounds")
    assert line(figure, "FedAvg").get_ydata().tolist() == pytest.approx([30, 55, 70]), "over the rows of all clients"
    assert labels(figure) == ["FedAvg", "Local"], "what was not run is not drawn"
    assert not [one for one in figure.axes[0].lines if len(one.get_xdata()) == 1]
    told = named(found, "rounds").caption
    assert "test rows of all clients" in told and "seeds" not in told and "larger mark" not in told


def test_a_round_in_which_a_client_diverged_has_no_point() -> None:
    found = made_outcome(USUAL_TABLE, {"FedAvg": [{"macro": {"accuracy": [0.2, None, 0.6]}}]})
    assert line(drawn(found, "rounds"), "FedAvg").get_xdata().tolist() == [2, 6]


def test_a_method_looks_the_same_whatever_else_was_run() -> None:
    whole = drawn(made_outcome(USUAL_TABLE, {"FedAvg": [{}], "FedALA": [{}], "Local": [{}]}), "rounds")
    part = drawn(made_outcome(USUAL_TABLE, {"FedALA": [{}]}), "rounds")
    for figure in (whole, part):
        assert line(figure, "FedALA").get_color() == SERIES_LIGHT[1] and line(figure, "FedALA").get_marker() == "s"


def test_problems_and_panels_stand_beside_each_other() -> None:
    cells = [cell(row, problem) for problem in (PROBLEM, OTHER) for row in ("a", "b", "a+ALA", "Local")]
    cells = [replace(one, settings={**one.settings, "x": one.row}) for one in cells]
    panels = (Panel("first", {"a": "without", "a+ALA": "with"}), Panel("second", {"b": "b"}))
    table = table_of(*cells, drawings=(Courses(panels=panels),))
    figure = drawn(made_outcome(table, {row: [{}] for row in ("a", "b", "a+ALA", "Local")}), "rounds")
    assert [axes.get_title("left") for axes in figure.axes] == [
        "MNIST/MLR\nfirst", "MNIST/MLR\nsecond", "CIFAR10/MLR\nfirst", "CIFAR10/MLR\nsecond"]  # fmt: skip
    assert labels(figure, 0) == ["without", "with", "Local"] and labels(figure, 3) == ["b", "Local"]
    alone = drawn(made_outcome(table, {"b": [{}]}), "rounds")
    assert [axes.get_title("left") for axes in alone.axes] == ["MNIST/MLR\nsecond", "CIFAR10/MLR\nsecond"]


def test_too_many_panels_become_several_figures_of_whole_problems() -> None:
    problems = [replace(PROBLEM, label=f"set {i}", data=f"digits(styles={i})") for i in range(5)]
    panels = tuple(Panel(row, {row: row}) for row in "abc")
    table = table_of(*(cell(row, p) for p in problems for row in "abc"), drawings=(Courses(panels=panels),))
    found = made_outcome(table, {row: [{}] for row in "abc"})
    assert [picture.name for picture in pictures(found)] == ["rounds-1", "rounds-2", "rounds-3"]
    assert pictures(found)[1].title == "Accuracy over the rounds: set 2/MLR and set 3/MLR"
    assert len(drawn(found, "rounds-2").axes) == 6 and len(drawn(found, "rounds-3").axes) == 3
    one = table_of(*(cell(row) for row in "abcdefgh"), drawings=(Courses(panels=tuple(
        Panel(row, {row: "it"}) for row in "abcdefgh")),))  # fmt: skip
    figure = drawn(made_outcome(one, {row: [{}] for row in "abcdefgh"}), "rounds")
    assert len(figure.axes) == 9, "all of one problem, and an empty place"


def test_a_panel_that_shows_no_more_than_another_is_left_out() -> None:
    panels = (Panel("one", {"lead": "lead", "b": "b"}), Panel("two", {"lead": "lead", "c": "c"}))
    table = table_of(*(cell(row) for row in ("lead", "b", "c", "Local")), drawings=(Courses(panels=panels),))
    both = drawn(made_outcome(table, {row: [{}] for row in ("lead", "b", "c", "Local")}), "rounds")
    assert [labels(both, panel) for panel in (0, 1)] == [["lead", "b", "Local"], ["lead", "c", "Local"]]
    less = drawn(made_outcome(table, {row: [{}] for row in ("lead", "b", "Local")}), "rounds")
    assert len(less.axes) == 1 and labels(less) == ["lead", "b", "Local"]


def test_the_first_rounds_may_lie_below_the_picture_and_then_it_says_so() -> None:
    slow = {"rounds": tuple(range(1, 21)), "macro": {"accuracy": [0.1, *[0.8 + 0.005 * i for i in range(19)]]},
            "bytes": (1,) * 20, "seconds": (1.0,) * 20}  # fmt: skip
    found = made_outcome(USUAL_TABLE, {"FedAvg": [slow]})
    figure = drawn(found, "rounds")
    low, high = figure.axes[0].get_ylim()
    assert 10 < low < 80.5 and high > 89
    assert line(figure, "FedAvg").get_ydata()[0] == pytest.approx(10), "the line itself is whole"
    assert "begin below the picture" in named(found, "rounds").caption
    assert "below the picture" not in named(made_outcome(USUAL_TABLE, {"FedAvg": [{}]}), "rounds").caption


SPENT = (Number("rounds", Reading(select="when", target=50.0, quantity="rounds")),
         Number("traffic", Reading(select="when", target=50.0, quantity="models")))  # fmt: skip
SPENT_TABLE = table_of(cell("FedAvg", PROBLEM, *SPENT), cell("Slow", PROBLEM, *SPENT), cell("Local", PROBLEM, *SPENT),
                       drawings=(Bars(), Courses(over="models"), Courses(over="minutes")))  # fmt: skip
SILENT = {"bytes": (0, 0, 0), "macro": {"accuracy": [0.1, 0.2, 0.45]}}
SLOW = {"macro": {"accuracy": [0.1, 0.2, 0.3]}}


def test_accuracy_over_traffic() -> None:
    """1200 bytes of three clients, there and back, in models of 25 numbers of four bytes: two exchanges."""
    found = made_outcome(SPENT_TABLE, {"FedAvg": [{}], "Slow": [SLOW], "Local": [SILENT]})
    figure = drawn(found, "models")
    assert line(figure, "FedAvg").get_xdata().tolist() == pytest.approx([2, 4, 6])
    assert labels(figure) == ["FedAvg", "Slow"], "Local exchanges nothing: it is a level"
    heights = [one.get_ydata()[0] for one in figure.axes[0].lines if one.get_ydata()[0] == one.get_ydata()[-1]]
    assert sorted(heights) == pytest.approx([45, 50]), "where Local ends, and the target"
    assert {"Local", "50 %"} <= set(texts(figure))
    assert sup(figure)[0] == "exchanges of a whole model, per client"
    minutes = drawn(found, "minutes")
    assert line(minutes, "FedAvg").get_xdata().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert labels(minutes) == ["FedAvg", "Slow", "Local"]


# ---------- bars ----------


def bars_of(figure: Figure, panel: int) -> dict[str, float]:
    return {str(one.get_label()): one.patches[0].get_width() for one in figure.axes[panel].containers}


def test_what_it_took_to_reach_a_target() -> None:
    found = made_outcome(SPENT_TABLE, {"FedAvg": [{}], "Slow": [SLOW], "Local": [SILENT]})
    figure = drawn(found, "spent")
    assert bars_of(figure, 0) == {"FedAvg": 4} and bars_of(figure, 1) == {"FedAvg": pytest.approx(4)}
    assert texts(figure, 0) == ["4", "not reached", "not reached"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["rounds", "exchanges of a model"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["FedAvg", "Slow", "Local"]
    assert "until the accuracy, mean over clients, was 50 %" in named(found, "spent").caption
    assert "bars" not in [picture.name for picture in pictures(found)]


def test_bars_begin_at_training_alone() -> None:
    numbers = (Number("x/accuracy", LAST), Number("x/precision", replace(LAST, metric="precision")))
    table = table_of(*(cell(row, PROBLEM, *numbers) for row in ("A", "BB", "Local")), drawings=(Bars(),))

    def ends(accuracy: float, precision: float) -> dict[str, Any]:
        return {"end": {"accuracy": [accuracy] * 3, "precision": [precision] * 3}}

    runs = {"A": [ends(0.8, 0.5), ends(0.9, 0.5)], "BB": [ends(0.6, 0.7)], "Local": [ends(0.7, 0.6)]}
    found = made_outcome(table, runs)
    figure = drawn(found, "bars")
    assert bars_of(figure, 0) == pytest.approx({"A": 15, "BB": -10})
    assert bars_of(figure, 1) == pytest.approx({"A": -10, "BB": 10})
    assert texts(figure, 0) == ["85.0", "60.0"]
    assert figure.axes[0].get_xlabel() == "points above Local (70.0)"
    thin = [one for one in figure.axes[0].lines if len(set(one.get_ydata())) == 1]
    assert thin[0].get_xdata() == pytest.approx([15 - 50**0.5, 15 + 50**0.5])  # of 80 and 90, with n - 1
    assert not pictures(made_outcome(table, {"A": [ends(0.8, 0.5)]})), "nothing to hold it against"


# ---------- clients ----------


def test_every_client_stands_where_its_number_is() -> None:
    worse = {"end": {"accuracy": [0.4, 0.7, 0.8]}}
    found = made_outcome(USUAL_TABLE, {"FedAvg": [worse, {}], "Local": [{}, {"end": {"accuracy": [0.5, 0.7, 0.7]}}]})
    figure = drawn(found, "clients")
    assert sup(figure)[0] == "accuracy (%)"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["FedAvg", "Local"]
    points = [(one.get_xdata()[0], one.get_ydata()[0], one.get_marker()) for one in figure.axes[0].lines
              if len(one.get_xdata()) == 1]  # fmt: skip
    fedavg = [(x, marker) for x, y, marker in points if y == 0]
    assert [x for x, _ in fedavg] == pytest.approx([45, 65, 75, np.mean([45, 65, 75])]), "mean over seeds; the mean"
    assert len({marker for _, marker in fedavg}) == 4, "told apart without colour"
    # under seed 0 it is the first of three, 40 against 50, and under seed 1 the second, 60 against 70
    assert texts(figure) == ["1 of 3", "worse"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["left", "middle", "right"]
    assert "mean over seeds" in named(found, "clients").caption.lower()


def test_many_clients_are_a_cloud_with_their_mean() -> None:
    many = {"clients": tuple(f"c{i}" for i in range(40)), "end_counts": (5,) * 39 + (0,)}
    values = [i / 40 for i in range(40)]
    ends = {row: {**many, "end": {"accuracy": of_row}} for row, of_row in (("FedAvg", values), ("Local", values[::-1]))}
    found = made_outcome(USUAL_TABLE, {row: [changes] for row, changes in ends.items()})
    figure = drawn(found, "clients")
    clouds = [one for one in figure.axes[0].lines if len(one.get_xdata()) == 40]
    assert clouds[0].get_xdata()[:39].tolist() == pytest.approx([100 * v for v in values[:39]])
    assert np.isnan(clouds[0].get_xdata()[39]), "a client without test rows has no mark"
    assert max(abs(clouds[0].get_ydata())) < 0.3 and not figure.legends
    assert texts(figure) == ["20 of 39", "worse"]


# ---------- sweeps and what is learned ----------


def test_a_number_over_a_setting() -> None:
    rows = ("sigma=1", "sigma=100", "sigma=10", "Local")
    table = table_of(*(cell(row, PROBLEM, Number("MNIST/MLR", BEST)) for row in rows), drawings=(
        Sweep("σ", {"sigma=1": 1.0, "sigma=10": 10.0, "sigma=100": 100.0}, {"MNIST/MLR": 30.0}),))  # fmt: skip

    def best(value: float) -> list[dict[str, Any]]:
        return [{"micro": {"accuracy": [0.1, value, 0.2]}}]

    found = made_outcome(table, {
        "sigma=1": best(0.5), "sigma=10": best(0.7), "sigma=100": best(0.8), "Local": best(0.6)})  # fmt: skip
    figure = drawn(found, "sweep")
    [axes] = figure.axes
    assert axes.get_xscale() == "log" and sup(figure) == ("σ", "accuracy (%)")
    assert axes.lines[0].get_xdata().tolist() == [1, 10, 100]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([50, 70, 80])
    assert axes.lines[1].get_ydata() == pytest.approx([60, 60]) and texts(figure) == ["30", "Local"]
    assert axes.lines[2].get_xdata() == pytest.approx([30, 30])


def test_numbers_over_what_the_columns_try_out() -> None:
    """The columns stand in any order; a cell that was not run is no point of its line."""
    shapes = {"Dir(1)": 1.0, "Dir(0.01)": 0.01, "Dir(0.1)": 0.1}
    cells = [cell(row, replace(PROBLEM, partition=column), Number(column, LAST))
             for column in shapes for row in ("FedAvg", "Local")]  # fmt: skip
    table = table_of(*cells, drawings=(Across("β", shapes),))

    def make(one: Cell, seed: int) -> Record:
        level = {"Dir(1)": 0.5, "Dir(0.01)": 0.9, "Dir(0.1)": 0.7}[one.numbers[0].column] + 0.1 * seed
        return made_record(one, seed, complete=(one.row, one.numbers[0].column) != ("Local", "Dir(0.1)"),
                           end={"accuracy": [level] * 3})  # fmt: skip

    figure = drawn(every_cell(table, "full", make, seeds=2), "across")
    [axes] = figure.axes
    assert axes.get_xscale() == "log" and (axes.get_xlabel(), axes.get_ylabel()) == ("β", "accuracy (%)")
    assert line(figure, "FedAvg").get_xdata().tolist() == [0.01, 0.1, 1]
    assert line(figure, "FedAvg").get_ydata().tolist() == pytest.approx([95, 75, 55])
    assert line(figure, "Local").get_xdata().tolist() == [0.01, 1]
    assert axes.collections[0].get_paths()[0].vertices[:, 1].max() == pytest.approx(95 + 50**0.5)
    assert texts(figure) == ["FedAvg", "Local"]


def test_what_clients_learned() -> None:
    numbers = (Number("s1", Reading(metric="learned/layer1")), Number("fc", Reading(metric="learned/fc")))
    table = table_of(cell("stage", PROBLEM, *numbers), drawings=(Learned("probability"),))
    learned = {"layer1": [[0.1, 0.2, None], [0.3, 0.4, 0.5], [0.6, 0.7, 0.8]], "fc": [[0.9, 0.9, 0.9]] * 3}
    found = made_outcome(table, {"stage": [{"learned": learned}]})
    figure = drawn(found, "learned")
    assert [axes.get_title() for axes in figure.axes] == ["s1", "fc"] and sup(figure) == ("round", "probability")
    lines = [(one.get_xdata().tolist(), one.get_ydata().tolist()) for one in figure.axes[0].lines]
    assert lines == [([2, 4, 6], [0.1, 0.3, 0.6]), ([2, 4, 6], [0.2, 0.4, 0.7]), ([4, 6], [0.5, 0.8])]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["left", "middle", "right"]
    assert not pictures(made_outcome(table, {"stage": [{}]})), "a run that told nothing"


# ---------- the presets ----------


def random_record(one: Cell, seed: int) -> Record:
    """As long and as wide as the real one, with curves that rise."""
    draw = np.random.default_rng([seed, *one.row.encode(), *one.problem.name.encode()])
    n, rounds = one.problem.clients, one.settings["rounds"]
    tested = tuple(range(1, rounds + 1, max(1, rounds // 40)))
    level = draw.uniform(0.6, 0.95)
    series = [round(level * (1 - 0.7 * np.exp(-6 * t / rounds)) + draw.normal(0, 0.01), 6) for t in tested]
    ends = [round(v, 6) for v in np.clip(draw.normal(level, 0.08, n), 0, 1).tolist()]
    metrics = ("accuracy", "precision")
    learned = {number.reading.metric.removeprefix("learned/"): [draw.uniform(0, 1, n).tolist() for _ in tested]
               for number in one.numbers if number.reading.metric.startswith("learned/")}  # fmt: skip
    named = [number.reading.over for number in one.numbers if number.reading.over not in ("macro", "micro")]
    moved = 0 if one.method == "Local()" else 200 * n
    return made_record(
        one, seed, clients=tuple(named or (f"client-{i:02d}" for i in range(n))), rounds=tested,
        macro=dict.fromkeys(metrics, series), micro=dict.fromkeys(metrics, series),
        validation=dict.fromkeys(metrics, series), bytes=tuple(moved * t for t in tested),
        seconds=tuple(2.0 * t for t in tested), steps=tested, end=dict.fromkeys(metrics, ends), end_counts=(9,) * n,
        learned=learned,
    )  # fmt: skip


DRAWN = {name: table for name, table in TABLES.items() if not table.counts}


@pytest.mark.parametrize("name", DRAWN)
def test_every_row_of_a_table_has_a_place_in_its_figures(name: str) -> None:
    table = DRAWN[name]
    rows = {cell.row for scale in table.eligible for cell in table.cells(scale)}
    columns = {number.column for scale in table.eligible for cell in table.cells(scale) for number in cell.numbers}
    courses = [drawing for drawing in table.drawings if isinstance(drawing, Courses)]
    sweeps = [drawing for drawing in table.drawings if isinstance(drawing, Sweep)]
    for drawing in sweeps:
        assert set(drawing.at) <= rows and set(drawing.turns) <= columns
    for across in [drawing for drawing in table.drawings if isinstance(drawing, Across)]:
        assert set(across.at) == columns and len(rows) <= len(SERIES_LIGHT)
    for drawing in courses:
        panels = drawing.panels or (Panel("", {row: row for row in rows if row != table.alone}),)
        assert sweeps or {row for panel in panels for row in panel.rows} == rows - {table.alone}
        for panel in panels:
            assert set(panel.rows) <= rows and len(panel.rows) <= len(SERIES_LIGHT), "more cannot be told apart"
            assert max(map(len, [*panel.rows.values(), table.alone])) <= NAME, "names have to fit beside their lines"


CROWDED = [("fedmcsa:figure5", "full"), ("pfedla:table1", "full"), ("fedala:table2", "reduced"),
           ("fedham:table4", "quick"), ("partialfed:figure3", "quick")]  # fmt: skip


@pytest.fixture(scope="module", params=CROWDED, ids=[name for name, _ in CROWDED])
def crowded(request: pytest.FixtureRequest) -> Outcome:
    name, scale = request.param
    return every_cell(TABLES[name], scale, random_record)


def boxes(figure: Figure) -> Iterator[tuple[str, Any]]:
    """All words but the numbers of axes, and where they stand."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ticks = {id(label) for axes in figure.axes for label in axes.get_xticklabels()}
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_text() and text.get_visible() and id(text) not in ticks:
            yield text.get_text(), text.get_window_extent(canvas.get_renderer())


@pytest.mark.parametrize("width", WIDTHS.values())
def test_no_word_is_cut_off_and_none_covers_another(crowded: Outcome, width: float) -> None:
    found = pictures(crowded)
    assert found
    for picture in found:
        figure = picture.draw(PRINT, width)
        assert figure.get_figwidth() == width and figure.get_figheight() < 13
        placed = [(text, box) for text, box in boxes(figure) if not is_number(text)]
        for text, box in placed:
            assert box.x0 > -2 and box.y0 > -2, (picture.name, text)
            assert box.x1 < figure.bbox.x1 + 2 and box.y1 < figure.bbox.y1 + 2, (picture.name, text)
        for at, (text, box) in enumerate(placed):
            for other, beside in placed[at + 1 :]:
                across = min(box.x1, beside.x1) - max(box.x0, beside.x0)
                along = min(box.y1, beside.y1) - max(box.y0, beside.y0)
                assert min(across, along) < 0.35 * min(box.height, beside.height), (picture.name, text, other)


def is_number(text: str) -> bool:
    return text.replace("\N{MINUS SIGN}", "-").replace(".", "").lstrip("-").isdigit()


def test_files_of_both_widths(tmp_path: Path) -> None:
    found = made_outcome(USUAL_TABLE, {"FedAvg": [{}], "Local": [{}]})
    written = write(found, tmp_path / "figures")
    names = {f"{name}{suffix}" for name in ("rounds", "clients") for suffix in ("", "-narrow")}
    assert sorted(path.name for path in written) == sorted(f"{n}.{kind}" for n in names for kind in ("pdf", "png"))
    for path in written:
        data = path.read_bytes()
        assert data.startswith(b"%PDF" if path.suffix == ".pdf" else b"\x89PNG")
        if path.suffix == ".png":
            width = struct.unpack(">I", data[16:20])[0]
            assert width == (660 if "narrow" in path.name else 1400), "200 dots an inch"


def test_pictures_for_a_repository_are_small_and_always_the_same(crowded: Outcome, tmp_path: Path) -> None:
    one, other = write_small(crowded, tmp_path / "one"), write_small(crowded, tmp_path / "other")
    assert one and [path.name for path in one] == [path.name for path in other]
    for path, again in zip(one, other, strict=True):
        assert path.name.startswith(crowded.table.id.replace(":", "-"))
        assert path.read_bytes() == again.read_bytes() and path.stat().st_size < 60_000


def test_small_pictures_keep_their_colours(tmp_path: Path) -> None:
    """Lines are named in their colours, so that a shade in between names none."""
    runs = {row: [{"macro": {"accuracy": [0.1, 0.1 * i, 0.11 * i]}}] for i, row in enumerate("abcdefg", start=1)}
    table = table_of(*(cell(row) for row in runs))
    path = next(path for path in write_small(made_outcome(table, runs), tmp_path) if "rounds" in path.name)
    with Image.open(path) as picture:
        pixels = np.unique(np.array(picture.convert("RGB")).reshape(-1, 3), axis=0).astype(int)
    for colour in SERIES_LIGHT:
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert np.abs(pixels - wanted).max(1).min() <= 4, colour


def test_nothing_run_is_nothing_drawn(tmp_path: Path) -> None:
    found = made_outcome(USUAL_TABLE, {})
    assert USUAL_TABLE.drawings == USUAL and not pictures(found) and not write(found, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_figures_on_the_page_take_its_colours(crowded: Outcome) -> None:
    from fedtailor.papers.page import as_html

    text = as_html(crowded, "fedtailor reproduce")
    assert text.count("<figure>") == len(pictures(crowded)) and "#0a0b" not in text and "#0a0c" not in text
    assert text.count("<svg") == 2 * len(pictures(crowded)), "one for a desktop, one for a phone"
    for picture in pictures(crowded):
        assert picture.title.replace("'", "&#x27;") in text and MARKED.ink not in text


