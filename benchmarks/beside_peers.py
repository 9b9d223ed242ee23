"""How fast is this package beside other software for federated learning?

    python benchmarks/beside_peers.py [--quick] [--again] [--cache FOLDER] [PIECE ...]

fluke (`fluke-fl`) and pfl are installed by pip, each in an environment of its own in the cache folder; where one cannot
be, the rest is measured. PFLlib cannot be installed by pip and is not measured. Beside them stand a loop in plain
torch, loops written by hand for some of the networks, and the fastest matrix product of this machine.

All train the same networks on the same rows in the same batches, each in a process of its own that does a few rounds
when it is its turn, on one core and thread each and again with its default threads; and again with its own evaluation
after every round. Before that, one round of all is compared.

It takes about ten minutes and goes on where it was interrupted: what was measured of this very code is kept in the
cache folder. `--again` measures it anew, `--quick` once and too briefly to be of use, to see that all works.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers.environments import PEERS, NotInstalled, python_of
from peers.line import Failed
from peers.measure import Differs, Effort, Entrant, measured
from peers.table import document
from peers.workloads import TESTED, WORKLOADS, Workload, origin

import fedtailor

USUAL = Effort(least=5, most=25, seconds=12.0)
QUICK = Effort(least=1, most=1, seconds=0.0)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedtailor" / "peers"
METHODS = "methods"


@dataclass(frozen=True)
class Piece:
    """What is measured in one go: a workload in one mode, or methods beside FedAvg on it."""

    workload: Workload
    mode: str

    @property
    def title(self) -> str:
        return f"{self.workload.name}, {self.mode}"

    def entrants(self, pythons: Mapping[str, Path]) -> list[Entrant]:
        here = Path(sys.executable)
        ours = Entrant("ours", here)
        if self.mode == METHODS:
            return [ours, *(Entrant("ours", here, method) for method in self.workload.dearer)]
        beside = [Entrant(peer, pythons[peer]) for peer in self.workload.beside if peer in pythons]
        if self.mode == TESTED:
            return [ours, *beside]
        by_hand = [Entrant("by_hand", here)] if (self.mode, "by_hand") in self.workload.targets else []
        return [ours, Entrant("plain", here), *by_hand, *beside, Entrant("peak", here)]


PIECES = [Piece(one, mode) for one in WORKLOADS for mode in one.modes]
PIECES += [Piece(one, METHODS) for one in WORKLOADS if one.dearer]


def code() -> str:
    """Changes with the source of this package and of this measurement."""
    digest = hashlib.sha256()
    folders = (Path(fedtailor.__file__).parent, Path(__file__).parent / "peers")
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    digest.update(version("torch").encode())
    return digest.hexdigest()[:12]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def installed(asked: Sequence[Piece], cache: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """The interpreters of the software that is there, and why the rest is not."""
    pythons, missing = {}, {"PFLlib": "pip cannot install it"}
    for peer in PEERS:
        if any(peer in piece.workload.beside and piece.mode != METHODS for piece in asked):
            try:
                pythons[peer] = python_of(peer, cache)
            except NotInstalled as error:
                missing[peer] = str(error)
                say(f"{error}. Going on without it.")
    return pythons, missing


def machine(command: str) -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = (line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line)
        model = next(names, model)
    return {
        "machine": f"{os.cpu_count()} cores of {model}", "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(), "load": round(os.getloadavg()[0], 1), "command": command,
    }  # fmt: skip


def before(kept: Path, piece: Piece, entrants: Sequence[Entrant]) -> dict[str, Any] | None:
    """What was measured of the same entrants on the same data."""
    if not kept.is_file():
        return None
    done: dict[str, Any] = json.loads(kept.read_text())
    same = set(done["entrants"]) == {one.name for one in entrants} and done["data"] == origin(piece.workload)
    return done if same else None


def without_the_failing(
    piece: Piece, entrants: Sequence[Entrant], effort: Effort, cache: Path
) -> tuple[dict[str, Any] | None, int]:
    """A piece, without the other software that failed at it; and how many failures there were."""
    try:
        return measured(piece.workload, piece.mode, entrants, effort, cache), 0
    except Failed as error:
        if error.adapter not in PEERS:
            say(f"    not measured: {error}")
            return None, 1
        say(f"    {error}. Going on without it.")
        rest = [one for one in entrants if one.adapter != error.adapter]
        done, failures = without_the_failing(piece, rest, effort, cache)
        return done, failures + 1
    except Differs as error:
        say(f"    not measured: {error}")
        return None, 1


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help="such as W1, or 'W1 MLR, one core'; all without any")
    parser.add_argument("--quick", action="store_true", help="a single repetition, to see that all works")
    parser.add_argument("--again", action="store_true", help="measure what was measured already")
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="FOLDER", help=f"default: {CACHE}")
    options = parser.parse_args(arguments)
    cache = options.cache.resolve()
    asked = [piece for piece in PIECES if piece.title.startswith(tuple(options.pieces or [""]))]
    if not asked:
        parser.error(f"no such piece; there are {'; '.join(piece.title for piece in PIECES)}")
    results = cache / "results" / f"{code()}{'-quick' if options.quick else ''}"
    results.mkdir(parents=True, exist_ok=True)
    pythons, missing = installed(asked, cache)
    found, failures = [], 0
    for number, piece in enumerate(asked, 1):
        say(f"{number} of {len(asked)}: {piece.title}")
        entrants = piece.entrants(pythons)
        kept = results / f"{piece.title}.json"
        if (done := before(kept, piece, entrants)) is not None and not options.again:
            say(f"    kept from {done['date']}")
            found.append(done)
            continue
        done, failed = without_the_failing(piece, entrants, QUICK if options.quick else USUAL, cache)
        failures += failed
        if done is None:
            continue
        kept.write_text(json.dumps(done))
        say(f"    {len(done['entrants']['ours']['passed'])} repetitions, {done['seconds']:.0f} s")
        found.append(done)
    about = machine(shlex.join(["python", "benchmarks/beside_peers.py", *arguments]))
    text = document(found, about, missing)
    (results / "beside_peers.md").write_text(text)
    (results / "beside_peers.json").write_text(json.dumps({**about, "missing": missing, "pieces": found}, indent=1))
    print(text)
    say(f"Both tables are in {results} (beside_peers.md, beside_peers.json)")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        say("Interrupted; the same command goes on from here.")
        sys.exit(130)
