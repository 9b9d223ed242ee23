"""The settings of a run that are plain values: their types, and what each may be.

Kept apart from `RunSpec` so that the command line refuses a wrong one before PyTorch is imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from fedtailor import registry
from fedtailor.registry import WrongInput

HINTS: dict[str, Any] = {
    "rounds": int, "cohort": float | int, "epochs": int | None, "steps": int | None, "batch": int, "lr": float,
    "momentum": float, "weight_decay": float, "clip": float, "lr_decay": float, "eval_every": int,
    "finish_epochs": int | None,
    "seed": int, "device": str, "checkpoint_every": int,
    "weighting": Literal["auto", "size", "uniform"], "buffers": Literal["with_layer", "local"],
    "point": Literal["received", "trained", "adapted"] | None, "runner": Literal["auto", "sequential", "stacked"],
    "workers": int | None, "on_nan": Literal["stop", "drop"],
}  # fmt: skip

_LEAST = {
    "rounds": 1, "epochs": 1, "steps": 1, "batch": 0, "eval_every": 1, "checkpoint_every": 1, "finish_epochs": 0,
    "workers": 1,
}  # fmt: skip


def check_settings(settings: Mapping[str, Any]) -> None:
    """Each of its type, and possible; only those that are given."""
    for field, value in settings.items():
        if not registry.fits(value, HINTS[field]):
            raise WrongInput(f"{field}={value!r} is not {registry.spell(HINTS[field])}")
    given = {field: value for field, value in settings.items() if value is not None}
    if isinstance(given.get("cohort"), float):
        check(given, "cohort", 0 < given["cohort"] <= 1, "a share above 0 and up to 1, or a number of clients")
    elif "cohort" in given:
        check(given, "cohort", given["cohort"] >= 1, "1 client or more, or a share such as 0.5")
    for field, least in _LEAST.items():
        check(given, field, given.get(field, least) >= least, f"{least} or more")
    if "epochs" in given and "steps" in given:
        raise WrongInput(
            f"epochs={given['epochs']} and steps={given['steps']} are both given; local work is counted in one of them"
        )
    check(given, "lr", 0 < given.get("lr", 1) < math.inf, "a number above 0")
    check(given, "lr_decay", 0 < given.get("lr_decay", 1) <= 1, "above 0 and up to 1")
    check(given, "momentum", 0 <= given.get("momentum", 0) < 1, "0 or more and below 1")
    for field in ("weight_decay", "clip"):
        check(given, field, 0 <= given.get(field, 0) < math.inf, "0 or more")


def check(given: Mapping[str, Any], field: str, holds: bool, allowed: str) -> None:
    if not holds:
        raise WrongInput(f"{field}={given[field]} is not possible; it must be {allowed}")
