"""FedBN: everything is averaged but the norms, which are found by their type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import NORM_OF_NORMED, NORMS_OF_RESIDUAL, Residual, normed
from quadratic import common, federation, play, regressions, same
from reference import SETTINGS, plain_torch
from torch import nn

from fedtailor import FedAvg, FedBN, WrongInput

ROWS = regressions(dtype=np.float32)


@pytest.mark.parametrize("setting", SETTINGS)
def test_reference_in_plain_torch_with_two_of_three_clients_a_round(setting: dict[str, float]) -> None:
    rows = regressions()
    driver = play(FedBN(), federation(rows), normed().double(), 3, cohort=2, **setting)
    server, clients = plain_torch(
        normed().double(), rows, [row["cohort"] for row in driver.rows], NORM_OF_NORMED, **setting
    )
    torch.testing.assert_close(driver.server["model"], server, rtol=1e-9, atol=1e-12)
    for kept, client in zip(driver.kept, clients, strict=True):
        torch.testing.assert_close(
            kept["personal"], {name: client[name] for name in NORM_OF_NORMED}, rtol=1e-9, atol=1e-12
        )


def test_norms_are_found_by_type_whatever_they_are_called() -> None:
    driver = play(FedBN(), federation(ROWS), Residual(), 1)
    assert driver.private == NORMS_OF_RESIDUAL
    assert set(driver.server["model"]) == set(Residual().state_dict()) - NORMS_OF_RESIDUAL


class Normed(nn.Module):
    """Channels of two pixels each, for norms of any kind."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(2, 8), norm, nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x).unflatten(1, (4, 2))).flatten(1))


NORMS = [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, affine=True), nn.GroupNorm(2, 4), nn.LayerNorm(2), nn.RMSNorm(2)]


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_every_kind_of_norm_counts(norm: nn.Module) -> None:
    driver = play(FedBN(), federation(ROWS), Normed(norm), 1)
    assert driver.private == {f"norm.{name}" for name in norm.state_dict()} != set()


def test_the_first_round_is_fedavg_less_the_norms_bit_for_bit_and_the_second_is_not() -> None:
    # before anything was averaged, all norms are equal
    for rounds, equal in ((1, True), (2, False)):
        fedbn, fedavg = (play(m, federation(ROWS), normed(), rounds, epochs=2) for m in (FedBN(), FedAvg()))
        shared = common(fedbn)
        assert same(shared, {name: common(fedavg)[name] for name in shared}) is equal


def test_own_norms_are_kept_from_round_to_round_by_absent_clients_too() -> None:
    driver = play(FedBN(), federation(ROWS), normed(), 1, cohort=1)
    (present,) = driver.rows[0]["cohort"]
    before = driver.kept
    assert all(not torch.equal(before[present]["personal"]["1.bias"], before[i]["personal"]["1.bias"])
               for i in range(3) if i != present)  # fmt: skip
    driver.step()
    (moved,) = driver.rows[1]["cohort"]
    for i in range(3):
        assert same(before[i]["personal"], driver.kept[i]["personal"]) is (i != moved)


def test_what_is_tested_is_the_average_with_the_clients_own_norms() -> None:
    driver = play(FedBN(), federation(ROWS), normed(), 2)
    final = driver.final(1)
    assert final["0.weight"].equal(driver.server["model"]["0.weight"])
    assert final["1.running_mean"].equal(driver.kept[1]["personal"]["1.running_mean"])
    net = driver.arch.module(final)
    with torch.no_grad():
        error = abs(float(net(torch.from_numpy(ROWS[1][0][:1]))) - float(ROWS[1][1][0]))
    assert driver.finish()["test"]["rmse"][1] == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("norm", [nn.Identity(), nn.LayerNorm(2, elementwise_affine=False)])
def test_a_model_without_norms_is_refused_and_one_that_has_them_is_named(norm: nn.Module) -> None:
    with pytest.raises(WrongInput, match=r"FedBN: the model has no normalisation layer.*such as lenet_bn"):
        play(FedBN(), federation(ROWS), Normed(norm), 1)


def test_the_plain_mean_of_the_papers_benchmark_is_an_option() -> None:
    size, uniform = (play(FedBN(), federation(ROWS), normed(), 1, weighting=w) for w in ("auto", "uniform"))
    assert not same(common(size), common(uniform))
