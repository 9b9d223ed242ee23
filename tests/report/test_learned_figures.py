"""The pictures of what was learned, by what they hold: the values of cells and lines, names, borders, the scale."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from explained import matrix
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedtailor.report.learned.cells import with_average
from fedtailor.report.learned.colours import Scale, scale_around, scale_of
from fedtailor.report.learned.courses import some_rounds
from fedtailor.report.learned.lessons import Cells, Courses, Curves, Lesson, Map, Maps, Sites
from fedtailor.report.learned.maps import Mass, in_words, mass
from fedtailor.report.learned.section import caption, draw
from fedtailor.report.style import MARKED, PRINT, inline

SIX = Sites(("a1", "a2", "b1", "b2", "b3", "c1"), (("a", (0, 1)), ("b", (2, 3, 4)), ("c", (5,))))
ALONE = Sites(SIX.names, (("", (0, 1, 2, 3, 4, 5)),))


def many(n: int, groups: int) -> Sites:
    names = tuple(f"station-{i}" for i in range(n))
    split = np.array_split(np.arange(n), groups)
    return Sites(names, tuple((f"region {k}" if groups > 1 else "", tuple(map(int, g))) for k, g in enumerate(split)))


def maps_of(sites: Sites, *parts: str, of_server: bool = True) -> Maps:
    n, order = len(sites.names), tuple(sites.order)
    return Maps("attention", of_server, tuple(Map(part, order, order, matrix(n, k)) for k, part in enumerate(parts)))


def panels(figure: Figure) -> list[Axes]:
    """Without the bar, which comes last."""
    return figure.axes[:-1]


def names(axes: Axes, side: str) -> list[str]:
    return [label.get_text() for label in getattr(axes, f"get_{side}ticklabels")()]


def borders(axes: Axes) -> tuple[list[float], list[float]]:
    """Where the lines stand: upright ones, and level ones."""
    ends = [(line.get_xdata(), line.get_ydata()) for line in axes.lines]
    return [float(x[0]) for x, _ in ends if x[0] == x[1]], [float(y[0]) for x, y in ends if x[0] != x[1]]


# ---------- maps ----------


def test_a_map_shows_the_values_row_by_row_with_the_borders_of_groups() -> None:
    lesson = maps_of(SIX, "")
    figure = draw(lesson, SIX)
    [axes] = panels(figure)
    [image] = axes.images
    np.testing.assert_array_equal(image.get_array(), lesson.maps[0].values)
    assert image.origin == "upper", "the first client is on top"
    assert names(axes, "x") == names(axes, "y") == list(SIX.names)
    assert borders(axes) == ([1.5, 4.5], [1.5, 4.5])
    assert axes.get_ylabel() == "of client" and axes.get_xlabel() == "to client"
    written = {(t.get_position(), t.get_text()) for t in axes.texts}
    values = lesson.maps[0].values
    assert written == {((c, r), f"{v:.2f}" if v >= 0.005 else "0") for (r, c), v in np.ndenumerate(values)}
    bar = figure.axes[-1]
    assert bar.get_ylabel() == "attention"
    assert (image.norm.vmin, image.norm.vmax) == (0, values.max())
    assert all(0 <= tick <= values.max() for tick in bar.get_yticks()) and bar.get_yticks()[0] == 0
    assert axes.get_position().width * figure.get_figwidth() == pytest.approx(
        axes.get_position().height * figure.get_figheight()
    ), "squares are square"


def test_every_component_is_a_panel_in_the_same_colours() -> None:
    lesson = maps_of(SIX, "conv1", "conv2", "fc1", "fc2", "head")
    figure = draw(lesson, SIX)
    found = panels(figure)
    assert [axes.get_title() for axes in found] == ["conv1", "conv2", "fc1", "fc2", "head"]
    for axes, one in zip(found, lesson.maps, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), one.values)
        assert borders(axes) == ([1.5, 4.5], [1.5, 4.5])
    assert {axes.images[0].norm.vmax for axes in found} == {max(one.values.max() for one in lesson.maps)}
    assert [bool(names(axes, "y")) for axes in found] == [True, False, False, True, False], "names stand left only"
    assert [bool(names(axes, "x")) for axes in found] == [False, False, True, True, True], "and under the lowest only"


def test_without_groups_there_are_no_borders() -> None:
    [axes] = panels(draw(maps_of(ALONE, ""), ALONE))
    assert borders(axes) == ([], [])


def test_negative_values_are_on_the_other_side_of_white() -> None:
    values = matrix(6) - 0.4
    lesson = Maps("affinity", True, (Map("", tuple(range(6)), tuple(range(6)), values),))
    figure = draw(lesson, SIX)
    image = panels(figure)[0].images[0]
    most = np.abs(values).max()
    assert (image.norm.vmin, image.norm.vmax) == (-most, most)
    below, zero, above = image.cmap(image.norm(np.array([-most / 2, 0.0, most / 2])))
    assert below[0] > below[2] + 0.3 and above[0] < above[2] - 0.3, "orange, and blue"
    assert zero[:3] == pytest.approx([1, 1, 1], abs=0.01)
    assert any(text.get_text().startswith("\N{MINUS SIGN}0.") for text in panels(figure)[0].texts)
    assert "Orange is below zero." in caption(lesson, SIX) and "Orange" not in caption(maps_of(SIX, ""), SIX)


def test_many_clients_are_named_by_their_groups_and_without_groups_some_of_them() -> None:
    for sites, expected in ((many(100, 5), [f"region {k}" for k in range(5)]), (many(100, 1), None)):
        [axes] = panels(draw(maps_of(sites, ""), sites))
        shown = names(axes, "y")
        if expected:
            assert shown == names(axes, "x") == expected
            assert axes.get_yticks().tolist() == pytest.approx([9.5, 29.5, 49.5, 69.5, 89.5])
            assert borders(axes)[0] == [19.5, 39.5, 59.5, 79.5]
        else:
            step = round(axes.get_yticks()[1])
            assert 1 < step < 6 and shown == [f"station-{i}" for i in range(0, 100, step)]
        assert not axes.texts, "no room for numbers"


def test_a_clients_own_row_is_a_strip_for_each_component() -> None:
    lesson = maps_of(SIX, "conv", "fc").only(3)
    assert lesson is not None
    figure = draw(lesson, SIX)
    first, second = panels(figure)
    assert first.images[0].get_array().shape == (1, 6) and names(first, "y") == ["b2"]
    assert second.get_position().y1 < first.get_position().y0, "below each other"
    assert borders(first) == ([1.5, 4.5], [])


@pytest.mark.parametrize("n", [5, 12, 30, 100])
@pytest.mark.parametrize(("width", "palette"), [(7.2, PRINT), (9.4, MARKED), (3.8, MARKED)])
def test_names_never_overlap_and_nothing_leaves_the_figure(n: int, width: float, palette: Any) -> None:
    sites = many(n, 4)
    for lesson in (maps_of(sites, ""), maps_of(sites, "a", "b", "c", "d", "e"), cells_of(sites, 3), cells_of(sites, 1)):
        figure = draw(lesson, sites, palette, width)
        assert figure.get_figwidth() <= width and figure.get_figheight() < 33
        figure.draw_without_rendering()
        inside = figure.bbox.padded(2)
        for axes in figure.axes:
            for side in "xy":
                labels = [label for label in getattr(axes, f"get_{side}ticklabels")() if label.get_text()]
                boxes = [label.get_window_extent() for label in labels]
                for box in boxes:
                    assert inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1), (lesson.what, side, box)
                for a, b in itertools.pairwise(boxes):
                    assert not a.padded(-1).overlaps(b.padded(-1)), (n, width, lesson.what, side)


# ---------- the mass within groups ----------


def test_mass_by_hand() -> None:
    sites = Sites(("a1", "a2", "b1", "b2", "b3"), (("a", (0, 1)), ("b", (2, 3, 4))))
    values = np.array([
        [0.5, 0.3, 0.1, 0.1, 0.0],
        [0.2, 0.2, 0.2, 0.2, 0.2],
        [0.0, 0.0, 1.0, 0.0, 0.0],
        [0.1, 0.1, 0.2, 0.4, 0.2],
        [0.0, 0.2, 0.3, 0.1, 0.4],
    ])  # fmt: skip
    found = mass(Map("", (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), values), sites)
    assert found.own == pytest.approx((0.5 + 0.2 + 1.0 + 0.4 + 0.4) / 5)
    assert found.near == pytest.approx((0.3 + 0.2 + 0 + 0.4 + 0.4) / 5)
    assert found.far == pytest.approx((0.2 + 0.6 + 0 + 0.2 + 0.2) / 5)
    assert found.each_near == pytest.approx((0.3 + 0.2 + 0 + 0.2 + 0.2) / 5)  # one other in a, two in b
    assert found.each_far == pytest.approx((0.2 / 3 + 0.2 + 0 + 0.1 + 0.1) / 5)
    assert found.ratio == pytest.approx(0.18 / (1.4 / 15))
    assert in_words(found) == (
        "On average a client gives each other of its own group 1.9 times what it gives each client of other groups."
    )
    uniform = mass(Map("", tuple(range(5)), tuple(range(5)), np.full((5, 5), 0.2)), sites)
    assert uniform.ratio == pytest.approx(1) and "as much as" in in_words(uniform)


def test_mass_of_some_rows_and_columns() -> None:
    """c1 is alone in its group: its row counts for what goes beyond, and not for what stays."""
    values = np.array([[0.6, 0.3, 0.1], [0.5, 0.25, 0.25]])
    found = mass(Map("", (0, 5), (0, 1, 5), values), SIX)
    assert found == Mass(
        pytest.approx((0.6 + 0.25) / 2), pytest.approx(0.3 / 2), pytest.approx((0.1 + 0.75) / 2),
        pytest.approx(0.3), pytest.approx((0.1 + 0.375) / 2),
    )  # fmt: skip
    without = mass(Map("", (0, 5), (0, 1, 5), values), ALONE)
    assert without.far is None and without.each_far is None and without.ratio is None
    assert without.near == pytest.approx((0.4 + 0.75) / 2) and without.each_near == pytest.approx((0.2 + 0.375) / 2)
    assert in_words(without) == ""
    holes = mass(Map("", (0,), (0, 1, 5), np.array([[np.nan, 0.3, np.nan]])), SIX)
    assert holes == Mass(None, 0.3, None, 0.3, None)


# ---------- cells ----------


def cells_of(sites: Sites, parts: int) -> Cells:
    draw_from = np.random.default_rng(parts)
    values = draw_from.dirichlet([30, 30, 30], (len(sites.names), parts))
    names = tuple(f"attention{k}" for k in range(parts)) if parts > 1 else ("",)
    return Cells("mixture", names, ("SE", "ECA", "CA"), None, tuple(sites.order), values)


def test_shares_are_panels_with_their_average() -> None:
    """pFedLA's table 11: clients, layers, kinds, and the mean over the layers."""
    lesson = cells_of(SIX, 2)
    figure = draw(lesson, SIX, width=9.4)
    first, second, average = panels(figure)
    assert [axes.get_title() for axes in (first, second, average)] == ["attention0", "attention1", "average"]
    np.testing.assert_array_equal(first.images[0].get_array(), lesson.values[:, 0])
    np.testing.assert_allclose(average.images[0].get_array(), (lesson.values[:, 0] + lesson.values[:, 1]) / 2)
    assert names(first, "x") == ["SE", "ECA", "CA"] and names(first, "y") == list(SIX.names)
    assert borders(first)[1] == [1.5, 4.5]
    norm = first.images[0].norm
    assert (norm.vmin + norm.vmax) / 2 == pytest.approx(1 / 3), "an equal share is white"
    assert {text.get_text() for text in first.texts} == {f"{v:.3f}" for v in lesson.values[:, 0].flat}
    assert figure.axes[-1].get_yticks().tolist() == pytest.approx([norm.vmin, 1 / 3, norm.vmax])


def test_one_part_has_no_average_and_other_numbers_are_no_shares() -> None:
    assert [part for part, _ in with_average(cells_of(SIX, 1))] == [""]
    plain = Cells("norm", ("x", "y"), ("p", "q"), None, tuple(range(6)), np.random.default_rng(0).random((6, 2, 2)) + 1)
    assert [part for part, _ in with_average(plain)] == ["x", "y"]
    image = panels(draw(plain, SIX))[0].images[0]
    assert (image.norm.vmin, image.norm.vmax) == (0, plain.values.max())


def test_a_histogram_has_its_ends_below() -> None:
    values = np.random.default_rng(0).dirichlet(np.ones(10), (6, 2))
    labels = tuple(f"{k / 10:g} to {(k + 1) / 10:g}" for k in range(10))
    lesson = Cells("ALA weights", ("fc", "head"), labels, (0.0, 1.0), tuple(range(6)), values)
    figure = draw(lesson, SIX)
    first, second = panels(figure)
    assert names(first, "x") == ["0", "0.5", "1"] and first.get_xticks().tolist() == [-0.5, 4.5, 9.5]
    np.testing.assert_array_equal(second.images[0].get_array(), values[:, 1])
    assert second.get_xlabel() == "ALA weights" and figure.axes[-1].get_ylabel() == "share"


# ---------- lines ----------


def courses_of(n: int, parts: tuple[str, ...] = ("stage1", "fc")) -> Courses:
    values = np.random.default_rng(n).random((n, len(parts), 5))
    values[0, :, 3] = np.nan  # absent in the fourth tested round
    return Courses("probability of loading globally", parts, tuple(range(n)), (2, 4, 6, 8, 10), values)


def test_courses_have_a_panel_for_each_part_and_a_colour_for_each_group() -> None:
    """PartialFed's figure 3: a panel for each stage, a colour for each domain."""
    lesson = courses_of(6)
    figure = draw(lesson, SIX)
    first, second = figure.axes
    assert [first.get_title(), second.get_title()] == ["stage1", "fc"]
    assert figure.get_supylabel() == "probability of loading globally" and figure.get_supxlabel() == "round"
    thin = [line for line in first.lines if line.get_linewidth() < 1]
    thick = [line for line in first.lines if line.get_linewidth() >= 1]
    assert len(thin) == 5 and len(thick) == 3, "the client alone in its group is its group's line"
    by_client = {tuple(line.get_ydata()): line for line in thin}
    for client in range(5):
        own = lesson.values[client, 0]
        line = by_client[tuple(own[np.isfinite(own)])]
        assert line.get_color() == PRINT.series[0 if client < 2 else 1]
        assert line.get_xdata().tolist() == [r for r, v in zip((2, 4, 6, 8, 10), own, strict=True) if np.isfinite(v)]
    np.testing.assert_allclose(thick[0].get_ydata(), np.nanmean(lesson.values[:2, 0], 0))
    np.testing.assert_allclose(thick[1].get_ydata(), lesson.values[2:5, 0].mean(0))
    np.testing.assert_allclose(thick[2].get_ydata(), lesson.values[5, 0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert first.get_ylim() == (-0.03, 1.03) == second.get_ylim()
    assert caption(lesson, SIX).endswith("Thin lines are clients, thick ones the means of their groups.")


def test_the_last_value_of_a_course_is_the_last_one_shown() -> None:
    values = np.array([[[0.1, np.nan, 0.3]], [[0.4, 0.5, np.nan]]])
    assert Courses("x", ("",), (0, 1), (1, 2, 3), values).latest.tolist() == [[0.3], [0.5]]


def test_courses_without_groups() -> None:
    few = draw(courses_of(6), ALONE)
    assert [text.get_text() for text in few.legends[0].get_texts()] == list(ALONE.names)
    crowd = many(40, 1)
    lesson = courses_of(40)
    figure = draw(lesson, crowd)
    assert not figure.legends and len(figure.axes[0].lines) == 41
    np.testing.assert_allclose(figure.axes[0].lines[-1].get_ydata(), np.nanmean(lesson.values[:, 0], 0))
    assert caption(lesson, crowd).endswith("Thin lines are clients, the thick one is their mean.")
    assert caption(courses_of(6), ALONE).endswith("Each line is a client.")


def test_more_groups_than_can_be_told_apart_have_one_mean() -> None:
    sites = many(60, 20)
    assert not draw(courses_of(60), sites).legends


def test_curves_have_a_panel_for_each_client_and_a_line_for_each_round() -> None:
    """FedALA's figure 3: the loss over the epochs of several rounds."""
    curves = {i: {2: (2.0, 1.5, 1.0 + i), 3: (0.9,), 4: (0.8, 0.7)} for i in range(6)}
    figure = draw(Curves("ALA loss", "epoch", curves), SIX)
    shown = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in shown] == list(SIX.names)
    assert figure.get_supxlabel() == "epoch" and figure.get_supylabel() == "ALA loss"
    assert [line.get_ydata().tolist() for line in shown[4].lines] == [[2.0, 1.5, 5.0], [0.9], [0.8, 0.7]]
    assert shown[4].lines[0].get_xdata().tolist() == [1, 2, 3]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["round 2", "round 3", "round 4"]
    strength = [line.get_alpha() for line in shown[0].lines]
    assert strength == sorted(strength) and strength[-1] == pytest.approx(1)


def test_curves_of_many_clients_are_means_of_groups() -> None:
    sites = many(40, 4)
    curves = {i: {5: (float(i), 1.0) if i % 2 else (float(i),)} for i in range(40)}
    shown = [axes for axes in draw(Curves("loss", "epoch", curves), sites).axes if axes.get_title()]
    assert [axes.get_title() for axes in shown] == [f"region {k} (10)" for k in range(4)]
    assert shown[1].lines[0].get_ydata().tolist() == [14.5, 1.0], "at each step over those that reach it"
    [everybody] = [a for a in draw(Curves("loss", "epoch", curves), many(40, 1)).axes if a.get_title()]
    assert everybody.get_title() == "mean over 40 clients"
    assert everybody.lines[0].get_ydata()[0] == 19.5


def test_of_many_rounds_the_first_and_last_and_some_between_are_shown() -> None:
    lesson = Curves("loss", "epoch", {0: {r: (1.0,) for r in range(2, 103)}})
    assert some_rounds(lesson) == [2, 22, 42, 62, 82, 102] and some_rounds(lesson, 3) == [2, 52, 102]


# ---------- the scale ----------


def test_little_does_not_look_like_nothing_and_ticks_are_round() -> None:
    scale = scale_of([np.array([[0.0, 0.01, 0.25, 1.0]])], root=True)
    assert [float(scale.norm(v)) for v in (0.0, 0.01, 0.25, 1.0)] == pytest.approx([0, 0.1, 0.5, 1])
    assert scale.ticks == [0, 0.02, 0.1, 0.2, 0.5, 1]
    signed = scale_of([np.array([[-0.25, 0.1]])], root=True)
    assert (signed.low, signed.high) == (-0.25, 0.25) and signed.ticks[0] == -signed.ticks[-1]
    assert scale_of([np.zeros((2, 2))], root=True) == Scale(0.0, 1.0, root=True), "nothing at all has a scale too"
    assert scale_of([np.array([[0.999]])], root=True).high == 1.0


def test_a_hundredth_around_equal_shares_is_not_taken_for_much() -> None:
    near = scale_around(np.array([0.330, 0.336]), 1 / 3)
    assert (near.low, near.high) == pytest.approx((1 / 3 - 0.02, 1 / 3 + 0.02))
    assert scale_around(np.array([0.2, 0.4]), 0.3).high == pytest.approx(0.4)


# ---------- on the page ----------


@pytest.mark.parametrize(
    "lesson", [maps_of(SIX, "a", "b"), cells_of(SIX, 2), courses_of(6), Curves("l", "e", {0: {1: (1.0,)}})],
    ids=lambda lesson: type(lesson).__name__,
)  # fmt: skip
def test_a_picture_brings_nothing_foreign_into_the_page(lesson: Lesson) -> None:
    text = inline(draw(lesson, SIX, MARKED, 9.4), "x", "A & B", "the <picture>")
    assert "http" not in text and "#0a0b" not in text and "#0a0c" not in text and "<b>" not in text
    links = [part.split('"')[0] for part in text.split('href="')[1:]]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert ("data:image" in text) is isinstance(lesson, Maps | Cells)
    assert len(text) < 150_000
