"""The ten methods side by side: alone, with equal data, on the wire, and when a client fails.

Purity, repeatability, resuming and testing without a trace are laws of every method: see tests/contract.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import NORM_OF_NORMED, normed
from quadratic import TwoLayers, common, federation, play, regressions
from reference import values

from fedtailor import (
    SCAFFOLD,
    Centralised,
    Ditto,
    FedAvg,
    FedBN,
    FedPer,
    FedProx,
    FedRep,
    FedSGD,
    Local,
    Proximal,
    schedule,
    tree,
)

ROWS = regressions(dtype=np.float32)
METHODS = [
    FedAvg(), Local(), Centralised(), FedSGD(), FedProx(mu=0.5), FedBN(), FedPer(), FedRep(head_epochs=2), Ditto(),
    SCAFFOLD(), Proximal(FedBN(), mu=0.5), Proximal(Ditto(lam=0.5), mu=0.5),
]  # fmt: skip
all_methods = pytest.mark.parametrize("method", METHODS, ids=repr)


def plain_sgd(epochs: int, batch: int, momentum: float, fixed: str = "none") -> dict[str, torch.Tensor]:
    """PyTorch's own optimiser on the only client's rows, in the order of the schedule."""
    net = normed()
    x, y = (torch.from_numpy(part) for part in regressions((5,), dtype=np.float32)[0])
    trained = [p for name, p in net.named_parameters() if not name.startswith(fixed)]
    opt = torch.optim.SGD(trained, lr=0.1, momentum=momentum)
    for epoch in range(epochs):
        order = schedule.epoch_order(0, 1, 0, 0, epoch, torch.arange(5))
        for rows in order.split(batch):
            if len(rows) > 1:
                opt.zero_grad()
                (net(x[rows])[:, 0] - y[rows]).square().mean().backward()
                opt.step()
    return net.state_dict()


@pytest.mark.filterwarnings("ignore:FedRep. with head_epochs=0")
@pytest.mark.parametrize(
    "method",
    [FedAvg(), Local(), Centralised(), FedBN(), FedPer(), FedRep(head_epochs=0), Ditto(), SCAFFOLD()],
    ids=repr,
)
def test_alone_the_first_round_is_plain_sgd(method) -> None:
    data = federation(regressions((5,), dtype=np.float32))
    driver = play(method, data, normed(), 1, epochs=3, batch=2, momentum=0.9)
    reached = {**common(driver), **driver.kept[0]["personal"]}
    head = "3."
    torch.testing.assert_close(reached, plain_sgd(3, 2, 0.9, fixed=head if isinstance(method, FedRep) else "none"))


@pytest.mark.parametrize("method", [FedProx(mu=3.0), FedSGD()], ids=repr)
def test_alone_the_first_step_is_plain_sgd(method) -> None:
    driver = play(method, federation(regressions((5,), dtype=np.float32)), normed(), 1)
    torch.testing.assert_close(common(driver), plain_sgd(1, 5, 0.0))


@all_methods
def test_with_equal_data_the_average_is_the_model_of_each_client(method) -> None:
    rows = regressions((4,)) * 3
    one, three = (play(method, federation(part), normed().double(), 3, epochs=2) for part in (rows[:1], rows))
    # pooled rows have the mean of one copy, but not its unbiased variance
    left_out = {"1.running_var"} if isinstance(method, Centralised) else set()
    alone = tree.drop(one.final(0), left_out)
    for i in range(len(three.sites)):
        torch.testing.assert_close(tree.drop(three.final(i), left_out), alone, rtol=1e-9, atol=1e-12)
    averaged, its_own = (tree.drop(common(driver), left_out) for driver in (three, one))
    torch.testing.assert_close(averaged, its_own, rtol=1e-9, atol=1e-12)


NET_BYTES = 4 * (8 + 4 + 4 + 4 + 4 + 4 + 4 + 1) + 8  # linear, norm with its two statistics, head; a counter of 8 bytes
NORM_BYTES = 4 * 4 * 4 + 8
HEAD_BYTES = 4 * 5
PARAMETER_BYTES = 4 * (8 + 4 + 4 + 4 + 4 + 1)


@pytest.mark.parametrize(
    ("method", "each_way"),
    [
        (FedAvg(), NET_BYTES),
        (FedSGD(), NET_BYTES),
        (FedProx(), NET_BYTES),
        (Ditto(), NET_BYTES),
        (FedBN(), NET_BYTES - NORM_BYTES),
        (FedPer(), NET_BYTES - HEAD_BYTES),
        (FedRep(), NET_BYTES - HEAD_BYTES),
        (SCAFFOLD(), NET_BYTES + PARAMETER_BYTES),
        (Local(), 0),
    ],
    ids=lambda value: repr(value),
)
def test_traffic_is_that_of_the_table_and_absent_clients_cost_nothing(method, each_way: int) -> None:
    driver = play(method, federation(ROWS), normed(), 3, cohort=2)
    for row in driver.rows:
        expected = [each_way if i in row["cohort"] else 0 for i in range(3)]
        assert row["down"] == row["up"] == expected


@all_methods
def test_no_private_name_is_on_the_server(method) -> None:
    driver = play(method, federation(ROWS), normed(), 1)
    paths = {path.rsplit("/", 1)[-1] for path in tree.flatten(driver.server)}
    assert not paths & driver.private
    names = {"FedBN": NORM_OF_NORMED, "FedPer": {"3.weight", "3.bias"}, "FedRep": {"3.weight", "3.bias"}}
    inner = getattr(method, "inner", method)
    everything = set(normed().state_dict())
    assert driver.private == names.get(type(inner).__name__, everything if isinstance(method, Local) else set())


@pytest.mark.parametrize("method", [FedAvg(), SCAFFOLD(), Ditto(), FedPer()], ids=repr)
def test_a_client_that_diverges_is_left_out_of_the_round_where_the_run_says_so(method) -> None:
    rows = regressions()
    rows[1] = (rows[1][0] * 1e200, rows[1][1])
    driver = play(method, federation(rows), TwoLayers(), 2, on_nan="drop")
    assert driver.rows[0]["stopped"] == [1] and driver.rows[0]["up"][1] == 0
    assert all(bool(t.isfinite().all()) for t in tree.flatten(driver.state).values())
    if isinstance(method, SCAFFOLD):  # c is still the mean of all c_i, among them the one that did not move
        own = torch.stack([kept["method"]["c"]["body.weight"] for kept in driver.kept])
        torch.testing.assert_close(driver.server["c"]["body.weight"], own.mean(0), rtol=1e-12, atol=1e-12)
    if isinstance(method, FedAvg):
        start = values(TwoLayers())
        assert not np.allclose(driver.server["model"]["body.weight"].numpy(), start["body.weight"])
