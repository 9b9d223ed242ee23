"""`fedtailor serve`: two processes, the link and the round loop, kept alive until the federation is complete.

They are apart so that neither takes the other along. Each ends by itself when this one is gone, and holds a lock, so
that a server that is started again waits for what is left of the one before.

Run as `python -m fedtailor.deploy.serve PART FOLDER PARENT`, this is one of the two: no secret is on its command line.
Only the round loop imports PyTorch.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedtailor.deploy.folder import Folder
from fedtailor.deploy.lock import held
from fedtailor.registry import WrongInput, load_plugin

LONGEST_BREAK = 30.0  # seconds between two tries to start a part
STEADY = 60.0  # seconds after which a part counts as having worked
DONE, FAILED, WRONG, STOPPED = 0, 1, 2, 3  # exit codes of the round loop
LARGEST_LOG = 10 << 20  # bytes
# What is large goes back to the system at once: glibc would keep pieces of letters, for each thread its own.
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_ARENA_MAX": "2"}


def serve(path: Path, say: Callable[[str], None]) -> int:
    """Carry a federation through to its end; gives the exit code."""
    folder = Folder(path)
    (path / "stop").unlink(missing_ok=True)
    with held(path / "serve.lock", f"the federation in {path}"):
        with held(path / "link.lock", "", wait=True), held(path / "loop.lock", "", wait=True):
            shutil.rmtree(path / "link", ignore_errors=True)  # sites are known by our own names and keys
        (path / "link").mkdir(mode=0o700)
        chosen = folder.settings
        say(f"serving {chosen.name} on port {chosen.port}, for sites to find at {chosen.host}")
        parts = [Part("link", path, say), Part("loop", path, say)]
        try:
            while True:
                codes = [part.watch() for part in parts]
                if codes[1] is not None and codes[1] in (DONE, WRONG, STOPPED):
                    return codes[1] if codes[1] != STOPPED else DONE
                if codes[0] == WRONG:
                    return WRONG
                time.sleep(0.1)
        finally:
            for part in reversed(parts):
                part.end()
            (path / "online.json").unlink(missing_ok=True)  # nobody is, any more


@dataclass
class Part:
    """A process that is started again when it ends, after breaks that grow while it does not last."""

    name: str
    path: Path
    say: Callable[[str], None]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    fails: int = 0
    not_before: float = 0.0

    def watch(self) -> int | None:
        """Keep it running; gives the exit code when it has just ended."""
        now = time.monotonic()
        if self.process is None:
            if now >= self.not_before:
                self.start()
            return None
        code = self.process.poll()
        if code is None:
            return None
        self.process = None
        self.fails = 0 if now - self.started > STEADY or code == DONE else self.fails + 1
        pause = min(LONGEST_BREAK, 0.5 * 2**self.fails) if self.fails else 0.0
        self.not_before = now + pause
        if code not in (DONE, STOPPED, WRONG):
            why = "" if self.name == "loop" else f", {self.log} says why"  # the loop says it here
            self.say(f"the {self.name} ended with code {code}{why}; starting it again")
        return code

    @property
    def log(self) -> Path:
        return self.path / "logs" / f"{self.name}.log"

    def start(self) -> None:
        log = self.log
        log.parent.mkdir(mode=0o700, exist_ok=True)
        if log.exists() and log.stat().st_size > LARGEST_LOG:
            os.replace(log, log.with_suffix(".log.1"))
        command = [sys.executable, "-m", "fedtailor.deploy.serve", self.name, str(self.path), str(os.getpid())]
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=None if self.name == "loop" else file,
                env={**MEMORY, **os.environ},
            )  # fmt: skip
        self.started = time.monotonic()

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.process.kill()
            self.process.wait()


def main(part: str, path: Path, parent: int) -> int:
    """One of the two processes; `parent` is told, for it may be gone before this one has begun."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    os.umask(0o077)
    with held(path / f"{part}.lock", "", wait=True):
        try:
            folder = Folder(path)
            return {"link": link, "loop": loop}[part](folder)
        except KeyboardInterrupt:  # or asked to stop
            return STOPPED
        except WrongInput as error:
            print(f"error: {error}", file=sys.stderr)
            return WRONG
        except Exception:
            traceback.print_exc()
            return FAILED


def link(folder: Folder) -> int:
    from fedtailor.deploy.flower_routes import serve_routes

    chosen, keys = folder.settings, folder.path / "keys"
    collect_often()
    serve_routes(
        folder.path / "link" / "link.db", chosen.listen or chosen.host, chosen.port, keys / "server.crt",
        keys / "server.key", folder.known, chosen.largest_letter, folder.tell_online,
    )  # fmt: skip
    return DONE


def loop(folder: Folder) -> int:
    import fedtailor.data
    import fedtailor.methods
    import fedtailor.nn  # noqa: F401 - what is registered here comes first
    from fedtailor.deploy.flower_server import FlowerLink
    from fedtailor.deploy.round_loop import run

    for plugin in folder.settings.plugin:
        load_plugin(Path(plugin))
    collect_often()
    run(
        folder, FlowerLink(folder.path / "link" / "link.db", folder.known, folder.settings.largest_letter),
        lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    return DONE


def collect_often() -> None:
    """The database's sessions are cycles, and each holds a piece of a letter until it is found; what is here stays."""
    gc.freeze()
    gc.collect()
    gc.set_threshold(100, 5, 5)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
