"""A run that is killed and resumed ends bit for bit as one that never was: server, clients and rows.

Real processes are killed with SIGKILL: in training, and inside each step of writing a file. They are forked from one
process that has imported torch, so that a killed run costs a fraction of a second.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from small import (
    ROUNDS,
    SmallNet,
    StopAfter,
    assert_same_end,
    assert_same_state,
    go_on,
    method_named,
    rows_of,
    small_federation,
    small_spec,
)

import fedtailor
from fedtailor import (
    Callback,
    Client,
    Diverged,
    FedAvg,
    RunSpec,
    WrongInput,
    federate,
    record,
    registry,
    resume,
    shards,
    store,
)
from fedtailor.record import RunFolder

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["fedtailor.interface", "pytest"])

PATIENCE = 60  # seconds for a process that takes a fraction of one
METHODS = [*registry.names("method"), "Everything"]


# ---------- what runs in the processes ----------


class Moments:
    """The moments that a run passes, in order: batches trained, and steps of writing. It is killed at one of them."""

    def __init__(self, last: int | None):
        self.last = last
        self.passed: list[str] = []
        self.file = ""

    def __call__(self, what: str) -> None:
        if len(self.passed) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed.append(what)

    def watch(self) -> None:
        """Stop at every batch and at every call by which `record` changes the disk; for a process of its own."""
        loss, sync, replace, unlink = Client.loss, os.fsync, os.replace, Path.unlink

        def watched_loss(client: Client, model: Any, batch: Any) -> Any:
            self("train")
            return loss(client, model, batch)

        def watched_open(path: Path, mode: str = "r") -> Any:
            file = open(path, mode)  # noqa: SIM115 - the caller closes it
            self.file = kind_of(path)
            self(f"{self.file} opened")
            return Watched(file, self)

        def watched_sync(handle: int) -> None:
            sync(handle)
            self(f"{self.file} synced")

        def watched_replace(beside: Path, path: Path) -> None:
            replace(beside, path)
            self.file = f"folder of {self.file}"
            self(f"{self.file} renamed into")

        def watched_unlink(path: Path) -> None:
            unlink(path)
            self(f"{kind_of(path)} removed")

        Client.loss = watched_loss  # type: ignore[method-assign]
        record.open = watched_open  # type: ignore[attr-defined]
        os.fsync, os.replace, Path.unlink = watched_sync, watched_replace, watched_unlink  # type: ignore


class Watched:
    """A file that is written in two halves, the first of which has reached the disk when the process is killed."""

    def __init__(self, file: Any, moments: Moments):
        self.file, self.moments, self.name = file, moments, moments.file

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
        self.moments(f"{self.name} closed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes) -> None:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        self.moments(f"{self.name} half written")
        self.file.write(data[len(data) // 2 :])
        self.moments(f"{self.name} written")


def kind_of(path: Path) -> str:
    kinds = {"round-": "checkpoint", "sites-": "shard"}
    return next((kinds[start] for start in kinds if path.name.startswith(start)), path.name.removesuffix(".tmp"))


def run(name: str, path: Path, begun: bool, last: int | None, options: dict[str, Any]) -> None:
    """The body of a process: begin a run or go on with it, until the moment `last`."""
    torch.set_num_threads(1)
    if options.pop("many", False):
        store.MANY, shards.MOST = 2, 2  # five clients are very many, whose states are written in shards, two at most
    method = method_named(name)
    moments = Moments(last)
    moments.watch()
    if begun:
        go_on(path)
    else:
        federate(small_spec(method, **options), small_federation(), out=path)
    (path.parent / f"{path.name}.moments").write_text(json.dumps(moments.passed))


def process(name: str, path: Path, *, begun: bool = False, last: int | None = None, **options: Any) -> bool:
    """Run it in a process of its own; tells whether it got to its end, or else was killed where it should be."""
    child = PROCESSES.Process(target=run, args=(name, path, begun, last, options))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 0 or (last is not None and child.exitcode == -signal.SIGKILL)
    return child.exitcode == 0


def moments_of(path: Path) -> list[str]:
    passed: list[str] = json.loads((path.parent / f"{path.name}.moments").read_text())
    return passed


# ---------- killed ----------


def in_writing(passed: list[str], *files: str) -> list[int]:
    return [i for i, what in enumerate(passed) if what.removeprefix("folder of ").startswith(files)]


def few_kills(name: str, passed: list[str]) -> list[int]:
    """Three kills: in training, in writing a checkpoint (each method in another step), in writing a row."""
    draw = random.Random(name)
    training = [i for i, what in enumerate(passed) if what == "train"]
    steps = sorted({passed[i] for i in in_writing(passed, "checkpoint")})
    step = steps[METHODS.index(name) % len(steps)]
    checkpoint = [i for i, what in enumerate(passed) if what == step]
    return [draw.choice(training), draw.choice(checkpoint), draw.choice(in_writing(passed, "rows.jsonl"))]


def many_kills(name: str, passed: list[str]) -> list[int]:
    """Each kind of moment once, in a round drawn at random, and six moments more."""
    draw = random.Random(name)
    kinds = [[i for i, what in enumerate(passed) if what == kind] for kind in dict.fromkeys(passed)]
    return sorted({*map(draw.choice, kinds), *draw.sample(range(len(passed)), 6)})


def check_kills(name: str, folder: Path, choose: Any, **options: Any) -> int:
    whole = folder / "whole"
    assert process(name, whole, **options)
    passed = moments_of(whole)
    kills = choose(name, passed)
    for last in kills:
        path = folder / f"killed-{last}"
        assert not process(name, path, last=last, **options), "the run was to be killed"
        assert process(name, path, begun=(path / "run.json").exists(), **options)
        assert_same_end(path, whole)
    return len(kills)


@pytest.mark.parametrize("name", METHODS)
def test_killed_anywhere_and_resumed(name: str, tmp_path: Path) -> None:
    assert check_kills(name, tmp_path, few_kills) == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", METHODS)
def test_killed_in_every_kind_of_moment_and_resumed(name: str, tmp_path: Path) -> None:
    assert check_kills(name, tmp_path, many_kills) >= 12


def test_killed_while_shards_are_written(tmp_path: Path) -> None:
    """Half written, complete and not yet part of a checkpoint, and when one that is out of date is removed."""

    def choose(name: str, passed: list[str]) -> list[int]:
        draw = random.Random(name)
        kinds = ("shard half written", "folder of shard synced", "shard removed")
        return [draw.choice([i for i, what in enumerate(passed) if what == kind]) for kind in kinds]

    assert check_kills("Everything", tmp_path, choose, many=True) == 3


def test_every_step_of_writing_is_a_moment(tmp_path: Path) -> None:
    """The kills above are inside the writing of a checkpoint: between write, sync and rename, and after."""
    assert process("FedAvg", tmp_path / "whole")
    passed = [what for what in moments_of(tmp_path / "whole") if "checkpoint" in what]
    first, last = passed[:7], passed[-8:]
    assert first == [
        "checkpoint opened", "checkpoint half written", "checkpoint written", "checkpoint synced",
        "checkpoint closed", "folder of checkpoint renamed into", "folder of checkpoint synced",
    ]  # fmt: skip
    assert last == [*first, "checkpoint removed"]


@pytest.mark.parametrize("name", ["SCAFFOLD", "Everything"])
def test_killed_again_and_again(name: str, tmp_path: Path) -> None:
    """The processes that resume are killed as well, until one gets to the end."""
    assert process(name, tmp_path / "whole")
    draw, path = random.Random(name), tmp_path / "killed"
    length = len(moments_of(tmp_path / "whole"))
    ended = process(name, path, last=draw.randrange(length // 5, length // 3))
    kills = 1
    while not ended:
        ended = process(name, path, begun=True, last=draw.randrange(length // 5, length // 3))
        kills += not ended
    assert kills >= 3
    assert_same_end(path, tmp_path / "whole")


def test_killed_from_outside_at_any_time(tmp_path: Path) -> None:
    """No matter what the process is doing: after a time drawn at random, wherever that is."""
    began = time.monotonic()
    assert process("Ditto", tmp_path / "whole")
    lasted = time.monotonic() - began
    for attempt in range(3):
        path = tmp_path / f"killed-{attempt}"
        child = PROCESSES.Process(target=run, args=("Ditto", path, False, None, {}))
        child.start()
        time.sleep(random.SystemRandom().uniform(0.2, 1) * lasted)
        child.kill()
        child.join(PATIENCE)
        process("Ditto", path, begun=(path / "run.json").exists())
        assert_same_end(path, tmp_path / "whole")


def test_killed_between_rare_checkpoints(tmp_path: Path) -> None:
    """The rows after the last checkpoint are made again, and are in the record once."""
    assert process("FedBN", tmp_path / "whole", checkpoint_every=4)
    training = [i for i, what in enumerate(moments_of(tmp_path / "whole")) if what == "train"]
    for last in (training[len(training) // 4], training[-1]):  # before the first checkpoint, and after it
        path = tmp_path / f"killed-{last}"
        assert not process("FedBN", path, last=last, checkpoint_every=4)
        assert process("FedBN", path, begun=True)
        assert_same_end(path, tmp_path / "whole")


# ---------- resumed otherwise ----------


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    federate(small_spec(FedAvg()), small_federation(), out=tmp_path / "whole")
    return tmp_path / "whole"


def test_a_complete_run_resumed_stays_as_it_was(whole: Path) -> None:
    rows, state = rows_of(whole), RunFolder(whole).load()
    go_on(whole)
    assert rows_of(whole) == rows
    assert_same_state(RunFolder(whole).load(), state)


@pytest.mark.parametrize("name", ["FedRep", "SCAFFOLD"])
def test_a_run_extended_is_the_longer_run(name: str, tmp_path: Path) -> None:
    method = method_named(name)
    federate(small_spec(method), small_federation(), out=tmp_path / "longer")
    federate(small_spec(method, rounds=4), small_federation(), out=tmp_path / "short")
    assert RunFolder(tmp_path / "short").rows()[-1]["finish"]
    go_on(tmp_path / "short", rounds=ROUNDS)
    assert_same_end(tmp_path / "short", tmp_path / "longer")


def test_data_and_model_are_made_again_from_the_record(tmp_path: Path) -> None:
    """Nothing is given to `resume` but the folder."""
    federation = fedtailor.load("synthetic(alpha=0.5, beta=0.5)", "iid", clients=4, seed=2)
    spec = RunSpec.of(federation, FedAvg(), model="dnn(hidden=4)", cohort=2, rounds=3, steps=2, batch=4)
    federate(spec, federation, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        federate(spec, federation, out=tmp_path / "stopped", callbacks=[StopAfter(1)])
    resume(tmp_path / "stopped")
    assert rows_of(tmp_path / "stopped") == rows_of(tmp_path / "whole")
    assert_same_state(RunFolder(tmp_path / "stopped").load(), RunFolder(tmp_path / "whole").load())


@dataclass
class StopWithin(Callback):
    """Ctrl-C when a client of a round is done."""

    round: int

    def on_client(self, driver: Any, done: int, of: int) -> None:
        if driver.round + 1 == self.round and done == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("stop", [StopAfter(3), StopWithin(3)])
def test_an_interrupted_run_saves_what_it_reached(stop: Any, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        federate(small_spec(FedAvg(), checkpoint_every=100), small_federation(), out=path, callbacks=[stop])
    assert RunFolder(path).info()["status"] == "interrupted"
    reached = 3 if isinstance(stop, StopAfter) else 2
    assert RunFolder(path).load()[0] == reached
    assert len(RunFolder(path).rows()) == reached
    go_on(path)
    assert rows_of(path) == rows_of(whole)
    assert_same_state(RunFolder(path).load(), RunFolder(whole).load())


def test_interrupted_while_a_row_is_written(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come within `append`: the checkpoint saved on the way out must not be ahead of the rows."""
    path, append = tmp_path / "stopped", RunFolder.append

    def stopped_append(folder: RunFolder, row: record.Row) -> None:
        if row["round"] == 3:
            with open(folder.path / "rows.jsonl", "ab") as file:
                file.write(record.to_json(row)[:100])
            raise KeyboardInterrupt
        append(folder, row)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", stopped_append)
        with pytest.raises(KeyboardInterrupt):
            federate(small_spec(FedAvg(), checkpoint_every=2), small_federation(), out=path)
    go_on(path)
    assert rows_of(path) == rows_of(whole)


def test_a_run_that_diverges_keeps_what_it_reached(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(Diverged, match=r"round 1.*smaller lr"):
        federate(small_spec(FedAvg(), lr=1e30, momentum=0.0), small_federation(), out=path)
    assert RunFolder(path).info()["status"] == "failed"
    assert RunFolder(path).load() == (0, {}, [])


def test_other_data_are_refused(whole: Path) -> None:
    other = fedtailor.load("synthetic(alpha=0.5, beta=0.5)", "iid(clients=5)")
    with pytest.raises(WrongInput, match="the data are not those of"):
        resume(whole, federation=other, model=SmallNet)


def test_a_model_of_ones_own_must_be_given_again(whole: Path) -> None:
    with pytest.raises(WrongInput, match=r"SmallNet.*give it again with model="):
        resume(whole, federation=small_federation())


def test_a_run_of_a_method_with_a_function_cannot_go_on(tmp_path: Path) -> None:
    def convolution(name: str) -> bool:
        return name.startswith("conv")

    method = fedtailor.PartialFedFix(strategy=convolution)
    with pytest.warns(UserWarning, match="cannot be resumed"):
        federate(small_spec(method, rounds=1), small_federation(), out=tmp_path / "run")
    with pytest.raises(WrongInput, match=r"<your own convolution>.*not in the record"):
        go_on(tmp_path / "run")


def test_fewer_rounds_than_done_are_refused(whole: Path) -> None:
    rows = RunFolder(whole).rows()
    with pytest.raises(WrongInput, match=f"has {ROUNDS} rounds already"):
        go_on(whole, rounds=ROUNDS - 1)
    assert RunFolder(whole).rows() == rows


def test_a_second_run_does_not_overwrite_the_first(whole: Path) -> None:
    rows = RunFolder(whole).rows()
    with pytest.raises(WrongInput, match="already holds a run"):
        federate(small_spec(FedAvg()), small_federation(), out=whole)
    assert RunFolder(whole).rows() == rows


def test_a_plan_is_kept(whole: Path) -> None:
    """A resumed run uses the threads it began with: with others, sums are blocked otherwise."""
    RunFolder(whole).note(plan={"runner": "sequential", "threads": 3})
    assert go_on(whole).driver.runner.plan() == {"runner": "sequential", "threads": 3}
    assert RunFolder(whole).info()["plan"] == {"runner": "sequential", "threads": 3}


def test_a_half_written_last_row_is_made_again(whole: Path) -> None:
    rows = rows_of(whole)
    path = whole / "rows.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert len(RunFolder(whole).rows()) == len(rows) - 1
    go_on(whole)
    assert rows_of(whole) == rows


def test_rows_lost_behind_a_checkpoint_are_noticed(whole: Path) -> None:
    """A machine that loses power may keep a checkpoint and lose rows: the record must not have a silent gap."""
    path = whole / "rows.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]))
    with pytest.raises(WrongInput, match=r"rows\.jsonl"):
        go_on(whole)
