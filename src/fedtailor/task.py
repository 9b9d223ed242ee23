"""What a model is trained to minimise, and what is counted when it is tested.

A task counts *statistics*: float64 sums over rows, so that those of two batches add up to those of both, in
any order and on any machine. `metrics` makes the numbers of them, once per client. Losses hold no Python that
depends on data, so that a runner may batch them over clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.registry import WrongInput

Statistics = Mapping[str, Tensor]
Marks = dict[int, dict[str, dict[str, float]]]  # metrics by site and part
OfEach = Callable[[Tensor, Tensor, Tensor, int], dict[str, Tensor]]

TOGETHER = 256  # sites whose metrics are computed at once
LEVELS, BEST = 512, 40.0  # of scores; the logarithm of odds from which on a probability is 1 in float64


@dataclass(frozen=True)
class Task:
    """A loss, the statistics of a batch, and the metrics that follow from statistics."""

    name: str
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, y) -> mean over the batch
    losses: Callable[[Tensor, Tensor], Tensor]  # (outputs, y) -> one number a row, of which `loss` is the mean
    statistics: Callable[[Tensor, Tensor], dict[str, Tensor]]  # (outputs, y) -> sums over the batch
    measures: Callable[[Statistics], dict[str, Tensor]]  # of several clients: statistics stacked -> metrics, one each
    outputs: Callable[[int], int]  # number of classes -> number of outputs of a model
    primary: str
    higher_is_better: bool
    # (outputs, y, owner of each row, number of owners) -> the statistics of each, stacked; where they are quicker so
    of_each: OfEach | None = None

    def metrics(self, statistics: Statistics) -> dict[str, float]:
        """The metrics of one client."""
        return self.metrics_of([statistics])[0]

    def metrics_of(self, several: Sequence[Statistics]) -> list[dict[str, float]]:
        """The metrics of several clients, of each by itself."""
        if not several:
            return []
        stacked = {name: torch.stack([one[name] for one in several]) for name in several[0]}
        if not bool(stacked["count"].all()):
            raise ValueError("no row was counted, so there is no metric; write None for a client without rows")
        columns = {name: values.tolist() for name, values in self.measures(stacked).items()}
        return [{name: values[place] for name, values in columns.items()} for place in range(len(several))]

    def marks(self, exams: Iterable[tuple[int, Mapping[str, Statistics]]]) -> Marks:
        """Metrics and the number of rows, for each part that a site was examined on."""
        found, coming = Marks(), iter(exams)
        while some := dict(islice(coming, TOGETHER)):
            found |= {site: {} for site in some}
            for part in ("test", "validation"):
                counted = {site: exam[part] for site, exam in some.items() if part in exam}
                for site, metrics in zip(counted, self.metrics_of([*counted.values()]), strict=True):
                    found[site][part] = {**metrics, "count": int(counted[site]["count"])}
        return found


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
    return _alone(_classification_of_each, out, y)


def _classification_of_each(out: Tensor, y: Tensor, owner: Tensor, n: int) -> dict[str, Tensor]:
    log_p = out.double().log_softmax(1)
    losses = -log_p.gather(1, y.unsqueeze(1)).squeeze(1)
    return {"loss_sum": _tally(owner, n, losses), **_counts_of_each(out, log_p, y, owner, n)}


def _soft_margin(out: Tensor, y: Tensor) -> Tensor:
    """FedHAM's loss on exclusive grades: the mean over classes of a logistic loss on the one-hot label."""
    return F.multilabel_soft_margin_loss(out, _one_hot(out, y).to(out.dtype))


def _soft_margins(out: Tensor, y: Tensor) -> Tensor:
    return F.multilabel_soft_margin_loss(out, _one_hot(out, y).to(out.dtype), reduction="none")


def _soft_margin_statistics(out: Tensor, y: Tensor) -> dict[str, Tensor]:
    return _alone(_soft_margin_of_each, out, y)


def _soft_margin_of_each(out: Tensor, y: Tensor, owner: Tensor, n: int) -> dict[str, Tensor]:
    exact = out.double()
    return {
        "loss_sum": _tally(owner, n, _soft_margins(exact, y)),
        **_counts_of_each(out, exact.log_softmax(1), y, owner, n),
    }


def _one_hot(out: Tensor, y: Tensor) -> Tensor:
    """bool [rows, classes]; F.one_hot looks at the data, which cannot be batched over clients."""
    return y.unsqueeze(1) == torch.arange(out.shape[1], device=out.device)


def _alone(of_each: OfEach, out: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The statistics of rows that are all of one owner."""
    owner = torch.zeros(len(y), dtype=torch.int64, device=out.device)
    return {name: value[0] for name, value in of_each(out, y, owner, 1).items()}


def _counts_of_each(out: Tensor, log_p: Tensor, y: Tensor, owner: Tensor, n: int) -> dict[str, Tensor]:
    """`truth` counts labels; `confusion` counts (label, prediction); `scores` counts (row, class) pairs by their score,
    of wrong classes and of the right ones. One of each for each of `n` owners of rows.

    argmax takes NaN for the largest, so a diverged model would seem to predict one class: such a row has no
    prediction here. It is wrong, in no cell of `confusion`, and its right class has the lowest score.
    """
    classes = out.shape[1]
    whole = ~out.isnan().any(1)
    confusion = _tally((owner * classes + y) * classes + out.argmax(1), n * classes**2, whole)
    right = _one_hot(out, y)
    level = torch.where(whole[:, None], _levels(log_p), torch.where(right, 0, LEVELS - 1))
    counted = {
        "count": _tally(owner, n),
        "truth": _tally(owner * classes + y, n * classes).view(n, classes),
        "confusion": confusion.view(n, classes, classes),
        "scores": _tally(((owner[:, None] * 2 + right) * LEVELS + level).flatten(), n * 2 * LEVELS).view(n, 2, LEVELS),
    }
    return {**counted, "correct": counted["confusion"].diagonal(dim1=1, dim2=2).sum(1)}


def _tally(cells: Tensor, n: int, amounts: Tensor | None = None) -> Tensor:
    """float64 [n]: the sum of the amounts at each number; one each where none are given."""
    added = torch.ones_like(cells) if amounts is None else amounts
    return torch.zeros(n, dtype=torch.float64, device=cells.device).index_add(0, cells, added.double())


def _levels(log_p: Tensor) -> Tensor:
    """Each class's score, the odds of its probability, as one of LEVELS steps of its logarithm between -BEST and BEST:
    so few numbers add up over batches, and hardly any two scores that differ fall together."""
    log_p = log_p.clamp(max=-1e-17)
    odds = log_p - torch.log(-torch.expm1(log_p))
    return ((odds.nan_to_num(0.0) + BEST) * (LEVELS / (2 * BEST))).long().clamp(0, LEVELS - 1)


def _classification_measures(statistics: Statistics) -> dict[str, Tensor]:
    """accuracy, loss, macro precision and the area under the ROC curve.

    Precision is averaged over the classes that occur among the labels; that of a class never predicted is 0. The area
    is of all (row, class) pairs together: how often a right class has a higher score than a wrong one, of any row.
    """
    count, confusion, occurs = statistics["count"], statistics["confusion"], statistics["truth"] > 0
    precision = confusion.diagonal(dim1=1, dim2=2) / confusion.sum(1).clamp(min=1)
    return {
        "accuracy": statistics["correct"] / count,
        "loss": statistics["loss_sum"] / count,
        "precision": (precision * occurs).sum(1) / occurs.sum(1),
        "auc": _areas(*statistics["scores"].unbind(1)),
    }


def _areas(wrong: Tensor, right: Tensor) -> Tensor:
    """The share of (wrong, right) pairs of scores in which the right one is higher; equal ones count half."""
    pairs = wrong.sum(1) * right.sum(1)
    lower = wrong.cumsum(1) - wrong / 2
    return torch.where(pairs > 0, (right * lower).sum(1) / pairs, 0.5)


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


def _regression_measures(statistics: Statistics) -> dict[str, Tensor]:
    """rmse, mae, r2 and the loss, which is the mean squared error.

    r2 is undefined where all labels are equal: it is then 1 if every prediction is exact, else 0.
    """
    count, squared_error = statistics["count"], statistics["squared_error"]
    variation = statistics["y_squared_sum"] - statistics["y_sum"].square() / count
    equal = variation <= 1e-12 * statistics["y_squared_sum"]  # what rounding leaves of equal labels
    return {
        "rmse": (squared_error / count).sqrt(),
        "mae": statistics["absolute_error"] / count,
        "r2": torch.where(equal, (squared_error == 0).double(), 1 - squared_error / variation),
        "loss": squared_error / count,
    }


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
            of_each=_classification_of_each,
            measures=_classification_measures,
            outputs=_one_per_class,
            primary="accuracy",
            higher_is_better=True,
        ),
        Task(
            "multilabel_margin",
            loss=_soft_margin,
            losses=_soft_margins,
            statistics=_soft_margin_statistics,
            of_each=_soft_margin_of_each,
            measures=_classification_measures,
            outputs=_one_per_class,
            primary="accuracy",
            higher_is_better=True,
        ),
        Task(
            "regression",
            loss=_squared,
            losses=_squares,
            statistics=_regression_statistics,
            measures=_regression_measures,
            outputs=_one,
            primary="rmse",
            higher_is_better=False,
        ),
    )
}
