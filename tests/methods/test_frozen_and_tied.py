"""Tensors that are not to move, and tensors that are two things at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import Frozen, Tied
from quadratic import common, federation, play, regressions
from torch import nn

from fedtailor import SCAFFOLD, Arch, Centralised, Ditto, FedAvg, FedPer, FedProx, FedRep, FedSGD, Local

ROWS = regressions(dtype=np.float32)
METHODS = [
    FedAvg(), FedSGD(), FedProx(mu=0.5), FedPer(), FedRep(), Ditto(), SCAFFOLD(), SCAFFOLD(lr_global=1.5), Local(),
    Centralised(),
]  # fmt: skip
SETTING = {"epochs": 2, "momentum": 0.9, "weight_decay": 0.1, "lr": 0.02}


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_frozen_tensors_are_bit_for_bit_what_they_were_everywhere(method) -> None:
    # momentum and weight decay do not move them, and a mean over three clients does not round them
    driver = play(method, federation(ROWS), Frozen(), 12, **SETTING)
    start = Frozen().state_dict()
    places = [common(driver), *(driver.final(i) for i in range(len(driver.sites)))]
    for place in places:
        for name in {"body.weight", "body.bias"} & set(place):
            assert place[name].equal(start[name]), name
    assert "middle.weight" not in places[0] or not places[0]["middle.weight"].equal(start["middle.weight"])


def test_a_frozen_tensor_has_no_control_variate() -> None:
    driver = play(SCAFFOLD(), federation(ROWS), Frozen(), 1)
    trained = {name for name, p in Frozen().named_parameters() if p.requires_grad}
    assert set(driver.server["c"]) == set(driver.kept[0]["method"]["c"]) == trained


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_tied_tensors_are_one_tensor_and_come_out_tied(method) -> None:
    driver = play(method, federation(ROWS), Tied(), 2, **SETTING)
    assert not any(name.startswith("again.") for name in driver.arch.names)
    net = driver.arch.module(driver.final(0), Tied())
    assert net.again.weight is net.up.weight
    assert not net.up.weight.equal(Tied().up.weight)


def test_tied_tensors_learn_from_both_places() -> None:
    # one step of plain torch, whose tied matrix gathers both gradients
    rows = regressions((4,), dtype=np.float32)
    net = Tied()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    driver = play(FedAvg(), federation(rows), net, 1)
    plain = Tied()
    plain.load_state_dict(start)
    x, y = (torch.from_numpy(part) for part in rows[0])
    (plain(x)[:, 0] - y).square().mean().backward()
    expected = start["up.weight"] - 0.1 * plain.up.weight.grad
    torch.testing.assert_close(driver.server["model"]["up.weight"], expected)


class Unused(nn.Module):
    """Has a parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_parameter_that_takes_no_part_stays(method) -> None:
    driver = play(method, federation(ROWS), Unused(), 3, epochs=2)
    torch.testing.assert_close(driver.final(0)["spare"], torch.ones(3))


def test_the_exported_model_loads_strictly_into_the_plain_network() -> None:
    driver = play(FedAvg(), federation(ROWS), Frozen(), 1)
    net = Arch(Frozen()).module(driver.final(2))
    assert isinstance(net, Frozen) and not net.training
    assert net.head.weight.equal(driver.server["model"]["head.weight"])
