"""Proximal and FedProx: the pull towards the model received, over what is shared and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from quadratic import SIZES, Line, TwoLayers, common, federation, left, play, regressions, same, squares, w_of
from reference import SETTINGS, Gradient, Model, close, descend, line, mean, options, two_layers, values
from torch import nn

from fedtailor import FedAvg, FedBN, FedPer, FedProx, FedSGD, Local, Proximal, WrongInput, registry


def pulled(gradient: Gradient, anchor: Model, mu: float, names: tuple[str, ...]) -> Gradient:
    """Of f(w) + mu / 2 ||w - anchor||^2, the norm over `names`."""

    def slope(m: Model) -> Model:
        g = gradient(m)
        return {n: g[n] + mu * (m[n] - anchor[n]) if n in names else g[n] for n in g}

    return slope


def test_one_round_by_hand() -> None:
    # from 0 towards 1, mu = 2: 0.1, then 0.1 - 0.1 * ((0.1 - 1) + 2 * 0.1) = 0.17
    assert w_of(play(FedProx(mu=2.0), squares((1.0,), (1.0,), (1,)), Line(0.0), 1, epochs=2)) == pytest.approx(0.17)


@pytest.mark.parametrize("mu", [0.5, 4.0])
def test_closed_form_on_squares(mu: float) -> None:
    # a local run goes to (h c + mu w) / (h + mu) at the rate of the curvature h + mu
    centres, curvatures, share = (1.0, 2.0, -3.0), np.array((1.0, 4.0, 0.5)), np.array(SIZES) / sum(SIZES)
    driver = play(FedProx(mu=mu), squares(centres, tuple(curvatures), SIZES), Line(7.0), 5, epochs=4)
    gained = (1 - left(0.1, curvatures + mu, 4)) * curvatures / (curvatures + mu)  # of the way from w to c
    end, rate = (share * gained @ centres) / (share @ gained), 1 - share @ gained
    assert w_of(driver) == pytest.approx(end + rate**5 * (7.0 - end), rel=1e-12)


@pytest.mark.parametrize("setting", SETTINGS)
def test_numpy_reference_with_two_of_three_clients_a_round(setting: dict[str, float]) -> None:
    rows = regressions()
    driver = play(FedProx(mu=0.7), federation(rows), Line(0.4, -0.1), 3, cohort=2, **{**setting, "epochs": 3})
    w = values(Line(0.4, -0.1))
    for row in driver.rows:
        work = options({**setting, "epochs": 3}, row["round"])
        # the anchor is the model received, and stays so for the whole of the local run
        trained = [descend(w, pulled(line(*rows[i]), w, 0.7, ("w",)), **work) for i in row["cohort"]]
        w = mean(trained, [SIZES[i] for i in row["cohort"]])
    close(common(driver), w)


def test_a_private_head_is_outside_the_pull() -> None:
    rows = regressions()
    driver = play(Proximal(FedPer(), mu=2.0), federation(rows), TwoLayers(), 3, epochs=3)
    start = values(TwoLayers())
    body, heads = start["body.weight"], [start["head.weight"]] * 3
    for _ in range(3):
        models = [{"body.weight": body, "head.weight": head} for head in heads]
        pairs = list(zip(models, rows, strict=True))
        trained = [descend(m, pulled(two_layers(*r), m, 2.0, ("body.weight",)), lr=0.1, epochs=3) for m, r in pairs]
        body, heads = mean(trained, SIZES)["body.weight"], [m["head.weight"] for m in trained]
    close(common(driver), {"body.weight": body})
    for kept, head in zip(driver.kept, heads, strict=True):
        close(kept["personal"], {"head.weight": head})


@pytest.mark.filterwarnings("ignore:Proximal. with mu=0")
@pytest.mark.parametrize("inner", [FedAvg(), FedBN(), FedPer(), FedSGD(), Local()], ids=repr)
def test_mu_0_is_the_inner_method_bit_for_bit(inner) -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    data, setting = federation(regressions(dtype=np.float32)), {"epochs": 2, "batch": 2, "momentum": 0.9, "cohort": 2}
    plain, wrapped = (play(method, data, net, 3, **setting) for method in (inner, Proximal(inner, mu=0.0)))
    assert same(common(plain), common(wrapped))
    for a, b in zip(plain.kept, wrapped.kept, strict=True):
        assert same(a["personal"], b["personal"])


@pytest.mark.filterwarnings("ignore:Proximal. nothing")
def test_with_nothing_shared_the_pull_is_on_nothing() -> None:
    data = federation(regressions())
    alone, pulled_alone = (play(m, data, Line(0.4, -0.1), 3) for m in (Local(), Proximal(Local(), mu=5.0)))
    assert all(same(alone.final(i), pulled_alone.final(i)) for i in range(3))


def test_on_one_step_from_the_anchor_the_pull_is_zero() -> None:
    data = federation(regressions())
    assert same(common(play(FedProx(mu=9.0), data, Line(0.4, -0.1), 1)),
                common(play(FedAvg(), data, Line(0.4, -0.1), 1)))  # fmt: skip


def test_the_default_does_something() -> None:
    data = federation(regressions())
    prox, fedavg = (play(m, data, Line(0.4, -0.1), 1, epochs=3) for m in (FedProx(), FedAvg()))
    assert not same(common(prox), common(fedavg))


def test_the_named_method_is_the_composition() -> None:
    assert FedProx(mu=0.3) == Proximal(FedAvg(), mu=0.3)
    assert repr(FedProx(mu=0.3)).startswith("Proximal(FedAvg(), mu=0.3")
    assert registry.parse("method", "fedprox(mu=0.3)") == FedProx(mu=0.3)


@pytest.mark.parametrize("mu", [-0.1, float("nan")])
def test_an_impossible_mu_is_refused(mu: float) -> None:
    with pytest.raises(WrongInput, match=r"mu=.* must be 0 or more"):
        FedProx(mu=mu)
