"""FedHAM against its algorithms in bare PyTorch, numbers by hand, and its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import ham
import numpy as np
import pytest
import torch
from ham import Settings, fedham, flat
from nets import Frozen, normed
from quadratic import SIZES, Line, Rows, federation, play, regressions, same, squares
from torch import Tensor, nn

from fedtailor import FTL, Driver, FedAvg, FedHAM, Local, Received
from fedtailor.methods import fedham as source
from fedtailor.methods.fedham import Ham, sketch

NOTED = pytest.mark.filterwarnings("ignore::fedtailor.method.MethodNote")
WARNED = pytest.mark.filterwarnings("ignore:.*turned to the clients' own:UserWarning")


def curved() -> nn.Module:
    """13 numbers in two layers, with a bend between them."""
    torch.default_generator.manual_seed(5)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def theta_of(driver: Driver, i: int) -> dict[str, Tensor]:
    return {name.lstrip("."): value for name, value in driver.kept[i]["method"]["theta"].items()}


# ---------- the reference ----------

# the method's options, the same in the reference's words, and the settings of the run
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "as by default": ({}, {}, {}),
    "sketch": ({"projection": "sketch", "q": 5}, {}, {}),
    "diag": ({"projection": "diag"}, {"adam": ("1", "2")}, {}),
    "all by sgd": ({"ham_optimizer": "sgd", "lam": 3.0}, {"adam": (), "lam": 3.0}, {}),
    "all by adam": ({"ham_optimizer": "adam"}, {"adam": ("1", "2")}, {}),
    "first layer": ({"layers": "first"}, {"layers": "first"}, {}),
    "second layer": ({"layers": "second", "lam": 2.0}, {"layers": "second", "lam": 2.0}, {}),
    "cosine": ({"score": "cosine"}, {"cosine": True}, {}),
    "centred": ({"phi_center": True}, {"centred": True}, {}),
    "centred cosine": ({"phi_center": True, "score": "cosine", "tied": True}, {"centred": True, "cosine": True}, {}),
    "every epoch": ({"alternate": "epoch"}, {"every_epoch": True}, {}),
    "exact": ({"exact_objective": True, "lam": 0.7}, {"exact": True, "lam": 0.7}, {}),
    "no warm-up": ({"p": 0}, {"p": 0}, {}),
    "longer warm-up": ({"p": 2}, {"p": 2}, {}),
    "momentum": ({}, {"base": {"momentum": 0.9, "weight_decay": 0.02}, "lr_decay": 0.8},
                 {"momentum": 0.9, "weight_decay": 0.02, "lr_decay": 0.8}),
}  # fmt: skip


def compared(driver: Driver, s: Settings, sizes: Sequence[int], batches: ham.Batches) -> None:
    """The driver's end and that of the reference, which is given the first Theta and what attention sees."""
    tolerance = 1e-7  # Adam divides by slopes, and enlarges the rounding of those that are small
    method, net = driver.common.method, driver.arch.net
    assert isinstance(method, FedHAM)
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    width = sum(p.numel() for p in net.parameters() if p.requires_grad)
    like = next(net.parameters())
    table = sketch([torch.eye(width).to(like)], method.q, driver.spec.seed) if method.projection == "sketch" else None
    start = {name.lstrip("."): w for name, w in method.init_client(driver.fed(0), driver.initial)["theta"].items()}
    glob, clients = fedham(
        net, sizes, [row["cohort"] for row in driver.rows], start,
        lambda model: flat(model, names) if table is None else flat(model, names) @ table, batches, s,
    )  # fmt: skip

    def close(ours: Any, theirs: Any) -> None:
        ours, theirs = (torch.as_tensor(v, dtype=torch.float64).detach() for v in (ours, theirs))
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)

    for name, value in glob.items():
        close(driver.server["model"][name], value)
    for i, client in enumerate(clients):
        state = driver.kept[i]["method"]
        for name, value in (client.x or driver.initial).items():
            close(driver.kept[i]["trained"][name], value)
            close(state["x"][name], value)
        for name, w in client.theta.items():
            close(theta_of(driver, i)[name], w)
            layer = client.optimisers[name[-1]]
            if isinstance(layer, torch.optim.Adam) and w in layer.state:
                for slot, theirs in (("m", "exp_avg"), ("v", "exp_avg_sq"), ("t", "step")):
                    close(state["adam"][slot]["." + name], layer.state[w][theirs])
            else:
                assert not any(float(state["adam"][slot]["." + name].abs().sum()) for slot in "mvt")
        if client.alpha:
            close(state["alpha"], client.alpha)
            close(state["beta"], client.beta)
            close(state["slopes"], client.norms)


def whole(rows: Rows) -> ham.Batches:
    """All rows of a client in every batch."""
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in rows]
    return lambda t, i, stream, epochs: [data[i]] * epochs


@NOTED
@WARNED
@pytest.mark.parametrize("case", CASES)
def test_reference_with_two_of_three_clients_a_round(case: str) -> None:
    options, words, run = CASES[case]
    method = FedHAM(**{"p": 1, "projection": "dense", "h": 4, "ham_lr": 0.05, **options})
    driver = play(method, federation(regressions()), curved(), 6, cohort=2, epochs=2, **run)
    compared(driver, Settings(**words), SIZES, whole(regressions()))
    cohorts = [set(row["cohort"]) for row in driver.rows]
    assert len(cohorts[0]) == 2 and set.union(*cohorts) == {0, 1, 2}  # one comes first when attention is on
    assert any(a & b for a, b in pairwise(cohorts[1:]))  # one attends in two rounds running
    part = "k2" if case == "second layer" else "k1"
    first = method.init_client(driver.fed(0), driver.initial)["theta"][f".{part}"]
    assert not any(torch.equal(theta_of(driver, i)[part], first) for i in range(3))


@WARNED
@pytest.mark.parametrize("alternate", ["round", "epoch"])
def test_reference_on_mini_batches(alternate: str) -> None:
    # Theta and x_i see the rows in orders of their own
    method = FedHAM(p=1, projection="dense", h=4, ham_lr=0.05, alternate=alternate)
    driver = play(method, federation(regressions((4, 5, 8))), curved(), 4, batch=2, epochs=2)

    def batches(t: int, i: int, stream: int, epochs: int) -> list[tuple[Tensor, Tensor]]:
        return [(b.x, b.y) for b in driver.sites[i].client(t).batches(epochs=epochs, stream=stream)]

    orders = [[y.tolist() for _, y in batches(2, 2, stream, 1)] for stream in range(4)]
    assert all(a != b for k, a in enumerate(orders) for b in orders[:k])
    compared(driver, Settings(every_epoch=alternate == "epoch"), (4, 5, 8), batches)


@WARNED
def test_reference_with_running_statistics_and_counters() -> None:
    rows = regressions((4, 6, 9))
    method = FedHAM(p=1, projection="dense", h=4, ham_lr=0.02)
    driver = play(method, federation(rows), normed().double(), 4, cohort=2, epochs=2)
    compared(driver, Settings(ham_lr=0.02), (4, 6, 9), whole(rows))
    counts = {int(kept["trained"]["1.num_batches_tracked"]) for kept in driver.kept}
    assert len(counts) > 1  # everybody counts the batches of the model it has, and none of those that taught Theta


@WARNED
def test_reference_with_a_frozen_body() -> None:
    rows, net = regressions(), Frozen().double()
    driver = play(FedHAM(p=1, projection="dense", h=4, ham_lr=0.02), federation(rows), net, 4, cohort=2, epochs=2)
    compared(driver, Settings(ham_lr=0.02), SIZES, whole(rows))
    for model in (driver.server["model"], *(kept["trained"] for kept in driver.kept)):
        assert torch.equal(model["body.weight"], net.body.weight)


# ---------- by hand ----------


def attending(method: FedHAM, net: nn.Module, x: Tensor, glob: Tensor, peers: Sequence[Tensor]) -> Ham:
    """The attention of client 0 with the model w = x over other clients' w."""
    driver = play(method, federation(regressions()), net, 0)
    got = Received({"w": glob}, {}, {"w": torch.stack(list(peers))}, torch.arange(1, 1 + len(peers)), 0, {"warm": 0})
    return Ham(method, driver.sites[0].client(1), got)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_two_layers_of_attention_over_two_models_by_hand() -> None:
    # the first layer looks at the first number: x_i . x_j = 1 and 0, so that with ln 3 the weights are 3 to 1 and
    # x^a = 3/4 (1, 2) + 1/4 (0, -2) = (3/4, 1). The second looks at the second number, 1, 1 and 0 of the three models:
    # with ln 2 the weights are 2, 2 and 1, and the hybrid is 2/5 (1, 1) + 2/5 (3/4, 1) + 1/5 (4, 0) = (3/2, 4/5)
    theta = {".q1": tensor(1, 0), ".k1": tensor(2**0.5 * math.log(3), 0)}
    theta |= {".q2": tensor(0, 1), ".k2": tensor(0, 2**0.5 * math.log(2))}
    x, glob = tensor(1, 1), tensor(4, 0)
    h = attending(FedHAM(p=0, projection="diag"), Line(0.0, 0.0), x, glob, [tensor(1, 2), tensor(0, -2)])
    alpha, beta = h.weights(h.at({"w": x}), theta)
    assert alpha.tolist() == pytest.approx([3 / 4, 1 / 4], rel=1e-12)
    assert beta.tolist() == pytest.approx([2 / 5, 2 / 5, 1 / 5], rel=1e-12)
    assert h({"w": x}, theta)["w"].tolist() == pytest.approx([3 / 2, 4 / 5], rel=1e-12)
    # AML1 takes x^a itself; AML2 has the first and the last of the three, 2 to 1
    first, second = (
        attending(FedHAM(p=0, projection="diag", layers=layers), Line(0.0, 0.0), x, glob, [tensor(1, 2), tensor(0, -2)])
        for layers in ("first", "second")
    )
    assert first({"w": x}, theta)["w"].tolist() == pytest.approx([3 / 4, 1], rel=1e-12)
    assert second({"w": x}, theta)["w"].tolist() == pytest.approx([2, 2 / 3], rel=1e-12)


def test_one_step_on_theta_and_one_on_x_by_hand() -> None:
    # AML2 on F(w) = (w - 3)^2 / 2 with x = 1, x^g = 0, q = 1 and k = ln 2: beta = (2/3, 1/3) and w = 2/3. dF/dw = -7/3,
    # dw/ds = 2/3 1/3 (1 - 0) for the score s = q k x x, so that dF/dq = -7/3 2/9 ln 2 and dF/dk = -7/3 2/9
    method = FedHAM(p=0, layers="second", projection="diag", ham_optimizer="sgd", lam=0.5)
    driver = play(method, squares((3.0, 3.0), (1.0, 1.0), (1, 1)), Line(0.0), 0)
    state = driver.kept[0]["method"]
    theta = {**state["theta"], ".q2": tensor(1), ".k2": tensor(math.log(2))}
    client = driver.sites[0].client(2)
    got = Received({"w": tensor(0)}, static={"warm": 0})
    fitted = method.fit(client, {**state, "theta": theta}, {"w": tensor(1)}, got)
    q, k = 1 + 0.1 * 0.5 * 7 / 3 * 2 / 9 * math.log(2), math.log(2) + 0.1 * 0.5 * 7 / 3 * 2 / 9
    assert float(fitted.state["theta"][".q2"]) == pytest.approx(q, rel=1e-12)
    assert float(fitted.state["theta"][".k2"]) == pytest.approx(k, rel=1e-12)
    own = 1 / (1 + math.exp(-q * k))
    assert fitted.state["beta"].tolist() == pytest.approx([own, 0, 1 - own], rel=1e-12)
    assert float(fitted.model["w"]) == pytest.approx(own - 0.1 * (own - 3), rel=1e-12)
    assert float(fitted.state["slopes"][1]) == pytest.approx(7 / 3 * 2 / 9 * math.hypot(math.log(2), 1), rel=1e-12)


# ---------- limits ----------

RUN = {"epochs": 2, "batch": 2, "momentum": 0.9, "lr_decay": 0.9}


def trained(driver: Driver) -> list[dict[str, Tensor]]:
    return [kept["trained"] for kept in driver.kept]


@NOTED
@pytest.mark.parametrize("p", [4, 9])
def test_a_warm_up_as_long_as_the_run_is_fedavg_tested_after_training_bit_for_bit(p: int) -> None:
    ours, fedavg, ftl, shorter = (
        play(method, federation(regressions((4, 5, 8))), curved(), 4, cohort=2, point="trained", **RUN)
        for method in (FedHAM(p=p), FedAvg(), FTL(), FedHAM(p=3))
    )
    assert same(ours.server["model"], fedavg.server["model"])
    assert all(same(a, b) and same(a, c) for a, b, c in zip(*map(trained, (ours, fedavg, ftl)), strict=True))
    assert [row["test"] for row in ours.rows] == [row["test"] for row in ftl.rows]
    assert not same(shorter.server["model"], fedavg.server["model"])


@NOTED
def test_where_everybody_is_alone_the_first_layer_gives_x_g_and_that_is_ftl_bit_for_bit() -> None:
    alone, ftl = (
        play(method, federation(regressions((4, 5, 8))), curved(), 4, **RUN)
        for method in (FedHAM(p=1, k=3, layers="first"), FTL())
    )
    assert all(same(a, b) for a, b in zip(trained(alone), trained(ftl), strict=True))
    assert not alone.kept[0]["method"]["alpha"].any()
    # with the second layer x^g weighs twice, as itself and as x^a
    both = play(FedHAM(p=1, k=3), federation(regressions((4, 5, 8))), curved(), 4, **RUN)
    beta = both.kept[0]["method"]["beta"]
    assert float(beta[1]) == float(beta[2]) > 0 and float(beta.sum()) == pytest.approx(1, rel=1e-12)
    assert not same(trained(both)[0], trained(ftl)[0])


@NOTED
def test_a_single_client_trains_alone() -> None:
    data = federation(regressions((4,)))
    for layers in ("both", "first", "second"):
        one, local = (play(method, data, curved(), 4, **RUN) for method in (FedHAM(p=1, layers=layers), Local()))
        torch.testing.assert_close(trained(one)[0], trained(local)[0], rtol=1e-12, atol=1e-14)


def test_without_the_first_layer_no_peers_are_sent() -> None:
    # x^hyb lies between x_i and x^g, and whatever the others are makes no difference but through x^g
    driver = play(FedHAM(p=1, layers="second"), federation(regressions()), curved(), 3)
    size = 8 * sum(p.numel() for p in curved().parameters())
    assert [row["down"] for row in driver.rows] == [[size] * 3] * 3
    for kept in driver.kept:
        assert float(kept["method"]["beta"][1]) == 0 and not kept["method"]["alpha"].any()
    both = play(FedHAM(p=1), federation(regressions()), curved(), 3)
    assert [row["down"] for row in both.rows] == [[size] * 3, [3 * size] * 3, [3 * size] * 3]
    assert [row["up"] for row in both.rows] == [[size + 16] * 3] * 3  # and two numbers: the loss, and beta on x_i


@pytest.mark.parametrize("layers", ["both", "first", "second"])
@pytest.mark.parametrize("projection", ["sketch", "diag", "dense"])
@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_the_hybrid_is_in_the_hull_of_what_it_is_made_of(layers: str, projection: str, score: str) -> None:
    draw = torch.Generator().manual_seed(1)
    for scale in (0.1, 1.0, 100.0):
        x, glob, *peers = scale * torch.randn(5, 2, generator=draw, dtype=torch.float64)
        method = FedHAM(p=0, layers=layers, projection=projection, score=score)
        h = attending(method, Line(0.0, 0.0), x, glob, peers)
        shape = {"sketch": (64, 1024), "diag": (2,), "dense": (64, 2)}[projection]
        theta = {f".{part}{n}": scale * torch.randn(shape, generator=draw).double() for part in "qk" for n in "12"}
        theta |= {".t1": tensor(5)[0], ".t2": tensor(50)[0]}
        alpha, beta = h.weights(h.at({"w": x}), theta)
        for weights in (alpha, beta):
            assert float(weights.min()) >= 0 and float(weights.sum()) == pytest.approx(1, rel=1e-12)
        values = torch.stack([x, glob, *peers])
        hybrid = h({"w": x}, theta)["w"]
        slack = 1e-12 * scale
        assert bool((hybrid >= values.amin(0) - slack).all()) and bool((hybrid <= values.amax(0) + slack).all())
        expected = beta[0] * x + beta[1] * sum(a * peer for a, peer in zip(alpha, peers, strict=True)) + beta[2] * glob
        torch.testing.assert_close(hybrid, expected, rtol=1e-12, atol=1e-14)


def test_equal_models_are_attended_to_alike_and_stay_what_they_are() -> None:
    x = tensor(0.3, -0.7)
    h = attending(FedHAM(p=0), Line(0.0, 0.0), x, x, [x, x, x])
    theta = play(FedHAM(p=0), federation(regressions()), Line(0.3, -0.7), 0).kept[0]["method"]["theta"]
    alpha, beta = h.weights(h.at({"w": x}), theta)
    torch.testing.assert_close(alpha, torch.full((3,), 1 / 3, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(beta, torch.full((3,), 1 / 3, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(h({"w": x}, theta)["w"], x, rtol=1e-14, atol=0)


# ---------- what attention sees ----------


def test_the_sketch_adds_every_number_to_one_of_q_sums_or_takes_it_away() -> None:
    table = sketch([torch.eye(300, dtype=torch.float64)], 16, 7)  # row j is what becomes of the j-th number
    assert table.shape == (300, 16)
    assert torch.equal(table.abs().sum(1), torch.ones(300, dtype=torch.float64))
    assert set(table.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert bool(table.abs().any(0).all())  # all sums are used
    assert 100 < int((table.sum(1) > 0).sum()) < 200  # 150 give or take 9


def test_the_sketch_is_linear_and_the_same_for_all_clients_and_another_for_another_seed() -> None:
    draw = torch.Generator().manual_seed(2)
    a, b = (torch.randn(1, 50, generator=draw, dtype=torch.float64) for _ in "ab")
    one, two, both = (sketch([part[:, :20], part[:, 20:]], 8, 3) for part in (a, b, 2 * a - b))
    torch.testing.assert_close(both, 2 * one - two, rtol=1e-12, atol=1e-13)
    assert torch.equal(sketch([torch.cat([a, b])[:, :20], torch.cat([a, b])[:, 20:]], 8, 3)[1], two[0])
    assert not torch.equal(one, sketch([a[:, :20], a[:, 20:]], 8, 4))
    driver = play(FedHAM(p=0), federation(regressions()), Line(0.4, -0.1), 0)
    got = driver.last_delivery()[0]
    seen = [Ham(driver.common.method, driver.sites[i].client(t), got).at_glob for i in range(3) for t in (1, 5)]
    assert all(torch.equal(seen[0], other) for other in seen)


def test_the_sketch_keeps_inner_products_on_average() -> None:
    # the mean over draws is <a, b>, and the variance of one is (|a|^2 |b|^2 + <a, b>^2 - 2 sum a^2 b^2) / q
    draw = torch.Generator().manual_seed(3)
    a, b = torch.randn(2, 40, generator=draw, dtype=torch.float64)
    q, count = 8, 600
    found = []
    for seed in range(count):
        one, two = sketch([torch.stack([a, b])], q, seed)
        found.append(float(one @ two))
    spread = math.sqrt(float(a @ a * (b @ b) + (a @ b) ** 2 - 2 * (a**2 @ b**2)) / q)
    assert abs(np.mean(found) - float(a @ b)) < 4 * spread / math.sqrt(count)
    assert np.std(found) == pytest.approx(spread, rel=0.15)


def test_the_sketch_is_drawn_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    # a model larger than a piece is sketched whole: all of its numbers count
    monkeypatch.setattr(source, "CHUNK", 7)
    table = sketch([torch.eye(30, dtype=torch.float64)], 16, 7)
    assert torch.equal(table.abs().sum(1), torch.ones(30, dtype=torch.float64))


def test_all_clients_start_from_the_same_theta_drawn_by_the_seed() -> None:
    for options, shape in (
        ({}, (64, 1024)), ({"q": 32, "h": 3}, (3, 32)), ({"projection": "dense", "h": 5}, (5, 13)),
        ({"projection": "diag"}, (13,)),
    ):  # fmt: skip
        driver = play(FedHAM(p=0, **options), federation(regressions()), curved(), 0)
        other = play(FedHAM(p=0, **options), federation(regressions()), curved(), 0, seed=1)
        bound = math.sqrt(6 / sum(shape)) if len(shape) == 2 else math.sqrt(3)
        for part in ("q1", "k1", "q2", "k2"):
            values = theta_of(driver, 0)[part]
            assert values.shape == shape and values.dtype is torch.float64
            assert bound / 3 < float(values.abs().max()) <= bound
            assert all(torch.equal(values, theta_of(driver, i)[part]) for i in (1, 2))
            assert not torch.equal(values, theta_of(other, 0)[part])
        drawn = theta_of(driver, 0)
        assert not torch.equal(drawn["q1"], drawn["k1"]) and not torch.equal(drawn["q1"], drawn["q2"])
    tied = theta_of(play(FedHAM(p=0, tied=True), federation(regressions()), curved(), 0), 0)
    assert torch.equal(tied["q1"], tied["k1"]) and torch.equal(tied["q2"], tied["k2"])
    cosine = theta_of(play(FedHAM(p=0, score="cosine"), federation(regressions()), curved(), 0), 0)
    assert float(cosine["t1"]) == float(cosine["t2"]) == 5


def test_tied_matrices_part_as_they_learn() -> None:
    driver = play(FedHAM(p=1, tied=True), federation(regressions()), curved(), 3)
    theta = theta_of(driver, 0)
    assert not torch.equal(theta["q1"], theta["k1"])
