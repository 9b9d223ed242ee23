"""An environment of its own for each software that pip can install, in the cache folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """What is installed as it is, and what it needs here of all that it asks for; the adapter puts empty modules in the
    place of the rest."""

    package: str
    needs: tuple[str, ...]


PEERS = {
    "fluke": Peer(
        "fluke-fl==0.8.1",
        ("numpy", "pandas", "scikit-learn", "rich", "diskcache", "omegaconf", "torchmetrics", "psutil"),
    ),
    "pfl": Peer("pfl==0.6.0", ("numpy", "scipy", "packaging", "multiprocess")),
}


class NotInstalled(RuntimeError):
    """pip could not install it here."""


def python_of(name: str, cache: Path) -> Path:
    """The interpreter that can import this software, which is installed if it was not; with the torch that we have."""
    if name not in PEERS:
        return Path(sys.executable)
    peer, folder = PEERS[name], cache / "environments" / name
    wanted = [f"torch=={version('torch').split('+')[0]}", *peer.needs]
    stamp, state = folder / "installed", " ".join([*wanted, peer.package, sys.version.split()[0]])
    python = folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == state:
        return python
    print(f"Installing {peer.package} in an environment of its own, once; this takes minutes ...", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], peer)
    run([*pip, *wanted], peer)
    run([*pip, "--no-deps", peer.package], peer)
    stamp.write_text(state)
    return python


def run(command: list[str], peer: Peer) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise NotInstalled(f"{peer.package} cannot be installed: {said[-1] if said else 'pip says nothing'}")
