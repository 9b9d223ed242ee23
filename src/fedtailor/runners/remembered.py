"""Plans that were measured, remembered for the method, the model, the shapes and the machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtailor.method import Method, Wrapper
from fedtailor.site import Common

MOST = 500  # plans


def key_of(common: Common, sizes: Sequence[int], trainers: int, sample: Tensor, workers: int | None) -> str:
    """Equal for runs that a few steps would not tell apart."""
    model = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in common.arch.values().items()]
    modules = [type(module).__qualname__ for module in common.arch.net.modules()]
    machine = (processor(), os.cpu_count(), torch.get_num_threads(), torch.__version__)
    work = (common.batch, common.epochs, common.steps, trainers, round(sum(sizes) / len(sizes)).bit_length(), workers)
    optimiser = tuple(bool(part) for part in (common.opt.momentum, common.opt.weight_decay, common.opt.clip))
    shape = (common.task.name, tuple(sample.shape[1:]), str(sample.dtype))
    about = (family(common.method), model, modules, machine, work, optimiser, shape)
    return hashlib.sha256(repr(about).encode()).hexdigest()[:32]


def family(method: Method) -> list[str]:
    """The classes that a method is made of: its numbers hardly change what a step costs."""
    names = [type(method).__qualname__]
    while isinstance(method, Wrapper):
        method = method.inner
        names.append(type(method).__qualname__)
    return names


@cache
def processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return f"{platform.machine()} {platform.processor()}"


def place() -> Path:
    """The user's folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedtailor" / "plans.json"


def plans() -> dict[str, Any]:
    with suppress(OSError, ValueError, RuntimeError):
        found = json.loads(place().read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def recall(key: str) -> dict[str, Any] | None:
    found = plans().get(key)
    return found if isinstance(found, dict) and {"runner", "threads", "because"} <= found.keys() else None


def remember(key: str, plan: dict[str, Any]) -> None:
    """Harmless where it cannot be written."""
    known = {**plans(), key: plan}
    with suppress(OSError, RuntimeError):
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(dict(list(known.items())[-MOST:]), indent=1), encoding="utf-8")
        os.replace(beside, path)
