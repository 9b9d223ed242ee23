"""The two anchors of Proximal, and the steps it takes on each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from quadratic import SIZES, Line, common, federation, play, regressions, same, squares, w_of

from fedtailor import SCAFFOLD, Ditto, FedAvg, FedMCSA, FedProx, Local, Method, Proximal, WrongInput, registry
from fedtailor.method import MethodNote

MOVING = Proximal(FedAvg(), mu=5.0, anchor="moving")


def authors_rounds(cohorts: Sequence[Sequence[int]], mu: float, steps: int, moving: bool) -> torch.Tensor:
    """Local training as that code has it: step on the penalised loss, then copy the weights into the anchor."""
    rows = [tuple(torch.from_numpy(part) for part in pair) for pair in regressions()]
    w = torch.tensor([0.4, -0.1], dtype=torch.float64)
    for cohort in cohorts:
        trained = []
        for i in cohort:
            x, y = rows[i]
            theta, anchor = w.clone().requires_grad_(), w.clone()
            for _ in range(steps):
                loss = (x @ theta - y).square().mean() + mu / 2 * (theta - anchor).square().sum()
                (slope,) = torch.autograd.grad(loss, theta)
                with torch.no_grad():
                    theta -= 0.1 * slope
                if moving:
                    anchor = theta.detach().clone()
            trained.append(theta.detach())
        total = sum(SIZES[i] for i in cohort)
        w = sum(SIZES[i] / total * theta for i, theta in zip(cohort, trained, strict=True))
    return w


@pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
@pytest.mark.parametrize("anchor", ["fixed", "moving"])
def test_reference_with_two_of_three_clients_a_round(anchor: str) -> None:
    method = Proximal(FedAvg(), mu=5.0, anchor=anchor)
    driver = play(method, federation(regressions()), Line(0.4, -0.1), 3, cohort=2, steps=4)
    expected = authors_rounds([row["cohort"] for row in driver.rows], 5.0, 4, anchor == "moving")
    torch.testing.assert_close(common(driver)["w"], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
def test_the_moving_anchor_makes_lambda_inert_and_the_fixed_one_does_not() -> None:
    data, options = federation(regressions()), {"epochs": 3, "batch": 2, "momentum": 0.9, "weight_decay": 0.01}
    plain, moving, fixed = (
        common(play(m, data, Line(0.4, -0.1), 3, **options)) for m in (FedAvg(), MOVING, Proximal(FedAvg(), mu=5.0))
    )
    assert same(plain, moving)
    assert not torch.allclose(plain["w"], fixed["w"], rtol=1e-3)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (MOVING, r"mu=5.0 \(the lambda of FedMCSA\) inert"),
        (FedMCSA(anchor="moving"), r"mu=5.0 \(the lambda of FedMCSA\) inert"),
        (FedProx(mu=0.0), "mu=0 there is no pull"),
        (Proximal(Local()), "nothing to pull"),
    ],
    ids=repr,
)
def test_a_null_point_is_said(method: Method, says: str) -> None:
    with pytest.warns(MethodNote, match=says):
        play(method, federation(regressions()), Line(0.4, -0.1), 0)


def test_inner_steps_by_hand() -> None:
    # one batch, two steps: 0.1, then 0.1 - 0.1 * ((0.1 - 1) + 2 * 0.1) = 0.17
    driver = play(Proximal(FedAvg(), mu=2.0, inner_steps=2), squares((1.0,), (1.0,), (1,)), Line(0.0), 1)
    assert w_of(driver) == pytest.approx(0.17)
    assert driver.rows[0]["steps"] == [2]


def test_inner_steps_are_all_on_one_batch() -> None:
    # five rows in batches of one: each batch twice before the next, in the order of the run's own batches
    x, y = regressions((5,))[0]
    driver = play(Proximal(FedAvg(), mu=0.7, inner_steps=2), federation([(x, y)]), Line(0.4, -0.1), 1, batch=1)
    plain = driver.sites[0].client(1)
    order = [int(((torch.from_numpy(x) == batch.x).all(1)).nonzero()) for batch in plain.batches()]
    assert [batch.step for batch in replace(plain, steps_per_batch=2).batches()] == list(range(10))
    w = start = np.array([0.4, -0.1])
    for row in order:
        for _ in range(2):
            w = w - 0.1 * (2 * x[row] * (x[row] @ w - y[row]) + 0.7 * (w - start))
    np.testing.assert_allclose(common(driver)["w"].numpy(), w, rtol=1e-12)
    assert driver.rows[0]["steps"] == [10]


@pytest.mark.parametrize("inner", [Ditto(lam=0.5), SCAFFOLD()], ids=repr)
def test_any_inner_method_takes_the_steps(inner: Method) -> None:
    driver = play(Proximal(inner, mu=0.1, inner_steps=3), federation(regressions()), Line(0.4, -0.1), 1, batch=2)
    once = play(Proximal(inner, mu=0.1), federation(regressions()), Line(0.4, -0.1), 1, batch=2)
    assert driver.rows[0]["steps"] == [3 * steps for steps in once.rows[0]["steps"]]


def test_scaffold_counts_them_in_its_control_variate() -> None:
    # c_i is the mean gradient over all steps taken; on a square from 0 with c = 0 and lr h = 0.1: (1 + 0.9) / 2
    driver = play(Proximal(SCAFFOLD(), mu=1e-12, inner_steps=2), squares((-1.0,), (1.0,), (1,)), Line(0.0), 1)
    assert float(driver.kept[0]["method"]["inner"]["c"]["w"]) == pytest.approx(0.95)


def test_the_options_are_part_of_the_method() -> None:
    method = Proximal(FedAvg(), mu=0.5, anchor="moving", inner_steps=2)
    assert registry.parse("method", repr(method)) == method


@pytest.mark.parametrize("wrong", [{"anchor": "loose"}, {"inner_steps": 0}])
def test_impossible_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WrongInput, match=f"{next(iter(wrong))}=.* must be"):
        Proximal(FedAvg(), **wrong)
