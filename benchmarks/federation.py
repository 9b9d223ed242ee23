"""Seconds per round of a real federation on this machine, and the server's memory, beside plain Flower.

Both are counted from the end of one round to the end of the next, the first left out, and the median is given.

    scripts/test-federation --version   # makes .venv-federation
    .venv-federation/bin/python benchmarks/federation.py --megabytes 1 50 --flower

Ours: `fedtailor serve` and three `fedtailor join`, over TLS with keys. Theirs: `flower-superlink` as for deployment
(TLS, SuperNode authentication, a database on disk), three `flower-supernode`, and `flwr run` with their FedAvg, which
sends and averages one array of the same size. Nothing worth naming is trained: what is measured is the way there and
back.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deploy"))

import plain_flower
import real

ROUNDS = 5


def memory_of(process: int) -> int:
    """The most memory that a process has had, in bytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def ours(megabytes: float, tensors: int = 1, rounds: int = ROUNDS) -> tuple[float, dict[str, float]]:
    """The median seconds of a round, and the most megabytes of each of the server's processes."""
    with tempfile.TemporaryDirectory() as base:
        model = f"parts(megabytes={megabytes}, tensors={tensors})"
        run = {"model": model, "rounds": rounds + 1, "batch": 64, "eval_every": 99}
        folder = real.make(Path(base) / "server", run=run, deadline=600.0)
        with real.processes(folder) as processes:
            processes.serve()
            for site in real.SITES:
                processes.join(site)
            peak = dict.fromkeys(("serve", "link", "loop"), 0)
            while processes.running["serve"].poll() is None:
                for part in peak:
                    with contextlib.suppress(LookupError, OSError):
                        number = processes.running["serve"].pid if part == "serve" else processes.part(part)
                        peak[part] = max(peak[part], memory_of(number))
                time.sleep(0.2)
            assert processes.running["serve"].returncode == 0, processes.said("serve")
        ends = [event["time"] for event in real.events(folder) if event["event"].startswith("round ")]
        seconds = statistics.median(after - before for before, after in itertools.pairwise(ends))
        return seconds, {part: size / 1e6 for part, size in peak.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1.0, 50.0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tensors", type=int, default=1)
    parser.add_argument("--flower", action="store_true", help="measure plain Flower too")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(time.strftime("%Y-%m-%d %H:%M"), f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    for megabytes in chosen.megabytes:
        seconds, peak = ours(megabytes, chosen.tensors, chosen.rounds)
        sizes = ", ".join(f"{part} {size:.0f} MB" for part, size in peak.items())
        many = f" in {chosen.tensors} tensors" if chosen.tensors > 1 else ""
        print(f"fedtailor  {megabytes:6.0f} MB{many}  {seconds:6.2f} s a round; most memory: {sizes}", flush=True)
        if chosen.flower:
            seconds = plain_flower.seconds_per_round(megabytes, chosen.rounds)
            print(f"flwr       {megabytes:6.0f} MB  {seconds:6.2f} s a round", flush=True)


if __name__ == "__main__":
    main()
