"""FedPer: a shared body and a private head, trained together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import Tied, normed
from quadratic import SIZES, Line, TwoLayers, federation, play, regressions, same
from reference import SETTINGS, close, descend, mean, options, two_layers, values
from torch import nn

from fedtailor import FedAvg, FedPer, WrongInput

ROWS = regressions()


def test_one_round_by_hand() -> None:
    # one row x = (1, 0), y = 1: hidden (0.5, 0.1), output 0.45, slope 2 (0.45 - 1) = -1.1
    driver = play(FedPer(), federation([(np.array([[1.0, 0.0]]), np.array([1.0]))]), TwoLayers(), 1)
    head = driver.kept[0]["personal"]["head.weight"][0].tolist()
    assert head == pytest.approx([1.0 + 0.1 * 1.1 * 0.5, -0.5 + 0.1 * 1.1 * 0.1])
    body = driver.server["model"]["body.weight"]
    assert body[:, 0].tolist() == pytest.approx([0.5 + 0.1 * 1.1 * 1.0, 0.1 - 0.1 * 1.1 * 0.5])
    assert body[:, 1].tolist() == [-0.2, 0.8]


@pytest.mark.parametrize("setting", SETTINGS)
def test_numpy_reference_with_two_of_three_clients_a_round(setting: dict[str, float]) -> None:
    driver = play(FedPer(), federation(ROWS), TwoLayers(), 3, cohort=2, **setting)
    start = values(TwoLayers())
    body, heads = start["body.weight"], [start["head.weight"]] * 3
    for row in driver.rows:
        work, bodies = options(setting, row["round"]), []
        for i in row["cohort"]:
            model = descend({"body.weight": body, "head.weight": heads[i]}, two_layers(*ROWS[i]), **work)
            heads[i] = model["head.weight"]
            bodies.append({"body.weight": model["body.weight"]})
        body = mean(bodies, [SIZES[i] for i in row["cohort"]])["body.weight"]
    close(driver.server["model"], {"body.weight": body})
    for kept, head in zip(driver.kept, heads, strict=True):
        close(kept["personal"], {"head.weight": head})


def test_the_body_after_the_first_round_is_fedavgs_bit_for_bit() -> None:
    fedper, fedavg = (play(m, federation(ROWS), TwoLayers(), 1, epochs=3) for m in (FedPer(), FedAvg()))
    assert fedper.server["model"]["body.weight"].equal(fedavg.server["model"]["body.weight"])


def test_the_head_is_the_last_linear_layer_and_the_norms_are_shared() -> None:
    driver = play(FedPer(), federation(regressions(dtype=np.float32)), normed(), 1)
    assert driver.private == {"3.weight", "3.bias"}
    assert "1.running_mean" in driver.server["model"]


def test_what_is_tested_is_the_newest_body_with_the_own_head() -> None:
    driver = play(FedPer(), federation(ROWS), TwoLayers(), 1)
    body = driver.server["model"]["body.weight"].numpy()
    heads = [kept["personal"]["head.weight"].numpy()[0] for kept in driver.kept]
    errors = [abs(head @ body @ x[0] - y[0]) for head, (x, y) in zip(heads, ROWS, strict=True)]
    assert driver.finish()["test"]["rmse"] == pytest.approx(errors)  # what the next round starts from
    driver.step()
    assert driver.rows[-1]["point"] == "received"
    assert driver.rows[-1]["test"]["rmse"] == pytest.approx(errors)


@pytest.mark.parametrize("net", [Line(0.4, -0.1), nn.Linear(2, 1)])
def test_a_model_of_a_single_layer_is_refused(net: nn.Module) -> None:
    with pytest.raises(WrongInput, match=r"FedPer: the model is a single layer.*such as dnn"):
        play(FedPer(), federation(ROWS if isinstance(net, Line) else regressions(dtype=np.float32)), net, 1)


class TiedHead(nn.Module):
    """The last layer is the first one again: it has no tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
        self.fold = nn.Linear(2, 2, bias=False)
        self.fold.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fold(torch.tanh(self.middle(self.first(x)))).sum(1, keepdim=True)


def frozen_head() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).requires_grad_(False))


@pytest.mark.parametrize("net", [TiedHead(), frozen_head()], ids=["tied", "frozen"])
def test_a_head_that_is_no_part_of_its_own_is_refused(net: nn.Module) -> None:
    # nothing would be private: FedAvg under another name
    with pytest.raises(WrongInput, match="head"):
        play(FedPer(), federation(regressions(dtype=np.float32)), net, 1)


def test_tied_tensors_of_the_body_stay_tied() -> None:
    driver = play(FedPer(), federation(regressions(dtype=np.float32)), Tied(), 2)
    assert set(driver.server["model"]) == {"up.weight"}
    net = driver.arch.module(driver.final(0))
    assert net.again.weight is net.up.weight
    assert not same({"w": net.up.weight.detach()}, {"w": Tied().up.weight.detach()})
