"""Batch norm under every method: statistics averaged or local as asked, counters never averaged, one row no batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import NORM_OF_NORMED, NORMS_OF_RESIDUAL, Residual, normed
from quadratic import common, federation, play, regressions, same
from reference import SETTINGS, plain_torch
from torch import nn

from fedtailor import SCAFFOLD, Arch, Ditto, FedAvg, FedBN, FedPer, FedProx, FedRep, FedSGD, Local

ROWS = regressions(dtype=np.float32)
STATISTICS = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
AVERAGING = [FedAvg(), FedSGD(), FedProx(), FedPer(), FedRep(), Ditto(), SCAFFOLD()]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("buffers", ["with_layer", "local"])
def test_fedavg_against_plain_torch(buffers: str, setting: dict[str, float]) -> None:
    rows, personal = regressions(), STATISTICS if buffers == "local" else ()
    driver = play(FedAvg(), federation(rows), normed().double(), 3, cohort=2, buffers=buffers, **setting)
    server, clients = plain_torch(normed().double(), rows, [row["cohort"] for row in driver.rows], personal, **setting)
    torch.testing.assert_close(driver.server["model"], server, rtol=1e-9, atol=1e-12)
    for kept, client in zip(driver.kept, clients, strict=True):
        torch.testing.assert_close(kept["personal"], {name: client[name] for name in personal}, rtol=1e-9, atol=1e-12)


def test_the_global_statistics_are_the_mean_over_clients_not_those_of_the_first() -> None:
    # one step from a running mean of 0: each client leaves a tenth of its own mean, here 10, 20 and 30
    net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    rows = [(np.array([[m - 1], [m + 1]], dtype=np.float32), np.zeros(2, dtype=np.float32)) for m in (10, 20, 30)]
    driver = play(FedAvg(), federation(rows), net, 1)
    assert float(driver.server["model"]["0.running_mean"]) == pytest.approx(0.1 * 20)


@pytest.mark.parametrize("method", AVERAGING, ids=repr)
def test_a_counter_is_the_largest_of_the_clients_and_stays_an_integer(method) -> None:
    driver = play(method, federation(ROWS), normed(), 2, batch=2, epochs=1)
    counter = common(driver)["1.num_batches_tracked"]
    # batches of two rows, and batch norm leaves a single row out: 1, 1 and 2 a round, all from the largest
    a_round = {"FedSGD": 1, "FedRep": 4}.get(type(method).__name__, 2)
    assert counter.dtype is torch.int64 and int(counter) == 2 * a_round


@pytest.mark.parametrize("method", AVERAGING, ids=repr)
def test_local_statistics_stay_and_the_weights_of_the_norm_are_averaged(method) -> None:
    driver = play(method, federation(ROWS), normed(), 2, buffers="local")
    assert not STATISTICS & set(common(driver))
    assert {"1.weight", "1.bias"} <= set(common(driver))
    means = [kept["personal"]["1.running_mean"] for kept in driver.kept]
    assert not means[0].equal(means[1]) and not means[1].equal(means[2])


def test_roles_are_found_by_type_whatever_the_names() -> None:
    arch = Arch(Residual())
    assert arch.norm == NORMS_OF_RESIDUAL
    assert arch.head == {"fc.weight", "fc.bias"}
    ends = ("running_mean", "running_var", "num_batches_tracked")
    assert arch.statistics == {name for name in NORMS_OF_RESIDUAL if name.endswith(ends)} == arch.buffers
    assert {arch.role(name) for name in arch.counters} == {"counter"}
    short_cut = dict(arch.layers)["layer1.0.downsample.0"]
    assert "layer1.0.downsample.1.weight" in short_cut and "layer1.0.downsample.0.weight" in short_cut


@pytest.mark.parametrize("method", [FedAvg(), SCAFFOLD(), Ditto(), FedRep()], ids=repr)
def test_local_statistics_are_found_by_type_too(method) -> None:
    driver = play(method, federation(ROWS), Residual(), 1, buffers="local")
    assert driver.arch.statistics <= driver.private
    assert "layer1.0.downsample.1.weight" in common(driver)


def test_local_statistics_change_nothing_for_fedbn_and_local() -> None:
    for method in (FedBN(), Local()):
        a, b = (play(method, federation(ROWS), normed(), 2, buffers=buffers) for buffers in ("with_layer", "local"))
        assert same(a.server["model"], b.server["model"])
        assert all(same(x["personal"], y["personal"]) for x, y in zip(a.kept, b.kept, strict=True))


def test_a_last_batch_of_one_row_is_left_out_with_batch_norm_and_used_without() -> None:
    plain = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    for net, steps in ((normed(), [1, 1, 2]), (plain, [1, 2, 3])):  # 2, 3 and 5 rows in batches of 2
        assert play(FedAvg(), federation(ROWS), net, 1, batch=2).rows[0]["steps"] == steps


@pytest.mark.parametrize("method", [*AVERAGING, Local(), FedBN()], ids=repr)
def test_a_client_with_a_single_row_trains_nothing_with_batch_norm_and_all_goes_on(method) -> None:
    driver = play(method, federation(regressions((1, 4), dtype=np.float32)), normed(), 2, epochs=2)
    assert driver.rows[0]["steps"][0] == 0 < driver.rows[0]["steps"][1]
    assert all(bool(t.isfinite().all()) for t in common(driver).values())
    assert driver.rows[-1]["train_loss"][0] is None


def test_testing_uses_the_running_statistics_and_leaves_them() -> None:
    # with a single row tested, batch statistics would give zero for every input
    driver = play(FedAvg(), federation(ROWS), normed(), 1)
    before = {name: tensor.clone() for name, tensor in common(driver).items()}
    row = driver.finish()
    net = normed()
    net.load_state_dict(before)
    net.eval()
    with torch.no_grad():
        errors = [abs(float(net(torch.from_numpy(x[:1]))) - float(y[0])) for x, y in ROWS]
    assert row["test"]["rmse"] == pytest.approx(errors, rel=1e-5)
    assert same(common(driver), before)


def test_the_personal_model_of_ditto_trains_its_own_statistics() -> None:
    driver = play(Ditto(lam=5.0), federation(ROWS), normed(), 3, epochs=2)
    for kept in driver.kept:
        own = kept["method"]["v"]
        assert set(own) >= NORM_OF_NORMED
        assert int(own["1.num_batches_tracked"]) == 6
        assert not own["1.running_mean"].equal(common(driver)["1.running_mean"])


def test_momentum_none_is_refused_since_its_mean_hangs_on_a_counter() -> None:
    with pytest.raises(ValueError, match=r"momentum=None.*give it a momentum"):
        play(FedAvg(), federation(ROWS), nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1, momentum=None)), 1)
