"""FedRep: the head on a fixed body, then the body under the fixed head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import normed
from quadratic import SIZES, Line, TwoLayers, federation, play, regressions, same
from reference import SETTINGS, close, descend, mean, options, two_layers, values
from torch import nn

from fedtailor import FedPer, FedRep, WrongInput, schedule

NOTED = pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
ROWS = regressions()


def test_one_round_by_hand() -> None:
    # one row x = (1, 0), y = 1: hidden (0.5, 0.1), output 0.45; the head moves by 0.1 * 1.1 * hidden first, and the
    # body then feels the new head (1.055, -0.489), whose output is 0.4786: slope 2 (0.4786 - 1) = -1.0428
    driver = play(FedRep(), federation([(np.array([[1.0, 0.0]]), np.array([1.0]))]), TwoLayers(), 1)
    head = driver.kept[0]["personal"]["head.weight"][0].tolist()
    assert head == pytest.approx([1.055, -0.489])
    body = driver.server["model"]["body.weight"]
    assert body[:, 0].tolist() == pytest.approx([0.5 + 0.10428 * 1.055, 0.1 - 0.10428 * 0.489])


@NOTED
@pytest.mark.parametrize("head_epochs", [0, 1, 4])
@pytest.mark.parametrize("setting", SETTINGS)
def test_numpy_reference_with_two_of_three_clients_a_round(setting: dict[str, float], head_epochs: int) -> None:
    driver = play(FedRep(head_epochs=head_epochs), federation(ROWS), TwoLayers(), 3, cohort=2, **setting)
    start = values(TwoLayers())
    body, heads = start["body.weight"], [start["head.weight"]] * 3
    for row in driver.rows:
        work, bodies = options(setting, row["round"]), []
        for i in row["cohort"]:
            gradient, model = two_layers(*ROWS[i]), {"body.weight": body, "head.weight": heads[i]}
            model = descend(model, gradient, **{**work, "epochs": head_epochs}, only=["head.weight"])
            model = descend(model, gradient, **work, only=["body.weight"])
            heads[i] = model["head.weight"]
            bodies.append({"body.weight": model["body.weight"]})
        body = mean(bodies, [SIZES[i] for i in row["cohort"]])["body.weight"]
    close(driver.server["model"], {"body.weight": body})
    for kept, head in zip(driver.kept, heads, strict=True):
        close(kept["personal"], {"head.weight": head})


@NOTED
def test_without_head_epochs_the_head_stays_as_it_was_drawn_and_the_body_is_trained() -> None:
    driver = play(FedRep(head_epochs=0), federation(ROWS), TwoLayers(), 3)
    start = TwoLayers().state_dict()
    assert all(kept["personal"]["head.weight"].equal(start["head.weight"]) for kept in driver.kept)
    assert not driver.server["model"]["body.weight"].equal(start["body.weight"])
    assert [row["steps"] for row in driver.rows] == [[1, 1, 1]] * 3


@NOTED
def test_without_head_epochs_one_step_moves_the_body_as_fedper_does() -> None:
    fedrep, fedper = (play(m, federation(ROWS), TwoLayers(), 1) for m in (FedRep(head_epochs=0), FedPer()))
    assert same(fedrep.server["model"], fedper.server["model"])


def test_the_two_phases_draw_their_batches_independently() -> None:
    rows = regressions((4,))
    driver = play(FedRep(), federation(rows), TwoLayers(), 1, batch=2)
    model, (x, y) = values(TwoLayers()), rows[0]
    orders = []
    for stream, name in ((1, "head.weight"), (0, "body.weight")):
        order = schedule.epoch_order(0, 1, 0, stream, 0, torch.arange(4)).numpy()
        orders.append(order.tolist())
        for some in (order[:2], order[2:]):
            model = descend(model, two_layers(x[some], y[some]), lr=0.1, epochs=1, only=[name])
    assert orders[0] != orders[1]
    close({**driver.server["model"], **driver.kept[0]["personal"]}, model)


def test_the_steps_of_both_phases_are_counted() -> None:
    driver = play(FedRep(head_epochs=3), federation(ROWS), TwoLayers(), 1, epochs=2, batch=2)
    assert driver.rows[0]["steps"] == [(3 + 2) * -(-n // 2) for n in SIZES]


def test_the_norms_belong_to_the_body_and_follow_both_phases() -> None:
    data = federation(regressions(dtype=np.float32))
    driver = play(FedRep(head_epochs=2), data, normed(), 1)
    assert driver.private == {"3.weight", "3.bias"}
    assert int(driver.server["model"]["1.num_batches_tracked"]) == 3


def test_what_is_tested_is_the_received_body_with_the_own_head_of_before() -> None:
    driver = play(FedRep(), federation(ROWS), TwoLayers(), 1)
    start, errors = TwoLayers(), driver.rows[0]["test"]["rmse"]
    assert driver.rows[0]["point"] == "received"
    for (x, y), error in zip(ROWS, errors, strict=True):
        with torch.no_grad():
            assert error == pytest.approx(abs(float(start(torch.from_numpy(x[:1]))) - y[0]))


def test_a_model_of_a_single_layer_is_refused() -> None:
    with pytest.raises(WrongInput, match=r"FedRep: the model is a single layer.*such as dnn"):
        play(FedRep(), federation(ROWS), Line(0.4, -0.1), 1)
    with pytest.raises(WrongInput, match="FedRep: the model is a single layer"):
        play(FedRep(), federation(regressions(dtype=np.float32)), nn.Linear(2, 1), 1)


def test_impossible_head_epochs_are_refused() -> None:
    with pytest.raises(WrongInput, match="head_epochs=-1 must be 0 or more"):
        FedRep(head_epochs=-1)
