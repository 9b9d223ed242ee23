"""What a model is trained to minimise, and what is counted when it is tested.

A task counts *statistics*: float64 sums over rows, so that those of two batches add up to those of both, in
any order and on any machine. `metrics` makes the numbers of them, once per client. Losses hold no Python that
depends on data, so that a runner may batch them over clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.registry import WrongInput

Statistics = Mapping[str, Tensor]


@dataclass(frozen=True)
class Task:
    """A loss, the statistics of a batch, and the metrics that follow from statistics."""

    name: str
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, y) -> mean over the batch
    losses: Callable[[Tensor, Tensor], Tensor]  # (outputs, y) -> one number a row, of which `loss` is the mean
    statistics: Callable[[Tensor, Tensor], dict[str, Tensor]]  # (outputs, y) -> sums over the batch
    metrics: Callable[[Statistics], dict[str, float]]
    outputs: Callable[[int], int]  # number of classes -> number of outputs of a model
    primary: str
    higher_is_better: bool


def of(name: str) -> Task:
    """The task of this name, as a data set states it."""
    if name not in _tasks:
        raise WrongInput(f"there is no task {name!r}; a data set must state one of {', '.join(_tasks)}")
    return _tasks[name]


def _cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y)


def _cross_entropies(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none")


def _classification_statistics(out: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"loss_sum": F.cross_entropy(out.double(), y, reduction="sum"), **_counts(out, y)}


def _soft_margin(out: Tensor, y: Tensor) -> Tensor:
    """FedHAM's loss on exclusive grades: the mean over classes of a logistic loss on the one-hot label."""
    return F.multilabel_soft_margin_loss(out, _one_hot(out, y).to(out.dtype))


def _soft_margins(out: Tensor, y: Tensor) -> Tensor:
    return F.multilabel_soft_margin_loss(out, _one_hot(out, y).to(out.dtype), reduction="none")


def _soft_margin_statistics(out: Tensor, y: Tensor) -> dict[str, Tensor]:
    losses = F.multilabel_soft_margin_loss(out.double(), _one_hot(out, y).double(), reduction="none")
    return {"loss_sum": losses.sum(), **_counts(out, y)}


def _one_hot(out: Tensor, y: Tensor) -> Tensor:
    """bool [rows, classes]; F.one_hot looks at the data, which cannot be batched over clients."""
    return y.unsqueeze(1) == torch.arange(out.shape[1], device=out.device)


def _counts(out: Tensor, y: Tensor) -> dict[str, Tensor]:
    """`truth` counts labels; `confusion` counts (label, prediction).

    argmax takes NaN for the largest, so a diverged model would seem to predict one class: such a row has no
    prediction here. It is wrong, and in no cell of `confusion`.
    """
    predicted = _one_hot(out, out.argmax(1)) & ~out.isnan().any(1, keepdim=True)
    truth = _one_hot(out, y).double()
    confusion = truth.T @ predicted.double()
    return {
        "count": torch.full((), y.shape[0], dtype=torch.float64, device=out.device),
        "correct": confusion.diagonal().sum(),
        "truth": truth.sum(0),
        "confusion": confusion,
    }


def _classification_metrics(statistics: Statistics) -> dict[str, float]:
    """accuracy, loss and macro precision.

    Precision is averaged over the classes that occur among the labels; that of a class never predicted is 0.
    """
    count = _rows(statistics)
    right = statistics["confusion"].diagonal()
    predicted = statistics["confusion"].sum(0)
    precision = right / predicted.clamp(min=1)
    return {
        "accuracy": float(statistics["correct"]) / count,
        "loss": float(statistics["loss_sum"]) / count,
        "precision": float(precision[statistics["truth"] > 0].mean()),
    }


def _squared(out: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(out.reshape(y.shape), y)  # reshape: (rows, 1) - (rows,) would broadcast to a square


def _squares(out: Tensor, y: Tensor) -> Tensor:
    return (out.reshape(y.shape) - y).square().reshape(len(y), -1).mean(1)


def _regression_statistics(out: Tensor, y: Tensor) -> dict[str, Tensor]:
    y = y.double()
    error = out.double().reshape(y.shape) - y
    squared = error.square().sum()
    return {
        "count": torch.full((), y.shape[0], dtype=torch.float64, device=out.device),
        "loss_sum": squared,
        "squared_error": squared,
        "absolute_error": error.abs().sum(),
        "y_sum": y.sum(),
        "y_squared_sum": y.square().sum(),
    }


def _regression_metrics(statistics: Statistics) -> dict[str, float]:
    """rmse, mae, r2 and the loss, which is the mean squared error.

    r2 is undefined where all labels are equal: it is then 1 if every prediction is exact, else 0.
    """
    count = _rows(statistics)
    squared_error, y_squared = float(statistics["squared_error"]), float(statistics["y_squared_sum"])
    variation = y_squared - float(statistics["y_sum"]) ** 2 / count
    equal = variation <= 1e-12 * y_squared  # what rounding leaves of equal labels
    r2 = float(squared_error == 0) if equal else 1 - squared_error / variation
    return {
        "rmse": math.sqrt(squared_error / count),
        "mae": float(statistics["absolute_error"]) / count,
        "r2": r2,
        "loss": float(statistics["loss_sum"]) / count,
    }


def _rows(statistics: Statistics) -> float:
    count = float(statistics["count"])
    if count == 0:
        raise ValueError("no row was counted, so there is no metric; write None for a client without rows")
    return count


def _one_per_class(classes: int) -> int:
    return classes


def _one(classes: int) -> int:
    return 1


_tasks = {
    task.name: task
    for task in (
        Task(
            "classification",
            loss=_cross_entropy,
            losses=_cross_entropies,
            statistics=_classification_statistics,
            metrics=_classification_metrics,
            outputs=_one_per_class,
            primary="accuracy",
            higher_is_better=True,
        ),
        Task(
            "multilabel_margin",
            loss=_soft_margin,
            losses=_soft_margins,
            statistics=_soft_margin_statistics,
            metrics=_classification_metrics,
            outputs=_one_per_class,
            primary="accuracy",
            higher_is_better=True,
        ),
        Task(
            "regression",
            loss=_squared,
            losses=_squares,
            statistics=_regression_statistics,
            metrics=_regression_metrics,
            outputs=_one,
            primary="rmse",
            higher_is_better=False,
        ),
    )
}
