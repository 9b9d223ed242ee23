"""FedPHP: a personal model that inherits from round to round, and draws the local model's features towards its own."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from nets import NORM_OF_NORMED, Frozen, Tied, normed
from quadratic import Line, TwoLayers, common, federation, play, regressions, same, squares, w_of
from reference import SETTINGS
from torch import Tensor, nn

from fedtailor import FTL, Arch, Driver, FedAvg, Federation, FedPHP, Method, RunSpec, Wrapper, WrongInput
from fedtailor.method import MethodNote
from fedtailor.methods.fedphp import mmd
from fedtailor.site import take_exam

quiet = pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
ROWS = regressions(dtype=np.float32)
HALF = {"batch": 2, "epochs": 2, "momentum": 0.9, "cohort": 2}
Values = dict[str, Tensor]


def labelled(rows: list[tuple[np.ndarray, np.ndarray]]) -> Federation:
    """The same rows, with three classes in place of a number."""
    data = federation(rows)
    y = torch.bucketize(data.y, torch.tensor([-0.5, 0.5], dtype=data.y.dtype))
    return replace(data, y=y, classes=("low", "middle", "high"), task="classification")


def at_round(round: int, of: int, method: Method, data: Federation, net: nn.Module, **options: Any) -> Driver:
    """A driver after some of the rounds of its run, on which mu_t depends; the local set is one batch by default."""
    driver = Driver(RunSpec(**{"method": method, "model": net, "rounds": of, "batch": 0, "lr": 0.1, **options}), data)
    for _ in range(round):
        driver.step()
    return driver


def own(driver: Driver, client: int) -> Values:
    """p_i, under any plug-ins around it."""
    state: dict[str, Any] = driver.kept[client]["method"]
    while "inner" in state:
        state = state["inner"]
    return state["p"]


# ---------- the reference, from the paper ----------


def discrepancy(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Squared MMD between two lists of rows, pair by pair; kernels from 1/4 to 4 times the mean squared distance."""
    rows, n = [*a, *b], len(a)
    distance = [[((u - v) ** 2).sum() for v in rows] for u in rows]
    pairs = [float(distance[i][j].detach()) for i in range(2 * n) for j in range(2 * n) if i != j]
    width = sum(pairs) / len(pairs) or 1.0  # a constant: no gradient flows into it

    def kernel(i: int, j: int) -> Tensor:
        return sum(torch.exp(-distance[i][j] / (width * scale)) for scale in (0.25, 0.5, 1.0, 2.0, 4.0))

    first, second = range(n), range(n, 2 * n)
    within = [sum(kernel(i, j) for i in some for j in some) / n**2 for some in (first, second)]
    return sum(within) - 2 * sum(kernel(i, j) for i in first for j in second) / n**2


def distilled(out: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of the student's outputs under the teacher's, softened by a temperature of 4."""
    total = torch.zeros((), dtype=out.dtype)
    for row, teacher in zip(out, target, strict=True):
        e = [math.exp(float(t) / 4) for t in teacher]
        total = total - sum(x / sum(e) * (row[k] - row.exp().sum().log()) for k, x in enumerate(e))
    return total / len(out)


def algorithm(
    net: nn.Sequential, data: Sequence[tuple[Tensor, Tensor]], cohorts: Sequence[Sequence[int]], regulariser: str,
    *, mu_max: float, lambda_r: float, lr: float, epochs: int, momentum: float = 0.0, weight_decay: float = 0.0,
    lr_decay: float = 1.0,
) -> tuple[Values, list[Values], list[int]]:  # fmt: skip
    """Rounds of modules on full batches: the server's model, all p_i, and how often each client took part."""
    server = copy.deepcopy(net.state_dict())
    p, counts = [copy.deepcopy(server) for _ in data], [0] * len(data)
    share = len(cohorts[0]) / len(data)
    for round, cohort in enumerate(cohorts):
        sent = []
        for i in cohort:
            student, teacher, (x, y) = copy.deepcopy(net).train(), copy.deepcopy(net).eval(), data[i]
            student.load_state_dict(server)
            teacher.load_state_dict(p[i])
            rate = lr * lr_decay**round
            opt = torch.optim.SGD(student.parameters(), lr=rate, momentum=momentum, weight_decay=weight_decay)
            for _ in range(epochs):
                opt.zero_grad()
                features = student[:-1](x)
                out = student[-1](features)
                with torch.no_grad():
                    known = teacher[:-1](x)
                if regulariser == "mmd":
                    loss, pull = (out[:, 0] - y).square().mean(), discrepancy(features, known)
                else:
                    loss, pull = nn.functional.cross_entropy(out, y), distilled(out, teacher[-1](known).detach())
                ((1 - lambda_r) * loss + lambda_r * pull).backward()
                opt.step()
            w = copy.deepcopy(student.state_dict())
            keep = min(mu_max, mu_max * counts[i] / max(1, share * len(cohorts)))
            p[i] = {n: keep * p[i][n] + (1 - keep) * v if v.is_floating_point() else v for n, v in w.items()}
            counts[i] += 1
            sent.append((len(y), w))
        total = sum(size for size, _ in sent)
        for name, value in server.items():
            parts = [(size / total, w[name]) for size, w in sent]
            mean = sum(weight * part for weight, part in parts)
            server[name] = mean if value.is_floating_point() else torch.stack([part for _, part in parts]).amax(0)
    return server, p, counts


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("regulariser", ["mmd", "kd"])
def test_reference_with_two_of_three_clients_a_round(regulariser: str, setting: dict[str, float]) -> None:
    # 2 of 3 clients in 3 rounds: rho T = 2, and mu_t is 0, 0.375 and 0.75, which are exact
    rows = regressions()
    data = federation(rows) if regulariser == "mmd" else labelled(rows)
    net = normed().double()
    if regulariser == "kd":
        net[3] = nn.Linear(4, 3, dtype=torch.float64)
    strong = {"mu_max": 0.75, "lambda_r": 0.4}
    driver = play(FedPHP(**strong, regulariser=regulariser), data, net, 3, cohort=2, **setting)
    cohorts, own_rows = [row["cohort"] for row in driver.rows], [(data.x[i], data.y[i]) for i in data.train]
    assert len({tuple(cohort) for cohort in cohorts}) > 1
    server, p, counts = algorithm(net, own_rows, cohorts, regulariser, **strong, **setting)
    torch.testing.assert_close(common(driver), server, rtol=1e-9, atol=1e-12)
    for kept, model, count in zip(driver.kept, p, counts, strict=True):
        torch.testing.assert_close(kept["method"]["p"], model, rtol=1e-9, atol=1e-12)
        assert int(kept["method"]["count"]) == count
    assert sorted(counts) == [1, 2, 3]
    # the pull is felt: without it the models are others
    without, _, _ = algorithm(net, own_rows, cohorts, regulariser, mu_max=0.75, lambda_r=0.0, **setting)
    assert not torch.allclose(without["0.weight"], server["0.weight"], rtol=1e-3)


# ---------- by hand ----------


def test_the_discrepancy_by_hand() -> None:
    # a single row each, 2 apart: the only squared distance is 4, and so is its mean; a kernel of equal rows is 5, that
    # of the two e^-4 + e^-2 + e^-1 + e^-1/2 + e^-1/4 = 1.90686181
    a, b = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    assert float(mmd(a, b)) == pytest.approx(5 + 5 - 2 * 1.90686181, rel=1e-8)
    assert float(mmd(a, a)) == 0
    draw = np.random.default_rng(2)
    a, b = (torch.from_numpy(draw.normal(shift, 1, (4, 3))) for shift in (0, 1))
    assert float(mmd(a, b)) == pytest.approx(float(discrepancy(a, b)), rel=1e-12)
    assert float(mmd(a, b)) == pytest.approx(float(mmd(7 * a, 7 * b)), rel=1e-12)  # the kernels fit any unit


class Outputs(nn.Module):
    """Gives its parameter, whatever comes in."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.values.expand(len(x), -1)


@quiet
def test_the_distillation_by_hand() -> None:
    # the teacher answers (4 ln 3, 0, 0), softened (3/5, 1/5, 1/5); the student (ln 2, 0, 0), which is (1/2, 1/4, 1/4)
    driver = play(FedPHP(regulariser="kd"), labelled(regressions((2,))), Outputs(math.log(2), 0.0, 0.0), 0)
    client = driver.sites[0].client(1)
    (batch,) = client.batches()
    teacher = {"values": torch.tensor([4 * math.log(3), 0.0, 0.0], dtype=torch.float64)}
    pull = driver.common.method.pull(client, driver.initial, teacher, batch)
    assert float(pull) == pytest.approx(0.6 * math.log(2) + 0.4 * math.log(4))


@quiet
def test_three_rounds_by_hand() -> None:
    # from 0 towards 1: w = 0.1, 0.19, 0.271. One client of one, four rounds: rho T = 4, mu_t = 0, 0.2, 0.4
    driver = at_round(3, 4, FedPHP(mu_max=0.8, lambda_r=0.0), squares((1.0,), (1.0,), (1,)), Line(0.0))
    assert w_of(driver) == pytest.approx(0.271)
    # p = 0.1;  0.2 * 0.1 + 0.8 * 0.19 = 0.172;  0.4 * 0.172 + 0.6 * 0.271 = 0.2314
    assert float(own(driver, 0)["w"]) == pytest.approx(0.2314)
    errors = [row["test"]["rmse"][0] for row in driver.rows]  # x = sqrt(1/2)
    assert errors == pytest.approx([0.5**0.5 * (1 - p) for p in (0.1, 0.172, 0.2314)])


@quiet
@pytest.mark.parametrize(
    ("rounds", "cohort", "kept"),
    [
        (6, 4, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),  # rho T = 6
        (6, 2, [0, 0.2, 0.4, 0.6, 0.6, 0.6]),  # rho T = 3: a client drawn more often than that keeps mu_max
        (2, 1, [0, 0.6]),  # rho T = 1/2, and max(1, rho T) = 1
    ],
)
def test_what_a_client_keeps_grows_with_the_rounds_it_took_part_in(
    rounds: int, cohort: int, kept: list[float]
) -> None:
    # client 3 is given to the method as if it were drawn in every round, with models w = 1 and p = 0: p' = 1 - mu_t
    method = FedPHP(mu_max=0.6, lambda_r=0.0)
    driver = at_round(0, rounds, method, squares((1.0,) * 4, (1.0,) * 4, (1,) * 4), Line(1.0), cohort=cohort)
    payload = method.send(driver.fed(1), driver.server, torch.arange(cohort))
    got = driver.message(payload, 0, 0)
    for count, mu in enumerate(kept):
        state = {"p": {"w": torch.zeros(1, dtype=torch.float64)}, "count": torch.tensor(float(count))}
        fitted = method.fit(driver.sites[3].client(1), state, {"w": torch.ones(1, dtype=torch.float64)}, got)
        assert float(fitted.state["p"]["w"]) == pytest.approx(1 - mu, abs=1e-6)
        assert float(fitted.state["count"]) == count + 1


@quiet
def test_the_loss_weighs_less_beside_the_pull() -> None:
    # one layer: its input is the data, which nothing can pull, so only 1 - lambda_r is left: 0.1 * (1 - 0.3) * (1 - 0)
    driver = play(FedPHP(lambda_r=0.3), squares((1.0,), (1.0,), (1,)), Line(0.0), 1)
    assert w_of(driver) == pytest.approx(0.07)


# ---------- limits ----------


@quiet
def test_lambda_r_0_is_fedavg_bit_for_bit() -> None:
    ours, fedavg = (play(m, federation(ROWS), normed(), 4, **HALF) for m in (FedPHP(lambda_r=0.0), FedAvg()))
    assert same(common(ours), common(fedavg))
    with_pull = play(FedPHP(), federation(ROWS), normed(), 4, **HALF)
    assert not same(common(with_pull), common(fedavg))


@quiet
def test_mu_max_0_inherits_nothing_and_without_a_pull_it_is_ftl() -> None:
    for lambda_r in (0.0, 0.4):
        ours = play(FedPHP(mu_max=0.0, lambda_r=lambda_r), federation(ROWS), normed(), 4, **HALF)
        trained = play(FedPHP(mu_max=0.0, lambda_r=lambda_r), federation(ROWS), normed(), 4, **HALF, point="trained")
        assert all(same(own(ours, i), trained.kept[i]["trained"]) for i in range(3))
    ours, ftl = (play(m, federation(ROWS), normed(), 4, **HALF) for m in (FedPHP(mu_max=0.0, lambda_r=0.0), FTL()))
    assert [row["test"] for row in ours.rows] == [row["test"] for row in ftl.rows]


def test_with_equal_data_all_are_as_one() -> None:
    rows = regressions((4,)) * 3
    one, three = (play(FedPHP(), federation(part), normed().double(), 3, epochs=2) for part in (rows[:1], rows))
    torch.testing.assert_close(common(three), common(one), rtol=1e-9, atol=1e-12)
    for i in range(3):
        torch.testing.assert_close(three.final(i), one.final(0), rtol=1e-9, atol=1e-12)


def test_next_to_its_teacher_a_student_is_pulled_nowhere() -> None:
    # the first step of the first round, without norms: both are the first model, where the discrepancy is least
    driver = play(FedPHP(lambda_r=0.4), federation(regressions()), TwoLayers(), 1)
    plain = play(FedAvg(), federation(regressions()), TwoLayers(), 1, lr=0.1 * 0.6)
    torch.testing.assert_close(common(driver), common(plain), rtol=1e-12, atol=1e-12)


# ---------- who keeps what ----------


def test_an_absent_client_keeps_its_personal_model_and_its_count() -> None:
    driver = play(FedPHP(), federation(ROWS), normed(), 2, cohort=1)
    for _ in range(3):
        before = [kept["method"] for kept in driver.kept]
        (present,) = driver.step()["cohort"]
        for i in range(3):
            after = driver.kept[i]["method"]
            assert same(before[i]["p"], after["p"]) is (i != present)
            assert float(after["count"]) == float(before[i]["count"]) + (i == present)


def test_what_is_tested_is_the_personal_model_on_every_site() -> None:
    driver = play(FedPHP(), federation(ROWS), normed(), 4, cohort=2)
    assert driver.rows[-1]["point"] == "adapted"
    for i, site in enumerate(driver.sites):
        exam = take_exam(site, own(driver, i))[i]["test"]
        assert driver.rows[-1]["test"]["loss"][i] == pytest.approx(float(exam["loss_sum"] / exam["count"]))
        assert same(driver.final(i), own(driver, i))
    shared = play(FedPHP(), federation(ROWS), normed(), 4, cohort=2, point="received")
    assert same(common(shared), common(driver))
    assert shared.rows[-1]["test"] != driver.rows[-1]["test"]


def test_one_model_and_one_number_go_down_and_one_model_goes_up() -> None:
    driver = play(FedPHP(), federation(regressions()), TwoLayers(), 3, cohort=2)
    for row in driver.rows:
        assert row["up"] == [8 * 6 if i in row["cohort"] else 0 for i in range(3)]
        assert row["down"] == [8 * 6 + 4 if i in row["cohort"] else 0 for i in range(3)]
    assert driver.server.keys() == {"model"}


def test_the_personal_models_statistics_are_mixed_and_its_counters_are_the_local_models() -> None:
    data = federation(regressions((4, 4, 8), dtype=np.float32))
    driver = at_round(1, 2, FedPHP(mu_max=0.5), data, normed(), batch=2, point="trained")
    before = own(driver, 2)
    driver.step()  # mu_t = 0.5 * 1/2
    w, p = driver.kept[2]["trained"], own(driver, 2)
    for name in ("1.running_mean", "1.running_var", "1.weight", "3.weight"):
        torch.testing.assert_close(p[name], 0.25 * before[name] + 0.75 * w[name])
    assert int(p["1.num_batches_tracked"]) == int(w["1.num_batches_tracked"]) == 8
    assert p["1.num_batches_tracked"].dtype is torch.int64


@pytest.mark.parametrize("method", [FedPHP(), FedPHP(mu_max=1.0, lambda_r=0.9)], ids=repr)
def test_frozen_and_tied_tensors(method: Method) -> None:
    options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    frozen = play(method, federation(ROWS), Frozen(), 4, **options)
    for place in (common(frozen), frozen.final(1)):
        for name, value in Frozen().state_dict().items():
            assert torch.equal(place[name], value) == name.startswith("body"), name
    tied = play(method, federation(ROWS), Tied(), 2, **options)
    assert set(tied.final(0)) == {"up.weight", "head.weight", "head.bias"}
    assert not torch.equal(tied.final(0)["up.weight"], Tied().up.weight)


@dataclass(frozen=True, repr=False)
class NormsAtHome(Wrapper):
    """Any plug-in that keeps some names private, as local attention does."""

    def personal(self, arch: Arch) -> frozenset[str]:
        return arch.norm


def test_private_tensors_are_inherited_too_and_never_leave() -> None:
    driver = play(NormsAtHome(FedPHP(mu_max=0.75)), federation(ROWS), normed(), 3, cohort=2)
    assert driver.private == NORM_OF_NORMED and not set(common(driver)) & NORM_OF_NORMED
    drawn = [sum(i in row["cohort"] for row in driver.rows) for i in range(3)]
    twice = next(i for i in range(3) if drawn[i] > 1)
    p, w = own(driver, twice), driver.kept[twice]["personal"]
    assert set(p) == set(driver.initial)
    for name in ("1.weight", "1.running_mean"):
        assert not torch.equal(p[name], w[name])  # a mix with that of before
    assert torch.equal(p["1.num_batches_tracked"], w["1.num_batches_tracked"])


def test_a_client_too_small_for_a_step_mixes_with_what_it_received() -> None:
    data = federation(regressions((1, 4), dtype=np.float32))
    driver = at_round(1, 2, FedPHP(mu_max=0.5), data, normed())
    received = common(driver)
    assert driver.rows[0]["steps"] == [0, 1] and same(own(driver, 0), driver.initial)
    driver.step()
    for name in ("0.weight", "3.weight"):
        torch.testing.assert_close(own(driver, 0)[name], 0.25 * driver.initial[name] + 0.75 * received[name])


# ---------- words ----------


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (FedPHP(mu_max=0.0), "FedPHP: mu_max=0 inherits nothing"),
        (FedPHP(lambda_r=0.0), "FedPHP: lambda_r=0 takes the regulariser away"),
        (FedPHP(lambda_r=0.0, regulariser="kd"), "FedPHP: lambda_r=0 takes the regulariser away"),
    ],
    ids=repr,
)
def test_a_null_point_is_said_by_name_once(method: Method, says: str) -> None:
    with pytest.warns(MethodNote) as said:
        play(method, labelled(ROWS), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), 2)
    assert len(said) == 1 and says in str(said[0].message)


def test_a_pull_on_inputs_that_are_not_trained_is_said_and_distillation_is_not_concerned() -> None:
    frozen = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 3))
    for net in (nn.Sequential(nn.Linear(2, 3)), frozen):
        with pytest.warns(MethodNote, match="FedPHP: only the last layer is trained, and 'mmd' compares its inputs"):
            play(FedPHP(), labelled(ROWS), net, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            play(FedPHP(regulariser="kd"), labelled(ROWS), net, 1)


def test_the_defaults_say_nothing_and_do_something() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        driver = play(FedPHP(), federation(ROWS), normed(), 3)
    fedavg = play(FedAvg(), federation(ROWS), normed(), 3, point="trained")
    assert not same(common(driver), common(fedavg))
    assert all(not same(own(driver, i), fedavg.kept[i]["trained"]) for i in range(3))


@pytest.mark.parametrize(
    "wrong",
    [{"mu_max": -0.1}, {"mu_max": 1.1}, {"mu_max": math.nan}, {"lambda_r": -0.1}, {"lambda_r": 1.0},
     {"lambda_r": math.nan}, {"regulariser": "l2"}],
)  # fmt: skip
def test_impossible_values_are_refused(wrong: dict[str, object]) -> None:
    reason = ", or nothing is learned" if wrong.get("lambda_r") == 1.0 else ""
    with pytest.raises(WrongInput, match=f"FedPHP: {next(iter(wrong))}=.* must be .*{reason}"):
        FedPHP(**wrong)


def test_distillation_of_a_single_output_is_refused() -> None:
    with pytest.raises(WrongInput, match="regulariser='kd' needs classes, and the model has one output; take 'mmd'"):
        play(FedPHP(regulariser="kd"), federation(ROWS), normed(), 1)
