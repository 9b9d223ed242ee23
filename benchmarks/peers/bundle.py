"""A federation as tensors, with the first model and what is to be done with it: the same for all software measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from peers.models import MODELS


@dataclass(frozen=True)
class Settings:
    """What is trained, and how."""

    workload: str
    model: str
    classes: int
    batch: int
    lr: float
    cohort: int
    evaluate: bool = False  # each round is followed by the software's own evaluation
    ordered: bool = False  # rows are taken in the order given: no shuffling
    double: bool = False  # in float64
    method: str = "FedAvg"
    plan: dict[str, Any] | None = None  # of this package: how it trains its clients; None: as it finds best


@dataclass(frozen=True)
class Bundle:
    settings: Settings
    x: Tensor
    y: Tensor
    train: list[Tensor]  # row numbers of each client
    test: list[Tensor]
    values: dict[str, Tensor]  # of the first model, by name

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def net(self) -> nn.Module:
        """The network in plain torch, with the first values."""
        net = MODELS[self.settings.model](self.settings.classes, self.shape)
        net.load_state_dict(self.values)
        return net.double() if self.settings.double else net

    def save(self, path: Path) -> None:
        arrays = {"x": self.x, "y": self.y}
        for part, lists in (("train", self.train), ("test", self.test)):
            arrays[f"{part} rows"] = torch.cat(lists)
            arrays[f"{part} sizes"] = torch.tensor([len(rows) for rows in lists])
        arrays |= {f"value {name}": value for name, value in self.values.items()}
        settings = np.frombuffer(json.dumps(asdict(self.settings)).encode(), np.uint8)
        np.savez(path, settings=settings, **{name: tensor.numpy() for name, tensor in arrays.items()})

    @classmethod
    def load(cls, path: Path, **options: Any) -> Bundle:
        """From a file, with `options` over the settings in it."""
        with np.load(path, allow_pickle=False) as file:
            settings = Settings(**{**json.loads(file["settings"].tobytes()), **options})
            arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "settings"}
        lists = {
            part: list(torch.split(arrays[f"{part} rows"], arrays[f"{part} sizes"].tolist()))
            for part in ("train", "test")
        }
        values = {name[len("value ") :]: tensor for name, tensor in arrays.items() if name.startswith("value ")}
        x = arrays["x"].double() if settings.double else arrays["x"]
        return cls(settings, x, arrays["y"], lists["train"], lists["test"], values)
