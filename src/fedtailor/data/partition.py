"""Who holds which rows: a partition is a small frozen object, written as it prints: `by_size(clients=20)`.

Their classes are in lower case because they are what a user writes, in Python as on the command line. `cut`
is a pure function of the dataset and a seed. `validation` and `test` are shares of each client's own rows
and training takes the rest; a share that is asked for gets one row at least, as long as one is left to
train on (test first).

Those here do not look at labels; `by_class` has those that do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.data.federation import Dataset
from fedtailor.registry import WrongInput, register
from fedtailor.schedule import rng

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Parts:
    """The lists of a federation: row numbers of each client, and what the clients are called."""

    train: tuple[Tensor, ...]
    validation: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    clients: tuple[str, ...]
    groups: tuple[int, ...]
    group_names: tuple[str, ...]


class Partition(Protocol):
    """Anything with `cut` is a partition."""

    def cut(self, dataset: Dataset, seed: int) -> Parts: ...


# ---------- what the partitions share ----------


def check(partition: object, **ranges: tuple[float, float]) -> None:
    """Each named field lies in its closed range; one without an upper end is a whole number."""
    for name, (low, high) in ranges.items():
        value, whole = getattr(partition, name), high == math.inf
        if not low <= value <= high or (whole and not isinstance(value, int)):
            allowed = f"a whole number from {low:g}" if whole else f"a number from {low:g} to {high:g}"
            raise WrongInput(f"{type(partition).__name__}: {name}={value!r} is not possible; give {allowed}")


def check_shares(partition: object, validation: float, test: float) -> None:
    """What is held out leaves something to train on."""
    if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise WrongInput(
            f"{type(partition).__name__}: validation={validation!r}, test={test!r} are shares of the rows; "
            "give two numbers from 0 whose sum is below 1, so that rows are left to train on"
        )


def enough(dataset: Dataset, clients: int) -> None:
    """Two rows for each client."""
    if len(dataset.x) < 2 * clients:
        raise WrongInput(
            f"{dataset.name} has {len(dataset.x)} rows, too few for {clients} clients; "
            f"ask for at most {len(dataset.x) // 2} clients (one row to train on and one to test on each)"
        )


def shares(rows: int, weights: NDArray[np.float64]) -> Rows:
    """Whole numbers that sum to `rows`, in proportion to `weights`, none below one."""
    spare = rows - len(weights)
    ends = np.rint(np.cumsum(weights) / weights.sum() * spare).astype(np.int64)
    sizes: Rows = 1 + np.diff(ends, prepend=0)
    return sizes


def parts_of(
    hands: Sequence[Rows],
    seed: int,
    validation: float,
    test: float,
    groups: tuple[int, ...] | None = None,
    group_names: tuple[str, ...] = ("all",),
    names: tuple[str, ...] = (),
) -> Parts:
    """The rows of each client, split at random into train, validation and test."""
    split = []
    for client, rows in enumerate(hands):
        order, n = rng(seed, "split", client).permutation(rows), len(rows)
        tests = min(max(1, round(test * n)), n - 1) if test > 0 else 0
        checks = min(max(1, round(validation * n)), n - 1 - tests) if validation > 0 else 0
        split.append(_in_three(order, checks, tests))
    train, checked, tested = zip(*split, strict=True)
    width = len(str(len(hands) - 1))
    names = names or tuple(f"client-{number:0{width}d}" for number in range(len(hands)))
    return Parts(train, checked, tested, names, groups or (0,) * len(hands), group_names)


def _in_three(order: Rows, checks: int, tests: int) -> tuple[Tensor, Tensor, Tensor]:
    test, validation, train = (np.sort(part) for part in np.split(order, [tests, tests + checks]))
    return torch.from_numpy(train), torch.from_numpy(validation), torch.from_numpy(test)


# ---------- the partitions ----------


@register("partition", "iid")
@dataclass(frozen=True)
class iid:
    """Every client holds an equal, random share of all rows."""

    clients: int = 20
    validation: float = 0.1
    test: float = 0.25

    def __post_init__(self) -> None:
        check(self, clients=(1, math.inf))
        check_shares(self, self.validation, self.test)

    def cut(self, dataset: Dataset, seed: int) -> Parts:
        enough(dataset, self.clients)
        order = rng(seed, "partition", "iid").permutation(len(dataset.x))
        return parts_of(np.array_split(order, self.clients), seed, self.validation, self.test)


@register("partition", "by_size")
@dataclass(frozen=True)
class by_size:
    """Random rows for everybody, but lognormal sizes; `sigma` is the deviation of their logarithm."""

    sigma: float = 1.0
    clients: int = 20
    validation: float = 0.1
    test: float = 0.25

    def __post_init__(self) -> None:
        check(self, sigma=(0, 10), clients=(1, math.inf))
        check_shares(self, self.validation, self.test)

    def cut(self, dataset: Dataset, seed: int) -> Parts:
        enough(dataset, self.clients)
        draw = rng(seed, "partition", "by_size")
        weights = np.exp(self.sigma * draw.standard_normal(self.clients))
        sizes = 1 + shares(len(dataset.x) - self.clients, weights)  # two rows at least
        order = draw.permutation(len(dataset.x))
        return parts_of(np.split(order, np.cumsum(sizes)[:-1]), seed, self.validation, self.test)


@register("partition", "domain")
@dataclass(frozen=True)
class domain:
    """Every domain of the dataset becomes `sites` clients: feature shift, as between hospitals or scanners.

    `train`, `validation` and `test` are numbers of rows a site (20) or shares of a site's rows (0.25); one
    of them may be None and takes what the others leave. Rows that nobody asks for stay unused.
    """

    sites: int = 2
    train: int | float | None = 40
    validation: int | float | None = 20
    test: int | float | None = None

    def __post_init__(self) -> None:
        check(self, sites=(1, math.inf))
        asked = {"train": self.train, "validation": self.validation, "test": self.test}
        if sum(value is None for value in asked.values()) > 1:
            raise WrongInput("domain: only one of train, validation and test may be None (the rest)")
        for name, value in asked.items():
            if value is not None and not 0 <= value < (1 if isinstance(value, float) else math.inf):
                raise WrongInput(f"domain: {name}={value!r} is not possible; give a number of rows or a share below 1")
        if self.train == 0:
            raise WrongInput("domain: train=0 leaves nothing to learn from; give rows, a share, or None")

    def cut(self, dataset: Dataset, seed: int) -> Parts:
        if dataset.domain is None:
            raise WrongInput(f"domain: {dataset.name} has no domains; use iid, by_size or dirichlet")
        lists, names, groups = [], [], []
        for number, name in enumerate(dataset.domain_names):
            rows = np.flatnonzero(dataset.domain.numpy() == number)
            order = rng(seed, "partition", "domain", number).permutation(rows)
            for site, part in enumerate(np.array_split(order, self.sites)):
                names.append(name if self.sites == 1 else f"{name}-{site + 1}")
                groups.append(number)
                lists.append(self._take(part, names[-1]))
        train, validation, test = zip(*lists, strict=True)
        return Parts(train, validation, test, tuple(names), tuple(groups), dataset.domain_names)

    def _take(self, rows: Rows, site: str) -> tuple[Tensor, Tensor, Tensor]:
        n = len(rows)
        asked = [self.train, self.validation, self.test]
        sizes = [round(v * n) if isinstance(v, float) else v for v in asked]
        taken = sum(size for size in sizes if size is not None)
        train, checks, tests = (n - taken if size is None else size for size in sizes)
        if min(train, checks, tests) < 0 or taken > n or train == 0:
            raise WrongInput(
                f"domain: {site} has {n} rows, too few for train={self.train}, validation={self.validation}, "
                f"test={self.test}; ask for fewer rows or fewer sites"
            )
        return _in_three(rows[: train + checks + tests], checks, tests)


@register("partition", "natural")
@dataclass(frozen=True)
class natural:
    """Every client holds what it holds by nature: the owner of each row is part of the dataset."""

    validation: float = 0.1
    test: float = 0.25

    def __post_init__(self) -> None:
        check_shares(self, self.validation, self.test)

    def cut(self, dataset: Dataset, seed: int) -> Parts:
        hands, names = _owned(dataset, self)
        return parts_of(hands, seed, self.validation, self.test, *_by_domain(dataset, hands), names)


@register("partition", "as_given")
@dataclass(frozen=True)
class as_given:
    """Every client holds what it holds by nature, and the source says what is trained, validated and tested on."""

    def cut(self, dataset: Dataset, seed: int) -> Parts:
        if dataset.part is None:
            raise WrongInput(f"as_given: {dataset.name} says of no row what it is for; use natural, iid or dirichlet")
        hands, names = _owned(dataset, self)
        part = dataset.part.numpy()
        train, checks, tests = ([torch.from_numpy(rows[part[rows] == kind]) for rows in hands] for kind in range(3))
        without = [number for number, rows in enumerate(train) if not len(rows)]
        if without:
            who = names[without[0]] if names else f"client {without[0]}"
            raise WrongInput(f"as_given: {who} of {dataset.name} has no row to train on; give it some or leave it out")
        parts = parts_of(hands, seed, 0, 0, *_by_domain(dataset, hands), names)
        return replace(parts, train=tuple(train), validation=tuple(checks), test=tuple(tests))


def _owned(dataset: Dataset, partition: object) -> tuple[list[Rows], tuple[str, ...]]:
    """The rows of each owner, and the owners' names."""
    if dataset.owner is None:
        name = type(partition).__name__
        raise WrongInput(f"{name}: rows of {dataset.name} have no owner; use iid, by_size or dirichlet")
    owner = dataset.owner.numpy()
    present = np.unique(owner)
    names = tuple(dataset.owner_names[number] for number in present) if dataset.owner_names else ()
    return [np.flatnonzero(owner == number) for number in present], names


def _by_domain(dataset: Dataset, hands: Sequence[Rows]) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
    """Domains are the groups of clients, where each client keeps to one."""
    if dataset.domain is not None:
        domains = [set(dataset.domain[torch.from_numpy(rows)].tolist()) for rows in hands]
        if all(len(found) == 1 for found in domains):
            return tuple(found.pop() for found in domains), dataset.domain_names
    return None, ("all",)
