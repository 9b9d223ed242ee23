"""Run folders as a run would write them, with numbers that are drawn here: `make_run` and `make_comparison`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODEL_BYTES = 178_000
LEVELS = {"Local": 0.74, "FedAvg": 0.77, "FedBN": 0.87, "Ditto": 0.84, "Centralised": 0.9}  # others 0.8
DOMAINS = ("plain", "inverted", "rotated", "textured", "noisy", "strokes")

Make = Callable[..., Path]


def data_block(clients: int, classes: int = 10, domains: tuple[str, ...] = DOMAINS, **changes: Any) -> dict[str, Any]:
    draw = np.random.default_rng(clients)
    counts = draw.multinomial(40, draw.dirichlet(np.full(classes, 0.7), size=clients))
    groups = sorted(i % len(domains) for i in range(clients))
    return {
        "source": f"digits | domain(sites={clients}) | seed=0",
        "name": "digits",
        "fingerprint": f"f00d{clients:012d}",
        "clients": [f"{domains[g]}-{i}" for i, g in enumerate(groups)],
        "groups": groups,
        "group_names": list(domains),
        "classes": [str(c) for c in range(classes)],
        "sizes": counts.sum(1).tolist(),
        "validation_sizes": [10] * clients,
        "test_sizes": (50 + 10 * np.arange(clients) % 70).tolist(),
        "label_counts": counts.tolist(),
        "task": "classification",
        **changes,
    }


def info_of(method: str, seed: int, data: dict[str, Any], **changes: Any) -> dict[str, Any]:
    rounds = changes.pop("rounds", 12)
    spec = {
        "method": method, "model": "lenet_bn", "rounds": rounds, "cohort": 1.0, "epochs": 1, "steps": None, "batch": 16,
        "lr": 0.05, "momentum": 0.0, "weight_decay": 0.0, "clip": 0.0, "lr_decay": 1.0, "weighting": "auto",
        "buffers": "with_layer", "point": None, "eval_every": 1, "finish_epochs": 0, "seed": seed, "device": "cpu",
        "runner": "auto", "on_nan": "stop", "checkpoint_every": 10, **changes.pop("spec", {}),
    }  # fmt: skip
    return {
        "format": 1, "fedtailor": "0.1.0", "torch": "2.10", "numpy": "2.0", "python": "3.11.2", "method": method,
        "point": "received", "spec": spec, "data": data, "model": "lenet_bn",
        "status": "complete", "plan": {"runner": "sequential", "threads": 1},
        "parameters": {"total": 44_426, "shared": 44_000, "personal": 426},
        "command": f"fedtailor run --data digits --method '{method}' --seed {seed}", "started": "2025-01-01T12:00:00",
        "primary": "accuracy", "higher_is_better": True, "sees": "sums",
        "citation": f"@inproceedings{{{method.split('(')[0].lower()},\n  title = {{{method}}},\n"
                    f"  url = {{https://example.org/paper}},\n}}",
        **changes,
    }  # fmt: skip


def rows_of(info: dict[str, Any]) -> list[dict[str, Any]]:
    """Curves that rise to the method's level, above or below it by client, with noise by method and seed."""
    data, spec = info["data"], info["spec"]
    n, rounds, name = len(data["clients"]), spec["rounds"], info["method"].split("(")[0]
    draw = np.random.default_rng([spec["seed"], *name.encode()])
    level = LEVELS.get(name, 0.8) + np.random.default_rng(3).normal(0, 0.05, n) + draw.normal(0, 0.02, n)
    moved = 0 if name == "Local" else MODEL_BYTES

    def tested(share: float) -> dict[str, Any]:
        right = np.round(np.clip(level * share + draw.normal(0, 0.01, n), 0, 1) * data["test_sizes"])
        accuracy = right / data["test_sizes"]
        return {"accuracy": accuracy.tolist(), "loss": (1.5 - accuracy).tolist(), "count": data["test_sizes"]}

    def row(number: int, share: float, **more: Any) -> dict[str, Any]:
        held = 1 if name == "Centralised" else n  # pooled data are one client's
        return {
            "round": number, "cohort": list(range(held)), "trainers": list(range(held)),
            "point": "trained" if name in ("Local", "Centralised") else "received", "test": tested(share),
            "validation": {**tested(share), "count": data["validation_sizes"]},
            "train_loss": (2.2 * np.exp(-4 * share) + draw.uniform(0, 0.1, held)).tolist(), "steps": [3] * held,
            "down": [moved] * held, "up": [moved] * held, "explain": {}, "stopped": [],
            "seconds": {"train": 0.4, "evaluate": 0.1, "total": 0.5}, **more,
        }  # fmt: skip

    found = [row(t, 1 - np.exp(-4 * t / rounds)) for t in range(1, rounds + 1)]
    return [*found, row(rounds, 1.0, finish=True, trainers=[], up=[0] * n, train_loss=[None] * n)]


def write_run(folder: Path, info: dict[str, Any], rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(info), encoding="utf-8")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture
def make_data() -> Callable[..., dict[str, Any]]:
    """`make_data(12, classes=10)` is the `data` block of a record."""
    return data_block


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """`make_run("FedBN()", seed=1, clients=12, rows=change, **changes of run.json)` writes a run folder."""

    def make(
        method: str = "FedBN()",
        seed: int = 0,
        clients: int = 12,
        name: str = "",
        rows: Any = None,
        **changes: Any,
    ) -> Path:
        info = info_of(method, seed, changes.pop("data", None) or data_block(clients), **changes)
        written = rows_of(info)
        return write_run(
            tmp_path / (name or f"{method.split('(')[0]}-{seed}"), info, rows(written) if rows else written
        )

    return make


@pytest.fixture
def make_comparison(tmp_path: Path) -> Make:
    """`make_comparison(["FedBN()", "Local()"], seeds=3)` writes a comparison folder."""
    return lambda methods, **options: write_comparison(tmp_path / "comparison", methods, **options)


@pytest.fixture(scope="module")
def usual_comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods and Local under two seeds, for tests that only read it."""
    methods = ["FedBN()", "FedAvg()", "Ditto(lam=1.0)", "Local()"]
    return write_comparison(tmp_path_factory.mktemp("usual") / "comparison", methods)


def write_comparison(
    folder: Path, methods: list[str], seeds: int = 2, data: dict[str, Any] | None = None, **changes: Any
) -> Path:
    runs = []
    for method in methods:
        for seed in range(seeds):
            label = method.removesuffix("()")
            path = f"{''.join(c if c.isalnum() else '-' for c in label.lower())}/seed-{seed}"
            info = info_of(method, seed, data or data_block(12), **dict(changes))
            write_run(folder / path, info, rows_of(info))
            runs.append({"path": path, "method": method, "label": label, "seed": seed})
    command = f"fedtailor compare --data digits {' '.join(f'--method {m!r}' for m in methods)} --seeds {seeds}"
    (folder / "comparison.json").write_text(
        json.dumps({"format": 1, "command": command, "runs": runs}), encoding="utf-8"
    )
    return folder
