"""APPLE: one core for each client, and personal models made of all cores in learned proportions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from nets import Frozen, normed
from quadratic import Line, TwoLayers, federation, play, regressions, same, squares, step_telling
from reference import SETTINGS, Gradient, Model, close, options, two_layers, values
from torch import Tensor, nn

from fedtailor import (
    APPLE,
    AdaptiveLocalAggregation,
    ComponentAttention,
    Driver,
    Federation,
    Local,
    LocalAttention,
    Method,
    Proximal,
    RunSpec,
    TunedStart,
    Wrapper,
    WrongInput,
    check_method,
    registry,
)
from fedtailor.arch import Arch
from fedtailor.method import MethodNote

NOTED = pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
SIZES = (2, 3, 5)
ROWS = regressions(SIZES)
P0 = np.array(SIZES) / sum(SIZES)
CLIPPED = {"lr": 0.1, "epochs": 2, "momentum": 0.5, "weight_decay": 0.1, "clip": 0.3}


def state(driver: Driver, client: int) -> dict[str, Tensor]:
    kept = driver.kept[client]["method"]
    return kept.get("inner", kept)


def server(driver: Driver) -> dict[str, Tensor]:
    return driver.server.get("inner", driver.server)


def of(total: int, method: Method, data: Federation, model: nn.Module, **settings: Any) -> Driver:
    """A driver before the first of `total` rounds."""
    spec = {"method": method, "model": model, "rounds": total, "batch": 0, "lr": 0.1, **settings}
    return Driver(RunSpec(**spec), data)


# ---------- the reference, from the paper ----------


def lambda_of(r: int, length: float, scheduler: str) -> float:
    """lambda(r), r from 0."""
    if r >= length:
        return 0.0
    return (math.cos(math.pi * r / length) + 1) / 2 if scheduler == "cosine" else 0.001 ** (r / length)


def mixture(p: np.ndarray, cores: Sequence[Model], own: Model, shared: Sequence[str]) -> Model:
    return {n: sum(p[j] * core[n] for j, core in enumerate(cores)) if n in shared else own[n] for n in own}


def within(limit: float, *slopes: np.ndarray) -> list[np.ndarray]:
    """Scaled down together to this length, where they are longer."""
    norm = math.sqrt(sum(float((g**2).sum()) for g in slopes))
    return [g * min(1.0, limit / norm) if limit else g for g in slopes]


def trained(
    i: int, cores: list[Model], p: np.ndarray, gradient: Gradient, pull: float, shared: Sequence[str], lr_p: float,
    *, lr: float, epochs: int, momentum: float = 0.0, weight_decay: float = 0.0, clip: float = 0.0,
) -> tuple[Model, np.ndarray]:  # fmt: skip
    """Client i's part of a round, the whole local set as batch: its core and p, both moved in every step."""
    core, p = {name: value.copy() for name, value in cores[i].items()}, p.copy()
    names, velocity, velocity_p = list(core), dict[str, np.ndarray](), np.zeros_like(p)
    for _ in range(epochs):
        now = [*cores[:i], core, *cores[i + 1 :]]
        g = gradient(mixture(p, now, core, shared))
        slope_p = np.array([sum(float((g[n] * one[n]).sum()) for n in shared) for one in now])  # <grad, c_j>
        (slope_p,) = within(clip, slope_p + 2 * pull * (p - P0))
        slopes = within(clip, *[(p[i] if n in shared else 1.0) * g[n] for n in names])
        for n, slope in zip(names, slopes, strict=True):
            velocity[n] = momentum * velocity.get(n, 0.0) + slope + weight_decay * core[n]
        velocity_p = momentum * velocity_p + slope_p
        core = {n: core[n] - lr * velocity[n] for n in names}
        p = p - lr_p * velocity_p
    return core, p


@dataclass(frozen=True, repr=False)
class HeadAtHome(Wrapper):
    """Any plug-in that keeps some names private, as local attention does."""

    def personal(self, arch: Arch) -> frozenset[str]:
        return arch.head


@pytest.mark.parametrize("shared", [("body.weight", "head.weight"), ("body.weight",)], ids=["whole", "private head"])
@pytest.mark.parametrize("setting", [*SETTINGS, CLIPPED], ids=["plain", "all options", "clipped"])
@pytest.mark.parametrize("M", [None, 1])
@pytest.mark.parametrize(("scheduler", "L"), [("cosine", 1.0), ("exponential", 0.6)])
def test_reference_with_two_of_three_clients_a_round(
    M: int | None, scheduler: str, L: float, setting: dict[str, float], shared: tuple[str, ...]
) -> None:
    method: Method = APPLE(lr_p=0.05, mu=0.7, L=L, scheduler=scheduler, M=M)
    method = method if len(shared) == 2 else HeadAtHome(method)
    driver = of(6, method, federation(ROWS), TwoLayers(), cohort=2, **setting)
    cores, p = [values(TwoLayers()) for _ in ROWS], [P0] * 3
    known = [list(cores) for _ in ROWS]  # of each client, the others' cores as it last received them
    fetched, told = [{i} for i in range(3)], [np.zeros(3)] * 3
    tested = list(cores)
    for r in range(6):
        ids, after = step_telling(driver), {}
        for i, sent in ids.items():
            others = sorted({0, 1, 2} - {i}, key=lambda j, i=i: abs(told[i][j]))
            new = {0, 1, 2} - fetched[i]
            allowed = [set(others)] if M is None else [{j} for j in new or others[-1:]]
            assert set(sent) in allowed and len(sent) == len(allowed[0])
            fetched[i] = fetched[i] | set(sent)
            known[i] = [cores[i] if j == i else cores[j] if j in sent else known[i][j] for j in range(3)]
            pull = 0.7 * lambda_of(r, L * 6, scheduler)
            gradient = two_layers(*ROWS[i])
            after[i] = trained(i, known[i], p[i], gradient, pull, shared, 0.05, **options(setting, r + 1))
        for i, (core, relation) in after.items():
            cores[i], p[i], told[i] = core, relation, relation
            known[i][i] = core
            tested[i] = mixture(relation, known[i], core, shared)
    assert len({tuple(row["cohort"]) for row in driver.rows}) > 1
    assert all(len(one) == 3 for one in fetched)
    for i in range(3):
        close(state(driver, i)["core"], cores[i], 1e-9)
        np.testing.assert_allclose(state(driver, i)["p"], p[i], rtol=1e-9)
        close(driver.kept[i]["held"], tested[i], 1e-9)  # what is tested, absent clients with their last
        upload = {name: value[i] for name, value in server(driver)["models"].items()}
        close(upload, {name: cores[i][name] for name in shared}, 1e-9)
    if M is not None:
        np.testing.assert_allclose(server(driver)["p"], told, rtol=1e-6)


def test_two_rounds_by_hand() -> None:
    # f_i = (w - c_i)^2 / 2 with c = 4, 0, 3 from w = 2; p = (1/4, 1/4, 1/2), whose pull is zero at first.
    # grad -2, 2, -1; cores move by lr p_ii grad: 2.05, 1.95, 2.05; p by lr_p grad * 2: +0.04, -0.04, +0.02 throughout
    data = squares((4.0, 0.0, 3.0), (1.0,) * 3, (1, 1, 2))
    driver = of(2, APPLE(lr_p=0.01, mu=0.1, L=1.0, scheduler="cosine"), data, Line(2.0), lr=0.1)
    driver.step()
    assert [float(state(driver, i)["core"]["w"]) for i in range(3)] == pytest.approx([2.05, 1.95, 2.05])
    expected = [[0.29, 0.29, 0.54], [0.21, 0.21, 0.46], [0.27, 0.27, 0.52]]
    np.testing.assert_allclose([state(driver, i)["p"].tolist() for i in range(3)], expected)
    # client 0: w = 0.29 * 2.05 + 0.29 * 1.95 + 0.54 * 2.05 = 2.267, grad -1.733; the cosine is at 1/2, so that the pull
    # is 2 * 1/2 * 0.1 * 0.04 = 0.004 on each p
    driver.step()
    core = 2.05 + 0.1 * 0.29 * 1.733
    p = [0.29 + 0.01 * (1.733 * 2.05 - 0.004), 0.29 + 0.01 * (1.733 * 1.95 - 0.004)]
    p.append(0.54 + 0.01 * (1.733 * 2.05 - 0.004))
    assert float(state(driver, 0)["core"]["w"]) == pytest.approx(core)
    assert state(driver, 0)["p"].tolist() == pytest.approx(p)
    w = p[0] * core + p[1] * 1.95 + p[2] * 2.05  # tested after the training, with the others' cores as received
    assert driver.rows[-1]["test"]["rmse"][0] == pytest.approx(0.5**0.5 * (4 - w))


# ---------- gradients ----------


def loss_at(p: np.ndarray, cores: Sequence[Model], x: np.ndarray, y: np.ndarray) -> float:
    w = mixture(p, cores, cores[0], ("body.weight", "head.weight"))
    return float(((x @ w["body.weight"].T @ w["head.weight"][0] - y) ** 2).mean())


@NOTED
def test_p_and_the_core_go_down_their_gradients_by_differences() -> None:
    # not a mean over a core's entries, nor over its tensors, and without a factor of the number of clients
    driver = of(2, APPLE(lr_p=0.03, mu=0.0), federation(ROWS), TwoLayers(), lr=0.2)
    driver.step()
    i, h = 1, 1e-5
    cores = [{name: value.numpy() for name, value in state(driver, j)["core"].items()} for j in range(3)]
    p = state(driver, i)["p"].numpy()
    driver.step()
    slopes = [
        (loss_at(p + h * one, cores, *ROWS[i]) - loss_at(p - h * one, cores, *ROWS[i])) / (2 * h) for one in np.eye(3)
    ]
    np.testing.assert_allclose((p - state(driver, i)["p"].numpy()) / 0.03, slopes, rtol=1e-6)
    for name, value in cores[i].items():
        for place in np.ndindex(value.shape):
            sides = []
            for sign in (h, -h):
                moved = value.copy()
                moved[place] += sign
                sides.append(loss_at(p, [*cores[:i], {**cores[i], name: moved}, *cores[i + 1 :]], *ROWS[i]))
            step = value[place] - float(state(driver, i)["core"][name][place])
            assert step / 0.2 == pytest.approx((sides[0] - sides[1]) / (2 * h), rel=1e-5)


def with_p(driver: Driver, client: int, p: Sequence[float]) -> None:
    kept = driver.kept[client]
    relation = kept["method"]["p"].new_tensor(p)
    driver.kept = [
        {**kept, "method": {**kept["method"], "p": relation}} if i == client else one
        for i, one in enumerate(driver.kept)
    ]


def test_a_core_without_weight_in_its_own_model_does_not_move() -> None:
    driver = play(APPLE(), federation(ROWS), TwoLayers(), 1)
    cores = [state(driver, i)["core"] for i in range(3)]
    with_p(driver, 0, [0.0, 0.6, 0.4])
    driver.step()
    assert same(state(driver, 0)["core"], cores[0])
    assert not same(state(driver, 1)["core"], cores[1])


@pytest.mark.parametrize("M", [None, 1])
def test_others_cores_are_constants(M: int | None) -> None:
    driver = play(APPLE(M=M), federation(ROWS), TwoLayers(), 2, cohort=1, epochs=3)
    for _ in range(4):
        before = driver.server["models"]
        ((i, sent),) = step_telling(driver).items()
        for name, now in driver.server["models"].items():
            others = [j for j in range(3) if j != i]
            assert torch.equal(now[others], before[name][others]) and not torch.equal(now[i], before[name][i])
            if M is not None:  # what it keeps of them is what it was sent
                assert torch.equal(state(driver, i)["cores"][name][sent], before[name][sent])


# ---------- limits ----------


@NOTED
def test_without_a_rate_p_stays_at_the_clients_shares_of_the_rows() -> None:
    for M in (None, 1):
        driver = play(APPLE(lr_p=0.0, M=M), federation(ROWS), TwoLayers(), 4, momentum=0.9, weight_decay=0.1)
        for i in range(3):
            assert state(driver, i)["p"].tolist() == [0.2, 0.3, 0.5]
            assert not torch.equal(driver.server["models"]["body.weight"][i], TwoLayers().body.weight)


def test_p_sums_to_one_at_the_start_only() -> None:
    driver = of(2, APPLE(), federation(ROWS), TwoLayers())
    assert all(float(state(driver, i)["p"].sum()) == pytest.approx(1, abs=1e-15) for i in range(3))
    driver.step()
    assert all(abs(float(state(driver, i)["p"].sum()) - 1) > 1e-6 for i in range(3))


def test_weight_decay_does_not_pull_p_to_zero() -> None:
    # at its centre every gradient of f_i is zero, and p is where its pull is; c_i alone decays
    runs = [play(APPLE(), squares((2.0,) * 3, (1.0,) * 3, SIZES), Line(2.0), 1, weight_decay=d) for d in (0.0, 0.5)]
    assert [state(run, 2)["p"].tolist() for run in runs] == [[0.2, 0.3, 0.5]] * 2
    assert [float(state(run, 2)["core"]["w"]) for run in runs] == pytest.approx([2.0, 2.0 - 0.1 * 0.5 * 2.0])


@NOTED
def test_with_all_weight_on_its_own_core_a_client_trains_alone() -> None:
    settings = {"epochs": 2, "batch": 2, "momentum": 0.9, "weight_decay": 0.01}
    for sizes in ((5,), SIZES):
        data = federation(regressions(sizes))
        driver = of(3, APPLE(lr_p=0.0), data, normed().double(), **settings)
        for i in range(len(sizes)):
            with_p(driver, i, [float(j == i) for j in range(len(sizes))])
        for _ in range(3):
            driver.step()
        alone = play(Local(), data, normed().double(), 3, **settings)
        for i, kept in enumerate(alone.kept):
            torch.testing.assert_close(state(driver, i)["core"], kept["trained"], rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(driver.final(i), alone.final(i), rtol=1e-12, atol=1e-14)


def test_clients_with_equal_rows_have_equal_cores_and_models() -> None:
    driver = play(APPLE(), squares((3.0,) * 3, (1.0,) * 3, (2, 2, 2)), Line(0.5), 3)
    cores, p = driver.server["models"]["w"], [state(driver, i)["p"] for i in range(3)]
    torch.testing.assert_close(cores, cores[:1].expand(3, 1), rtol=1e-14, atol=0)
    for i in range(3):
        torch.testing.assert_close(p[i], p[0], rtol=1e-14, atol=0)
        torch.testing.assert_close(driver.final(i)["w"], driver.final(0)["w"], rtol=1e-14, atol=0)


# ---------- the schedule of the pull ----------


@pytest.mark.parametrize(
    ("scheduler", "shares"),
    [
        ("exponential", [1.0, 0.001**0.25, 0.001**0.5, 0.001**0.75, 0.0, 0.0, 0.0, 0.0]),
        ("cosine", [1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_pull_fades_over_half_of_eight_rounds(scheduler: str, shares: list[float]) -> None:
    # at the centre nothing but the pull moves p: 0.2 off in a direction that leaves w = 2 sum p alone
    method = APPLE(lr_p=0.05, mu=0.5, L=0.5, scheduler=scheduler)
    driver = of(8, method, squares((2.0,) * 3, (1.0,) * 3, SIZES), Line(2.0))
    for share in shares:
        with_p(driver, 0, [0.4, 0.1, 0.5])
        driver.step()
        step = 0.05 * 2 * share * 0.5 * 0.2
        assert state(driver, 0)["p"].tolist() == pytest.approx([0.4 - step, 0.1 + step, 0.5], abs=1e-14)


@NOTED
def test_a_share_of_no_round_is_no_pull() -> None:
    without, over = (play(m, federation(ROWS), TwoLayers(), 4) for m in (APPLE(mu=0.0), APPLE(mu=0.7, L=0.0)))
    assert all(torch.equal(state(without, i)["p"], state(over, i)["p"]) for i in range(3))


# ---------- a limited number of cores ----------


def chosen(driver: Driver, round: int = 2, seed: int = 0, **server: Tensor) -> list[list[int]]:
    """Whose cores each client would be sent, all taking part."""
    fed = replace(driver.fed(round), seed=seed)
    ids = driver.common.method.send(fed, {**driver.server, **server}, torch.arange(fed.n)).peer_ids
    assert ids is not None
    return ids.tolist()


def lines(method: Method, n: int, rounds: int = 0, **options: Any) -> Driver:
    return play(method, squares(range(1, n + 1), (1.0,) * n, (2,) * n), Line(0.0), rounds, **options)


def test_cores_never_sent_come_first_then_those_of_the_largest_weight() -> None:
    driver = lines(APPLE(M=2), 5)
    p = torch.zeros(5, 5)
    p[0] = torch.tensor([9.0, 0.1, -0.5, 0.3, 0.2])  # in absolute value, and never one's own
    assert chosen(driver, p=p, sent=torch.ones(5, 5))[0] == [2, 3]
    once = torch.ones(5, 5)
    once[0, 1] = 0
    assert chosen(driver, p=p, sent=once)[0] == [1, 2]
    once[0, 4] = 0
    assert chosen(driver, p=p, sent=once)[0] == [1, 4]
    drawn = {tuple(chosen(driver, seed=seed, sent=torch.eye(5))[0]) for seed in range(60)}
    assert drawn == {(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)}


def test_all_others_have_been_sent_before_one_is_sent_again() -> None:
    driver = lines(APPLE(M=2), 7, cohort=4)
    been: dict[int, list[int]] = {i: [] for i in range(7)}
    for _ in range(9):
        for i, ids in step_telling(driver).items():
            been[i] += ids
            seen = sorted(been[i][:6])
            assert seen == sorted(set(seen)) and i not in ids and len(ids) == 2
            assert driver.server["sent"][i].nonzero()[:, 0].tolist() == sorted({i, *been[i]})
    assert max(map(len, been.values())) > 6


@NOTED
@pytest.mark.parametrize("M", [2, 9])
def test_a_limit_that_all_others_are_under_is_none(M: int) -> None:
    limited, whole = (play(APPLE(lr_p=0.02, M=m), federation(ROWS), TwoLayers(), 3) for m in (M, None))
    for i in range(3):
        for name, value in state(whole, i)["core"].items():
            torch.testing.assert_close(state(limited, i)["core"][name], value, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(state(limited, i)["p"], state(whole, i)["p"], rtol=1e-12, atol=0)


# ---------- what is not trained ----------


def in_torch(p: list[Tensor], lr_p: float, pulls: Sequence[float]) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
    """The rounds of all clients with autograd and PyTorch's own batch norm: two steps on the whole local set each."""
    net = normed().double().train()
    cores = [{n: t.detach().clone() for n, t in net.named_parameters()} for _ in ROWS]
    statistics = [{n: t.clone() for n, t in net.named_buffers()} for _ in ROWS]
    for pull in pulls:
        received = list(cores)
        for i, (x, y) in enumerate(ROWS):
            for _ in range(2):
                core = {n: t.detach().requires_grad_() for n, t in cores[i].items()}
                relation = p[i].detach().requires_grad_()
                now = [core if j == i else received[j] for j in range(3)]
                w = {n: sum(relation[j] * now[j][n] for j in range(3)) for n in core}
                out = torch.func.functional_call(net, {**w, **statistics[i]}, torch.from_numpy(x))  # moves statistics
                loss = (out[:, 0] - torch.from_numpy(y)).square().mean()
                loss = loss + pull * (relation - torch.from_numpy(P0)).square().sum()
                loss.backward()
                with torch.no_grad():
                    cores = [
                        {n: t - 0.1 * t.grad for n, t in core.items()} if j == i else c for j, c in enumerate(cores)
                    ]
                    p = [relation - lr_p * relation.grad if j == i else one for j, one in enumerate(p)]
    return [{**core, **own} for core, own in zip(cores, statistics, strict=True)], p


@pytest.mark.parametrize("buffers", ["with_layer", "local"])
def test_statistics_are_those_of_the_personal_model_and_stay_variances_under_negative_weights(buffers: str) -> None:
    method = APPLE(lr_p=0.01, mu=0.3, L=1.0, scheduler="cosine")
    driver = of(2, method, federation(ROWS), normed().double(), epochs=2, buffers=buffers)
    start = [[-0.9, 1.2, 0.7], [0.8, -0.6, 0.8], [0.3, 0.9, -0.2]]
    for i, p in enumerate(start):
        with_p(driver, i, p)
    driver.step(), driver.step()
    cores, p = in_torch([torch.tensor(one, dtype=torch.float64) for one in start], 0.01, [0.3, 0.15])
    for i in range(3):
        torch.testing.assert_close(state(driver, i)["core"], cores[i], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(state(driver, i)["p"], p[i], rtol=1e-9, atol=0)
        tested = driver.kept[i]["held"]
        assert bool((tested["1.running_var"] > 0).all())
        for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            torch.testing.assert_close(tested[name], cores[i][name])


@pytest.mark.parametrize("M", [None, 1])
def test_statistics_and_frozen_parameters_are_not_handed_on(M: int | None) -> None:
    driver = play(APPLE(M=M), federation(regressions(SIZES, dtype=np.float32)), Frozen(), 3)
    trainable = {"middle.weight", "middle.bias", "head.weight", "head.bias"}
    assert set(driver.server["models"]) == trainable
    for i in range(3):
        for model in (state(driver, i)["core"], driver.kept[i]["held"], driver.final(i)):
            assert torch.equal(model["body.weight"], Arch(Frozen()).values()["body.weight"])
    driver = play(APPLE(M=M), federation(ROWS), normed().double(), 2)
    assert set(driver.server["models"]) == {name for name, _ in normed().named_parameters()}


# ---------- what travels, what is shown ----------


@pytest.mark.parametrize(("M", "down", "up"), [(None, 2, 16), (1, 1, 16 + 3 * 8)])
def test_the_others_cores_down_and_ones_own_up(M: int | None, down: int, up: int) -> None:
    driver = play(APPLE(M=M), federation(ROWS), Line(0.4, -0.1), 3, cohort=2)
    for row in driver.rows:
        assert row["down"] == [16 * down if i in row["cohort"] else 0 for i in range(3)]
        assert row["up"] == [up if i in row["cohort"] else 0 for i in range(3)]
    assert ("p" in driver.server) == (M is not None)  # p leaves where the server is to choose by it, and only there
    assert APPLE().sees == "models" and APPLE().point == "adapted"


def test_what_is_private_reaches_neither_the_server_nor_the_others() -> None:
    driver = play(HeadAtHome(APPLE(M=1)), federation(ROWS), TwoLayers(), 2)
    assert driver.private == {"head.weight"} and set(server(driver)["models"]) == {"body.weight"}
    for i in range(3):
        assert torch.equal(driver.kept[i]["held"]["head.weight"], driver.kept[i]["personal"]["head.weight"])


def test_it_shows_p() -> None:
    driver = play(APPLE(), federation(ROWS), TwoLayers(), 2, cohort=2)
    shown = driver.rows[-1]["explain"]["clients"]
    assert shown == {str(i): {"p": state(driver, i)["p"].tolist()} for i in driver.rows[-1]["cohort"]}


# ---------- words, refusals, pairings ----------


@pytest.mark.parametrize(
    ("method", "n", "says"),
    [
        (APPLE(lr_p=0.0), 3, "lr_p=0 leaves the relation vector"),
        (APPLE(lr_p=0.0, mu=0.0), 3, "lr_p=0 leaves the relation vector"),
        (APPLE(mu=0.0), 3, "mu=0, so nothing pulls p"),
        (APPLE(L=0.0), 3, "L=0, so nothing pulls p"),
        (APPLE(), 1, "a single client has only its own core"),
        (APPLE(M=5), 3, "M=5, but only 2 other clients"),
    ],
    ids=repr,
)
def test_what_has_no_effect_is_said_once(method: Method, n: int, says: str) -> None:
    with pytest.warns(MethodNote, match=f"APPLE: {says}") as said:
        lines(method, n, rounds=2)
    assert len(said) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"lr_p": -0.1}, {"lr_p": math.inf}, {"mu": -1.0}, {"mu": math.nan}, {"L": 1.1}, {"L": -0.1},
     {"scheduler": "linear"}, {"M": 0}],
)  # fmt: skip
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongInput, match=f"APPLE: {next(iter(wrong))}=.* must be"):
        APPLE(**wrong)


def test_the_text_is_read_back() -> None:
    method = APPLE(lr_p=0.01, scheduler="cosine", M=3)
    assert registry.parse("method", repr(method)) == method
    assert registry.parse("method", "apple") == APPLE()


@pytest.mark.parametrize(
    ("around", "says"),
    [
        (AdaptiveLocalAggregation, "APPLE itself mixes models on each client by what it learned.* around another"),
        (Proximal, "receives no one model that it could be held near; choose an inner method"),
        (ComponentAttention, "sends more than one model for all.* choose an inner method"),
        (TunedStart, "receives no one model that it could fine-tune; choose an inner method"),
    ],
)
def test_a_plug_in_that_needs_one_model_received_is_refused(around: type[Wrapper], says: str) -> None:
    with pytest.raises(WrongInput, match=f"{around.__name__}: .*{says}"):
        play(around(APPLE()), federation(ROWS), Line(0.4, -0.1), 0)


@pytest.mark.parametrize(
    "method",
    [APPLE(M=2, scheduler="cosine", L=1.0), LocalAttention(APPLE(), "se"), LocalAttention(APPLE(M=1))],
    ids=repr,
)
def test_pairings_keep_the_laws(method: Method) -> None:
    check_method(method)
