"""`RunSpec`: everything that is asked of a run, as one frozen value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from fedtailor import registry
from fedtailor.data.federation import Federation
from fedtailor.local import SGD
from fedtailor.method import Method, Point
from fedtailor.methods.fedavg import FedAvg
from fedtailor.nn import Model
from fedtailor.registry import WrongInput
from fedtailor.settings import HINTS, check_settings


@dataclass(frozen=True)
class RunSpec:
    """What is run. `RunSpec.of(federation, method)` starts from the settings that the data state."""

    method: Method = FedAvg()  # noqa: RUF009 - frozen, like every method
    model: Model | None = None  # a name, a callable or an nn.Module; None: the data's own
    rounds: int = 50
    cohort: float | int = 1.0  # clients that exchange in a round: a share (float) or a number (int)
    epochs: int | None = None  # local work: epochs (1 where nothing is said) ...
    steps: int | None = None  # ... or steps
    batch: int = 32
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0  # norm that a gradient is clipped to; 0: not clipped
    lr_decay: float = 1.0  # factor on the rate after each round
    weighting: Literal["auto", "size", "uniform"] = "auto"  # of the mean over clients; auto: the method's own
    buffers: Literal["with_layer", "local"] = "with_layer"  # running statistics of batch norm
    point: Point | None = None  # which model is tested; None: the method's own
    eval_every: int = 1
    finish_epochs: int | None = None  # local tuning after the last round; None: the method's own
    seed: int = 0
    device: str = "cpu"
    runner: Literal["auto", "sequential", "stacked"] = "auto"  # how a process trains its clients
    workers: int | None = None  # processes that share a round's clients; None: as is best
    on_nan: Literal["stop", "drop"] = "stop"  # a client that diverges stops the run, or loses its round
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        check_settings({field: getattr(self, field) for field in HINTS})
        if not isinstance(self.method, Method):
            raise WrongInput(f"method={self.method!r} is not a method; give one such as FedAvg()")

    @classmethod
    def of(cls, federation: Federation, method: Method, **options: Any) -> RunSpec:
        """The data's stated settings, with `options` over them."""
        settings = dict(federation.settings)
        if options.get("epochs") is not None or options.get("steps") is not None:
            settings = {key: value for key, value in settings.items() if key not in ("epochs", "steps")}
        return cls(method=method, **{**settings, **{key: value for key, value in options.items() if value is not None}})

    @property
    def opt(self) -> SGD:
        return SGD(momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)

    def cohort_size(self, n: int) -> int:
        """Clients that exchange in a round."""
        if isinstance(self.cohort, float):
            return max(1, round(self.cohort * n))
        if self.cohort > n:
            raise WrongInput(
                f"cohort={self.cohort} clients are asked for and the federation has {n}; ask for {n} or fewer"
            )
        return self.cohort

    def to_dict(self) -> dict[str, Any]:
        """As JSON; a model that is not a name is described."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**plain, "method": repr(self.method), "model": describe(self.model)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], model: Model | None = None) -> RunSpec:
        """The spec that a record holds; a model of one's own has to be given again."""
        named = plain.get("model")
        if model is None and named is not None and named.startswith("<"):
            raise WrongInput(f"the run used {named}, which is not in the record; give it again with model=")
        if "<" in plain.get("method", ""):
            raise WrongInput(f"the run used {plain['method']}, whose function is not in the record; start it again")
        fields = {field.name for field in dataclasses.fields(cls)}
        if plain.keys() != fields:
            raise WrongInput(
                f"the record's settings do not fit this version in {', '.join(sorted(plain.keys() ^ fields))}"
            )
        return cls(**{**plain, "method": registry.parse("method", plain["method"]), "model": model or named})


def describe(model: Model | None) -> str | None:
    """A model's name, or, for one's own, words in angle brackets that no registry can read."""
    if model is None or isinstance(model, str):
        return model
    name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", repr(model))
    return f"<your own {name}>"


def check_device(device: str) -> None:
    """That tensors can be put there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise WrongInput(f"device={device!r} cannot be used here ({reason}); device=cpu always can") from None
