"""SCAFFOLD: unbiased where FedAvg is not, and the bookkeeping of its control variates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from quadratic import Line, federation, play, regressions, same, squares, w_of
from reference import SETTINGS, Gradient, close, descend, line, options, values
from torch import nn

from fedtailor import SCAFFOLD, FedAvg, WrongInput

# Two squares of unequal curvature, whose sum is least at 0.30.
UNEQUAL = squares((0.0, 3.0), (9.0, 1.0), (4, 4))
MANY_STEPS = {"epochs": 5, "lr": 0.08}


def shifted(gradient: Gradient, by: np.ndarray) -> Gradient:
    return lambda m: {"w": gradient(m)["w"] + by}


def mean_of_own(driver) -> dict[str, torch.Tensor]:
    return {
        name: torch.stack([kept["method"]["c"][name] for kept in driver.kept]).mean(0) for name in driver.server["c"]
    }


def test_it_finds_the_optimum_that_fedavg_misses() -> None:
    # FedAvg rests where (1 - 0.28^5) w = (1 - 0.92^5) (3 - w); a flipped sign of the correction goes to infinity
    fedavg = play(FedAvg(), UNEQUAL, Line(0.0), 30, **MANY_STEPS)
    a, b = 1 - 0.28**5, 1 - 0.92**5
    assert w_of(fedavg) == pytest.approx(3 * b / (a + b), abs=1e-6) == pytest.approx(0.76, abs=0.005)
    assert w_of(play(SCAFFOLD(), UNEQUAL, Line(0.0), 60, **MANY_STEPS)) == pytest.approx(0.30, abs=1e-9)


def test_it_rests_at_the_optimum_once_each_c_i_is_the_gradient_there() -> None:
    driver = play(SCAFFOLD(), UNEQUAL, Line(0.3), 0, **MANY_STEPS)
    gradients = [9 * (0.3 - 0.0), 1 * (0.3 - 3.0)]
    driver.kept = [{**kept, "method": {"c": {"w": torch.tensor([g], dtype=torch.float64)}}}
                   for kept, g in zip(driver.kept, gradients, strict=True)]  # fmt: skip
    driver.step()
    assert w_of(driver) == pytest.approx(0.3, abs=1e-15)
    assert float(driver.server["c"]["w"]) == pytest.approx(0.0, abs=1e-14)


def test_one_round_by_hand() -> None:
    # round 1, no correction yet: y = 0.1 and 0.5, so x = 0.3; c_i = (x - y) / 0.1 = -1 and -5, c = -3
    data = squares((1.0, 5.0), (1.0, 1.0), (1, 3))
    first = play(SCAFFOLD(), data, Line(0.0), 1)
    assert w_of(first) == pytest.approx(0.3)
    assert [float(kept["method"]["c"]["w"]) for kept in first.kept] == pytest.approx([-1.0, -5.0])
    assert float(first.server["c"]["w"]) == pytest.approx(-3.0)
    # round 2: both slopes become -0.7 and -4.7 corrected by -3 - c_i = -2 and 2, that is -2.7: x = 0.57
    assert w_of(play(SCAFFOLD(), data, Line(0.0), 2)) == pytest.approx(0.57)


@pytest.mark.parametrize("lr_global", [1.0, 0.5])
@pytest.mark.parametrize("setting", [SETTINGS[0], {"lr": 0.05, "epochs": 3, "weight_decay": 0.02, "lr_decay": 0.8}])
def test_numpy_reference_with_two_of_three_clients_a_round(setting: dict[str, float], lr_global: float) -> None:
    rows = regressions()
    driver = play(SCAFFOLD(lr_global=lr_global), federation(rows), Line(0.4, -0.1), 4, cohort=2, **setting)
    x = values(Line(0.4, -0.1))["w"]
    c, own = np.zeros(2), [np.zeros(2)] * 3
    for row in driver.rows:
        work = options(setting, row["round"])
        dx, dc = [], []
        for i in row["cohort"]:
            y = descend({"w": x}, shifted(line(*rows[i]), c - own[i]), **work)["w"]
            after = own[i] - c + (x - y) / (work["epochs"] * work["lr"])  # option II
            dx.append(y - x)
            dc.append(after - own[i])
            own[i] = after
        x = x + lr_global * sum(dx) / 2
        c = c + 2 / 3 * sum(dc) / 2
    close(driver.server["model"], {"w": x})
    close(driver.server["c"], {"w": c})
    for kept, mine in zip(driver.kept, own, strict=True):
        close(kept["method"]["c"], {"w": mine})


@pytest.mark.parametrize("weighting", ["auto", "size"])
@pytest.mark.parametrize("cohort", [1, 2, 3])
def test_c_stays_the_mean_of_all_c_i(cohort: int, weighting: str) -> None:
    # weighted by size over changing cohorts it would be the mean of nothing, and x would end anywhere
    setting = {"cohort": cohort, "weighting": weighting, "epochs": 2, "batch": 2}
    driver = play(SCAFFOLD(), federation(regressions()), Line(0.4, -0.1), 5, **setting)
    assert float(driver.server["c"]["w"].abs().min()) > 0
    torch.testing.assert_close(driver.server["c"], mean_of_own(driver), rtol=1e-12, atol=1e-12)


def test_with_equal_control_variates_it_is_unweighted_fedavg() -> None:
    data, setting = federation(regressions()), {"epochs": 3, "momentum": 0.9, "cohort": 2}
    scaffold = play(SCAFFOLD(), data, Line(0.4, -0.1), 1, **setting)
    fedavg = play(FedAvg(), data, Line(0.4, -0.1), 1, weighting="uniform", **setting)
    torch.testing.assert_close(scaffold.server["model"], fedavg.server["model"], rtol=0, atol=1e-15)
    weighted = play(FedAvg(), data, Line(0.4, -0.1), 1, **setting)
    assert not np.allclose(weighted.server["model"]["w"], scaffold.server["model"]["w"])


def test_alone_it_is_gradient_descent() -> None:
    # c = c_i, so the correction is zero in every round
    data = federation(regressions((4,)))
    scaffold, fedavg = (play(m, data, Line(0.4, -0.1), 4, epochs=3) for m in (SCAFFOLD(), FedAvg()))
    torch.testing.assert_close(scaffold.server["model"], fedavg.server["model"], rtol=1e-12, atol=1e-12)


def test_the_control_variate_is_the_mean_gradient_whatever_the_rate_and_the_number_of_steps() -> None:
    # a flat slope of -2 everywhere near w = 0 of a far, shallow square: K and the decayed rate must both cancel
    data = squares((2e6,), (1e-6,), (5,))
    for setting in ({"steps": 7}, {"batch": 2, "epochs": 3}, {"lr_decay": 0.5}):
        driver = play(SCAFFOLD(), data, Line(0.0), 3, **setting)
        assert float(driver.kept[0]["method"]["c"]["w"]) == pytest.approx(-2.0, rel=1e-5)


def test_a_client_that_can_take_no_step_changes_nothing() -> None:
    # batch norm cannot train on one row: no step, no division by zero, its c_i stays
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    driver = play(SCAFFOLD(), federation(regressions((1, 4))), net, 3)
    assert driver.rows[0]["steps"] == [0, 1]
    assert all(not c.any() for c in driver.kept[0]["method"]["c"].values())
    assert any(c.any() for c in driver.kept[1]["method"]["c"].values())
    torch.testing.assert_close(driver.server["c"], mean_of_own(driver), rtol=1e-12, atol=1e-12)


def test_model_and_control_variate_travel_both_ways_without_the_buffers() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    driver = play(SCAFFOLD(), federation(regressions(dtype=np.float32)), net, 1)
    parameters = 4 * sum(p.numel() for p in net.parameters())
    model = parameters + sum(b.numel() * b.element_size() for b in net.buffers())
    assert driver.rows[0]["down"] == driver.rows[0]["up"] == [model + parameters] * 3
    assert set(driver.server["c"]) == {name for name, _ in net.named_parameters()}


def test_equal_inputs_give_equal_runs() -> None:
    a, b = (play(SCAFFOLD(), federation(regressions()), Line(0.4, -0.1), 3, batch=2, cohort=2) for _ in range(2))
    assert same(a.server["c"], b.server["c"])


@pytest.mark.parametrize("lr_global", [0.0, -1.0])
def test_an_impossible_rate_is_refused(lr_global: float) -> None:
    with pytest.raises(WrongInput, match=r"lr_global=.* must be above 0"):
        SCAFFOLD(lr_global=lr_global)


def test_statistics_of_batch_norm_are_averaged_whatever_the_global_rate() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    data = federation([(0.01 * x, y) for x, y in regressions()])
    fast, plain = (play(SCAFFOLD(lr_global=g), data, net, 1, epochs=20, lr=0.01) for g in (2.0, 1.0))
    torch.testing.assert_close(fast.server["model"]["1.running_var"], plain.server["model"]["1.running_var"])


@pytest.mark.parametrize("lr", [0.001, 0.005])
def test_momentum_does_not_make_the_control_variates_run_away(lr: float) -> None:
    # with K steps of momentum m, x - y is lr times more than K gradients
    driver = play(SCAFFOLD(), UNEQUAL, Line(0.0), 60, epochs=10, lr=lr, momentum=0.9)
    assert w_of(driver) == pytest.approx(0.30, abs=0.01)
