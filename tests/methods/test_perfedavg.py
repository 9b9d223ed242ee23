"""Per-FedAvg: trained for, and tested after, one gradient step on the client's own training data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from nets import Frozen, Tied, normed
from quadratic import SIZES, Line, federation, play, regressions, same, squares, w_of
from reference import SETTINGS, Model, close, line, mean, options, values
from torch import Tensor, nn

from fedtailor import Arch, FedAvg, PerFedAvg, Wrapper, WrongInput, schedule
from fedtailor.method import MethodNote
from fedtailor.methods import perfedavg

CENTRES, CURVATURES = np.array((1.0, 2.0, -3.0)), np.array((1.0, 4.0, 0.5))


def test_one_round_by_hand() -> None:
    # from 0 towards 1: v = 0 + 0.5 (1 - 0) = 0.5, g = 0.5 - 1 = -0.5; the Hessian is 1, so HF moves by g - 0.5 g
    data = squares((1.0,), (1.0,), (1,))
    first = play(PerFedAvg(alpha=0.5, beta=0.1), data, Line(0.0), 1)
    assert w_of(first) == pytest.approx(0.05)
    second = play(PerFedAvg("HF", alpha=0.5, beta=0.1), data, Line(0.0), 1)
    assert w_of(second) == pytest.approx(0.025)
    # the last test is of w after the same kind of step: 0.05 + 0.5 (1 - 0.05)
    assert float(first.final(0)["w"]) == pytest.approx(0.525)


@pytest.mark.parametrize("power, variant", [(1, "FO"), (2, "HF")])
def test_fixed_point_on_squares(power: int, variant: str) -> None:
    # with small steps: HF rests at the minimum of mean f_i(w - alpha grad f_i(w)), whose slopes are
    # h (1 - alpha h)^2 (w - c); FO leaves one of the two factors out
    alpha = 0.2
    pull = CURVATURES * (1 - alpha * CURVATURES) ** power
    driver = play(PerFedAvg(variant, alpha=alpha, beta=0.3), squares(CENTRES, CURVATURES, (2, 2, 2)), Line(0.0), 60)
    assert w_of(driver) == pytest.approx(pull @ CENTRES / pull.sum(), abs=1e-4)


@pytest.mark.parametrize("variant", ["FO", "HF"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_numpy_reference_with_two_of_three_clients_a_round(setting: dict[str, float], variant: str) -> None:
    rows = regressions()
    driver = play(PerFedAvg(variant, alpha=0.2), federation(rows), Line(0.4, -0.1), 3, cohort=2, **setting)
    w = values(Line(0.4, -0.1))
    for row in driver.rows:
        for i, (x, y) in enumerate(rows):  # tested, with absent clients: w as sent after a step on the training rows
            v = w["w"] - 0.2 * line(x, y)(w)["w"]
            assert row["test"]["rmse"][i] == pytest.approx(abs(float(x[0] @ v - y[0])), rel=1e-9)
        work, sent = options(setting, row["round"]), []
        momentum, decay, lr = work.get("momentum", 0.0), work.get("weight_decay", 0.0), work["lr"]
        for i in row["cohort"]:
            x, _ = rows[i]
            own, velocity, hessian = w["w"].copy(), None, 2 / len(x) * x.T @ x
            for _ in range(work["epochs"]):
                v = own - 0.2 * line(*rows[i])({"w": own})["w"]
                g = line(*rows[i])({"w": v})["w"]
                if variant == "HF":
                    g = g - 0.2 * hessian @ g
                g = g + decay * own
                velocity = g if velocity is None else momentum * velocity + g
                own -= lr * velocity
            sent.append({"w": own})
        w = mean(sent, [SIZES[i] for i in row["cohort"]])
    close(driver.server["model"], w, 1e-9)
    for i, (got, rows_of_i) in enumerate(zip(driver.last_delivery(), rows, strict=True)):
        adapted: Model = {"w": w["w"] - 0.2 * line(*rows_of_i)(w)["w"]}
        close(driver.final(i), adapted, 1e-9)
        close(got.model, w, 1e-9)  # adapting has left w as it was


def test_the_three_batches_of_a_step_have_different_parts() -> None:
    rows, alpha, beta, batch = regressions((7, 4)), 0.2, 0.1, 3
    settings = {"batch": batch, "epochs": 2}
    driver = play(PerFedAvg("HF", alpha=alpha, beta=beta), federation(rows), Line(0.4, -0.1), 2, **settings)
    w = values(Line(0.4, -0.1))["w"]
    for row in driver.rows:
        sent = []
        for i, (x, y) in enumerate(rows):
            own = w.copy()
            streams = []  # the rows of D', D and D'' at each step; D' has those that plain training would have
            for stream in range(3):
                epochs = (
                    schedule.epoch_order(0, row["round"], i, stream, epoch, torch.arange(len(y))).numpy()
                    for epoch in range(2)
                )
                streams.append([part for order in epochs for part in np.split(order, range(batch, len(y), batch))])
            for outer, inner, third in zip(*streams, strict=True):
                v = own - alpha * line(x[inner], y[inner])({"w": own})["w"]
                g = line(x[outer], y[outer])({"w": v})["w"]
                hessian = 2 / len(third) * x[third].T @ x[third]
                own = own - beta * (g - alpha * hessian @ g)
            sent.append({"w": own})
        w = mean(sent, [7, 4])["w"]
    close(driver.server["model"], {"w": w}, 1e-9)


class Curved(nn.Module):
    """A loss whose third derivative is not zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.default_generator.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_hf_is_the_exact_gradient_by_double_differentiation() -> None:
    (x, y), net, alpha, lr = regressions((7,))[0], Curved(), 0.3, 0.1
    driver = play(PerFedAvg("HF", alpha=alpha), federation([(x, y)]), net, 1, lr=lr)
    first_order = play(PerFedAvg("FO", alpha=alpha), federation([(x, y)]), net, 1, lr=lr)
    w = {f"layers.{name}": p.detach().clone().requires_grad_() for name, p in net.layers.named_parameters()}

    def f(weights: dict[str, Tensor]) -> Tensor:
        out = torch.func.functional_call(net, weights, (torch.from_numpy(x),))
        return (out[:, 0] - torch.from_numpy(y)).square().mean()

    inner = torch.autograd.grad(f(w), list(w.values()), create_graph=True)
    v = {name: value - alpha * g for (name, value), g in zip(w.items(), inner, strict=True)}
    exact = torch.autograd.grad(f(v), list(w.values()))
    for (name, value), g in zip(w.items(), exact, strict=True):
        torch.testing.assert_close(driver.server["model"][name], (value - lr * g).detach(), rtol=0, atol=2e-7)
    gap = max((first_order.server["model"][name] - driver.server["model"][name]).abs().max() for name in w)
    assert gap > 1e-3  # the Hessian matters here


def test_three_independent_batches_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, ...]] = []

    def spy(client, model, batch, real=perfedavg.slope):
        seen.append(tuple(batch.x[:, 0].tolist()))
        return real(client, model, batch)

    monkeypatch.setattr(perfedavg, "slope", spy)
    driver = play(PerFedAvg("HF"), federation(regressions((9,))), Line(0.4, -0.1), 1, batch=3, eval_every=99)
    steps = [seen[i : i + 4] for i in range(0, 12, 4)]  # and the last ones are of the test
    assert driver.rows[0]["steps"] == [3]
    for inner, outer, ahead, behind in steps:
        assert ahead == behind
        assert len({inner, outer, ahead}) == 3
    for stream in zip(*steps, strict=True):  # each stream is an epoch over the data
        assert len({value for batch in stream for value in batch}) == 9


@pytest.mark.parametrize("variant", ["FO", "HF"])
def test_alpha_0_is_fedavg_bit_for_bit_and_says_so(variant: str) -> None:
    data, setting = federation(regressions(dtype=np.float32)), {"batch": 2, "epochs": 2, "momentum": 0.9, "cohort": 2}
    with pytest.warns(MethodNote, match="alpha=0 there is no adapting step"):
        meta = play(PerFedAvg(variant, alpha=0.0), data, normed(), 3, **setting)
    fedavg = play(FedAvg(), data, normed(), 3, **setting)
    assert same(meta.server["model"], fedavg.server["model"])
    assert all(same(meta.final(i), fedavg.final(i)) for i in range(3))


def test_beta_0_says_that_nothing_moves() -> None:
    with pytest.warns(MethodNote, match="beta=0 the global model never moves"):
        driver = play(PerFedAvg(beta=0.0), federation(regressions()), Line(0.4, -0.1), 2)
    close(driver.server["model"], values(Line(0.4, -0.1)))


def test_the_adapting_step_is_on_training_rows_and_never_on_test_rows() -> None:
    rows = regressions()
    data = federation(rows)
    other = federation(rows)
    ends = torch.cat(other.test)
    other.x[ends], other.y[ends] = 100.0, -100.0
    a, b = (play(PerFedAvg(), each, Line(0.4, -0.1), 2, batch=2) for each in (data, other))
    assert all(same(a.final(i), b.final(i)) for i in range(3))
    assert a.rows[-1]["test"]["rmse"] != b.rows[-1]["test"]["rmse"]


def test_what_is_tested_is_the_adapted_model() -> None:
    driver = play(PerFedAvg(alpha=0.25), squares((1.0, 5.0), (2.0, 2.0), (1, 1)), Line(0.0), 1)
    assert driver.rows[0]["point"] == "adapted"
    # x = 1; of w = 0, as received, a step of 0.25 at curvature 2 covers half of the way
    assert driver.rows[0]["test"]["rmse"] == pytest.approx([0.5, 2.5])


def test_the_rates_are_the_runs_unless_given() -> None:
    data, start = federation(regressions()), Line(0.4, -0.1)
    given, usual = (play(m, data, start, 2, lr=0.1) for m in (PerFedAvg(alpha=0.1, beta=0.1), PerFedAvg()))
    assert same(given.server["model"], usual.server["model"])
    assert all(same(given.final(i), usual.final(i)) for i in range(3))


def test_the_adapting_step_is_plain_whatever_the_optimiser() -> None:
    # from 0 towards 1 with alpha = 0.5: v = 0.5 and g = -0.5, which a norm of 0.6 does not clip; the gradient -1 at w
    # would be clipped to -0.6, so that v = 0.3 and g = -0.7
    data = squares((1.0,), (1.0,), (1,))
    driver = play(PerFedAvg(alpha=0.5, beta=0.1), data, Line(0.0), 1, clip=0.6, momentum=0.9, weight_decay=0.3)
    assert w_of(driver) == pytest.approx(0.05)
    assert float(driver.final(0)["w"]) == pytest.approx(0.05 + 0.5 * (1 - 0.05))
    clipped = play(PerFedAvg(alpha=0.5, beta=0.1), data, Line(0.0), 1, clip=0.4)
    assert w_of(clipped) == pytest.approx(0.04)


@dataclass(frozen=True, repr=False)
class HeadAtHome(Wrapper):
    """Any plug-in that keeps some names private, as local attention does."""

    def personal(self, arch: Arch) -> frozenset[str]:
        return arch.head


@pytest.mark.parametrize("variant", ["FO", "HF"])
def test_a_private_head_is_trained_and_adapted_with_the_rest(variant: str) -> None:
    # for a client alone it makes no difference whether the server or the client keeps the head
    data, method = federation(regressions((5,))), PerFedAvg(variant, alpha=0.2)
    private, whole = (play(m, data, normed().double(), 3, momentum=0.9) for m in (HeadAtHome(method), method))
    assert set(private.kept[0]["personal"]) == {"3.weight", "3.bias"}
    torch.testing.assert_close(private.final(0), whole.final(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variant", ["FO", "HF"])
def test_frozen_and_tied_tensors(variant: str) -> None:
    data, settings = federation(regressions(dtype=np.float32)), {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    frozen = play(PerFedAvg(variant), data, Frozen(), 4, **settings)
    for place in (frozen.server["model"], frozen.final(1)):
        for name, value in Frozen().state_dict().items():
            assert torch.equal(place[name], value) == name.startswith("body"), name
    tied = play(PerFedAvg(variant), data, Tied(), 2, **settings)
    assert set(tied.final(0)) == {"up.weight", "head.weight", "head.bias"}
    assert not torch.equal(tied.final(0)["up.weight"], Tied().up.weight)


def test_one_model_travels_each_way() -> None:
    driver = play(PerFedAvg("HF"), federation(regressions()), Line(0.4, -0.1), 1, cohort=2)
    expected = [16 if i in driver.rows[0]["cohort"] else 0 for i in range(3)]
    assert driver.rows[0]["down"] == driver.rows[0]["up"] == expected


def test_a_difference_that_is_never_taken_says_so() -> None:
    with pytest.warns(MethodNote, match=r"delta=0.1 has no effect with variant='FO'"):
        play(PerFedAvg(delta=0.1), federation(regressions()), Line(0.4, -0.1), 0)


def test_running_statistics_follow_the_passes_at_v_only() -> None:
    data = federation(regressions(dtype=np.float32))
    driver = play(PerFedAvg("HF"), data, normed(), 1, epochs=4)
    assert int(driver.server["model"]["1.num_batches_tracked"]) == 4
    assert int(driver.final(0)["1.num_batches_tracked"]) == 4


def test_a_client_too_small_for_a_step_is_tested_with_what_it_received() -> None:
    driver = play(PerFedAvg(), federation(regressions((1, 4), dtype=np.float32)), normed(), 2)
    assert driver.rows[0]["steps"] == [0, 1]
    assert same(driver.final(0), driver.last_delivery()[0].model)
    assert not same(driver.final(1), driver.last_delivery()[1].model)


@pytest.mark.parametrize(
    "wrong",
    [{"variant": "SO"}, {"alpha": -1.0}, {"beta": -1.0}, {"delta": 0.0}, {"alpha": np.inf}],
)
def test_impossible_values_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(WrongInput, match=f"PerFedAvg: {next(iter(wrong))}=.* must be"):
        PerFedAvg(**wrong)
