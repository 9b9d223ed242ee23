"""pFedMe: theta_i on a spring around w_i; theta_i is what is tested, w_i is what is averaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from nets import Frozen, Tied, normed
from quadratic import SIZES, Line, TwoLayers, common, federation, play, regressions, same, squares, w_of
from reference import SETTINGS, Gradient, Model, close, line, mean, options, two_layers, values

from fedtailor import Arch, Local, Wrapper, WrongInput, pFedMe, schedule
from fedtailor.method import MethodNote

CENTRES, CURVATURES = np.array((1.0, 2.0, -3.0)), np.array((1.0, 4.0, 0.5))


@dataclass(frozen=True, repr=False)
class HeadAtHome(Wrapper):
    """Any plug-in that keeps some names private, as local attention does."""

    def personal(self, arch: Arch) -> frozenset[str]:
        return arch.head


def theta_of(driver, client: int) -> float:
    return float(driver.kept[client]["method"]["theta"]["w"])


def round_of(
    theta: Model, w: Model, gradient: Gradient, shared: tuple[str, ...], *, lam: float, K: int, eta: float, mu: float,
    lr: float, epochs: int, momentum: float = 0.0, weight_decay: float = 0.0,
) -> tuple[Model, Model]:  # fmt: skip
    """Client i of Alg. 1, where the whole local set is one batch: as many batches as epochs."""
    theta = {name: value.copy() for name, value in theta.items()}
    w = {name: w[name].copy() for name in shared}
    velocity: Model = {}
    for _ in range(epochs):
        for _ in range(K):
            slope = gradient(theta)
            for name in theta:
                g = slope[name] + weight_decay * theta[name]
                if name in shared:
                    g = g + lam * (theta[name] - w[name]) + mu * theta[name]
                velocity[name] = momentum * velocity[name] + g if name in velocity else g
            for name in theta:
                theta[name] -= lr * velocity[name]
        for name in shared:
            w[name] -= eta * lam * (w[name] - theta[name])
    return theta, w


def test_one_round_by_hand() -> None:
    # theta: 0, then 0.1 (1 - 0) = 0.1, then 0.1 - 0.1 ((0.1 - 1) + 2 (0.1 - 0)) = 0.17; w = 0 - 0.1 * 2 (0 - 0.17)
    driver = play(pFedMe(lam=2.0, K=2, eta=0.1), squares((1.0,), (1.0,), (1,)), Line(0.0), 1)
    assert theta_of(driver, 0) == pytest.approx(0.17)
    assert w_of(driver) == pytest.approx(0.034)
    # round 2 goes on from theta = 0.17: 0.2258, then 0.2258 - 0.1 ((0.2258 - 1) + 2 (0.2258 - 0.034)) = 0.26486
    driver.step()
    assert theta_of(driver, 0) == pytest.approx(0.26486)
    assert w_of(driver) == pytest.approx(0.034 + 0.2 * (0.26486 - 0.034))


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_fixed_point_on_squares(epochs: int, beta: float) -> None:
    # with exact inner solutions theta = (h c + lam w) / (h + lam), so each step of w covers eta lam h / (h + lam) of
    # the way to c; w rests where the ways the clients pull, all steps together, cancel out: unweighted
    lam, eta = 2.0, 0.5
    gained = 1 - (1 - eta * lam * CURVATURES / (CURVATURES + lam)) ** epochs
    end = gained @ CENTRES / gained.sum()
    method = pFedMe(lam=lam, K=15, beta=beta, eta=eta)
    driver = play(
        method, squares(CENTRES, CURVATURES, SIZES), Line(3.0), 30 // epochs, epochs=epochs, lr=0.25, eval_every=99
    )
    assert w_of(driver) == pytest.approx(end, rel=1e-4)
    for i, (c, h) in enumerate(zip(CENTRES, CURVATURES, strict=True)):
        if epochs == 1:  # else w_i has moved on within the round
            assert theta_of(driver, i) == pytest.approx((h * c + lam * end) / (h + lam), rel=1e-4)


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("setting", SETTINGS)
def test_numpy_reference_with_two_of_three_clients_a_round(setting: dict[str, float], mu: float) -> None:
    rows = regressions()
    method = pFedMe(lam=3.0, K=3, beta=0.7, eta=0.1, mu=mu)
    driver = play(method, federation(rows), Line(0.4, -0.1), 3, cohort=2, **setting)
    w = values(Line(0.4, -0.1))
    theta = [w] * 3
    for row in driver.rows:
        work, sent = options(setting, row["round"]), []
        for i in row["cohort"]:
            theta[i], own = round_of(theta[i], w, line(*rows[i]), ("w",), lam=3.0, K=3, eta=0.1, mu=mu, **work)
            sent.append(own)
        w = {"w": 0.3 * w["w"] + 0.7 * mean(sent, [1, 1])["w"]}
    close(driver.server["model"], w)
    for kept, own in zip(driver.kept, theta, strict=True):
        close(kept["method"]["theta"], own)


def test_each_batch_has_its_own_k_steps() -> None:
    rows, lam, eta, lr, batch, inner = regressions(), 3.0, 0.1, 0.1, 2, 3
    driver = play(
        pFedMe(lam=lam, K=inner, eta=eta), federation(rows), Line(0.4, -0.1), 2,
        batch=batch, epochs=2, cohort=2, lr=lr, momentum=0.5,
    )  # fmt: skip
    w, theta = values(Line(0.4, -0.1))["w"], [values(Line(0.4, -0.1))["w"]] * 3
    for row in driver.rows:
        sent = []
        for i in row["cohort"]:
            own, velocity = w.copy(), 0.0  # the velocity goes on from batch to batch, and starts afresh in a round
            for epoch in range(2):
                order = schedule.epoch_order(0, row["round"], i, 0, epoch, torch.arange(SIZES[i])).numpy()
                for part in np.split(order, range(batch, SIZES[i], batch)):
                    gradient = line(*(values[part] for values in rows[i]))
                    for _ in range(inner):
                        velocity = 0.5 * velocity + gradient({"w": theta[i]})["w"] + lam * (theta[i] - own)
                        theta[i] = theta[i] - lr * velocity
                    own = own - eta * lam * (own - theta[i])
            sent.append(own)
        w = np.mean(sent, axis=0)
    close(common(driver), {"w": w})
    for kept, own in zip(driver.kept, theta, strict=True):
        close(kept["method"]["theta"], {"w": own})


def test_a_private_head_lives_in_theta_without_the_spring() -> None:
    rows = regressions()
    method = HeadAtHome(pFedMe(lam=3.0, K=3, eta=0.1, mu=0.3))
    driver = play(method, federation(rows), TwoLayers(), 3, cohort=2, epochs=2)
    start = values(TwoLayers())
    w, theta = {"body.weight": start["body.weight"]}, [start] * 3
    for row in driver.rows:
        sent = []
        for i in row["cohort"]:
            theta[i], own = round_of(
                theta[i], w, two_layers(*rows[i]), ("body.weight",), lam=3.0, K=3, eta=0.1, mu=0.3, lr=0.1, epochs=2
            )
            sent.append(own)
        w = mean(sent, [1, 1])
    close(common(driver), w)
    for kept, own in zip(driver.kept, theta, strict=True):
        close(kept["method"]["inner"]["theta"], own)
        close(kept["personal"], {"head.weight": own["head.weight"]})


def test_what_is_tested_is_theta_and_never_w() -> None:
    # x = 1, so the error on a site is the distance to its centre
    data, centres = squares((1.0, 5.0), (2.0, 2.0), (1, 1)), (1.0, 5.0)
    settings = {"lr": 0.05, "epochs": 2, "cohort": 1}
    driver = play(pFedMe(), data, Line(0.0), 4, **settings)
    for row in driver.rows:
        assert row["point"] == "adapted"
    theta = [theta_of(driver, i) for i in range(2)]
    errors = [abs(t - c) for t, c in zip(theta, centres, strict=True)]
    assert driver.rows[-1]["test"]["rmse"] == pytest.approx(errors)
    assert all(abs(t) > 0 for t in theta)  # not the first values for ever
    assert errors != pytest.approx([abs(w_of(driver) - c) for c in centres], rel=1e-3)
    assert [float(driver.final(i)["w"]) for i in range(2)] == theta
    before = w_of(play(pFedMe(), data, Line(0.0), 3, **settings))
    received = play(pFedMe(), data, Line(0.0), 4, point="received", **settings)  # GM: w, as sent to all
    assert received.rows[-1]["test"]["rmse"] == pytest.approx([abs(before - c) for c in centres])
    assert same(received.server["model"], driver.server["model"])


def test_trained_is_the_clients_copy_of_the_global_model() -> None:
    # as by hand above: w = 0 is received, theta = 0.17 is trained, and w_i = 0.034 is sent; x = sqrt(1/2)
    data, method = squares((1.0,), (1.0,), (1,)), pFedMe(lam=2.0, K=2, eta=0.1)
    for point, w in (("received", 0.0), ("trained", 0.034), ("adapted", 0.17)):
        driver = play(method, data, Line(0.0), 1, point=point)
        assert driver.rows[0]["test"]["rmse"] == pytest.approx([0.5**0.5 * (1 - w)]), point


def test_with_equal_data_all_are_as_one() -> None:
    rows = regressions((4,)) * 3
    one, three = (play(pFedMe(), federation(part), normed().double(), 3, epochs=2) for part in (rows[:1], rows))
    torch.testing.assert_close(common(three), common(one), rtol=1e-9, atol=1e-12)
    for i in range(3):
        torch.testing.assert_close(three.final(i), one.final(0), rtol=1e-9, atol=1e-12)


def test_a_client_too_small_for_a_step_sends_back_what_it_received() -> None:
    driver = play(pFedMe(), federation(regressions((1, 4), dtype=np.float32)), normed(), 3)
    first = play(pFedMe(), federation(regressions((1, 4), dtype=np.float32)), normed(), 0)
    assert driver.rows[0]["steps"] == [0, 5]
    assert same(driver.final(0), first.final(0))  # theta has never moved
    alone = play(pFedMe(), federation(regressions((1,), dtype=np.float32)), normed(), 2)
    assert torch.equal(common(alone)["0.weight"], normed()[0].weight)


def test_frozen_and_tied_tensors() -> None:
    data, settings = federation(regressions(dtype=np.float32)), {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    frozen = play(pFedMe(mu=0.1, beta=1.5), data, Frozen(), 4, **settings)
    for place in (common(frozen), frozen.final(1)):
        for name, value in Frozen().state_dict().items():
            assert torch.equal(place[name], value) == name.startswith("body"), name
    tied = play(pFedMe(mu=0.1), data, Tied(), 2, **settings)
    assert set(tied.final(0)) == {"up.weight", "head.weight", "head.bias"}
    assert not torch.equal(tied.final(0)["up.weight"], Tied().up.weight)


def test_lam_pulls_theta_to_w() -> None:
    data = squares((1.0,), (1.0,), (1,))
    gaps = []
    for lam in (0.5, 5.0, 50.0):
        driver = play(pFedMe(lam=lam, K=200, eta=0.1 / lam), data, Line(0.0), 1, lr=0.02)
        gaps.append(theta_of(driver, 0))
        assert theta_of(driver, 0) == pytest.approx(1 / (1 + lam), rel=0.05)
    assert gaps == sorted(gaps, reverse=True)


def test_at_its_null_points_it_says_so() -> None:
    data, start = federation(regressions()), Line(0.4, -0.1)
    with pytest.warns(MethodNote, match="lam=0 the global model never moves"):
        still = play(pFedMe(lam=0.0, K=2), data, start, 3)
    alone = play(Local(), data, start, 3, epochs=2)
    for i in range(3):
        assert same(still.kept[i]["method"]["theta"], alone.final(i))
    with pytest.warns(MethodNote, match="beta=0 the server keeps its first model"):
        driver = play(pFedMe(beta=0.0), data, start, 2)
    for held in (still, driver):
        close(held.server["model"], values(start))
    with pytest.warns(MethodNote, match="eta=0 the global model never moves"):
        play(pFedMe(eta=0.0), data, start, 0)


def test_each_batch_takes_k_steps_and_one_model_travels_each_way() -> None:
    driver = play(pFedMe(K=4), federation(regressions()), Line(0.4, -0.1), 1, batch=2, epochs=2)
    assert driver.rows[0]["steps"] == [1 * 2 * 4, 2 * 2 * 4, 3 * 2 * 4]
    assert driver.rows[0]["down"] == driver.rows[0]["up"] == [16, 16, 16]


def test_the_mean_is_uniform_unless_asked_otherwise() -> None:
    data = squares((1.0, 5.0), (1.0, 1.0), (1, 3))
    w = [w_of(play(pFedMe(lam=2.0, K=1, eta=0.1), data, Line(0.0), 1, weighting=how)) for how in ("auto", "size")]
    assert w == pytest.approx([0.2 * (0.1 + 0.5) / 2, 0.2 * (0.1 + 3 * 0.5) / 4])


def test_running_statistics_are_those_of_theta_averaged_whatever_beta() -> None:
    data, net = federation(regressions(dtype=np.float32)), normed()
    driver = play(pFedMe(beta=3.0, K=3), data, net, 1, lr=0.01)
    for name in ("1.running_mean", "1.running_var"):
        own = torch.stack([kept["method"]["theta"][name] for kept in driver.kept])
        torch.testing.assert_close(driver.server["model"][name], own.mean(0))
        assert not torch.equal(own[0], own[1])
    assert int(driver.server["model"]["1.num_batches_tracked"]) == 3


@pytest.mark.parametrize(
    "wrong",
    [{"lam": -1.0}, {"K": 0}, {"beta": -1.0}, {"eta": -0.1}, {"mu": -0.1}, {"lam": np.inf}],
)
def test_impossible_values_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(WrongInput, match=f"pFedMe: {next(iter(wrong))}=.* must be"):
        pFedMe(**wrong)
