"""Table 2 of FedMCSA on Synthetic(0.5, 0.5) with multinomial logistic regression, and Local beside it.

    python benchmarks/fedmcsa_synthetic.py OUT                 all runs, one after the other, and the table
    python benchmarks/fedmcsa_synthetic.py OUT fedavg moving   some of them

A run that was interrupted goes on from its last checkpoint; one that is complete is only read.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedtailor as ft
from fedtailor.data import natural
from fedtailor.method import MethodNote
from fedtailor.metrics import summarise

# FedMCSA's own settings: 20 steps of 20 rows, 800 rounds, weight decay but for FedAvg; a test every 20 rounds
COMMON = {"steps": 20, "batch": 20, "lr": 0.02, "rounds": 800, "weight_decay": 0.001, "eval_every": 20,
          "checkpoint_every": 20, "seed": 0, "model": "mlr"}  # fmt: skip
RUNS: dict[str, tuple[ft.Method, dict[str, Any]]] = {
    "fedavg": (ft.FedAvg(), {"weight_decay": 0.0}),
    "moving": (ft.FedMCSA(anchor="moving"), {}),
    "local": (ft.Local(), {"cohort": 1.0}),
    "sigma10": (ft.FedMCSA(anchor="moving", sigma=10.0), {}),
    "fixed": (ft.FedMCSA(anchor="fixed"), {}),
    "mean": (ft.FedMCSAWithoutAttention(anchor="moving"), {}),
}
PUBLISHED = {"fedavg": 77.26, "moving": 94.06, "fixed": 94.06, "mean": 76.35}


def run(name: str, federation: ft.Federation, settings: Mapping[str, Any], out: Path) -> None:
    """One run, from where it stopped."""
    folder = out / name
    began = time.perf_counter()
    if not (folder / "run.json").exists():
        method, own = RUNS[name]
        spec = ft.RunSpec.of(federation, method, **{**COMMON, **settings, **own})
        ft.federate(spec, federation, out=folder)
    elif json.loads((folder / "run.json").read_text())["status"] != "complete":
        ft.resume(folder, federation=federation)
    print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


def result(folder: Path) -> dict[str, Any]:
    """The best tested round by micro accuracy (all test rows count alike), and the last one."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    tested = [row for row in rows if row["test"] and not row.get("finish")]
    sums = [summarise(row["test"]["accuracy"], row["test"]["count"]) for row in tested]
    best = max(range(len(sums)), key=lambda i: sums[i].micro)
    about = json.loads((folder / "run.json").read_text())
    return {
        "method": about["method"], "weight_decay": about["spec"]["weight_decay"], "point": about["point"],
        "seed": about["spec"]["seed"], "rounds": tested[-1]["round"], "best_round": tested[best]["round"],
        "micro_best": sums[best].micro, "macro_at_best": sums[best].macro, "micro_last": sums[-1].micro,
        "macro_best": max(s.macro for s in sums), "fingerprint": about["data"]["fingerprint"],
    }  # fmt: skip


def table(out: Path, published: Mapping[str, float]) -> None:
    """Our column beside the paper's, and the same as `results.json` in `out`."""
    found = {name: result(out / name) for name in RUNS if (out / name / "rows.jsonl").exists()}
    (out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{'run':<10}{'published':>10}{'micro best':>12}{'in round':>10}{'macro then':>12}{'micro last':>12}")
    for name, r in found.items():
        paper = f"{published[name]:.2f}" if name in published else "-"
        print(f"{name:<10}{paper:>10}{100 * r['micro_best']:>12.2f}{r['best_round']:>10}"
              f"{100 * r['macro_at_best']:>12.2f}{100 * r['micro_last']:>12.2f}")  # fmt: skip


def main(federation: ft.Federation, settings: Mapping[str, Any], published: Mapping[str, float]) -> None:
    warnings.simplefilter("ignore", MethodNote)  # that the moving anchor makes lambda inert is what is shown here
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(RUNS)
    for name in names:
        run(name, federation, settings, out)
    table(out, published)


if __name__ == "__main__":
    main(ft.load("synthetic(alpha=0.5, beta=0.5)", natural(test=0.25, validation=0.0)), {"cohort": 20}, PUBLISHED)
