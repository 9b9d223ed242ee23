"""Running the cells of a table: each an ordinary run folder, in one process or several.

A cell that is complete is not run again; one that was killed goes on from its last checkpoint. Checkpoints of a
complete cell are removed: every number of a table is in the rows, and the models of a whole table would fill a disk.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType

import torch

from fedtailor import registry
from fedtailor.data import load
from fedtailor.data.federation import Federation
from fedtailor.driver import Callback, Diverged, Driver
from fedtailor.method import MethodNote
from fedtailor.papers.plan import Job
from fedtailor.papers.trajectory import Following, Plane
from fedtailor.record import Row, RunFolder
from fedtailor.registry import WrongInput
from fedtailor.rounds import federate, resume
from fedtailor.runners import Runner
from fedtailor.runners.sequential import Sequential
from fedtailor.spec import RunSpec

Told = Callable[[Job, int, int], None]  # rounds done, of how many
STOPPING = 30.0  # seconds that a process has to keep what it reached


class Rounds(Callback):
    """Tells of every round."""

    def __init__(self, job: Job, tell: Told):
        self.job, self.tell = job, tell

    def on_start(self, driver: Driver) -> None:
        self.tell(self.job, driver.round, driver.spec.rounds)

    def on_round(self, driver: Driver, row: Row) -> None:
        self.tell(self.job, driver.round, driver.spec.rounds)


@lru_cache(maxsize=1)  # cells of one problem follow each other
def federation_of(data: str, partition: str) -> Federation:
    return load(data, partition)


def is_complete(folder: Path) -> bool:
    if not (folder / "run.json").exists():
        return False
    rows = RunFolder.open(folder).rows()
    return bool(rows) and bool(rows[-1].get("finish"))


def run_one(job: Job, tell: Told) -> str:
    """Run a cell to its end; gives the reason where it cannot come there."""
    if is_complete(job.folder):
        return ""
    cell, problem = job.cell, job.cell.problem
    listeners: list[Callback] = [Rounds(job, tell)]
    runner: Runner | None = None
    if cell.follow is not None:
        runner = Following(Sequential(torch.get_num_threads()), cell.follow, job.folder)
        listeners.append(Plane(cell.follow, job.folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MethodNote)  # presets are meant as they stand, and say so themselves
            federation = federation_of(problem.data, problem.partition)
            if (job.folder / "run.json").exists():
                resume(job.folder, federation=federation, runner=runner, callbacks=listeners)
            else:
                method = registry.parse("method", cell.method)
                options = {**cell.settings, "model": problem.model or None, "seed": job.seed}
                spec = RunSpec.of(federation, method, **options)
                federate(spec, federation, runner=runner, out=job.folder, callbacks=listeners)
    except (Diverged, WrongInput) as error:
        return str(error)
    except Exception as error:
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return f"{type(error).__name__}: {error} (the traceback is in {job.folder})"
    for checkpoint in RunFolder(job.folder).checkpoints():
        checkpoint.unlink()
    return ""


def carry_out(jobs: Sequence[Job], processes: int, tell: Told, ended: Callable[[Job, str], None]) -> None:
    """Run all of them. `ended` is told of every one, with the reason where it failed."""
    if processes == 1 or len(jobs) < 2:
        for job in jobs:
            ended(job, run_one(job, tell))
        return
    crew = Crew(min(processes, len(jobs)))
    try:
        crew.work_off(jobs, tell, ended)
    except BaseException:
        crew.interrupt()
        raise
    finally:
        crew.dismiss()


# ---------- several processes ----------


class Crew:
    """Processes that each take the next cell. They are started anew, so that they share nothing with this one."""

    def __init__(self, count: int):
        context = multiprocessing.get_context("spawn")
        threads = max(1, (os.cpu_count() or 1) // count)
        self.members: dict[Connection, multiprocessing.process.BaseProcess] = {}
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # until a process is ready to take a Ctrl-C well
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, threads), daemon=True)
            process.start()
            theirs.close()
            self.members[ours] = process
        signal.signal(signal.SIGINT, before)

    def work_off(self, jobs: Sequence[Job], tell: Told, ended: Callable[[Job, str], None]) -> None:
        waiting, busy = list(jobs)[::-1], dict[Connection, Job]()
        for member in self.members:
            self.give(member, waiting, busy)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                member, job = ready, busy[ready]
                try:
                    answer = member.recv()
                except EOFError:
                    raise RuntimeError(f"the process that ran {job.title} has died; run it again") from None
                if isinstance(answer, tuple):
                    tell(job, *answer)
                    continue
                del busy[member]
                self.give(member, waiting, busy)  # before anything is told: telling may take a while
                ended(job, answer)

    @staticmethod
    def give(member: Connection, waiting: list[Job], busy: dict[Connection, Job]) -> None:
        if waiting:
            busy[member] = waiting.pop()
            member.send(busy[member])

    def interrupt(self) -> None:
        """Each keeps what it reached. They may have had the Ctrl-C themselves already."""
        for process in self.members.values():
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGINT)

    def dismiss(self) -> None:
        for member, process in self.members.items():
            member.close()
            process.join(STOPPING)


def serve(orders: Connection, threads: int) -> None:
    """What a process of the crew does, until nobody asks any more."""
    signal.signal(signal.SIGINT, interrupted_once)
    sys.unraisablehook = lambda told: None  # an interrupt that comes while something is tidied away
    torch.set_num_threads(threads)
    try:
        while True:
            orders.send(run_one(orders.recv(), lambda job, done, of: orders.send((done, of))))
    except (KeyboardInterrupt, EOFError, OSError):
        sys.exit(0)


def interrupted_once(number: int, frame: FrameType | None) -> None:
    """A terminal's Ctrl-C comes to this process and, again, from the first one: the second must not stop the saving."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
