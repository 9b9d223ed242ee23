"""Choosing on validation rows alone, with the same number of optimiser steps for every method."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from small import small_federation

from fedtailor import Centralised, Ditto, FedAvg, Federation, FedMCSA, Local, RunSpec, WrongInput, pFedMe, registry
from fedtailor.driver import Diverged, Driver
from fedtailor.method import Method
from fedtailor.methods import ComponentAttention, Proximal
from fedtailor.metrics import summarise
from fedtailor.tuning import candidates, drawn, plain_steps, trial, tune, variants

OPTIONS: dict[str, Any] = {"model": "mlr", "rounds": 4, "batch": 4, "lr": 0.1}


def spec_of(method: Method, federation: Federation, **options: Any) -> RunSpec:
    return RunSpec.of(federation, method, **{**OPTIONS, **options})


def example(name: str) -> Method:
    inner = inspect.signature(registry.entry("method", name).factory).parameters.get("inner")
    needs = inner is not None and inner.default is inner.empty
    found: Method = registry.parse("method", f"{name}(FedAvg())" if needs else name)
    return found


@pytest.mark.parametrize("name", registry.names("method"))
def test_what_methods_declare(name: str) -> None:
    """Three values or more of each parameter, all possible and all different."""
    method = example(name)
    known = {field.name for field in fields(method)}  # type: ignore[arg-type]
    for parameter, values in type(method).grid.items():
        assert parameter in known and len(set(values)) == len(values) >= 3
        for value in values:
            assert getattr(replace(method, **{parameter: value}), parameter) == value  # type: ignore[type-var]
    found = list(variants(method))
    assert found[0] == method and len(set(found)) == len(found)


def test_variants_of_plug_ins_and_of_what_they_wrap() -> None:
    assert list(variants(FedAvg())) == [FedAvg()]
    assert {method.lam for method in variants(Ditto(lam=0.5))} == {0.5, 0.1, 1.0, 2.0}  # type: ignore[attr-defined]
    found = list(variants(FedMCSA(sigma=70.0, lam=5.0)))
    # its own 70 and four more of sigma, its own 5 and four more of lambda
    assert len(found) == 5 * 5
    for method in found:
        assert isinstance(method, Proximal) and isinstance(method.inner, ComponentAttention)
    assert found[0] == FedMCSA(sigma=70.0, lam=5.0)


def test_three_rates() -> None:
    federation = small_federation()
    found = candidates(spec_of(Ditto(lam=1.0), federation))
    assert len(found) == 3 * 3 and found[0] == spec_of(Ditto(lam=1.0), federation)
    assert sorted({round(spec.lr, 6) for spec in found}) == [0.033333, 0.1, 0.3]


def test_every_method_has_the_same_number_of_steps() -> None:
    """Steps within steps are counted: pFedMe takes five on each batch, and sees as many fewer rounds."""
    federation = small_federation()
    steps_a_round = {}
    for method in (FedAvg(), Ditto(), pFedMe(K=5), Local()):
        spec = spec_of(method, federation, rounds=40, lr=0.01)
        budget = 2 * plain_steps(Driver(spec, federation))
        # sizes 9, 4, 12, 7 and 10 in batches of 4 are 3 + 1 + 3 + 2 + 3 steps
        assert budget == 2 * 40 * 12
        tuned = tune(federation, spec, 2)
        share = budget / len(tuned.trials)
        for one in tuned.trials:
            steps_a_round[repr(method)] = one.steps / one.rounds
            assert share <= one.steps < share + steps_a_round[repr(method)], "it ends in the round that uses it up"
    assert steps_a_round["FedAvg()"] == 12
    assert steps_a_round[repr(Ditto())] == 24
    assert steps_a_round[repr(pFedMe(K=5))] == 5 * 12


def test_the_choice_is_the_best_on_validation_rows() -> None:
    federation = small_federation()
    tuned = tune(federation, spec_of(Ditto(), federation), 3)
    scores = [one.score for one in tuned.trials]
    assert len(scores) == tuned.candidates == 9 and None not in scores
    best = max(range(9), key=lambda i: scores[i] or 0.0)
    assert tuned.chosen == tuned.trials[best].spec
    # by hand: the same candidate for as many rounds, and its validation rows
    driver = Driver(replace(tuned.chosen, rounds=OPTIONS["rounds"]), federation)
    for _ in range(tuned.trials[best].rounds):
        driver.step()
    row = driver.finish()
    macro = summarise(row["validation"]["accuracy"], row["validation"]["count"]).macro
    assert scores[best] == pytest.approx(macro)


def test_test_rows_play_no_part() -> None:
    federation = small_federation()
    y = federation.y.clone()
    tested = torch.cat(federation.test)
    y[tested] = (y[tested] + 1) % len(federation.classes)
    scrambled = replace(federation, y=y)
    for method in (Ditto(), FedAvg()):
        one, other = (tune(f, spec_of(method, f), 3) for f in (federation, scrambled))
        assert one.to_dict() == other.to_dict()


def test_a_budget_that_does_not_reach_draws_some() -> None:
    federation = small_federation()
    every = candidates(spec_of(FedMCSA(), federation))
    few = drawn(every, 5, seed=1)
    assert few[0] == every[0] and len(set(few)) == 5 and set(few) <= set(every)
    assert drawn(every, 5, seed=1) == few != drawn(every, 5, seed=2)
    often = [drawn(every, len(every) // 2, seed) for seed in range(30)]
    assert all(len(set(some)) == len(every) // 2 for some in often), "none twice"
    assert set().union(*often) == set(every), "each may be among them"
    assert drawn(every, len(every), seed=1) == every
    assert len(tune(federation, spec_of(FedMCSA(), federation), 0.5).trials) == 5


def test_candidates_that_diverge_are_not_chosen() -> None:
    federation = small_federation()
    wild = spec_of(FedAvg(), federation, lr=1e25)
    assert trial(federation, wild, 10).score is None
    with pytest.raises(Diverged, match="every candidate"):
        tune(federation, wild, 1)


def test_what_cannot_be_tuned() -> None:
    federation = small_federation()
    none = torch.empty(0, dtype=torch.int64)
    bare = replace(federation, validation=(none,) * federation.n)
    with pytest.raises(WrongInput, match="no validation rows"):
        tune(bare, spec_of(FedAvg(), bare), 3)
    with pytest.raises(WrongInput, match="above 0"):
        tune(federation, spec_of(FedAvg(), federation), 0)


def test_a_bound_is_tuned_as_well() -> None:
    federation = small_federation()
    assert len(tune(federation, spec_of(Centralised(), federation), 1).trials) == 3
