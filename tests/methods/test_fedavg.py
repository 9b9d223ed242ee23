"""FedAvg: closed forms on squares, a reference in NumPy, and what it does with a small or absent client."""

from __future__ import annotations

import numpy as np
import pytest
from quadratic import SIZES, Line, federation, left, play, regressions, squares, w_of
from reference import SETTINGS, close, descend, line, mean, options, values

from fedtailor import FedAvg

CENTRES, CURVATURES = (1.0, 2.0, -3.0), (1.0, 4.0, 0.5)


def test_one_round_by_hand() -> None:
    # one step of 0.1 from 0 on (w - c)^2 / 2 leads to 0.1 c; client 1 has three of the four rows
    driver = play(FedAvg(), squares((1.0, 5.0), (1.0, 1.0), (1, 3)), Line(0.0), 1)
    assert w_of(driver) == pytest.approx((1 * 0.1 + 3 * 0.5) / 4, abs=1e-15)


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("weighting", ["auto", "uniform"])
def test_it_goes_to_the_mean_of_the_centres_weighted_by_rows_and_progress(epochs: int, weighting: str) -> None:
    # a round is w <- sum_i p_i (left_i w + (1 - left_i) c_i): a fixed point, and the same rate towards it in each round
    driver = play(FedAvg(), squares(CENTRES, CURVATURES, SIZES), Line(7.0), 5, epochs=epochs, weighting=weighting)
    kept = np.array([left(0.1, h, epochs) for h in CURVATURES])
    share = np.array(SIZES if weighting == "auto" else (1, 1, 1), dtype=float)
    share /= share.sum()
    end, rate = (share * (1 - kept) @ CENTRES) / (share @ (1 - kept)), share @ kept
    assert w_of(driver) == pytest.approx(end + rate**5 * (7.0 - end), rel=1e-12)


def test_with_equal_curvature_it_goes_to_the_mean_of_the_clients_optima() -> None:
    driver = play(FedAvg(), squares(CENTRES, (2.0, 2.0, 2.0), SIZES), Line(7.0), 20, epochs=5, lr=0.2)
    assert w_of(driver) == pytest.approx(np.array(SIZES) @ CENTRES / sum(SIZES))


@pytest.mark.parametrize("setting", SETTINGS)
def test_numpy_reference_with_two_of_three_clients_a_round(setting: dict[str, float]) -> None:
    rows = regressions()
    driver = play(FedAvg(), federation(rows), Line(0.4, -0.1), 3, cohort=2, **setting)
    w = values(Line(0.4, -0.1))
    for row in driver.rows:
        trained = [descend(w, line(*rows[i]), **options(setting, row["round"])) for i in row["cohort"]]
        w = mean(trained, [SIZES[i] for i in row["cohort"]])
    assert {len(row["cohort"]) for row in driver.rows} == {2}
    assert len({tuple(row["cohort"]) for row in driver.rows}) > 1
    close(driver.server["model"], w)


def test_a_client_smaller_than_a_batch_trains_on_what_it_has() -> None:
    data = squares((1.0, 5.0), (1.0, 1.0), (1, 3))
    small, whole = (play(FedAvg(), data, Line(0.0), 2, batch=batch) for batch in (64, 0))
    assert small.rows[0]["steps"] == [1, 1]
    assert w_of(small) == w_of(whole) != 0


def test_the_last_short_batch_of_an_epoch_is_used() -> None:
    driver = play(FedAvg(), squares((1.0,), (1.0,), (5,)), Line(0.0), 1, batch=2, epochs=2)
    assert driver.rows[0]["steps"] == [6]
    assert w_of(driver) == pytest.approx(1 - left(0.1, 1.0, 6))


def test_absent_clients_are_tested_with_the_model_the_others_received() -> None:
    driver = play(FedAvg(), squares((1.0, 5.0), (1.0, 1.0), (1, 1)), Line(2.0), 1, cohort=1)
    assert driver.rows[0]["point"] == "received"
    # |w - c| / sqrt(2) at w = 2, on both sites
    assert driver.rows[0]["test"]["rmse"] == pytest.approx([1 / 2**0.5, 3 / 2**0.5])
