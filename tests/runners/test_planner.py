"""Which runner a run gets, how that is found out, and that it is remembered; no test here waits for a stopwatch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small import StopAfter, go_on, rows_of, small_federation, small_spec

from fedtailor import Driver, FedAvg, FedBN, Proximal, RunSpec, WrongInput, federate, registry, tree
from fedtailor.cli.announce import Facts
from fedtailor.nn import make
from fedtailor.record import RunFolder
from fedtailor.runners import planner, probe, remembered
from fedtailor.runners.cost import products, round_cost
from fedtailor.runners.planner import again, made, words
from fedtailor.runners.sequential import Sequential, working
from fedtailor.runners.stacked import Stacked
from fedtailor.runners.workers import Workers
from fedtailor.toy import double, run, toy_driver, toy_federation

ENDLESS = 10**7  # rounds


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fedtailor" / "plans.json"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was probed; each probe finds the same, on two cores."""
    asked: list[Any] = []

    def fastest(work: Any, threads: int, patience: float) -> tuple[Any, float, float]:
        asked.append((len(work), threads))
        return Stacked(threads, chunk=8, products="medium"), 0.01, 0.023

    monkeypatch.setattr(probe, "fastest", fastest)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return asked


def driver(**options: Any) -> Driver:
    spec = {"rounds": ENDLESS, "eval_every": ENDLESS, **options}
    return Driver(small_spec(spec.pop("method", FedAvg()), **spec), small_federation())


# ---------- what is decided ----------


def test_what_is_asked_for_is_taken(probes: list[Any]) -> None:
    one = driver(runner="sequential")
    assert (one.runner.plan(), one.because) == ({"runner": "sequential", "threads": 1}, "as asked for")
    two = driver(runner="stacked", workers=2)
    assert two.runner.plan() == {"runner": "stacked", "threads": 1, "workers": 2}
    assert not probes


def test_a_short_run_is_not_worth_a_probe(probes: list[Any]) -> None:
    short = driver(rounds=5)
    assert (short.runner.plan(), short.because) == ({"runner": "stacked", "threads": 1}, "by rule")
    assert driver(rounds=5, cohort=1).runner.plan()["runner"] == "sequential"
    assert driver(rounds=5, workers=3).runner.plan() == {"runner": "stacked", "threads": 1, "workers": 3}
    assert not probes


def test_a_long_run_is_probed_once(probes: list[Any], memory: Path) -> None:
    first = driver()
    expected = {"runner": "stacked", "threads": 1, "chunk": 8, "products": "medium"}
    assert first.runner.plan() == expected and first.because == "measured: 2.3 times as fast as one by one"
    assert probes == [(3, 1)]  # the cohort's three clients
    assert driver().runner.plan() == expected and len(probes) == 1
    assert list(json.loads(memory.read_text()).values()) == [{**expected, "workers": 1, "because": first.because}]


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({"batch": 6}, True), ({"steps": 3, "epochs": None}, True), ({"method": FedBN()}, True), ({"cohort": 2}, True),
        ({"momentum": 0.0}, True), ({"workers": 1}, True), ({"lr": 0.2}, False), ({"seed": 9}, False),
        ({"rounds": ENDLESS + 1}, False),
    ],
    ids=str,
)  # fmt: skip
def test_a_plan_is_remembered_for_what_it_depends_on(change: dict[str, Any], anew: bool, probes: list[Any]) -> None:
    driver()
    driver(**change)
    assert len(probes) == 1 + anew


def test_a_methods_numbers_do_not_matter_to_its_plan(probes: list[Any]) -> None:
    driver(method=Proximal(FedAvg(), mu=0.1))
    driver(method=Proximal(FedAvg(), mu=0.5))
    assert len(probes) == 1
    driver(method=Proximal(FedBN(), mu=0.1))
    assert len(probes) == 2


@pytest.mark.parametrize("workers", [None, 1])
def test_a_long_round_is_shared_out(workers: int | None, probes: list[Any]) -> None:
    """At 10 ms a step: five clients with 45 to 50 steps take half a second."""
    plan = driver(cohort=1.0, epochs=25, workers=workers).runner.plan()
    assert plan.get("workers", 1) == (2 if workers is None else 1)
    assert driver(cohort=1.0, workers=workers).runner.plan().get("workers", 1) == 1


def test_a_memory_that_cannot_be_used_is_harmless(probes: list[Any], memory: Path) -> None:
    memory.parent.mkdir(parents=True)
    for damage in ("", "[1, 2]", '{"a": 1}', "no JSON"):
        memory.write_text(damage)
        assert driver().runner.plan()["chunk"] == 8
    key = next(iter(json.loads(memory.read_text())))
    memory.write_text(json.dumps({key: {"runner": "steam", "threads": 1, "because": "of steam"}}))
    assert driver().runner.plan()["chunk"] == 8
    assert len(probes) >= 3
    memory.unlink()
    memory.parent.rmdir()
    memory.parent.write_text("a file where there should be a folder")
    assert driver().runner.plan()["chunk"] == 8


def test_a_method_that_fails_fails_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(FedAvg):
        def fit(self, client: Any, state: Any, model: Any, got: Any) -> Any:
            raise ZeroDivisionError("no such luck")

    one = driver(method=Fails())
    assert one.because == "by rule, for measuring it failed: ZeroDivisionError"
    with pytest.raises(ZeroDivisionError) as failed:
        one.step()
    assert "in round 1, client" in " ".join(failed.value.__notes__)


def test_the_plan_is_in_the_header_and_in_the_record(probes: list[Any], tmp_path: Path) -> None:
    one = driver()
    line = "8 clients in a stack, faster products (measured: 2.3 times as fast as one by one)"
    assert Facts.of("FedAvg", one).plan == line
    folder = RunFolder.create(tmp_path / "run", one.info())
    plan = folder.info()["plan"]
    assert plan == {**one.runner.plan(), "because": one.because}
    resumed = again(plan)
    assert resumed.plan() == one.runner.plan()
    with pytest.raises(WrongInput, match="'steam' is unknown here"):
        again({"runner": "steam"})


PLANS = [
    {"runner": "sequential", "threads": 1}, {"runner": "sequential", "threads": 2},
    {"runner": "sequential", "threads": 1, "layout": "channels_last", "products": "medium"},
    {"runner": "stacked", "threads": 1, "chunk": 2, "products": "medium"},
    {"runner": "stacked", "threads": 1, "chunk": 2, "workers": 2},
    {"runner": "sequential", "threads": 1, "layout": "channels_last", "workers": 2},
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: words(plan, ""))
def test_a_plan_is_what_its_runner_says(plan: dict[str, Any]) -> None:
    assert made(plan).plan() == plan


@pytest.mark.parametrize("plan", PLANS[2:], ids=lambda plan: words(plan, ""))
def test_every_plan_comes_to_the_same(plan: dict[str, Any]) -> None:
    """In float64, with batch norm, unequal clients and a partial cohort."""
    options: dict[str, Any] = {"model": double, "federation": toy_federation(torch.float64)}
    method = registry.parse("method", "ALA(FedBN())")
    alone = run(toy_driver(method, **options))
    planned = toy_driver(method, **options, runner=made(plan))
    try:
        run(planned)
    finally:
        planned.runner.end()
    left, right = tree.flatten(alone.state), tree.flatten(planned.state)
    for name in left:
        torch.testing.assert_close(right[name], left[name], rtol=1e-9, atol=1e-11, equal_nan=True, msg=name)


def test_a_resumed_run_takes_the_plan_it_began_with(probes: list[Any], tmp_path: Path) -> None:
    """Bit for bit, though the memory is lost meanwhile and another plan would be found."""
    spec = small_spec(FedAvg(), runner="auto")
    plan = {"runner": "stacked", "threads": 1, "chunk": 2, "products": "medium"}
    federate(spec, small_federation(), runner=made(plan), out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        federate(spec, small_federation(), runner=made(plan), out=tmp_path / "stopped", callbacks=[StopAfter(2)])
    resumed = go_on(tmp_path / "stopped")
    assert resumed.driver.runner.plan() == plan
    assert rows_of(tmp_path / "stopped") == rows_of(tmp_path / "whole")


# ---------- what is measured ----------


def test_a_probe_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Really probed, on a few steps: torch's settings, its random numbers and the run are as before."""
    threads, precision, drawn = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_rng_state()
    one = toy_driver(registry.parse("method", "LocalAttention(FedBN())"), cohort=1.0, batch=4)
    before = tree.transform(torch.clone, one.state)
    way, step, alone = probe.fastest(one.first_work(), 1, 10.0)
    assert 0 < step <= alone and isinstance(way, Sequential | Stacked)
    assert (threads, precision) == (torch.get_num_threads(), torch.get_float32_matmul_precision())
    assert torch.equal(drawn, torch.get_rng_state()) and one.arch.layout == ""
    after = tree.flatten(one.state)
    assert all(torch.equal(value, after[name]) for name, value in tree.flatten(before).items())
    assert one.round == 0 and one.kept.replaced() == []


def timing(times: dict[str, float]) -> Callable[[Any, Any, int], float]:
    """As if each way took a time that is known."""

    def timed(way: Any, parts: Any, threads: int) -> float:
        assert (len(parts) > probe.FEW) == isinstance(way, Stacked)
        return times[words(way.plan(), "")]

    return timed


ONE, LAST, STACK = "clients one by one", "clients one by one, channels last", "all clients in a stack"


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ({ONE: 10, LAST: 9.8, STACK: 12, f"{ONE}, faster products": 11}, ONE),
        ({ONE: 10, LAST: 8, STACK: 9, f"{LAST}, faster products": 6}, f"{LAST}, faster products"),
        ({ONE: 10, LAST: 8, STACK: 5, f"{STACK}, faster products": 4.9}, STACK),
        ({ONE: 10, LAST: 8, STACK: 5, f"{STACK}, faster products": 4}, f"{STACK}, faster products"),
    ],
)
def test_the_fastest_is_found(times: dict[str, float], found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "timed", timing(times))
    monkeypatch.setattr(probe, "medium_is_better", lambda: True)
    one = toy_driver(FedAvg(), cohort=1.0)
    way, step, alone = probe.fastest(one.first_work(), 1, 10.0)
    assert words(way.plan(), "") == found and (step, alone) == (times[found], times[ONE])


def test_a_disturbed_measurement_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was timed while the machine was busy does not lose to a way that is no faster."""
    known = timing({ONE: 10, LAST: 12, STACK: 14})
    busy = iter([30])
    monkeypatch.setattr(probe, "timed", lambda *asked: next(busy, None) or known(*asked))
    monkeypatch.setattr(probe, "medium_is_better", lambda: False)
    assert words(probe.fastest(toy_driver(FedAvg(), cohort=1.0).first_work(), 1, 10.0)[0].plan(), "") == ONE


def test_what_is_not_accurate_or_not_allowed_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {ONE: 10, LAST: 8, STACK: 5}
    monkeypatch.setattr(probe, "timed", timing(times))
    monkeypatch.setattr(probe, "medium_is_better", lambda: False)
    one = toy_driver(FedAvg(), cohort=1.0)
    assert words(probe.fastest(one.first_work(), 1, 10.0)[0].plan(), "") == STACK
    assert words(probe.fastest(one.first_work(), 1, 0.0)[0].plan(), "") == ONE  # no time to try anything


def test_a_way_that_runs_clients_one_by_one_is_none() -> None:
    class Looks(FedAvg):
        def start(self, client: Any, state: Any, got: Any) -> Any:
            return (got.model if sum(t.sum() for t in got.model.values()).item() > -1e9 else {}), state

    one = toy_driver(Looks(), cohort=1.0)
    assert probe.timed(Stacked(1), probe.shortened(one.first_work()), 1) == float("inf")


def test_faster_products_are_used_only_where_they_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if `medium` rounded to bfloat16, as it does on a processor that can multiply such numbers."""
    product = torch.Tensor.__matmul__

    def rounding(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if torch.get_float32_matmul_precision() == "medium" and a.dtype is torch.float32:
            return product(a.bfloat16(), b.bfloat16()).float()
        if a.dtype is torch.float32:  # and were faster
            product(a, b)
        return product(a, b)

    probe.medium_is_better.cache_clear()
    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    assert not probe.medium_is_better()
    probe.medium_is_better.cache_clear()


def test_settings_are_put_back_after_an_error() -> None:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with pytest.raises(ZeroDivisionError), working(3, "medium"):
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (3, "medium")
        raise ZeroDivisionError
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (threads, precision)


# ---------- what is estimated ----------


def test_products_by_hand() -> None:
    """A layer of 12 inputs and 20 units and one of 20 and 3; a 5 x 5 convolution of 3 to 6 maps of 24 x 24."""
    assert products(toy_driver(FedAvg(), model="dnn").arch, torch.zeros(1, 2, 2, 3)) == 12 * 20 + 20 * 3
    arch = driver_of("lenet_bn").arch
    convolutions = 5 * 5 * 3 * 6 * 24 * 24 + 5 * 5 * 6 * 16 * 8 * 8
    assert products(arch, torch.zeros(1, 3, 28, 28)) == convolutions + 256 * 120 + 120 * 84 + 84 * 10


def driver_of(model: str) -> Driver:
    federation = replace(small_federation(), x=torch.zeros(len(small_federation().x), 3, 28, 28))
    return Driver(RunSpec(FedAvg(), model=make(model, classes=10, shape=(3, 28, 28), seed=0)), ten(federation))


def ten(federation: Any) -> Any:
    return replace(federation, classes=tuple("0123456789"))


def test_cost_grows_with_steps_rows_and_clients() -> None:
    common = toy_driver(FedAvg()).common
    sample = torch.zeros(1, 2, 2, 3)
    once = round_cost(common, [8, 8, 8], 1, sample)
    assert round_cost(common, [8, 8, 8], 3, sample) == pytest.approx(3 * once)
    assert round_cost(replace(common, epochs=5), [8, 8, 8], 1, sample) == pytest.approx(5 * once)
    assert once > 2 * 2e-4  # two steps
    assert remembered.processor() and planner.SHORT > 0
    assert isinstance(made({"runner": "stacked", "threads": 1, "workers": 2}), Workers)
