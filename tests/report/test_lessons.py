"""What methods showed, read by the shapes and names of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explained import matrix, one, showing

from fedtailor.report.learned.lessons import Cells, Courses, Curves, Maps, learned_by, rounds_shown, taken_apart
from fedtailor.report.read import read

Make = Callable[..., Path]
MIXED = {"clients": ["a", "b", "c", "d"], "groups": [1, 0, 1, 0], "group_names": ["north", "south"]}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("attention", ("attention", "", "")),
        ("attention/layer1.0.conv", ("attention", "", "layer1.0.conv")),
        ("mixture[SE,ECA,CA]/slot", ("mixture", "SE,ECA,CA", "slot")),
        ("mixture[SE,ECA,CA]/v/slot", ("mixture of v", "SE,ECA,CA", "slot")),
        ("weights of one[0..1]", ("weights of one", "0..1", "")),
        ("[broken/", ("[broken/", "", "")),
    ],
)
def test_a_name_is_taken_apart(name: str, parts: tuple[str, str, str]) -> None:
    assert taken_apart(name) == parts


def test_a_servers_square_is_a_map_over_the_clients_it_lists(make_run: Make, make_data: Any) -> None:
    """The rows and columns are put in the order of the groups: b and d of the first, then a and c."""
    psi = matrix(3)
    server = {"clients": [3, 0, 1], "attention/conv": psi.tolist(), "attention/fc": matrix(3, 1).tolist()}
    found = one(make_run(data={**make_data(4), **MIXED}, rows=showing(server=lambda t: server)))
    [maps] = found.lessons
    assert isinstance(maps, Maps) and maps.what == "attention" and maps.of_server
    assert [drawn.part for drawn in maps.maps] == ["conv", "fc"]
    assert maps.maps[0].rows == maps.maps[0].columns == (1, 3, 0)
    order = [2, 0, 1]  # where clients 1, 3 and 0 stand in the list
    np.testing.assert_array_equal(maps.maps[0].values, psi[np.ix_(order, order)])
    assert found.sites.groups == (("north", (1, 3)), ("south", (0, 2)))


def test_clients_vectors_over_all_clients_are_the_rows_of_a_map(make_run: Make, make_data: Any) -> None:
    alpha = matrix(4)
    rows = showing(clients=lambda i, t: {"alpha": alpha[i].tolist()})
    [maps] = one(make_run(data={**make_data(4), **MIXED}, rows=rows)).lessons
    assert isinstance(maps, Maps) and not maps.of_server
    assert maps.maps[0].rows == maps.maps[0].columns == (1, 3, 0, 2)
    np.testing.assert_array_equal(maps.maps[0].values, alpha[np.ix_([1, 3, 0, 2], [1, 3, 0, 2])])


def test_labels_bins_and_axes(make_run: Make) -> None:
    def shown(i: int, t: int) -> dict[str, Any]:
        return {
            "mixture[SE,ECA]/one": [0.25, 0.75], "mixture[SE,ECA]/two": [0.1 * i / 12, 1 - 0.1 * i / 12],
            "weights[-1..1]/fc": [0.5, 0.0, 0.0, 0.5], "loss[epoch]": [2.0, 1.0 * t, None, None], "norm[x,y]": [3, 4],
            "chance/one": 0.5 + 0.01 * t, "chance/two": 0.1,
        }  # fmt: skip

    found = one(make_run(rows=showing(shown), rounds=4))
    mixture, weights, norm, loss, chance = found.lessons
    assert isinstance(mixture, Cells) and mixture.parts == ("one", "two") and mixture.labels == ("SE", "ECA")
    assert mixture.are_shares and mixture.values.shape == (12, 2, 2)
    assert mixture.values[6, 1].tolist() == pytest.approx([0.05, 0.95])
    assert isinstance(weights, Cells) and weights.edges == (-1, 1)
    assert weights.labels == ("-1 to -0.5", "-0.5 to 0", "0 to 0.5", "0.5 to 1") and not weights.are_shares
    assert isinstance(norm, Cells) and not norm.are_shares and norm.values[0, 0].tolist() == [3, 4]
    assert isinstance(loss, Curves) and loss.axis == "epoch"
    assert loss.curves[3] == {t: (2.0, float(t)) for t in (1, 2, 3, 4)}, "cut where it is null"
    assert isinstance(chance, Courses) and chance.rounds == (1, 2, 3, 4)
    assert chance.values[0, 0].tolist() == pytest.approx([0.51, 0.52, 0.53, 0.54])
    assert found.unread == ()


def test_what_fits_no_shape_is_told(make_run: Make) -> None:
    client = {
        "cube": [[[1.0]]], "five": [1, 2, 3, 4, 5], "two[a,b,c]": [1, 2], "words": "none", "ragged": [[1], [1, 2]],
        "empty[a,b]": [],
    }  # fmt: skip
    server = {"vector": [1.0, 2.0], "attention": matrix(12).tolist(), "labelled[a,b]": [1, 2]}
    found = one(make_run(rows=showing(lambda i, t: client, lambda t: server)))
    assert [lesson.what for lesson in found.lessons] == ["attention"]
    assert set(found.unread) == {"vector", "labelled[a,b]", *client}


def test_what_changes_its_shape_is_told_and_the_rest_is_shown(make_run: Make) -> None:
    rows = showing(lambda i, t: {"p": matrix(12)[i].tolist()[: 5 if i == 3 else 12]})
    found = one(make_run(rows=rows))
    [maps] = found.lessons
    assert isinstance(maps, Maps) and set(maps.maps[0].rows) == set(range(12)) - {3} and found.unread == ("p",)


def test_a_vector_of_as_many_entries_as_clients_is_not_taken_for_labels(make_run: Make) -> None:
    """Three clients and three labels: the brackets decide."""
    shown = {"alpha": [0.2, 0.3, 0.5], "beta[own,attended,global]": [0.2, 0.3, 0.5]}
    alpha, beta = one(make_run(clients=3, rows=showing(lambda i, t: shown))).lessons
    assert isinstance(alpha, Maps) and isinstance(beta, Cells)


def test_clients_that_were_absent_are_shown_as_they_were_last(make_run: Make) -> None:
    rows = showing(
        lambda i, t: {"p": matrix(12, t)[i].tolist(), "chance/fc": t / 100},
        cohort=lambda i, t: t <= 3 or i % 2 == 0,
    )
    found = one(make_run(rows=rows, rounds=6))
    maps, courses = found.lessons
    assert found.round == 6 and found.since == dict.fromkeys(found.sites.sort(range(1, 12, 2)), 3)
    assert isinstance(maps, Maps) and isinstance(courses, Courses)
    order = found.sites.order
    for client in (0, 1):
        row = maps.maps[0].values[maps.maps[0].rows.index(client)]
        np.testing.assert_array_equal(row, matrix(12, 6 if client == 0 else 3)[client][order])
    assert courses.latest[courses.clients.index(0), 0] == 0.06 and courses.latest[courses.clients.index(1), 0] == 0.03
    early = one(make_run(rows=rows, rounds=6, name="again"), round=2)
    assert early.round == 2 and not early.since
    assert isinstance(early.lessons[1], Courses) and early.lessons[1].rounds == (1, 2)


def test_rounds_without_a_test_show_nothing(make_run: Make) -> None:
    rows = showing(lambda i, t: {"chance/fc": 0.5} if t > 4 else {}, tested=lambda t: t % 2 == 0)
    folder = make_run(rows=rows, rounds=9)
    [comparison] = read([folder])
    assert rounds_shown(comparison.runs[0]) == [6, 8]
    assert one(folder).round == 8
    assert learned_by(comparison, 7) == learned_by(comparison, 4) == []


def test_of_several_seeds_the_first_is_shown(make_run: Make) -> None:
    rows = showing(lambda i, t: {"chance/fc": 0.5})
    [comparison] = read([make_run(seed=seed, rows=rows, name=f"s{seed}") for seed in (4, 3, 5)])
    [found] = learned_by(comparison)
    assert found.run.seed == 3 and found.others == (4, 5)


def test_one_client_alone(make_run: Make) -> None:
    def shown(i: int, t: int) -> dict[str, Any]:
        return {"p": matrix(12)[i].tolist(), "mixture[a,b]": [i / 12, 1 - i / 12], "loss[epoch]": [float(i)], "x": i}

    rows = showing(shown, lambda t: {"clients": [0, 1, 2], "attention": matrix(3).tolist()}, cohort=lambda i, t: i != 5)
    found = one(make_run(rows=rows))
    mine = found.only(2)
    assert mine is not None
    attention, p, mixture, loss, x = mine.lessons
    assert isinstance(attention, Maps) and isinstance(p, Maps) and isinstance(mixture, Cells)
    assert isinstance(loss, Curves) and isinstance(x, Courses)
    assert attention.maps[0].rows == p.maps[0].rows == (2,)
    np.testing.assert_array_equal(p.maps[0].values[0], matrix(12)[2][found.sites.order])
    assert mixture.values.tolist() == [[[2 / 12, 1 - 2 / 12]]]
    assert list(loss.curves) == [2] and x.values.shape == (1, 1, 12)
    assert found.only(5) is None, "it never took part"
    other = found.only(7)
    assert other is not None and len(other.lessons) == 4, "it is not in the server's map"
