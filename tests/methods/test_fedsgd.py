"""FedSGD: a round is one step of gradient descent on the weighted sum of all local losses."""

from __future__ import annotations

import pytest
from quadratic import SIZES, Line, federation, play, regressions, same, squares, w_of
from reference import close, line, values

from fedtailor import FedAvg, FedSGD


def test_one_round_by_hand() -> None:
    # 2 - 0.1 * (1 * 2 (2 - 1) + 3 * 1 (2 - 5)) / 4
    driver = play(FedSGD(), squares((1.0, 5.0), (2.0, 1.0), (1, 3)), Line(2.0), 1)
    assert w_of(driver) == pytest.approx(2 + 0.1 * 7 / 4, abs=1e-15)


def test_it_ends_at_the_optimum_of_the_sum() -> None:
    driver = play(FedSGD(), squares((0.0, 3.0), (9.0, 1.0), (1, 3)), Line(7.0), 60, lr=0.3)
    assert w_of(driver) == pytest.approx((3 * 1 * 3.0) / (1 * 9 + 3 * 1))


@pytest.mark.parametrize("options", [{}, {"epochs": 4, "batch": 2}, {"steps": 7, "batch": 1}, {"momentum": 0.9}])
def test_numpy_reference_whatever_local_work_is_asked_for(options: dict[str, float]) -> None:
    rows = regressions()
    driver = play(FedSGD(), federation(rows), Line(0.4, -0.1), 3, cohort=2, lr_decay=0.8, **options)
    w = values(Line(0.4, -0.1))
    for row in driver.rows:
        total = sum(SIZES[i] for i in row["cohort"])
        step = sum(SIZES[i] / total * line(*rows[i])(w)["w"] for i in row["cohort"])
        w = {"w": w["w"] - 0.1 * 0.8 ** (row["round"] - 1) * step}
        assert [row["steps"][i] for i in row["cohort"]] == [1, 1]
    close(driver.server["model"], w)


def test_it_is_fedavg_with_one_epoch_of_one_full_batch() -> None:
    data = federation(regressions())
    a = play(FedSGD(), data, Line(0.4, -0.1), 3, epochs=5, batch=2)
    b = play(FedAvg(), data, Line(0.4, -0.1), 3, epochs=1, batch=0)
    assert same(a.server["model"], b.server["model"])
