"""`federate` and `resume`: the loop over rounds, with its record; and `Run`, what it gives."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from fedtailor.arch import Arch
from fedtailor.data import again
from fedtailor.data.federation import Federation
from fedtailor.driver import Callback, Driver
from fedtailor.metrics import select, summarise
from fedtailor.nn import Model, make
from fedtailor.record import Row, RunFolder
from fedtailor.registry import WrongInput
from fedtailor.runners import Runner, planner
from fedtailor.runners.sequential import working
from fedtailor.spec import RunSpec


class Run:
    """A run that has ended, or as far as it got: its rows, its table, its models."""

    def __init__(self, driver: Driver, folder: RunFolder | None):
        self.driver, self.folder = driver, folder

    @property
    def spec(self) -> RunSpec:
        return self.driver.spec

    @property
    def rows(self) -> list[Row]:
        return self.driver.rows

    def table(self) -> str:
        """Accuracy (or the task's own measure) of each client's final model."""
        task = self.driver.task
        row = select(self.rows, "last", task.primary, task.higher_is_better)
        values, counts = row["test"][task.primary], row["test"]["count"]
        names = self.driver.federation.clients
        width = max(len(name) for name in names)
        lines = [
            f"{self.spec.method!r}: {task.primary} of the {row['point']} model on test rows, after round {row['round']}"
        ]
        lines += [
            f"  {name:<{width}}  {value:.4f}" for name, value in zip(names, values, strict=True) if value is not None
        ]
        s = summarise(values, counts, task.higher_is_better)
        lines.append(
            f"  mean over clients {s.macro:.4f}, over rows {s.micro:.4f}, worst {s.worst:.4f}, std {s.std:.4f}"
        )
        return "\n".join(lines)

    def model(self, client: int | str) -> nn.Module:
        """A client's final model, as an ordinary module in evaluation mode."""
        names = self.driver.federation.clients
        if isinstance(client, str) and client not in names:
            raise WrongInput(f"there is no client {client!r}; there are {', '.join(names)}")
        number = names.index(client) if isinstance(client, str) else client
        if not 0 <= number < len(names):
            raise WrongInput(f"there is no client {number}; they are numbered 0 to {len(names) - 1}")
        driver = self.driver
        values = driver.final(0 if driver.common.method.pools else number)
        fresh = make(
            self.spec.model or driver.federation.model, classes=driver.task.outputs(len(driver.federation.classes)),
            shape=tuple(driver.federation.x.shape[1:]), seed=self.spec.seed, words=driver.federation.words,
        )  # fmt: skip
        net = self.spec.method.build(fresh).to(self.spec.device)
        return Arch(net).module(values)


def federate(
    spec: RunSpec,
    federation: Federation,
    *,
    runner: Runner | None = None,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run a method on a federation; with `out`, keep a record there that can be resumed."""
    driver = Driver(spec, federation, runner)
    folder = RunFolder.create(Path(out), driver.info()) if out is not None else None
    return go_on(driver, folder, callbacks)


def resume(
    path: str | Path,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    rounds: int | None = None,
    runner: Runner | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Go on with a recorded run from its newest good checkpoint; with `rounds`, beyond the rounds it was made for.

    Data and model are made again from the record; a federation or a model of your own has to be given again.
    """
    folder = RunFolder.open(Path(path))
    info = folder.info()
    if federation is None:
        federation = again(info["data"]["source"])
    if info["data"]["fingerprint"] != federation.fingerprint():
        raise WrongInput(
            f"the data are not those of {path}: their fingerprint is {federation.fingerprint()}, that of the run "
            f"{info['data']['fingerprint']}; resume with the data the run began with"
        )
    spec = RunSpec.from_dict(info["spec"], model)
    if rounds is not None:
        done = max((row["round"] for row in folder.rows()), default=0)
        if rounds < done:
            raise WrongInput(f"{path} has {done} rounds already, so it cannot end at {rounds}; ask for {done} or more")
        spec = replace(spec, rounds=rounds)
    driver = Driver(spec, federation, runner or planner.again(info["plan"]))
    restore(driver, folder)
    folder.note(status="running", spec=spec.to_dict())
    return go_on(driver, folder, callbacks)


def restore(driver: Driver, folder: RunFolder) -> None:
    """Set a driver back to the newest good checkpoint of a record, and the record with it."""
    round, state, messages = folder.load()
    for message in messages:
        warnings.warn(message, stacklevel=3)
    folder.forget_after(round)
    if round:
        driver.restore(round, state, folder.rows())
        if [row["round"] for row in driver.rows] != list(range(1, round + 1)):
            raise WrongInput(
                f"{folder.path}/rows.jsonl lacks rows of rounds before its checkpoint of round {round}; restore the "
                "file, or start the run again in another folder"
            )
    folder.keep_rows(driver.rows)


def go_on(driver: Driver, folder: RunFolder | None, callbacks: Sequence[Callback] = ()) -> Run:
    """The rounds that are left, and the finish, on as many threads as its runner asks for."""
    with working(driver.runner.plan().get("threads", torch.get_num_threads())):
        return all_rounds(driver, folder, callbacks)


def all_rounds(driver: Driver, folder: RunFolder | None, callbacks: Sequence[Callback]) -> Run:
    driver.listeners = callbacks
    saved = driver.round
    status = "failed"
    for listener in callbacks:
        listener.on_start(driver)
    try:
        while driver.round < driver.spec.rounds:
            row = driver.step()
            if folder:
                folder.append(row)
                if driver.round % driver.spec.checkpoint_every == 0 or driver.round == driver.spec.rounds:
                    driver.save(folder)
                    saved = driver.round
            for listener in callbacks:
                listener.on_round(driver, row)
        row = driver.finish()
        if folder:
            folder.append(row)
        status = "complete"
        for listener in callbacks:
            listener.on_end(driver, row)
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        driver.runner.end()
        if folder:
            if driver.round > saved:
                folder.keep_rows(driver.rows)  # an interrupt may have come between a round and its row
                driver.save(folder)
            folder.note(status=status)
    return Run(driver, folder)
