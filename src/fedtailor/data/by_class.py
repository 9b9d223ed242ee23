"""Partitions that look at the labels: few classes a client, or uneven proportions of them.

Each makes a table of counts [clients, classes]; the rows themselves are then dealt out from shuffled
classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.federation import Dataset
from fedtailor.data.partition import Parts, Rows, check, check_shares, enough, parts_of, shares
from fedtailor.registry import WrongInput, register
from fedtailor.schedule import rng

Counts = NDArray[np.int64]


def _labels(dataset: Dataset, partition: object) -> Rows:
    if dataset.y.is_floating_point() or dataset.y.dim() != 1:
        raise WrongInput(f"{type(partition).__name__} cuts by class and {dataset.name} has none; use iid or by_size")
    return dataset.y.numpy()


def _totals(labels: Rows, dataset: Dataset) -> Counts:
    return np.bincount(labels, minlength=len(dataset.classes))


def _deal(labels: Rows, counts: Counts, seed: int) -> list[Rows]:
    """The rows of each client: every class is shuffled and dealt out in the order of the clients."""
    hands: list[list[Rows]] = [[] for _ in counts]
    for label in range(counts.shape[1]):
        rows = rng(seed, "rows", label).permutation(np.flatnonzero(labels == label))
        for hand, part in zip(hands, np.split(rows, np.cumsum(counts[:-1, label])), strict=True):
            hand.append(part)
    return [np.concatenate(hand) for hand in hands]


def _by_class_set(counts: Counts, dataset: Dataset) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Clients that hold the same classes form a group, which is named by them."""
    sets = [tuple(int(label) for label in np.flatnonzero(row)) for row in counts]
    order = list(dict.fromkeys(sets))
    names = (
        " + ".join(dataset.classes[label] for label in labels) if len(labels) <= 3 else f"class set {number}"
        for number, labels in enumerate(order)
    )
    return tuple(order.index(labels) for labels in sets), tuple(names)


@register("partition", "pathological")
@dataclass(frozen=True)
class pathological:
    """Every client holds `classes` classes only; sizes differ, and several clients hold the same classes.

    The classes are put in a random order and handed out `classes` at a time, round and round, so that all
    are used and have the same number of holders, one more or less. The holders of a class share it in
    proportion to numbers drawn uniformly from 0.1 to 1.
    """

    classes: int = 2
    clients: int = 20
    validation: float = 0.1
    test: float = 0.25

    def __post_init__(self) -> None:
        check(self, classes=(1, math.inf), clients=(1, math.inf))
        check_shares(self, self.validation, self.test)

    def counts(self, dataset: Dataset, seed: int) -> Counts:
        totals = _totals(_labels(dataset, self), dataset)
        width = len(totals)
        if self.classes > width:
            raise WrongInput(f"pathological: classes={self.classes}, but {dataset.name} has {width}; give 1 to {width}")
        if self.clients * self.classes < width:
            raise WrongInput(
                f"pathological: {self.clients} clients with {self.classes} classes each cannot hold all "
                f"{width} of {dataset.name}; give clients={math.ceil(width / self.classes)} or more"
            )
        draw = rng(seed, "partition", "pathological")
        order = draw.permutation(width)
        slots = order[np.arange(self.clients * self.classes) % width].reshape(self.clients, self.classes)
        counts = np.zeros((self.clients, width), dtype=np.int64)
        for label in range(width):
            holders = np.flatnonzero((slots == label).any(1))
            if totals[label] < 2 * len(holders):
                raise WrongInput(
                    f"pathological: class {dataset.classes[label]!r} of {dataset.name} has {totals[label]} "
                    f"rows, too few for {len(holders)} holders; ask for fewer clients or classes"
                )
            weights = draw.uniform(0.1, 1.0, len(holders))
            counts[holders, label] = 1 + shares(int(totals[label]) - len(holders), weights)
        return counts

    def cut(self, dataset: Dataset, seed: int) -> Parts:
        counts = self.counts(dataset, seed)
        hands = _deal(_labels(dataset, self), counts, seed)
        return parts_of(hands, seed, self.validation, self.test, *_by_class_set(counts, dataset))


@register("partition", "dirichlet")
@dataclass(frozen=True)
class dirichlet:
    """Each class is spread over the clients in proportions drawn from Dir(alpha): small alpha, very unevenly.

    The procedure of FedALA's experiments. For one class after the other: draw the proportions, set to zero
    those of clients that already hold n/N rows, renormalise, cut. (Where nothing is left to renormalise,
    the smallest client takes the class.) The whole draw is repeated until the smallest client holds min(40,
    n/(2N)) rows, and two at least.

    After `REDRAWS` draws without success the last one is repaired: the largest client gives rows of the
    class it has most of to the smallest one, until nobody is below the minimum. So it always ends.
    """

    alpha: float = 0.1
    clients: int = 20
    validation: float = 0.1
    test: float = 0.25

    REDRAWS = 1000

    def __post_init__(self) -> None:
        check(self, alpha=(1e-6, 1e6), clients=(1, math.inf))
        check_shares(self, self.validation, self.test)

    def least(self, rows: int) -> int:
        """What the smallest client holds at least."""
        return max(2, min(40, rows // (2 * self.clients)))

    def counts(self, dataset: Dataset, seed: int) -> Counts:
        totals = _totals(_labels(dataset, self), dataset)
        enough(dataset, self.clients)
        draw, least = rng(seed, "partition", "dirichlet"), self.least(int(totals.sum()))
        for _ in range(self.REDRAWS):
            counts = self._draw(totals, draw)
            if counts.sum(1).min() >= least:
                return counts
        return _repair(counts, least)

    def _draw(self, totals: Counts, draw: np.random.Generator) -> Counts:
        counts = np.zeros((self.clients, len(totals)), dtype=np.int64)
        held = np.zeros(self.clients, dtype=np.int64)
        for label, rows in enumerate(totals):
            share = draw.dirichlet(np.full(self.clients, self.alpha)) * (held < totals.sum() / self.clients)
            if not share.sum() > 0:  # the few with room drew nothing that a float can tell from zero
                share = (np.arange(self.clients) == held.argmin()).astype(np.float64)
            # rounded, not cut off: a sum of 0.999... would give the last client a row of every class
            ends = np.rint(np.cumsum(share) / share.sum() * rows).astype(np.int64)
            counts[:, label] = np.diff(ends, prepend=0)
            held += counts[:, label]
        return counts

    def cut(self, dataset: Dataset, seed: int) -> Parts:
        hands = _deal(_labels(dataset, self), self.counts(dataset, seed), seed)
        return parts_of(hands, seed, self.validation, self.test)


def _repair(counts: Counts, least: int) -> Counts:
    """Move rows from the largest clients until all hold `least`; each step moves a row or more, so it ends.

    `least` is at most the mean, so as long as one client is below it another one is above.
    """
    counts = counts.copy()
    while (held := counts.sum(1)).min() < least:
        poor, rich = held.argmin(), held.argmax()
        label = counts[rich].argmax()
        moved = min(least - held[poor], held[rich] - least, counts[rich, label])
        counts[rich, label] -= moved
        counts[poor, label] += moved
    return counts


@register("partition", "class_pairs")
@dataclass(frozen=True)
class class_pairs:
    """Two neighbouring classes a client and very uneven sizes: the rule of FedMCSA's experiments.

    Client u holds the classes 2u and 2u + 1, modulo their number. The h holders of a class come one after
    the other: each takes a uniform whole number in [r // (h + 1), r // 2) of the r rows that remain, and
    the last takes the rest. These sizes come from NumPy's legacy generator with the seed `legacy_seed`, as
    in the experiments; which rows they are comes from the data's own seed.
    """

    clients: int = 20
    legacy_seed: int = 1
    validation: float = 0.1
    test: float = 0.25

    def __post_init__(self) -> None:
        check(self, clients=(1, math.inf), legacy_seed=(0, 2**32 - 1))
        check_shares(self, self.validation, self.test)

    def counts(self, dataset: Dataset) -> Counts:
        totals = _totals(_labels(dataset, self), dataset)
        width = len(totals)
        if width < 2 or 2 * self.clients < width:
            raise WrongInput(
                f"class_pairs: {self.clients} pairs cannot hold the {width} classes of {dataset.name}; "
                f"it needs two classes or more and, here, clients={max(1, math.ceil(width / 2))} or more"
            )
        legacy = np.random.RandomState(self.legacy_seed)
        counts = np.zeros((self.clients, width), dtype=np.int64)
        for label, rows in enumerate(totals):
            holders = [u for u in range(self.clients) if label in (2 * u % width, (2 * u + 1) % width)]
            remainder = int(rows)
            for client in holders[:-1]:
                low, high = remainder // (len(holders) + 1), remainder // 2
                counts[client, label] = legacy.randint(low, max(high, low + 1))
                remainder -= counts[client, label]
            counts[holders[-1], label] = remainder
        if counts.sum(1).min() < 2:
            raise WrongInput(f"class_pairs: {dataset.name} is too small for {self.clients} clients; ask for fewer")
        return counts

    def cut(self, dataset: Dataset, seed: int) -> Parts:
        counts = self.counts(dataset)
        hands = _deal(_labels(dataset, self), counts, seed)
        return parts_of(hands, seed, self.validation, self.test, *_by_class_set(counts, dataset))
