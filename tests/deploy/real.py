"""Federations of real processes on the loopback, and the simulations they must equal."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedtailor import Driver, Federation, load, registry, tree
from fedtailor.deploy.demo import free_port
from fedtailor.deploy.folder import Folder
from fedtailor.deploy.settings import Form, Settings
from fedtailor.deploy.store import Store
from fedtailor.record import RunFolder
from fedtailor.runners.sequential import Sequential
from fedtailor.tree import leaves

HERE = Path(__file__).parent
PLUGIN = HERE / "plugin_paused.py"
SITES = ("plain-1", "inverted-1", "noisy-1")
PATIENCE = 240.0  # seconds until something that must happen counts as not happening


def three_sites(sites: Sequence[str] = SITES) -> Federation:
    """The sites under test, as a simulation has them."""
    whole = load("digits")
    chosen = [whole.clients.index(site) for site in sites]
    lists = {part: tuple(getattr(whole, part)[i] for i in chosen) for part in ("train", "validation", "test")}
    return replace(whole, clients=tuple(sites), groups=(0,) * len(sites), group_names=("all",), **lists)


def simulated(folder: Folder) -> Driver:
    """The run that a federation's settings ask for, one client after the other, with its finish row."""
    driver = Driver(folder.settings.spec(), three_sites([site.name for site in folder.sites()]), Sequential(1))
    for _ in range(driver.spec.rounds):
        driver.step()
    driver.finish()
    return driver


def make(path: Path, sites: Sequence[str] = SITES, run: dict[str, Any] | None = None, **options: Any) -> Folder:
    """A federation's folder, with a bundle for each site beside it."""
    registry.load_plugin(PLUGIN)
    like = load("digits")
    settings = {"method": "FedAvg()", "model": "paused_lenet", "rounds": 3, "epochs": 1, "batch": 16, "lr": 0.05}
    chosen = Settings(
        name="test", id="", host="127.0.0.1", port=free_port(), form=Form.of(like), run={**settings, **(run or {})},
        plugin=(PLUGIN.name,), **{"quorum": len(sites), "patience": 60.0, "deadline": 60.0, **options},
    )  # fmt: skip
    folder = Folder.create(path, chosen, None, 30)
    shutil.copy(PLUGIN, path)
    for site in sites:
        folder.invite(site).write(path.parent / f"{site}.bundle")
    return Folder(path)


@dataclass
class Processes:
    """Processes of one federation, each with what it says in a file; all of them end with the test."""

    folder: Folder
    pause: float = 0.0
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def base(self) -> Path:
        return self.folder.path.parent

    def start(self, name: str, *command: str, **environment: str) -> None:
        settings = self.folder.settings
        known = {
            "OMP_NUM_THREADS": "1", "FEDTAILOR_PAUSE": str(self.pause), "PYTHONUNBUFFERED": "1",
            "FEDTAILOR_ALLOWED": f"127.0.0.1:{settings.port}", "FEDTAILOR_NOTED": str(self.base / "noted"),
            "PYTHONPATH": os.pathsep.join([str(HERE / "guard"), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        with open(self.base / f"{name}.out", "ab") as out:
            self.running[name] = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env={**os.environ, **known, **environment},
            )  # fmt: skip

    def serve(self) -> None:
        self.start("serve", "-m", "fedtailor", "serve", str(self.folder.path))

    def join(self, site: str, bundle: Path | None = None, name: str = "", **environment: str) -> None:
        bundle = bundle or self.base / f"{site}.bundle"
        state = self.base / f"{name or site}-state"
        self.start(
            name or site, "-m", "fedtailor", "join", str(bundle), "--data", "digits", "--client", site, "--state",
            str(state), "--plugin", str(PLUGIN), "--threads", "1", **environment,
        )  # fmt: skip

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running.pop(name).wait()

    def part(self, name: str) -> int:
        """The process number of the link or of the round loop."""
        parent = self.running["serve"].pid
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if int(fields[1]) == parent and command[3].decode() == name:
                    return int(entry.name)
        raise LookupError(name)

    def said(self, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.base / f"{name}.out").read_text(errors="replace")
        return ""

    def round(self) -> int:
        return int(self.folder.status().get("round", 0))

    def wait(self, what: Callable[[], Any], why: str, patience: float = PATIENCE) -> None:
        end = time.monotonic() + patience
        while not what():
            assert time.monotonic() < end, f"waited for {why}\n" + "\n".join(
                f"--- {name}\n{self.said(name)[-1500:]}" for name in ["serve", *SITES]
            )
            time.sleep(0.05)

    def wait_for_round(self, round: int) -> None:
        self.wait(lambda: self.round() >= round, f"round {round}")

    def wait_for_word(self, name: str, word: str) -> None:
        self.wait(lambda: word in self.said(name), f"{name} to say {word!r}")

    def complete(self) -> None:
        self.wait(lambda: self.running["serve"].poll() is not None, "the end")
        assert self.running["serve"].returncode == 0, self.said("serve")

    def end(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
            process.wait()


@contextlib.contextmanager
def processes(folder: Folder, pause: float = 0.0) -> Iterator[Processes]:
    started = Processes(folder, pause)
    try:
        yield started
    finally:
        started.end()


def events(folder: Folder) -> list[dict[str, Any]]:
    path = folder.path / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_equal(folder: Folder, driver: Driver, states: Path | None = None) -> None:
    """The server's last tensors, every site's last state and its final model are the simulation's, bit for bit."""
    round, state, _ = RunFolder(folder.path / "run").load()
    assert round == driver.round
    same(state["server"], driver.server)
    delivery = driver.last_delivery()
    for i, site in enumerate(driver.data.clients):
        store = Store((states or folder.path.parent) / f"{site}-state", folder.settings.id)
        same(store.load(int(state["clients"][f"{i:05d}"]["round"])), driver.kept[i])
        same(store.load_final(), driver.final(i, delivery))
    rows = RunFolder(folder.path / "run").rows()
    assert [plain(row) for row in rows] == [plain(row) for row in driver.rows]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row but for the time, and for what sites explain, which they keep for themselves here."""
    return {key: value for key, value in row.items() if key not in ("seconds", "explain")}


def same(one: Any, other: Any) -> None:
    one, other = list(leaves(one)), list(leaves(other))
    assert [path for path, _ in one] == [path for path, _ in other]
    for (path, a), (_, b) in zip(one, other, strict=True):
        assert (a is None) == (b is None), path
        assert a is None or (a.dtype is b.dtype and tree.raw(a) == tree.raw(b)), path
