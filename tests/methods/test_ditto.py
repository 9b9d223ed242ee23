"""Ditto: FedAvg for all, and a personal model v pulled towards what was received; v is what is tested."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from quadratic import SIZES, Line, federation, left, play, regressions, same, squares, w_of
from reference import SETTINGS, close, descend, line, mean, options, values
from torch import nn

from fedtailor import Ditto, FedAvg, Local, WrongInput

CENTRES, CURVATURES = np.array((1.0, 2.0, -3.0)), np.array((1.0, 4.0, 0.5))
NOTED = pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
NORMED = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


def v_of(driver, client: int) -> float:
    return float(driver.kept[client]["method"]["v"]["w"])


def test_two_steps_by_hand() -> None:
    # v: 0, then 0.1 (1 - 0) = 0.1, then 0.1 - 0.1 ((0.1 - 1) + 2 (0.1 - 0)) = 0.17; the global branch has no pull
    driver = play(Ditto(lam=2.0), squares((1.0,), (1.0,), (1,)), Line(0.0), 1, epochs=2)
    assert v_of(driver, 0) == pytest.approx(0.17)
    assert w_of(driver) == pytest.approx(0.19)


@pytest.mark.parametrize("lam", [0.5, 3.0])
def test_closed_form_on_squares(lam: float) -> None:
    # w rests at FedAvg's fixed point; v goes to where h (v - c) + lam (v - w) = 0, at the rate of the curvature h + lam
    share = np.array(SIZES) / sum(SIZES)
    progress = 1 - left(0.1, CURVATURES, 2)
    w = (share * progress @ CENTRES) / (share @ progress)
    driver = play(Ditto(lam=lam), squares(CENTRES, CURVATURES, SIZES), Line(w), 5, epochs=2)
    assert w_of(driver) == pytest.approx(w, rel=1e-12)
    for i, (c, h) in enumerate(zip(CENTRES, CURVATURES, strict=True)):
        end = (h * c + lam * w) / (h + lam)
        assert v_of(driver, i) == pytest.approx(end + left(0.1, h + lam, 5 * 2) * (w - end), rel=1e-12)


@pytest.mark.parametrize("setting", SETTINGS)
def test_numpy_reference_with_two_of_three_clients_a_round(setting: dict[str, float]) -> None:
    rows = regressions()
    driver = play(Ditto(lam=0.7), federation(rows), Line(0.4, -0.1), 3, cohort=2, **setting)
    w = values(Line(0.4, -0.1))
    v = [w] * 3
    for row in driver.rows:
        work, trained = options(setting, row["round"]), {}
        for i in row["cohort"]:
            f = line(*rows[i])
            v[i] = descend(v[i], lambda m, f=f, w=w: {"w": f(m)["w"] + 0.7 * (m["w"] - w["w"])}, **work)
            trained[i] = descend(w, f, **work)
        w = mean(list(trained.values()), [SIZES[i] for i in trained])
    close(driver.server["model"], w)
    for kept, own in zip(driver.kept, v, strict=True):
        close(kept["method"]["v"], own)


@NOTED
def test_lam_0_is_training_alone_bit_for_bit_statistics_of_batch_norm_included() -> None:
    data, setting = federation(regressions(dtype=np.float32)), {"batch": 2, "epochs": 2, "momentum": 0.9, "cohort": 2}
    ditto, alone = (play(method, data, NORMED, 4, **setting) for method in (Ditto(lam=0.0), Local()))
    for i in range(3):
        assert same(ditto.kept[i]["method"]["v"], alone.kept[i]["personal"])
    assert not torch.equal(ditto.kept[0]["method"]["v"]["1.running_mean"], torch.zeros(4))


def test_the_global_branch_is_fedavg_bit_for_bit() -> None:
    data, setting = federation(regressions(dtype=np.float32)), {"batch": 2, "epochs": 2, "momentum": 0.9, "cohort": 2}
    ditto, fedavg = (play(method, data, NORMED, 4, **setting) for method in (Ditto(lam=0.7), FedAvg()))
    assert same(ditto.server["model"], fedavg.server["model"])


def test_a_strong_pull_holds_v_at_the_model_received() -> None:
    driver = play(Ditto(lam=1e3), squares((1.0, 5.0), (1.0, 1.0), (1, 3)), Line(0.0), 30, lr=9e-4)
    assert v_of(driver, 0) == pytest.approx(w_of(driver), abs=1e-2)


def test_what_is_tested_is_v_after_training_on_every_site() -> None:
    driver = play(Ditto(lam=1.0), squares((1.0, 5.0), (2.0, 2.0), (1, 1)), Line(0.0), 3, cohort=1, epochs=3)
    last = driver.rows[-1]
    assert last["point"] == "adapted"
    errors = [abs(v_of(driver, 0) - 1.0), abs(v_of(driver, 1) - 5.0)]  # x = 1
    assert last["test"]["rmse"] == pytest.approx(errors)
    assert errors != pytest.approx([abs(w_of(driver) - 1.0), abs(w_of(driver) - 5.0)])
    assert [float(driver.final(i)["w"]) for i in range(2)] == [v_of(driver, 0), v_of(driver, 1)]


def test_tuning_at_the_finish_is_of_v() -> None:
    driver = play(Ditto(lam=1.0), squares((1.0,), (2.0,), (1,)), Line(0.0), 3, finish_epochs=4)
    assert float(driver.final(0)["w"]) == pytest.approx(1 - left(0.1, 2.0, 4) * (1 - v_of(driver, 0)))


def test_v_never_leaves_and_one_model_travels_each_way() -> None:
    driver = play(Ditto(), federation(regressions()), Line(0.4, -0.1), 2)
    assert driver.rows[0]["down"] == driver.rows[0]["up"] == [16, 16, 16]
    assert set(driver.server) == {"model"}


@NOTED
def test_the_default_does_something() -> None:
    data = federation(regressions())
    ditto, alone = (play(m, data, Line(0.4, -0.1), 2, epochs=3) for m in (Ditto(), Ditto(lam=0.0)))
    assert not same(ditto.kept[0]["method"]["v"], alone.kept[0]["method"]["v"])


def test_an_impossible_lam_is_refused() -> None:
    with pytest.raises(WrongInput, match="lam=-1 must be 0 or more"):
        Ditto(lam=-1)
