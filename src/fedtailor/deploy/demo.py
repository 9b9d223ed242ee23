"""A federation on one machine: a server and three sites as processes of their own, over TLS on the loopback."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedtailor.data import load
from fedtailor.deploy.folder import Folder
from fedtailor.deploy.settings import Form, Settings

SITES = ("plain-1", "inverted-1", "noisy-1")
ROUNDS = 12
LONGEST = 300.0  # seconds


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def set_up(path: Path, method: str) -> Folder:
    """A folder with keys, and a bundle for each site beside it."""
    like = load("digits")
    run = {"method": method, "model": like.model, "rounds": ROUNDS, "epochs": 4, "batch": 16, "lr": 0.05}
    chosen = Settings(
        name="demo", id="", host="127.0.0.1", port=free_port(), quorum=len(SITES), run=run,
        form=Form.of(like),
    )  # fmt: skip
    folder = Folder.create(path / "server", chosen, None, 30)
    for site in SITES:
        folder.invite(site).write(path / f"{site}.bundle")
    return folder


def carry_out(path: Path, say: Callable[[str], None]) -> int:
    """Server and sites until the end; gives the server's exit code."""
    end = time.monotonic() + LONGEST
    sites = [
        ["join", str(path / f"{site}.bundle"), "--data", "digits", "--state", str(path / f"{site}-state"),
         "--threads", "1"]
        for site in SITES
    ]  # fmt: skip
    with processes([["serve", str(path / "server")], *sites], path / "sites.log") as (server, *others):
        while server.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        for other in others:
            with contextlib.suppress(subprocess.TimeoutExpired):
                other.wait(15)
        code = server.poll()
    return 1 if code is None else code


@contextmanager
def processes(commands: Sequence[Sequence[str]], log: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Commands of fedtailor, the first on this terminal and the others into a file; ended at the end."""
    started: list[subprocess.Popen[bytes]] = []
    with open(log, "ab") as file:
        try:
            for command in commands:
                out = None if not started else file
                full = [sys.executable, "-m", "fedtailor", *command]
                started.append(subprocess.Popen(full, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
            yield started
        finally:
            for process in started:
                process.terminate()
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                process.wait()
