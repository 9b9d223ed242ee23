"""Centralised: gradient descent on everybody's rows, tested at each site."""

from __future__ import annotations

import numpy as np
import pytest
from quadratic import SIZES, Line, federation, play, regressions, squares, w_of
from reference import SETTINGS, close, descend, line, options, values

from fedtailor import Centralised, FedSGD


def test_it_ends_at_the_optimum_of_all_rows() -> None:
    # the minimum of sum_i n_i h_i (w - c_i)^2; FedAvg with more than one step would end elsewhere
    driver = play(Centralised(), squares((0.0, 3.0), (9.0, 1.0), (1, 3)), Line(7.0), 12, epochs=5, lr=0.3)
    assert w_of(driver) == pytest.approx((3 * 1 * 3.0) / (1 * 9 + 3 * 1))


def test_one_round_by_hand() -> None:
    # the slope at 0 is -(1 * 1 + 3 * 5) / 4 = -4
    driver = play(Centralised(), squares((1.0, 5.0), (1.0, 1.0), (1, 3)), Line(0.0), 1)
    assert w_of(driver) == pytest.approx(0.4, abs=1e-15)


@pytest.mark.parametrize("setting", SETTINGS)
def test_numpy_reference_on_the_union(setting: dict[str, float]) -> None:
    rows = regressions()
    driver = play(Centralised(), federation(rows), Line(0.4, -0.1), 3, **setting)
    union = line(np.concatenate([x for x, _ in rows]), np.concatenate([y for _, y in rows]))
    w = values(Line(0.4, -0.1))
    for round in (1, 2, 3):
        w = descend(w, union, **options(setting, round))
    close(driver.final(0), w)


def test_in_full_batches_it_is_fedsgd() -> None:
    data = federation(regressions())
    central, fedsgd = (play(method, data, Line(0.4, -0.1), 4) for method in (Centralised(), FedSGD()))
    close(central.final(0), {"w": fedsgd.server["model"]["w"].numpy()})


def test_epochs_are_over_the_union() -> None:
    driver = play(Centralised(), federation(regressions()), Line(0.4, -0.1), 1, batch=4, epochs=2)
    assert driver.rows[0]["steps"] == [2 * -(-sum(SIZES) // 4)]


def test_it_is_tested_site_by_site_and_sends_one_model_to_nobody_else() -> None:
    driver = play(Centralised(), squares((1.0, 5.0), (2.0, 2.0), (1, 3)), Line(0.0), 1)
    row = driver.rows[0]
    assert row["cohort"] == [0] and len(row["down"]) == len(row["up"]) == 1
    w = w_of(driver)
    assert row["test"]["rmse"] == pytest.approx([abs(w - 1.0), abs(w - 5.0)])  # after training: x = 1
