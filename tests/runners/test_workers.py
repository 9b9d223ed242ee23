"""Clients shared out among processes end where they end in one; and whatever happens, no process stays behind."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Everything, SmallNet, StopAfter, go_on, rows_of, small_federation, small_spec
from torch import nn

import fedtailor
from fedtailor import FedAvg, Fitted, Method, PartialFedFix, WrongInput, federate, registry, tree
from fedtailor.contract import must_equal
from fedtailor.driver import Driver
from fedtailor.record import RunFolder
from fedtailor.runners import planner, workers
from fedtailor.runners.arena import Arena
from fedtailor.runners.sequential import Sequential
from fedtailor.runners.stacked import MOST, Stacked
from fedtailor.runners.workers import WorkerFailed, Workers, load
from fedtailor.toy import double, run, toy_driver, toy_federation

METHODS = ["ALA(LocalAttention(FedBN()), p=2)", "FedHAM(p=1, k=2)", "FedMCSA", "FedHealth", "Centralised"]


def finished(driver: Driver) -> Driver:
    """After all rounds, and the last tests; its processes are gone."""
    try:
        run(driver)
        driver.finish()
    finally:
        driver.runner.end()
    return driver


@pytest.mark.parametrize("name", METHODS)
def test_the_same_bits_as_one_process(name: str) -> None:
    """Received models, states, peers, exams, what is explained: all of it goes to a process and comes back."""
    method = registry.parse("method", name)
    one, shared = toy_driver(method), toy_driver(method, runner=Workers(Sequential(1), 2))
    must_equal(finished(one), finished(shared), "shared out")


def test_the_same_bits_where_every_slot_is_kept() -> None:
    """And with dropout, and three processes for two clients."""
    ends = []
    for runner in (Sequential(1), Workers(Sequential(1), 3)):
        ends.append(finished(Driver(small_spec(Everything(), cohort=2), small_federation(), runner)))
    must_equal(*ends, "shared out")


@pytest.mark.parametrize("name", METHODS)
def test_stacks_within_processes(name: str) -> None:
    method = registry.parse("method", name)
    options: dict[str, Any] = {"model": double, "federation": toy_federation(torch.float64), "cohort": 1.0}
    alone = finished(toy_driver(method, **options))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared = finished(toy_driver(method, **options, runner=Workers(Stacked(1), 2)))
    left, right = tree.flatten(alone.state), tree.flatten(shared.state)
    assert list(left) == list(right)
    for key in left:
        torch.testing.assert_close(right[key], left[key], rtol=1e-9, atol=1e-11, equal_nan=True, msg=key)
    assert alone.rows[-1]["test"]["accuracy"] == shared.rows[-1]["test"]["accuracy"]


def test_bundles_are_balanced_and_do_not_depend_on_time() -> None:
    driver = toy_driver(FedAvg(), cohort=1.0)
    work = [fedtailor.runners.Work(site, driver.kept, None) for site in driver.sites]
    runner = Workers(Stacked(1), 2)
    loads = [sum(load(part) for part in bundle) for bundle in runner.bundles(work)]
    # batches of four: three steps, two (of 7 rows), one of three rows, two (of 9, without the last) and none
    assert loads == [8 + 8, 12 + 3 + 0]
    assert len(runner.bundles(work * MOST)) == 6  # five times 64 clients, in bundles of 64 at most, three for each
    alone = Workers(Sequential(1), 2).bundles(work)
    assert [bundle[0].site.number for bundle in alone] == [0, 1, 3, 2, 4]


# ---------- a user's own ----------


def test_a_network_and_a_function_of_ones_own() -> None:
    """Local classes and lambdas need not be pickled: the processes are forked."""

    class Own(nn.Sequential):
        def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
            super().__init__(nn.Flatten(), nn.Linear(12, classes))

    method = PartialFedFix(strategy=lambda name: name.endswith("weight"))
    with pytest.warns(UserWarning, match="cannot be resumed"):
        one = Driver(small_spec(method, model=Own, momentum=0.0), toy_federation(), Sequential(1))
        two = Driver(small_spec(method, model=Own, momentum=0.0), toy_federation(), Workers(Sequential(1), 2))
    must_equal(finished(one), finished(two), "shared out")


def test_where_processes_cannot_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "can_fork", lambda: False)
    with pytest.raises(WrongInput, match=r"workers=2 needs processes that are forked.*workers=1"):
        Driver(small_spec(FedAvg(), workers=2), small_federation())


def test_warnings_come_through() -> None:
    @dataclasses.dataclass(frozen=True, repr=False)
    class Looks(Method):
        def start(self, client, state, got):  # type: ignore[no-untyped-def]
            return (got.model if sum(t.sum() for t in got.model.values()).item() > -1e9 else {}), state

    with pytest.warns(UserWarning, match="runs its clients one by one: item"):
        finished(toy_driver(Looks(), runner=Workers(Stacked(1), 2), cohort=1.0))


# ---------- faults ----------


@dataclasses.dataclass(frozen=True, repr=False)
class Fails(Method):
    """Fails at client 1, in round 2, in the manner asked for."""

    how: str = "raise"

    def fit(self, client, state, model, got):  # type: ignore[no-untyped-def]
        if client.round == 2 and client.number == 1:
            if self.how == "raise":
                raise ZeroDivisionError("no such luck")
            if self.how == "refuse":
                raise WrongInput("not this one")
            if self.how == "stop":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGKILL)
        return Fitted(model, state)


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("raise", WorkerFailed, "ZeroDivisionError: no such luck"), ("refuse", WrongInput, "not this one"),
        ("stop", KeyboardInterrupt, ""), ("die", WorkerFailed, "was killed by signal 9"),
    ],
)  # fmt: skip
def test_a_fault_names_client_round_and_method_and_nobody_stays(how: str, kind: type, words: str) -> None:
    driver = toy_driver(Fails(how), runner=Workers(Sequential(1), 2), cohort=1.0)
    driver.step()
    crew = [worker.process for worker in driver.runner.crew]
    assert len(crew) == 2 and all(process.is_alive() for process in crew)
    before = driver.state
    with pytest.raises(kind) as failed:
        driver.step()
    told = " ".join([str(failed.value), *getattr(failed.value, "__notes__", [])])
    assert words in told
    if how != "stop":
        assert "in round 2, client 1, method Fails" in told
    if how == "raise":
        assert 'raise ZeroDivisionError("no such luck")' in str(failed.value.__cause__)
    assert not any(process.is_alive() for process in crew)
    assert driver.round == 1 and tree.flatten(driver.state).keys() == tree.flatten(before).keys()


def test_a_driver_that_is_dropped_takes_its_processes_along() -> None:
    driver = toy_driver(FedAvg(), runner=Workers(Sequential(1), 2))
    driver.step()
    crew = [worker.process for worker in driver.runner.crew]
    del driver
    gc.collect()
    assert not any(process.is_alive() for process in crew)


SCRIPT = """
import os, sys
from small import small_federation, small_spec
from fedtailor import Callback, FedAvg, federate
from fedtailor.runners.sequential import Sequential
from fedtailor.runners.workers import Workers

class Tells(Callback):
    def on_round(self, driver, row):
        print(*(worker.process.pid for worker in driver.runner.crew), flush=True)

spec = small_spec(FedAvg(), rounds=100_000, checkpoint_every=100_000)
federate(spec, small_federation(), runner=Workers(Sequential(1), 2), out=sys.argv[1], callbacks=[Tells()])
"""


@pytest.mark.parametrize("how", ["killed", "Ctrl-C"])
def test_processes_end_with_the_one_that_forked_them(how: str, tmp_path: Path) -> None:
    """Killed, it cannot even tell them; and Ctrl-C at a terminal reaches all of them."""
    paths = [str(Path(fedtailor.__file__).parents[1]), str(Path(__file__).parents[1])]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    crew = [int(number) for number in process.stdout.readline().split()]
    assert len(crew) == 2
    if how == "killed":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    if how == "Ctrl-C":
        assert said.rstrip().endswith("KeyboardInterrupt") and "worker" not in said.splitlines()[-1]
        assert RunFolder(tmp_path / "run").info()["status"] == "interrupted"
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{number}/stat").exists() and not zombie(number) for number in crew):
        assert time.monotonic() < deadline, "a worker outlives the run"
        time.sleep(0.05)


def zombie(number: int) -> bool:
    """Dead, where nobody has asked for how it ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


# ---------- settings ----------


def test_workers_are_asked_for_recorded_and_taken_again(tmp_path: Path) -> None:
    spec = small_spec(FedAvg(), runner="sequential", workers=2, model=SmallNet)
    with pytest.raises(KeyboardInterrupt):
        federate(spec, small_federation(), out=tmp_path / "shared", callbacks=[StopAfter(2)])
    plan = RunFolder(tmp_path / "shared").info()["plan"]
    assert plan == {"runner": "sequential", "threads": 1, "workers": 2, "because": "as asked for"}
    resumed = go_on(tmp_path / "shared")
    assert isinstance(resumed.driver.runner, Workers) and not resumed.driver.runner.crew
    federate(small_spec(FedAvg(), model=SmallNet), small_federation(), runner=Sequential(1), out=tmp_path / "alone")
    assert rows_of(tmp_path / "shared") == rows_of(tmp_path / "alone")
    assert planner.again({"runner": "stacked", "threads": 1}).plan() == {"runner": "stacked", "threads": 1}


# ---------- memory ----------


def test_an_arena_gives_what_was_put_and_grows() -> None:
    drawn = torch.Generator().manual_seed(0)
    one = torch.randn(3, 4, generator=drawn)
    state = {
        "a": {"one": one, "again": one, "none": {}, "view": one.T, "empty": torch.empty(0, 2), "scalar": one[0, 0]},
        "kinds": {str(k): torch.ones(5).to(k) for k in (torch.bool, torch.int64, torch.bfloat16, torch.float64)},
        "large": torch.randn(3_000_000, generator=drawn),
    }  # fmt: skip
    arena = Arena()
    for _ in range(2):
        found = arena.get(arena.put(state))
        assert found["a"]["one"] is found["a"]["again"] and found["a"]["none"] == {}
        assert list(found) == list(state) and list(found["a"]) == list(state["a"])
        for path, tensor in tree.flatten(state).items():
            other = tree.flatten(found)[path]
            assert other.dtype is tensor.dtype and torch.equal(other, tensor)
        arena.clear()


def test_an_arena_is_read_after_it_grew_elsewhere() -> None:
    """One that was mapped when it was small finds what was written beyond."""
    ours = Arena()
    theirs = Arena()
    os.dup2(ours.file, theirs.file)  # as after a fork: one file, two maps
    small, large = ours.put({"t": torch.ones(2)}), ours.put({"t": torch.full((1_000_000,), 2.0)})
    assert theirs.get(small)["t"].tolist() == [1, 1]
    assert bool((theirs.get(large)["t"] == 2).all())
