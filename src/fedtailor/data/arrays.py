"""Your own NumPy file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtailor.data.federation import Dataset
from fedtailor.data.files import Array, read_npz
from fedtailor.registry import WrongInput, register

KEYS = ("x", "y", "site", "domain", "part", "classes")
SPLIT = ("x_train", "y_train", "x_test", "y_test")


@register("data", "arrays")
def arrays(path: str) -> Dataset:
    """Your own NumPy file (.npz): x and y, and perhaps site, domain, part, classes; or x_train, y_train, x_test ..."""
    file = Path(path)
    held = read_npz(file)
    if "x" not in held and held.keys() >= set(SPLIT):
        sizes = [len(held["x_train"]), len(held["x_test"])]
        held = {key: np.concatenate([held[f"{key}_train"], held[f"{key}_test"]]) for key in "xy"} | {
            "part": np.repeat([0, 2], sizes), **({"classes": held["classes"]} if "classes" in held else {}),
        }  # fmt: skip
    if not held.keys() >= {"x", "y"}:
        raise WrongInput(f"{file} must hold x and y, or {', '.join(SPLIT)}; it holds {', '.join(held) or 'nothing'}")
    rows = len(held["x"])
    for key in held.keys() & set(KEYS) - {"classes"}:
        if len(held[key]) != rows:
            raise WrongInput(f"{file}: {key} has {len(held[key])} rows and x has {rows}; give one of each a row")
    if "part" in held and not set(np.unique(held["part"]).tolist()) <= {0, 1, 2}:
        raise WrongInput(f"{file}: part must be 0, 1 or 2 in each row, to train, to validate or to test on")
    y, classes, task = targets(file, held)
    owner, sites = groups_of(held, "site")
    domain, domains = groups_of(held, "domain")
    part = torch.from_numpy(held["part"].astype(np.int64)) if "part" in held else None
    given = part is not None and owner is not None
    return Dataset(
        name=file.stem,
        x=samples(file, held["x"]),
        y=y,
        classes=classes,
        task=task,
        domain=domain,
        domain_names=domains,
        owner=owner,
        owner_names=sites,
        part=part,
        model="dnn",
        partition="as_given" if given else "iid(clients=10)" if owner is None else "natural",
        settings={"rounds": 50, "epochs": 1, "batch": 16, "lr": 0.05},
        licence="your own",
        about=f"arrays of {file.name}",
    )


def samples(file: Path, x: Array) -> Tensor:
    """Bytes are pictures: [rows, height, width], with channels last or second. Numbers stay as they are."""
    if x.dtype.kind in "iu" and x.dtype != np.uint8:
        return torch.from_numpy(x.astype(np.int64))
    if x.dtype != np.uint8:
        if x.dtype.kind != "f":
            raise WrongInput(f"{file}: x is {x.dtype}; give numbers, bytes for pictures or whole numbers for words")
        return torch.from_numpy(x.astype(np.float32))
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim not in (2, 4) or (x.ndim == 4 and x.shape[1] not in (1, 3)):
        raise WrongInput(f"{file}: x is bytes of shape {x.shape}; pictures are [rows, height, width], or with 1 or 3 "
                         "channels in the second or last place")  # fmt: skip
    return torch.from_numpy(np.ascontiguousarray(x))


def targets(file: Path, held: dict[str, Array]) -> tuple[Tensor, tuple[str, ...], str]:
    """Labels and class names, or the values of a regression where y has a decimal point."""
    y = held["y"]
    if y.dtype.kind == "f":
        return torch.from_numpy(y.astype(np.float32)), ("value",), "regression"
    if "classes" in held:
        if y.dtype.kind not in "iu":
            raise WrongInput(f"{file}: with classes, y must be whole numbers from 0, not {y.dtype}")
        return torch.from_numpy(y.astype(np.int64)), tuple(str(word) for word in held["classes"]), "classification"
    kinds, numbers = np.unique(y, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(str(kind) for kind in kinds), "classification"


def groups_of(held: dict[str, Array], key: str) -> tuple[Tensor | None, tuple[str, ...]]:
    if key not in held:
        return None, ()
    kinds, numbers = np.unique(held[key], return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(str(kind) for kind in kinds)
