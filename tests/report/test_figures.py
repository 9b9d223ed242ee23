from __future__ import annotations

import io
import itertools
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fedtailor.registry import WrongInput
from fedtailor.report.curves import rounds, traffic, training
from fedtailor.report.figures import draw, write_figures
from fedtailor.report.outcomes import outcomes
from fedtailor.report.read import Comparison, read
from fedtailor.report.sites import MOST_MARKS, holdings, sites
from fedtailor.report.style import MARKED, SERIES_DARK, SERIES_LIGHT, inline, save, spread

Make = Callable[..., Path]
MakeData = Callable[..., dict[str, Any]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]


def one(folder: Path) -> Comparison:
    (comparison,) = read([folder])
    return comparison


def named_line(figure: Figure, label: str) -> Any:
    return next(line for axes in figure.axes for line in axes.lines if line.get_label() == label)


def test_lines_are_means_over_clients_and_seeds(make_comparison: Make) -> None:
    folder = make_comparison(["FedBN()", "Local()"], seeds=3)
    figure = rounds(one(folder))
    assert figure is not None
    by_seed = []
    for seed in range(3):
        lines = (folder / f"fedbn/seed-{seed}/rows.jsonl").read_text().splitlines()
        by_seed.append([statistics.fmean(json.loads(line)["test"]["accuracy"]) for line in lines])
    line = named_line(figure, "FedBN")
    assert line.get_xdata().tolist() == list(range(1, 13))
    expected = [100 * statistics.fmean(seed[i] for seed in by_seed) for i in range(13)]
    assert line.get_ydata().tolist() == pytest.approx(expected[:12])
    marks = [tuple(line.get_ydata()) for line in figure.axes[0].lines if len(line.get_xdata()) == 1]
    assert any(mark == pytest.approx((expected[12],)) for mark in marks), "the finished models have a mark of their own"
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(
        max(
            100 * (statistics.fmean(s[i] for s in by_seed) + statistics.stdev(s[i] for s in by_seed)) for i in range(12)
        )
    )


def test_a_round_counts_only_where_every_seed_was_tested(make_run: Make) -> None:
    def every_third(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row if row["round"] % 3 == 0 else {**row, "test": None} for row in rows]

    (comparison,) = read([make_run(seed=0, rows=every_third), make_run(seed=1)])
    figure = rounds(comparison)
    assert figure is not None
    assert named_line(figure, "FedBN").get_xdata().tolist() == [3, 6, 9, 12]


def test_traffic_adds_up_per_client(make_comparison: Make) -> None:
    comparison = one(make_comparison(["FedBN()", "Local()"]))
    figure = traffic(comparison, outcomes(comparison))
    assert figure is not None
    assert named_line(figure, "FedBN").get_xdata().tolist() == pytest.approx([2 * 178_000 * t for t in range(1, 13)])
    assert "Local" not in [line.get_label() for line in figure.axes[0].lines], "it exchanges nothing"
    alone = one(make_comparison(["Local()"]))
    assert traffic(alone, outcomes(alone)) is None


def test_without_training_loss_there_is_no_picture_of_it(make_run: Make) -> None:
    comparison = one(make_run(rows=lambda rows: [{**row, "train_loss": [None] * 12} for row in rows]))
    assert training(comparison) is None
    assert "training" not in draw(comparison, outcomes(comparison))


def test_a_method_has_one_colour_in_all_figures(make_comparison: Make) -> None:
    methods = ["FedBN()", "FedAvg()", "Local()", "Ditto(lam=1.0)"]
    comparison = one(make_comparison(methods))
    found = outcomes(comparison)
    figures = draw(comparison, found)
    colours = {}
    for label in ("FedBN", "FedAvg", "Ditto(lam=1.0)", "Local"):
        seen = {
            line.get_color() for f in figures.values() for a in f.axes for line in a.lines if line.get_label() == label
        }
        seen |= {line.get_color() for legend in figures["sites"].legends for line in legend.get_lines()
                 if line.get_label() == label}  # fmt: skip
        assert len(seen) == 1, label
        colours[label] = seen.pop()
    assert len(set(colours.values())) == 4


def test_each_client_stands_where_its_number_is(make_comparison: Make) -> None:
    comparison = one(make_comparison(["FedBN()", "Local()"]))
    found = outcomes(comparison)
    figure = sites(comparison, found)
    assert figure is not None
    marks = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 12]
    assert [line.get_xdata().tolist() for line in marks] == [
        pytest.approx([100 * value for value in outcome.values]) for outcome in found
    ]
    assert len(set(marks[0].get_ydata())) == 12


def test_a_crowd_of_methods_is_cut_to_the_best(make_comparison: Make) -> None:
    names = [
        "FedAvg()",
        "FedBN()",
        "FedProx()",
        "FedPer()",
        "FedRep()",
        "SCAFFOLD()",
        "FedALA()",
        "FedAMP()",
        "Local()",
    ]
    comparison = one(make_comparison(names, seeds=1))
    figure = sites(comparison, outcomes(comparison))
    assert figure is not None
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(labels) == MOST_MARKS + 1
    assert {"FedBN", "Local"} <= set(labels) and "FedAvg" not in labels


@pytest.mark.parametrize(("clients", "width"), [(1, 3.8), (5, 9.4), (100, 3.8), (130, 9.4)])
def test_all_figures_can_be_drawn_for_any_number_of_clients(make_run: Make, clients: int, width: float) -> None:
    (comparison,) = read([make_run(clients=clients), make_run("Local()", clients=clients)])
    figures = draw(comparison, outcomes(comparison), MARKED, width)
    assert set(figures) == {"rounds", "sites", "holdings", "traffic", "training"}
    for figure in figures.values():
        save(figure, io.BytesIO(), "svg")
        assert figure.get_figwidth() == width and figure.get_figheight() < 20


def test_holdings_show_every_count(make_data: MakeData) -> None:
    block = make_data(12)
    arguments = [block[k] for k in ("label_counts", "sizes", "clients", "groups", "group_names", "classes")]
    figure = holdings(*arguments)
    cells, bars = figure.axes
    drawn = sorted(int(text.get_text()) for text in cells.texts if text.get_text().isdigit())
    assert drawn == sorted(count for row in block["label_counts"] for count in row if count)
    assert [patch.get_width() for patch in bars.patches] == block["sizes"]
    assert {text.get_text() for text in cells.texts} >= set(block["group_names"])


def test_holdings_without_classes_are_sizes_alone() -> None:
    figure = holdings([[], []], [5, 9], ["a", "b"], [0, 0], ["all"], [])
    (bars,) = figure.axes
    assert [patch.get_width() for patch in bars.patches] == [5, 9]


def test_figures_are_written_in_each_format_and_are_reproducible(
    make_comparison: Make, make_data: MakeData, tmp_path: Path
) -> None:
    comparison = one(make_comparison(["FedBN()", "Local()"], seeds=1, data=make_data(3), rounds=3))
    written = write_figures(comparison, tmp_path / "one", ("pdf", "png", "svg"))
    again = write_figures(comparison, tmp_path / "two", ("pdf", "png", "svg"))
    starts = {".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<?xml"}
    assert len(written) == len(again) == 15
    for file in written:
        assert file.read_bytes().startswith(starts[file.suffix])
    for file in again:
        assert file.read_bytes() == (tmp_path / "one" / file.name).read_bytes()
    with pytest.raises(WrongInput, match="'gif'"):
        write_figures(comparison, tmp_path, ("gif",))


def test_an_inline_figure_brings_nothing_foreign_into_the_page(make_comparison: Make, make_data: MakeData) -> None:
    comparison = one(
        make_comparison(["FedBN()", "Local()"], seeds=1, data={**make_data(3), "clients": ["$a$", "<b>", "c"]})
    )
    figures = draw(comparison, outcomes(comparison), MARKED, 6.0)
    every_id: list[str] = []
    for name, figure in figures.items():
        text = inline(figure, f"x-{name}", "A & B", "the <picture>")
        ids = re.findall(r'\bid="([^"]*)"', text)
        every_id += ids
        assert set(re.findall(r'(?:href="|url\()#([^")]*)', text)) <= set(ids)
        assert "http" not in text and "<style" not in text and "<b>" not in text
        assert not re.search("#0a0[bc]", text), "a stand-in colour was left"
        assert "var(--muted)" in text and "A &amp; B" in text and "the &lt;picture&gt;" in text
    assert len(every_id) == len(set(every_id))
    assert "$a$" in inline(figures["sites"], "y", "", "")


@given(st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=12))
def test_labels_keep_their_order_their_distance_and_the_bounds(wanted: list[float]) -> None:
    placed = spread(wanted, 0.05, 0.0, 1.0)
    for i, j in itertools.combinations(range(len(wanted)), 2):
        if wanted[i] < wanted[j]:
            assert placed[i] < placed[j]
        assert abs(placed[i] - placed[j]) > 0.05 - 1e-9
    assert min(placed) > -1e-9 and max(placed) < 1 + 1e-9


def test_labels_move_only_as_far_as_they_must() -> None:
    assert spread([0.9, 0.1, 0.5], 0.05, 0.0, 1.0) == pytest.approx([0.9, 0.1, 0.5])
    assert spread([0.50, 0.52], 0.06, 0.0, 1.0) == pytest.approx([0.48, 0.54])


# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
DEFICIENCIES = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> Numbers:
    part = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb: Numbers) -> Numbers:
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.array(to_xyz) @ rgb.clip(0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize(("colours", "page"), [(SERIES_LIGHT, "#ffffff"), (SERIES_DARK, "#15181d")])
def test_colours_stay_apart_for_every_reader(colours: tuple[str, ...], page: str, deficiency: str) -> None:
    seen = [lab(np.array(DEFICIENCIES[deficiency]) @ linear(colour)) for colour in colours]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 14  # 2 can just be told apart
    luminance = [float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (*colours, page)]
    for own in luminance[:-1]:
        bright, dark = max(own, luminance[-1]), min(own, luminance[-1])
        assert (bright + 0.05) / (dark + 0.05) > 3  # WCAG, graphical objects
