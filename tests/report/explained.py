"""Records with something learned in them: what clients and the server showed, put into the rows of a made-up run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.report.learned.lessons import Learned, learned_by
from fedtailor.report.read import read

Rows = list[dict[str, Any]]
Shown = Mapping[str, Any]


def showing(
    clients: Callable[[int, int], Shown] | None = None, server: Callable[[int], Shown] | None = None,
    cohort: Callable[[int, int], bool] = lambda client, round: True, tested: Callable[[int], bool] = lambda round: True,
) -> Callable[[Rows], Rows]:
    """Changes rows so that client i showed clients(i, round) and the server server(round) in each tested round."""

    def change(rows: Rows) -> Rows:
        for row in rows:
            n, t = len(row["train_loss"]), row["round"]
            if row.get("finish"):
                continue
            if not tested(t):
                row["test"] = row["validation"] = None
                continue
            of_clients = {str(i): clients(i, t) for i in range(n) if clients and cohort(i, t)}
            of_clients = {i: found for i, found in of_clients.items() if found}
            shown = {"clients": of_clients, "server": server(t) if server else {}}
            row["explain"] = {side: found for side, found in shown.items() if found}
        return rows

    return change


def one(folder: Path, round: int | None = None) -> Learned:
    [comparison] = read([folder])
    [found] = learned_by(comparison, round)
    return found


def matrix(n: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Rows of weights that sum to one."""
    draw = np.random.default_rng(seed).random((n, n)) ** 3
    return draw / draw.sum(1, keepdims=True)
