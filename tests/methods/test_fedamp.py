"""FedAMP and HeurFedAMP: a mixture of all models for each client, and a pull towards it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from nets import Frozen, normed
from quadratic import SIZES, Line, federation, play, regressions, same
from reference import Model, close, descend, line
from torch import Tensor

from fedtailor import (
    Driver,
    FedAMP,
    FedAvg,
    HeurFedAMP,
    Local,
    LocalAttention,
    Method,
    WrongInput,
    check_method,
    registry,
)
from fedtailor.arch import Arch
from fedtailor.method import MethodNote

NOTED = pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
WARNED = pytest.mark.filterwarnings("ignore:.*self-weight.*:UserWarning")


# ---------- the references, from the papers ----------


def vectors(models: Sequence[Model]) -> list[np.ndarray]:
    return [np.concatenate([value.ravel() for value in model.values()]) for model in models]


def messages(models: Sequence[Model], sigma: float | None, alpha: float | None) -> np.ndarray:
    """xi of FedAMP; without sigma and alpha, from the mean squared distance and a mean self-weight of 1/2."""
    w, n = vectors(models), len(models)
    distance = [[float(((a - b) ** 2).sum()) for b in w] for a in w]
    if sigma is None:
        sigma = sum(map(sum, distance)) / (n * (n - 1))
    slope = [[0.0 if i == j else math.exp(-distance[i][j] / sigma) / sigma for j in range(n)] for i in range(n)]
    if alpha is None:
        alpha = 0.5 * n / sum(map(sum, slope))
    xi = np.zeros((n, n))
    for i in range(n):
        total = alpha * sum(slope[i])
        for j in range(n):
            xi[i, j] = alpha * slope[i][j] / max(1.0, total)
        xi[i, i] = 1 - min(1.0, total)
    return xi


def heuristic(models: Sequence[Model], sigma: float, own: Sequence[float]) -> np.ndarray:
    """xi of HeurFedAMP, entry by entry."""
    w, n = vectors(models), len(models)
    xi = np.zeros((n, n))
    for i in range(n):
        e = [0.0 if i == j else math.exp(sigma * w[i] @ w[j] / math.sqrt((w[i] @ w[i]) * (w[j] @ w[j])))
             for j in range(n)]  # fmt: skip
        xi[i] = [(1 - own[i]) * x / sum(e) for x in e]
        xi[i, i] = own[i]
    return xi


def expected(driver: Driver, weights: object, strength: float, own_start: bool) -> list[Model]:
    """All clients' models after the driver's rounds: everybody's last model, mixed over the cohort, and trained."""
    rows = regressions()
    w: list[Model] = [{"w": np.array([0.4, -0.1])} for _ in rows]
    for row in driver.rows:
        cohort = row["cohort"]
        drawn = [w[i] for i in cohort]
        xi = np.eye(len(cohort)) if row["round"] == 1 else weights(drawn, cohort)
        u = [{"w": sum(p * m["w"] for p, m in zip(line_, drawn, strict=True))} for line_ in xi]
        for i, target in zip(cohort, u, strict=True):
            f = line(*rows[i])
            w[i] = descend(
                w[i] if own_start else target,
                lambda m, f=f, target=target: {"w": f(m)["w"] + strength * (m["w"] - target["w"])},
                lr=0.05,
                epochs=3,
            )
    return w


def trained(method: Method, rounds: int = 5) -> Driver:
    data = replace(federation(regressions()), groups=(0, 1, 1), group_names=("a", "b"))
    return play(method, data, Line(0.4, -0.1), rounds, cohort=2, epochs=3, lr=0.05)


@WARNED
@pytest.mark.parametrize("start_at", ["u", "own"])
@pytest.mark.parametrize(("sigma", "alpha"), [(0.8, 0.3), (None, None), (0.8, None), (None, 0.1)])
def test_fedamp_reference_with_two_of_three_clients_a_round(
    start_at: str, sigma: float | None, alpha: float | None
) -> None:
    driver = trained(FedAMP(lam=0.6, sigma=sigma, alpha_k=alpha, start_at=start_at))
    assert len({tuple(row["cohort"]) for row in driver.rows}) > 1
    strength = 0.6 / alpha if alpha else 0.6
    models = expected(driver, lambda drawn, _: messages(drawn, sigma, alpha), strength, start_at == "own")
    for kept, model in zip(driver.kept, models, strict=True):
        close(kept["trained"], model, 1e-10)


@pytest.mark.parametrize("start_at", ["u", "own"])
@pytest.mark.parametrize("xi_self", [0.3, None])
@WARNED
def test_heurfedamp_reference_with_two_of_three_clients_a_round(start_at: str, xi_self: float | None) -> None:
    driver = trained(HeurFedAMP(lam=0.6, sigma=2.0, xi_self=xi_self, start_at=start_at))
    own = [0.3] * 3 if xi_self else [1.0, 0.5, 0.5]  # the first client is alone in its group, the others are two
    models = expected(
        driver, lambda drawn, cohort: heuristic(drawn, 2.0, [own[i] for i in cohort]), 0.6, start_at == "own"
    )
    for kept, model in zip(driver.kept, models, strict=True):
        close(kept["trained"], model, 1e-10)


# ---------- weights ----------


def xi_of(method: Method, values: Sequence[Sequence[float]]) -> Tensor:
    """The weights over clients that have these models."""
    driver = play(method, federation(regressions((2,) * len(values))), Line(*values[0]), 0)
    kept = {"models": {"w": torch.tensor(values, dtype=torch.float64)}, "seen": torch.zeros(len(values))}
    return method.explain_server(driver.fed(2), kept)["attention"]


def test_fedamp_weights_by_hand() -> None:
    # squared distances 1, 9 and 4; A'(s) = exp(-s / 2) / 2
    xi = xi_of(FedAMP(sigma=2.0, alpha_k=0.5), [[0.0, 0.0], [0.6, 0.8], [1.8, 2.4]])
    near, far, between = 0.25 * math.exp(-0.5), 0.25 * math.exp(-4.5), 0.25 * math.exp(-2.0)
    expected = [[1 - near - far, near, far], [near, 1 - near - between, between], [far, between, 1 - far - between]]
    np.testing.assert_allclose(xi.numpy(), expected, rtol=1e-12)


def test_heurfedamp_weights_by_hand() -> None:
    # the second is parallel to the first, the third at right angles: with sigma = ln 3 three to one
    xi = xi_of(HeurFedAMP(sigma=math.log(3), xi_self=0.2), [[1.0, 0.0], [2.0, 0.0], [0.0, 5.0]])
    np.testing.assert_allclose(xi.numpy(), [[0.2, 0.6, 0.2], [0.6, 0.2, 0.2], [0.4, 0.4, 0.2]], rtol=1e-12)


def test_twenty_near_clients_do_not_get_a_negative_self_weight() -> None:
    # sigma = alpha_k = 1: twenty clients that nearly agree would have 1 - 19 = -18 on their own model
    values = [[0.01 * i, 0.0] for i in range(20)]
    xi = xi_of(FedAMP(sigma=1.0, alpha_k=1.0), values)
    assert float(xi.min()) >= 0
    torch.testing.assert_close(xi.sum(1), torch.ones(20, dtype=torch.float64))
    mixed = (xi @ torch.tensor(values, dtype=torch.float64))[:, 0]
    assert float(mixed.min()) >= 0 and float(mixed.max()) <= 0.19


@pytest.mark.parametrize("unit", [1e-4, 1.0, 1e4])
def test_the_default_weights_are_the_same_in_any_unit(unit: float) -> None:
    values = np.random.default_rng(1).normal(size=(6, 2))
    xi = xi_of(FedAMP(), (unit * values).tolist())
    assert float(xi.diagonal().mean()) == pytest.approx(0.5, rel=1e-9)
    torch.testing.assert_close(xi, xi_of(FedAMP(), values.tolist()), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(xi.numpy(), messages([{"w": value} for value in values], None, None), rtol=1e-9)
    nearest = int(((values[0] - values[1:]) ** 2).sum(1).argmin()) + 1
    assert int(xi[0, 1:].argmax()) + 1 == nearest


def test_equal_models_give_no_message_and_a_uniform_rest() -> None:
    equal = [[0.3, 0.7]] * 4
    assert torch.equal(xi_of(FedAMP(), equal), torch.eye(4, dtype=torch.float64))
    rest = xi_of(HeurFedAMP(xi_self=0.4), equal)
    np.testing.assert_allclose(rest.numpy(), np.full((4, 4), 0.2) + 0.2 * np.eye(4), rtol=1e-12)


def test_the_groups_say_how_many_share_a_distribution() -> None:
    method = HeurFedAMP()
    assert [method.own_weight((0, 0, 0, 0, 1, 1), i) for i in (0, 5)] == [0.25, 0.5]
    assert method.own_weight((0, 0, 0), 1) == 0.5  # one group tells nothing
    assert HeurFedAMP(xi_self=0.1).own_weight((0, 0, 1), 2) == 0.1


# ---------- limits ----------


@NOTED
@WARNED
@pytest.mark.parametrize("method", [HeurFedAMP(xi_self=1.0, lam=0.0), FedAMP(lam=0.0, alpha_k=1e-300)], ids=repr)
def test_a_self_weight_of_1_without_a_pull_is_local_training(method: Method) -> None:
    data, options = federation(regressions()), {"epochs": 2, "batch": 2, "momentum": 0.9, "cohort": 2}
    ours, alone = (play(m, data, Line(0.4, -0.1), 4, **options) for m in (method, Local()))
    for a, b in zip(ours.kept, alone.kept, strict=True):
        assert same(a["trained"], b["trained"])


@NOTED
def test_equal_weights_without_a_pull_are_fedavg() -> None:
    method = HeurFedAMP(xi_self=1 / 3, sigma=0.0, lam=0.0)
    ours = play(method, federation(regressions()), Line(0.4, -0.1), 4)
    fedavg = play(FedAvg(), federation(regressions()), Line(0.4, -0.1), 4, weighting="uniform", point="trained")
    for a, b in zip(ours.kept, fedavg.kept, strict=True):
        torch.testing.assert_close(a["trained"], b["trained"], rtol=1e-12, atol=1e-14)


def test_in_round_1_and_alone_a_client_gets_its_own_model_bit_for_bit() -> None:
    for method in (FedAMP(), HeurFedAMP(xi_self=0.3)):
        driver = play(method, federation(regressions()), Line(0.4, -0.1), 0, cohort=1)

        def sent(*clients: int, method: Method = method, driver: Driver = driver) -> Tensor:
            return method.send(driver.fed(driver.round + 1), driver.server, torch.tensor(clients)).own["model"]["w"]

        assert torch.equal(sent(0, 1, 2), driver.server["models"]["w"])
        for _ in range(3):
            driver.step()
        models = driver.server["models"]["w"]
        assert torch.equal(sent(1)[0], models[1])
        assert not torch.equal(sent(0, 1, 2), models)


def test_clients_that_have_not_trained_yet_have_nothing_to_mix_and_no_warning_is_due() -> None:
    # drawn together for the first time, in a later round: equal models, of which no mixture is another
    for method in (FedAMP(), FedAMP(sigma=1.0, alpha_k=1.0), HeurFedAMP(xi_self=0.3)):
        driver = play(method, federation(regressions()), Line(0.4, -0.1), 0)
        driver.server = {**driver.server, "seen": torch.tensor([4, 0, 0])}
        assert torch.equal(send_in(driver, 5, 1, 2), driver.server["models"]["w"][1:])


def send_in(driver: Driver, round: int, *clients: int) -> Tensor:
    return driver.common.method.send(driver.fed(round), driver.server, torch.tensor(clients)).own["model"]["w"]


def test_models_that_come_together_do_not_blow_up_the_pull() -> None:
    # clients of equal data: distances vanish, and lambda / alpha_k with them would grow beyond what SGD can follow
    x, y = regressions((8,))[0]
    data = federation([(x[i : i + 4], y[i : i + 4]) for i in (0, 2, 4)])
    driver = play(FedAMP(), data, Line(0.4, -0.1), 30, epochs=5, lr=0.01)
    losses = [max(row["train_loss"]) for row in driver.rows]
    assert losses[-1] < losses[0]
    assert float(driver.server["models"]["w"].abs().max()) < 10


# ---------- what is not trained, what travels, what is shown ----------


def test_statistics_are_mixed_counters_are_the_largest_and_frozen_parameters_stay() -> None:
    data = federation(regressions((2, 4, 8), dtype=np.float32))
    driver = play(FedAMP(), data, normed(), 2, batch=2, epochs=2)
    models = driver.server["models"]
    sent = driver.common.method.send(driver.fed(3), driver.server, torch.arange(3)).own["model"]
    xi = torch.tensor(driver.rows[-1]["explain"]["server"]["attention"])
    for name in ("0.weight", "1.running_mean", "1.running_var"):
        torch.testing.assert_close(sent[name], torch.einsum("ij,j...->i...", xi, models[name]), rtol=1e-5, atol=1e-6)
    names = [name for name in models if name.endswith(("weight", "bias"))]
    learned = [{name: models[name][i].double().numpy() for name in names} for i in range(3)]
    np.testing.assert_allclose(xi, messages(learned, None, None), rtol=1e-6)  # statistics are not compared
    heuristic_xi = HeurFedAMP(sigma=3.0, xi_self=0.4).weights(driver.fed(3), models, torch.arange(3))
    np.testing.assert_allclose(heuristic_xi, heuristic(learned, 3.0, [0.4] * 3), rtol=1e-6)
    counts = models["1.num_batches_tracked"]
    assert len(set(counts.tolist())) == 3
    assert sent["1.num_batches_tracked"].tolist() == [int(counts.max())] * 3
    frozen = play(FedAMP(), data, Frozen(), 3)
    sent = frozen.common.method.send(frozen.fed(4), frozen.server, torch.arange(3)).own["model"]
    assert all(torch.equal(part, Arch(Frozen()).values()["body.weight"]) for part in sent["body.weight"])


@pytest.mark.parametrize("method", [FedAMP(), HeurFedAMP()], ids=repr)
def test_one_model_each_way_and_the_trained_one_is_tested(method: Method) -> None:
    driver = play(method, federation(regressions()), Line(0.4, -0.1), 3, cohort=2)
    for row in driver.rows:
        assert row["trainers"] == row["cohort"] and row["point"] == "trained"
        assert row["up"] == row["down"] == [16 if i in row["cohort"] else 0 for i in range(3)]
        shown = row["explain"]["server"]
        assert shown["clients"] == row["cohort"] and np.array(shown["attention"]).shape == (2, 2)
    assert method.sees == "models"
    errors = [
        (x[0] @ kept["trained"]["w"].numpy() - y[0]) ** 2
        for kept, (x, y) in zip(driver.kept, regressions(), strict=True)
    ]
    assert driver.rows[-1]["test"]["loss"] == pytest.approx(errors, rel=1e-9)


# ---------- guards ----------


@pytest.mark.parametrize("method", [FedAMP(sigma=1e-6, alpha_k=1e-3), FedAMP(sigma=1e6, alpha_k=1e9)], ids=repr)
def test_self_weights_near_0_or_1_are_warned_of(method: Method) -> None:
    driver = play(method, federation(regressions(SIZES)), Line(0.4, -0.1), 1)
    with pytest.warns(UserWarning, match=r"a client's self-weight is below 0.01 .* or above 0.99"):
        send_in(driver, 2, 0, 1, 2)


def test_one_client_far_from_all_others_is_enough_for_a_warning() -> None:
    # squared distances 1 and 36 or more with sigma 2: the third takes exp(-18) / 2 and less of the others
    method = FedAMP(sigma=2.0, alpha_k=0.5)
    driver = play(method, federation(regressions()), Line(0.4, -0.1), 0)
    for far, warned in ((6.0, True), (2.0, False)):
        w = torch.tensor([[0.0, 0.0], [0.0, 1.0], [far, 0.0]], dtype=torch.float64)
        driver.server = {**driver.server, "models": {"w": w}}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            send_in(driver, 2, 0, 1, 2)
        assert len(said) == warned


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (HeurFedAMP(xi_self=1.0), "with xi_self=1.0, 3 of 3 clients have a self-weight below 0.01"),
        (HeurFedAMP(xi_self=0.0), "with xi_self=0.0, 3 of 3 clients"),
        (HeurFedAMP(), "from the size of their groups, 1 of 3 clients"),
    ],
    ids=repr,
)
def test_of_self_weights_that_are_given_it_is_said_before_the_first_round(method: Method, says: str) -> None:
    data = replace(federation(regressions()), groups=(0, 1, 1), group_names=("a", "b"))
    with pytest.warns(UserWarning, match=says):
        driver = play(method, data, Line(0.4, -0.1), 0)
    driver.step(), driver.step()  # and not again
    play(HeurFedAMP(xi_self=0.5), data, Line(0.4, -0.1), 0)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (FedAMP(lam=0.0), "nothing holds it"),
        (HeurFedAMP(lam=0.0, start_at="own"), "every client trains alone"),
        (HeurFedAMP(sigma=0.0), "all other clients weigh the same"),
    ],
    ids=repr,
)
def test_a_null_point_is_said(method: Method, says: str) -> None:
    with pytest.warns(MethodNote, match=says):
        play(method, federation(regressions()), Line(0.4, -0.1), 0)


def test_one_client_has_nobody_to_hear_from() -> None:
    with pytest.warns(MethodNote, match="nobody to pass messages to"):
        play(FedAMP(), federation(regressions((4,))), Line(0.4, -0.1), 0)


@pytest.mark.parametrize(
    "wrong", [{"lam": -1.0}, {"sigma": 0.0}, {"alpha_k": 0.0}, {"alpha_k": math.nan}, {"start_at": "w"}]
)
def test_impossible_options_of_fedamp_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WrongInput, match=f"{next(iter(wrong))}=.* must be"):
        FedAMP(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"lam": -1.0}, {"sigma": -1.0}, {"sigma": math.inf}, {"xi_self": 1.1}, {"start_at": "w"}]
)
def test_impossible_options_of_heurfedamp_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WrongInput, match=f"{next(iter(wrong))}=.* must be"):
        HeurFedAMP(**wrong)


def test_the_text_is_read_back() -> None:
    method = FedAMP(lam=2.0, sigma=0.5, start_at="own")
    assert registry.parse("method", repr(method)) == method
    assert registry.parse("method", "fedamp") == FedAMP()


PAIRINGS = [
    FedAMP(start_at="own"),
    HeurFedAMP(start_at="own"),
    LocalAttention(FedAMP(start_at="own")),
]


@pytest.mark.parametrize("method", PAIRINGS, ids=repr)
def test_pairings_keep_the_laws(method: Method) -> None:
    check_method(method)
