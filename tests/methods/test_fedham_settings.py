"""FedHAM's settings: when attention begins, what is said of settings that do nothing, what stays private, what is
shown."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from nets import normed
from quadratic import Line, TwoLayers, federation, play, regressions, same, squares
from torch import Tensor

from fedtailor import (
    AdaptiveLocalAggregation,
    Driver,
    FedHAM,
    LocalAttention,
    Method,
    RunSpec,
    Wrapper,
    WrongInput,
    check_method,
    registry,
    tree,
)
from fedtailor.arch import Arch
from fedtailor.method import MethodNote
from fedtailor.methods.fedham import Ham
from fedtailor.toy import toy_driver


def attends(driver: Driver) -> list[bool]:
    """Round by round, whether clients were sent each other's models."""
    size = tree.nbytes(driver.server["model"])
    return [max(row["down"]) > size for row in driver.rows]


# ---------- when attention begins ----------


@pytest.mark.parametrize("p", [0, 1, 3])
def test_attention_begins_after_p_rounds(p: int) -> None:
    driver = play(FedHAM(p=p), federation(regressions()), Line(0.4, -0.1), 5)
    first = max(p, 1)  # in the first round there is nobody yet to attend to
    assert attends(driver) == [round > first for round in range(1, 6)]
    assert ["alpha" in row["explain"].get("clients", {}).get("0", {}) for row in driver.rows] == [
        round > p for round in range(1, 6)
    ]


def test_by_itself_it_begins_when_the_mean_loss_has_not_fallen_by_a_hundredth_in_five_rounds() -> None:
    # of squares around 0 and 4 the loss of the mean cannot fall to 0: it comes to rest
    data = squares((0.0, 4.0, 1.0), (1.0, 1.0, 2.0), (2, 3, 5))
    driver = play(FedHAM(p="auto"), data, Line(30.0), 40, epochs=2)
    loss = [np.mean(row["train_loss"]) for row in driver.rows]
    due = next(t for t in range(5, 40) if loss[t] > 0.99 * loss[t - 5])  # of that round, counted from 0
    assert 6 < due < 38
    assert attends(driver) == [t > due for t in range(40)]  # and it never goes back


def test_by_itself_it_begins_after_five_rounds_without_any_loss_too() -> None:
    driver = play(FedHAM(p="auto"), squares((1.0, 1.0), (1.0, 1.0), (2, 3)), Line(1.0), 8)
    assert [row["train_loss"] for row in driver.rows] == [[0.0, 0.0]] * 8
    assert attends(driver) == [t > 6 for t in range(1, 9)]


# ---------- what is said ----------


def begun(method: Method, clients: int = 3) -> Driver:
    """A run of twenty rounds, before its first."""
    return Driver(RunSpec(method=method, model=Line(0.4, -0.1), rounds=20), federation(regressions((4,) * clients)))


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (FedHAM(p=20), "p=20 rounds of warm-up leave no round of 20 for attention"),
        (FedHAM(k=3), "k=3 clusters of 3 clients leave every client alone"),
        (FedHAM(k=7), "k=7 clusters of 3 clients leave every client alone"),
        (FedHAM(lam=0.0), "lam=0 takes no step"),
        (FedHAM(ham_lr=0.0), "ham_lr=0 takes no step"),
        (FedHAM(ham_lr=0.0, layers="first"), "ham_lr=0 takes no step"),
        (FedHAM(lam=0.0, layers="second"), "lam=0 takes no step"),
        (FedHAM(k=2, grouping="meanshift"), "k=2 has no effect"),
        (FedHAM(k=2, layers="second"), "k=2 has no effect"),
        (FedHAM(grouping="nearest", layers="second"), "grouping='nearest' has no effect"),
        (FedHAM(projection="dense", q=8), "q=8 has no effect"),
        (FedHAM(projection="diag", h=8), "h=8 has no effect"),
        (FedHAM(ham_optimizer="sgd", ham_lr=0.1), "ham_lr=0.1 has no effect"),
        (FedHAM(layers="second", ham_lr=0.1), "ham_lr=0.1 has no effect"),
        (FedHAM(ham_optimizer="adam", lam=2.0), "lam=2.0 has no effect"),
        (FedHAM(layers="first", lam=2.0), "lam=2.0 has no effect"),
    ],
    ids=repr,
)
def test_a_null_point_and_an_inert_option_are_said_once_by_name(method: Method, says: str) -> None:
    with pytest.warns(MethodNote) as said:
        begun(method)
    assert [str(note.message).startswith("FedHAM: ") for note in said] == [True]
    assert says in str(said[0].message)


def test_of_a_single_client_it_is_said_that_there_is_nobody_else() -> None:
    for method in (FedHAM(), FedHAM(k=2)):
        with pytest.warns(MethodNote, match="a single client has nobody to attend to") as said:
            begun(method, 1)
        assert len(said) == 1


@pytest.mark.parametrize(
    "method",
    [
        FedHAM(), FedHAM(p="auto"), FedHAM(k=2), FedHAM(k=3, grouping="nearest"), FedHAM(grouping="meanshift"),
        FedHAM(layers="first", ham_lr=0.1), FedHAM(layers="second", lam=2.0), FedHAM(q=8, h=8),
        FedHAM(projection="dense", h=8), FedHAM(projection="diag", ham_lr=0.1), FedHAM(ham_optimizer="sgd", lam=2.0),
        FedHAM(ham_optimizer="sgd", lam=0.5, exact_objective=True), FedHAM(ham_optimizer="adam", ham_lr=0.1),
        FedHAM(layers="first", lam=2.0, exact_objective=True), FedHAM(projection="diag", ham_optimizer="sgd", lam=2.0),
    ],
    ids=repr,
)  # fmt: skip
def test_of_settings_that_do_something_nothing_is_said(method: Method) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begun(method)


def test_without_steps_attention_stays_as_it_was_drawn() -> None:
    with pytest.warns(MethodNote):
        still = play(FedHAM(p=1, lam=0.0), federation(regressions()), Line(0.4, -0.1), 4)
    start = still.common.method.init_client(still.fed(0), still.initial)["theta"]
    assert all(same(kept["method"]["theta"], start) for kept in still.kept)
    moved = play(FedHAM(p=1), federation(regressions()), Line(0.4, -0.1), 4)
    assert not any(torch.equal(kept["method"]["theta"][part], start[part]) for kept in moved.kept for part in start)


def told(driver: Driver, server: dict[str, Any], own: list[float]) -> tuple[dict[str, Any], list[str]]:
    """The server after uploads in which beta on x_i is `own`, and what is warned of."""
    model = tree.expand(driver.server["model"], 3)
    uploads = {"model": model, "extra": {"loss": torch.ones(3), "own": torch.tensor(own)}}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        after = driver.common.method.aggregate(driver.fed(3), server, uploads, torch.ones(3) / 3, torch.arange(3))
    return after, [str(one.message) for one in said]


@pytest.mark.parametrize(("optimiser", "rate"), [("split", "(lam)"), ("sgd", "(lam)"), ("adam", "(ham_lr)")])
def test_a_mean_beta_above_95_hundredths_is_warned_of_once(optimiser: str, rate: str) -> None:
    driver = play(FedHAM(p=0, ham_optimizer=optimiser), federation(regressions()), Line(0.4, -0.1), 0)
    server, said = told(driver, driver.server, [1.0, 0.96, 0.88])
    assert said == []
    server, said = told(driver, server, [1.0, 0.99, 0.9])
    assert len(said) == 1 and "training alone" in said[0] and rate in said[0] and "layers='first'" in said[0]
    assert told(driver, server, [1.0, 1.0, 1.0])[1] == []


def test_attention_that_turns_to_the_own_model_in_a_run_is_warned_of() -> None:
    # of two clients far apart, each does best with its own model
    data = squares((0.0, 10.0), (1.0, 1.0), (2, 3))
    with pytest.warns(UserWarning, match="training alone") as said:
        driver = play(FedHAM(p=3, ham_optimizer="adam", ham_lr=0.3, projection="dense"), data, Line(0.0), 30, epochs=3)
    assert len(said) == 1 and all(float(kept["method"]["beta"][0]) > 0.95 for kept in driver.kept)


# ---------- private names ----------


@dataclass(frozen=True, repr=False)
class HeadAtHome(Wrapper):
    def personal(self, arch: Arch) -> frozenset[str]:
        return self.inner.personal(arch) | arch.head


@pytest.mark.parametrize("projection", ["dense", "diag"])
def test_what_stays_home_is_neither_seen_nor_mixed(projection: str) -> None:
    # the body comes first in the model, so that of Theta the columns of the head are those that never move
    method = HeadAtHome(FedHAM(p=1, projection=projection))
    driver = play(method, federation(regressions()), TwoLayers(), 4)
    fresh = method.init_client(driver.fed(0), driver.initial)["inner"]["theta"]
    for kept in driver.kept:
        theta = kept["method"]["inner"]["theta"]
        for part in (".q1", ".k1"):
            assert torch.equal(theta[part][..., 4:], fresh[part][..., 4:])
            assert not torch.equal(theta[part][..., :4], fresh[part][..., :4])
    got, kept, client = driver.last_delivery()[0], driver.kept[0], driver.sites[0].client(5)
    assert set(got.peers) == set(got.model) == {"body.weight"}
    x = kept["trained"]
    ham = Ham(method.inner, client, replace(got, model={**got.model, **kept["personal"]}))
    hybrid = ham(x, kept["method"]["inner"]["theta"])
    assert torch.equal(hybrid["head.weight"], x["head.weight"])
    assert not torch.equal(hybrid["body.weight"], x["body.weight"])


def test_private_attention_blocks_are_each_clients_own() -> None:
    driver = toy_driver(LocalAttention(FedHAM(p=1)), cohort=1.0)
    for _ in range(4):
        driver.step()
    blocks = {name for name in driver.private if name in driver.arch.trainable}
    assert blocks and not blocks & set(driver.server["inner"]["models"])
    got, kept = driver.last_delivery()[0], driver.kept[0]
    client = driver.sites[0].client(5)
    x = kept["trained"]
    ham = Ham(driver.common.method.inner, client, replace(got, model={**got.model, **kept["personal"]}))
    hybrid = ham(x, kept["method"]["inner"]["theta"])
    assert all(torch.equal(hybrid[name], x[name]) for name in driver.private)
    assert not any(torch.equal(hybrid[name], x[name]) for name in driver.arch.trainable - driver.private)
    assert set(ham.names) == driver.arch.trainable - driver.private


@pytest.mark.parametrize("buffers", ["with_layer", "local"])
def test_running_statistics_follow_the_weights_or_stay_home_and_counters_stay(buffers: str) -> None:
    data = federation(regressions((4, 6, 9), dtype=np.float32))
    driver = play(FedHAM(p=1), data, normed(), 3, buffers=buffers, batch=2)
    got, kept = driver.last_delivery()[0], driver.kept[0]
    client = driver.sites[0].client(4)
    x, theta = kept["trained"], kept["method"]["theta"]
    ham = Ham(driver.common.method, client, replace(got, model={**got.model, **kept["personal"]}))
    hybrid, (alpha, beta) = ham(x, theta), ham.weights(ham.at(x), theta)
    assert not any("running" in name or "num" in name for name in ham.names)  # what attention sees is what is trained
    for name in ("1.running_mean", "1.running_var"):
        if buffers == "local":
            assert torch.equal(hybrid[name], x[name]) and name not in got.peers
        else:
            others = torch.einsum("j,j...->...", alpha, got.peers[name])
            torch.testing.assert_close(hybrid[name], beta[0] * x[name] + beta[1] * others + beta[2] * got.model[name])
            assert not torch.equal(hybrid[name], x[name])
    assert torch.equal(hybrid["1.num_batches_tracked"], x["1.num_batches_tracked"])


# ---------- what is shown ----------


def test_alpha_is_shown_over_all_clients_and_is_zero_where_nobody_was_sent() -> None:
    driver = play(FedHAM(p=1), federation(regressions((3, 4, 5, 6))), Line(0.4, -0.1), 5, cohort=2)
    seen: set[int] = set()
    for row in driver.rows:
        shown = row["explain"].get("clients", {})
        assert set(shown) == ({str(i) for i in row["cohort"]} if row["round"] > 1 else set())
        for i, one in shown.items():
            alpha, others = np.array(one["alpha"]), seen - {int(i)}
            assert alpha.shape == (4,) and {int(j) for j in np.flatnonzero(alpha)} == others
            assert alpha.sum() == pytest.approx(1 if others else 0, rel=1e-6)
            entropy = -sum(a * math.log(a) for a in alpha if a)
            assert one["alpha entropy"] == pytest.approx(entropy, rel=1e-6, abs=1e-9)
            assert one["alpha largest"] == pytest.approx(alpha.max(), rel=1e-6)
        seen |= set(row["cohort"])
    assert seen == {0, 1, 2, 3}


def test_alpha_and_beta_are_those_that_made_the_hybrid_and_the_trained_model_is_tested() -> None:
    rows = regressions()
    driver = play(FedHAM(p=1), federation(rows), Line(0.4, -0.1), 2)
    before, messages = [kept["trained"]["w"] for kept in driver.kept], driver.last_delivery()
    row = driver.step()
    assert row["point"] == "trained"
    for i, (x, y) in enumerate(rows):
        state = driver.kept[i]["method"]
        alpha, beta = state["alpha"], state["beta"]
        others: Tensor = sum(alpha[j] * before[j] for j in range(3) if j != i)
        hybrid = beta[0] * before[i] + beta[1] * others + beta[2] * messages[i].model["w"]
        slope = 2 / len(y) * x.T @ (x @ hybrid.numpy() - y)
        trained = hybrid.numpy() - 0.1 * slope
        np.testing.assert_allclose(driver.kept[i]["trained"]["w"].numpy(), trained, rtol=1e-12)
        assert row["test"]["loss"][i] == pytest.approx((x[0] @ trained - y[0]) ** 2, rel=1e-9)


# ---------- guards ----------


@pytest.mark.parametrize(
    "wrong",
    [
        {"p": -1}, {"p": 1.5}, {"p": "soon"}, {"k": 0}, {"q": 0}, {"h": 0}, {"grouping": "median"}, {"layers": "third"},
        {"projection": "none"}, {"score": "angle"}, {"ham_optimizer": "rmsprop"}, {"alternate": "batch"},
        {"ham_lr": -0.1}, {"ham_lr": math.inf}, {"ham_lr": math.nan}, {"lam": -1.0}, {"lam": math.inf}, {"tied": 2},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_options_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongInput, match=f"FedHAM: {next(iter(wrong))}=.* must be"):
        FedHAM(**wrong)


def test_the_text_is_read_back() -> None:
    method = FedHAM(p="auto", k=3, grouping="nearest", layers="first", ham_optimizer="adam", tied=True)
    assert registry.parse("method", repr(method)) == method
    assert registry.parse("method", "ham") == FedHAM()
    assert FedHAM().sees == "models" and FedHAM().point == "trained"


def test_a_plug_in_that_learns_its_start_as_well_is_refused() -> None:
    with pytest.raises(WrongInput, match="itself mixes models on each client"):
        AdaptiveLocalAggregation(FedHAM())


SMALL: dict[str, Any] = {"q": 32, "h": 4}  # of Theta, so that a law is quick
LAWFUL = [
    FedHAM(p=1, k=2, **SMALL), LocalAttention(FedHAM(p=1, **SMALL)),
    FedHAM(p=1, layers="second", alternate="epoch", exact_objective=True, ham_optimizer="sgd", **SMALL),
    FedHAM(p=0, k=2, grouping="nearest", projection="dense", h=4, score="cosine", phi_center=True, tied=True),
]  # fmt: skip


@pytest.mark.parametrize("method", LAWFUL, ids=repr)
def test_the_laws_hold_with_attention_on(method: Method) -> None:
    check_method(method)
