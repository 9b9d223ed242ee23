"""The round loop of a federation: the simulator's, over a link; killed at any moment, it goes on where it was."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtailor.deploy.coordinator import Coordinator
from fedtailor.deploy.envelope import Numbers
from fedtailor.deploy.folder import Folder
from fedtailor.deploy.link import Link
from fedtailor.deploy.mail import Events, Mail, Stopped
from fedtailor.driver import Callback, Driver
from fedtailor.record import Row, RunFolder, to_json, write_atomically
from fedtailor.registry import WrongInput
from fedtailor.rounds import Run, go_on, restore


class Status(Callback):
    """Writes where the federation stands, and ends it after a round when asked to."""

    def __init__(self, folder: Folder, mail: Mail):
        self.folder, self.mail = folder, mail

    def on_start(self, driver: Driver) -> None:
        self.write(driver, "running", None)

    def on_round(self, driver: Driver, row: Row) -> None:
        gc.collect()  # a letter that is left in a cycle is as large as a model
        self.write(driver, "running", row)
        self.mail.events.note(f"round {driver.round} of {driver.spec.rounds}", reason=said(driver, row))
        if self.mail.stop():
            raise Stopped

    def on_end(self, driver: Driver, row: Row) -> None:
        self.write(driver, "complete", row)
        self.mail.events.note("complete", reason=said(driver, row))

    def write(self, driver: Driver, status: str, row: Row | None) -> None:
        metric = driver.task.primary
        tests: dict[str, Any] = (row or {}).get("test") or {}
        facts = {
            "time": time.time(), "process": os.getpid(), "status": status, "round": driver.round,
            "rounds": driver.spec.rounds, "method": repr(driver.spec.method), "metric": metric,
            "sites": {
                name: {
                    "took_part": row is not None and row["steps"][i] > 0,
                    metric: tests.get(metric, [None] * (i + 1))[i],
                    "down": sum(r["down"][i] for r in driver.rows), "up": sum(r["up"][i] for r in driver.rows),
                }
                for i, name in enumerate(self.mail.names)
            },
        }  # fmt: skip
        write_atomically(self.folder.path / "status.json", to_json(facts, indent=1))


def said(driver: Driver, row: Row) -> str:
    """A round in a few words."""
    metric = driver.task.primary
    values = [v for v in ((row["test"] or {}).get(metric) or []) if v is not None]
    mean = f"mean {metric} {sum(values) / len(values):.4f}, " if values else ""
    took_part = sum(steps > 0 for steps in row["steps"])
    who = "" if row.get("finish") else f"{took_part} of {len(row['trainers'])} sites, "
    return f"{mean}{who}{row['seconds']['total']:.1f} s"


def run(folder: Folder, link: Link, say: Callable[[str], None]) -> Run:
    """Carry a federation through to its end, from its last checkpoint where there is one."""
    stop = folder.path / "stop"
    sites = folder.sites()
    chosen = folder.settings
    if not sites:
        raise WrongInput(f"nobody was invited yet; `fedtailor federation invite {folder.path} NAME` makes a bundle")
    if chosen.quorum > len(sites):
        raise WrongInput(f"quorum = {chosen.quorum} and {len(sites)} sites are invited; invite more, or lower it")
    mail = Mail(
        link, chosen, [site.name for site in sites], [site.group for site in sites], folder.seal_of,
        Numbers(folder.path / "numbers.json"), Events(folder.path / "events.jsonl", say), stop.exists,
    )  # fmt: skip
    spec = chosen.spec()
    mail.wait(mail.names, chosen.quorum, chosen.patience)
    driver = Coordinator(spec, mail, folder.path / "rows.json")
    path = folder.path / "run"
    if (path / "run.json").exists():
        record = RunFolder.open(path)
        check_same(driver, record.info(), path)
        restore(driver, record)
        record.note(status="running", spec=spec.to_dict(), plan=dict(driver.runner.plan()))
        mail.events.note("going on", reason=f"after round {driver.round} of {spec.rounds}")
    else:
        record = RunFolder.create(path, driver.info())
    return go_on(driver, record, [Status(folder, mail)])


def check_same(driver: Driver, info: dict[str, Any], path: Path) -> None:
    """That a record is of this federation's settings; only the number of rounds may have changed."""
    now = driver.spec.to_dict()
    odd = [key for key in now if key != "rounds" and now[key] != info["spec"].get(key)]
    if odd or info["data"]["clients"] != list(driver.federation.clients):
        what = odd[0] if odd else "sites"
        raise WrongInput(
            f"federation.toml has another {what} than the run in {path}; put it back, or move that folder away to "
            "start anew"
        )
    done = max((row["round"] for row in RunFolder(path).rows()), default=0)
    if driver.spec.rounds < done:
        raise WrongInput(f"{path} has {done} rounds already; set rounds in federation.toml to {done} or more")
