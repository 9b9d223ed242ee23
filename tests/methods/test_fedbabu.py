"""FedBABU: the body alone is trained under one head, and copies are fine-tuned for the test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import Frozen, Tied, normed
from quadratic import SIZES, Line, TwoLayers, common, federation, play, regressions, same
from reference import SETTINGS, close, descend, mean, options, two_layers, values

from fedtailor import FedBABU, FedBN, WrongInput
from fedtailor.method import MethodNote

BODY, HEAD = ("body.weight",), ("head.weight",)
PARTS = {"full": BODY + HEAD, "head": HEAD, "body": BODY}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_numpy_reference_with_two_of_three_clients_a_round(setting: dict[str, float], part: str) -> None:
    rows = regressions()
    driver = play(FedBABU(ft_epochs=3, ft_part=part), federation(rows), TwoLayers(), 3, cohort=2, **setting)
    start = values(TwoLayers())
    body = {"body.weight": start["body.weight"]}
    head = {"head.weight": start["head.weight"]}
    for row in driver.rows:
        work = options(setting, row["round"])
        for i, (x, y) in enumerate(rows):  # tested, with absent clients: a copy of what was sent, fine-tuned
            copy = descend({**body, **head}, two_layers(x, y), only=PARTS[part], **{**work, "epochs": 3})
            out = float(x[0] @ copy["body.weight"].T @ copy["head.weight"][0])
            assert row["test"]["rmse"][i] == pytest.approx(abs(out - y[0]), rel=1e-9)
        trained = [descend({**body, **head}, two_layers(*rows[i]), only=BODY, **work) for i in row["cohort"]]
        body = {"body.weight": mean(trained, [SIZES[i] for i in row["cohort"]])["body.weight"]}
    close(common(driver), body)
    tuning = {**options(setting, 4), "epochs": 3}  # after the last delivery
    for i, own in enumerate(rows):
        close(driver.kept[i]["personal"], head)
        close(driver.final(i), descend({**body, **head}, two_layers(*own), only=PARTS[part], **tuning))


def test_one_round_by_hand() -> None:
    # f(b, h) = (b h x - y)^2 with x = 1, y = 2, h = 1 for ever: slope 2 (b - 2), so b: 0.5, then 0.5 + 0.3 = 0.8
    net = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        net[0].weight.fill_(0.5)
        net[1].weight.fill_(1.0)
    data = federation([(np.ones((1, 1)), np.full(1, 2.0))])
    driver = play(FedBABU(ft_epochs=1), data, net, 1)
    assert float(common(driver)["0.weight"]) == pytest.approx(0.8)
    # in round 1 the copy tested is the first model after one step on both: slopes 2 (0.5 - 2) h = -3 and -3 b = -1.5
    assert driver.rows[0]["test"]["rmse"] == pytest.approx([2 - 0.8 * 1.15])
    assert float(driver.kept[0]["personal"]["1.weight"]) == 1.0


@pytest.mark.parametrize("setting", [{"momentum": 0.9}, {"weight_decay": 0.5}, {"momentum": 0.9, "weight_decay": 0.5}])
def test_momentum_and_weight_decay_do_not_move_the_head(setting: dict[str, float]) -> None:
    net = normed()
    driver = play(FedBABU(), federation(regressions(dtype=np.float32)), net, 4, batch=2, epochs=2, **setting)
    for kept in driver.kept:
        assert torch.equal(kept["personal"]["3.weight"], net[3].weight)
        assert torch.equal(kept["personal"]["3.bias"], net[3].bias)
    assert not torch.equal(common(driver)["0.weight"], net[0].weight)


def test_the_head_is_one_draw_for_all() -> None:
    driver = play(FedBABU(), federation(regressions(dtype=np.float32)), lambda classes: normed(), 0)
    first = driver.kept[0]["personal"]
    assert first and all(same(kept["personal"], first) for kept in driver.kept)


def test_the_tuned_copies_are_discarded() -> None:
    data = federation(regressions(dtype=np.float32))
    runs = [play(FedBABU(ft_epochs=n), data, normed(), 3, batch=2) for n in (1, 7)]
    assert same(runs[0].server["model"], runs[1].server["model"])
    assert runs[0].rows[-1]["test"] != runs[1].rows[-1]["test"]
    assert runs[0].rows[-1]["point"] == "adapted"


def test_running_statistics_of_the_copy_follow_its_tuning_and_are_discarded() -> None:
    data = federation(regressions((4,), dtype=np.float32))
    for part in PARTS:
        driver = play(FedBABU(ft_epochs=3, ft_part=part), data, normed(), 2)
        assert int(driver.server["model"]["1.num_batches_tracked"]) == 2
        assert int(driver.final(0)["1.num_batches_tracked"]) == 2 + 3


def test_frozen_tensors_stay_in_the_rounds_and_in_the_tuning() -> None:
    driver = play(FedBABU(), federation(regressions(dtype=np.float32)), Frozen(), 3, lr=0.02, weight_decay=0.1)
    for place in (driver.server["model"], driver.final(1)):
        for name in ("body.weight", "body.bias"):
            assert torch.equal(place[name], Frozen().state_dict()[name]), name
        assert not torch.equal(place["middle.weight"], Frozen().middle.weight)
    assert not torch.equal(driver.final(1)["head.weight"], Frozen().head.weight)


def test_a_client_too_small_for_a_step_is_tested_with_what_it_received() -> None:
    driver = play(FedBABU(), federation(regressions((1, 4), dtype=np.float32)), normed(), 2)
    assert driver.rows[0]["steps"] == [0, 1]
    assert same(driver.final(0), {**driver.last_delivery()[0].model, **driver.kept[0]["personal"]})
    assert not same(driver.final(1), {**driver.last_delivery()[1].model, **driver.kept[1]["personal"]})


def test_a_head_without_a_tensor_of_its_own_is_refused() -> None:
    net = Tied()
    net.head.requires_grad_(False)
    with pytest.raises(WrongInput, match=r"FedBABU: the model's last layer has no trained tensor.*such as dnn"):
        play(FedBABU(), federation(regressions(dtype=np.float32)), net, 1)


def test_only_the_body_travels() -> None:
    driver = play(FedBABU(), federation(regressions()), TwoLayers(), 2)
    assert driver.rows[0]["down"] == driver.rows[0]["up"] == [8 * 4] * 3
    assert set(driver.server["model"]) == {"body.weight"}


def test_a_test_without_tuning_says_so() -> None:
    with pytest.warns(MethodNote, match="ft_epochs=0 the model tested has a head that was never trained"):
        driver = play(FedBABU(ft_epochs=0), federation(regressions()), TwoLayers(), 2)
    assert torch.equal(driver.final(0)["body.weight"], driver.server["model"]["body.weight"])


def test_a_model_of_a_single_layer_is_refused() -> None:
    with pytest.raises(WrongInput, match=r"FedBABU: the model is a single layer.*such as dnn"):
        play(FedBABU(), federation(regressions()), Line(0.4, -0.1), 1)


def test_it_is_not_fedbn_with_another_name() -> None:
    data = federation(regressions(dtype=np.float32))
    babu, bn = (play(m, data, normed(), 1) for m in (FedBABU(), FedBN()))
    assert set(babu.private) == {"3.weight", "3.bias"} != set(bn.private)


@pytest.mark.parametrize("wrong", [{"ft_epochs": -1}, {"ft_part": "tail"}])
def test_impossible_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WrongInput, match=f"FedBABU: {next(iter(wrong))}=.* must be"):
        FedBABU(**wrong)
