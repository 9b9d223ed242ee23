"""Cells are ordinary runs: kept, found again, gone on with, in one process or in several."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedtailor.papers.plan import Job, plan
from fedtailor.papers.preset import Table
from fedtailor.papers.record import Record, of_run
from fedtailor.papers.running import carry_out, is_complete, run_one


def jobs_of(table: Table, out: Path) -> list[Job]:
    return list(plan(table, "quick", ["data=MNIST"], 1, out).jobs)


def quiet(job: Job, done: int, of: int) -> None: ...


def untimed(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def read(job: Job) -> Record:
    found = of_run(job.folder, job.cell, job.seed)
    assert found is not None
    return found


def test_a_cell_is_an_ordinary_run(small_table: Table, tmp_path: Path) -> None:
    """The same as running it by hand; and it is not run a second time."""
    from fedtailor import FedAvg, RunSpec, federate, load

    job = jobs_of(small_table, tmp_path / "out")[0]
    told: list[tuple[int, int]] = []
    assert run_one(job, lambda _, done, of: told.append((done, of))) == ""
    assert told == [(0, 2), (1, 2), (2, 2)] and is_complete(job.folder)
    assert not list((job.folder / "checkpoints").iterdir()), "the tensors of a whole table would fill a disk"

    federation = load("digits", "iid(clients=3, validation=0.1)")
    options = {"rounds": 2, "steps": 2, "batch": 8, "lr": 0.1, "eval_every": 1, "model": "mlr", "cohort": 1.0}
    federate(RunSpec.of(federation, FedAvg(), **options), federation, out=tmp_path / "by-hand")
    assert untimed(job.folder) == untimed(tmp_path / "by-hand")

    before = (job.folder / "rows.jsonl").read_bytes()
    assert run_one(job, lambda *_: pytest.fail("it ran again")) == ""
    assert (job.folder / "rows.jsonl").read_bytes() == before


def test_what_was_interrupted_goes_on(small_table: Table, tmp_path: Path) -> None:
    whole, cut = jobs_of(small_table, tmp_path / "whole")[1], jobs_of(small_table, tmp_path / "cut")[1]
    run_one(whole, quiet)

    def stop(job: Job, done: int, of: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(cut, stop)
    assert not is_complete(cut.folder) and len(untimed(cut.folder)) == 1
    seen: list[int] = []
    assert run_one(cut, lambda _, done, of: seen.append(done)) == ""
    assert seen == [1, 2], "it began after the round that was kept"
    assert untimed(cut.folder) == untimed(whole.folder)


def test_a_cell_that_fails_says_why_and_the_others_are_run(small_table: Table, tmp_path: Path) -> None:
    first, second, *_ = jobs_of(small_table, tmp_path)
    diverges = replace(first, cell=replace(first.cell, settings={**first.cell.settings, "lr": 1e30}))
    wrong = replace(first, cell=replace(first.cell, method="FedProx(mu=-1.0)"), folder=tmp_path / "wrong")
    ended: dict[str, str] = {}
    carry_out([diverges, wrong, second], 1, quiet, lambda job, reason: ended.update({job.folder.parent.name: reason}))
    assert "training diverged" in ended[first.folder.parent.name]
    assert "mu=-1.0" in ended[tmp_path.name]
    assert ended[second.folder.parent.name] == ""


def test_several_processes_end_where_one_ends(small_table: Table, tmp_path: Path) -> None:
    alone, together = jobs_of(small_table, tmp_path / "one"), jobs_of(small_table, tmp_path / "two")
    carry_out(alone, 1, quiet, lambda *_: None)
    reasons: list[str] = []
    rounds: list[tuple[str, int]] = []
    carry_out(together, 2, lambda job, done, of: rounds.append((job.title, done)), lambda _, why: reasons.append(why))
    assert reasons == [""] * 3
    assert sorted(set(rounds)) == sorted((job.title, done) for job in together for done in range(3))
    for one, other in zip(alone, together, strict=True):
        assert untimed(one.folder) == untimed(other.folder)


def test_a_record_is_of_its_cell(small_table: Table, tmp_path: Path) -> None:
    """Changed settings have another folder, so that no old number stands in a new cell."""
    job = jobs_of(small_table, tmp_path)[0]
    other = replace(job.cell, settings={**job.cell.settings, "lr": 0.2})
    assert other.folder != job.cell.folder and other.folder.startswith("mnist-mlr-fedavg-")
    run_one(job, quiet)
    assert read(job).work == job.cell.work and read(job).complete
    assert read(job).work["lr"] == 0.1 and read(job).work["data"] == "digits"
