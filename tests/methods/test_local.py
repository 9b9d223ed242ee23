"""Local: every client by itself, with nothing on the wire."""

from __future__ import annotations

import pytest
from quadratic import Line, federation, left, play, regressions, squares
from reference import SETTINGS, close, descend, line, options, values

from fedtailor import Local


def test_each_client_ends_at_its_own_centre() -> None:
    driver = play(Local(), squares((1.0, -2.0), (1.0, 3.0), (1, 4)), Line(7.0), 60, lr=0.4)
    assert [float(driver.final(i)["w"]) for i in range(2)] == pytest.approx([1.0, -2.0])


def test_two_rounds_by_hand() -> None:
    driver = play(Local(), squares((1.0,), (1.0,), (3,)), Line(0.0), 2)
    assert float(driver.final(0)["w"]) == pytest.approx(1 - 0.9**2, abs=1e-15)  # 0.19
    assert left(0.1, 1.0, 2) == pytest.approx(0.81)


@pytest.mark.parametrize("setting", SETTINGS)
def test_numpy_reference_with_two_of_three_clients_a_round(setting: dict[str, float]) -> None:
    rows = regressions()
    driver = play(Local(), federation(rows), Line(0.4, -0.1), 3, cohort=2, **setting)
    own = [values(Line(0.4, -0.1)) for _ in rows]
    for row in driver.rows:
        for i in row["cohort"]:  # the momentum starts afresh in every round; an absent client stays where it is
            own[i] = descend(own[i], line(*rows[i]), **options(setting, row["round"]))
    for i, w in enumerate(own):
        close(driver.final(i), w)


def test_the_data_of_the_others_make_no_difference() -> None:
    mine = regressions()
    others = [*mine[:1], *regressions(seed=1)[1:]]
    a, b = (play(Local(), federation(rows), Line(0.4, -0.1), 3) for rows in (mine, others))
    assert a.final(0)["w"].equal(b.final(0)["w"])
    assert not a.final(1)["w"].equal(b.final(1)["w"])


def test_nothing_is_sent_and_the_server_holds_nothing() -> None:
    driver = play(Local(), federation(regressions()), Line(0.4, -0.1), 2)
    assert all(row["down"] == row["up"] == [0, 0, 0] for row in driver.rows)
    assert driver.server == {"model": {}}


def test_the_model_tested_is_the_one_just_trained() -> None:
    driver = play(Local(), squares((1.0,), (2.0,), (1,)), Line(0.0), 1)
    assert driver.rows[0]["point"] == "trained"
    assert driver.rows[0]["test"]["rmse"] == pytest.approx([left(0.1, 2.0, 1)])  # x = 1, so the error is 1 - w
