from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.data import Dataset, class_pairs, dirichlet, load, pathological
from fedtailor.data.by_class import _repair
from fedtailor.schedule import rng

Make = Callable[[list[int]], Dataset]


@pytest.mark.parametrize(("classes", "clients"), [(2, 20), (1, 10), (3, 20), (4, 7), (10, 5)])
def test_pathological_clients_hold_exactly_k_classes(classes: int, clients: int, mnist_labels: Dataset) -> None:
    for seed in range(3):
        counts = pathological(classes=classes, clients=clients).counts(mnist_labels, seed)
        assert ((counts > 0).sum(1) == classes).all()
        holders = (counts > 0).sum(0)
        assert holders.min() >= 1  # every class is used
        assert holders.max() - holders.min() <= 1
        assert counts.sum(0).tolist() == np.bincount(mnist_labels.y).tolist()


def test_pathological_sizes_are_uneven_and_classes_are_drawn(mnist_labels: Dataset) -> None:
    tables = [pathological().counts(mnist_labels, seed) for seed in range(3)]
    for counts in tables:
        assert counts.sum(1).max() > 1.5 * counts.sum(1).min()
        for column in counts.T:
            own = column[column > 0]
            assert own.max() <= 10.5 * own.min()  # weights from 0.1 to 1
    assert len({tuple(map(tuple, counts > 0)) for counts in tables}) == 3


def test_pathological_groups_are_the_clients_of_the_same_classes(mnist_labels: Dataset) -> None:
    federation = load(mnist_labels, "pathological(classes=2, clients=20)")
    own = [tuple(np.flatnonzero(row)) for row in federation.label_counts().numpy()]
    for i in range(20):
        for j in range(20):
            assert (own[i] == own[j]) == (federation.groups[i] == federation.groups[j])
        names = " + ".join(f"class {label}" for label in own[i])
        assert federation.group_names[federation.groups[i]] == names
    assert [federation.groups.count(group) for group in range(5)] == [4] * 5


def pairs_by_hand(totals: list[int], clients: int, seed: int) -> list[dict[int, int]]:
    """FedMCSA's rule, client by client, on NumPy's legacy stream."""
    stream = np.random.RandomState(seed)
    hold: list[dict[int, int]] = [{} for _ in range(clients)]
    for label in range(len(totals)):
        left = totals[label]
        takers = []
        for u in range(clients):
            if label == (2 * u) % len(totals) or label == (2 * u + 1) % len(totals):
                takers.append(u)
        for u in takers:
            if u == takers[-1]:
                hold[u][label] = left
            else:
                hold[u][label] = int(stream.randint(left // (len(takers) + 1), left // 2))
                left = left - hold[u][label]
    return hold


@pytest.mark.parametrize(("clients", "seed"), [(20, 1), (20, 5), (10, 1), (25, 1)])
def test_class_pairs_follow_the_rule(clients: int, seed: int, mnist_labels: Dataset) -> None:
    counts = class_pairs(clients=clients, legacy_seed=seed).counts(mnist_labels)
    expected = pairs_by_hand(np.bincount(mnist_labels.y).tolist(), clients, seed)
    assert [{label: int(row[label]) for label in np.flatnonzero(row)} for row in counts] == expected


def test_class_pairs_on_mnist_have_the_published_range(mnist_labels: Dataset) -> None:
    counts = class_pairs().counts(mnist_labels)
    assert (counts.sum(1).min(), counts.sum(1).max()) == (1556, 5112)  # FedMCSA: training parts up to 3834 = 75 %
    assert counts.sum() == 70_000


def test_class_pairs_sizes_do_not_depend_on_the_seed_of_the_data_but_rows_do(mnist_labels: Dataset) -> None:
    one, two = load(mnist_labels, "class_pairs", seed=0), load(mnist_labels, "class_pairs", seed=1)
    assert one.sizes.tolist() == two.sizes.tolist()
    held = [{*f.train[0].tolist(), *f.validation[0].tolist(), *f.test[0].tolist()} for f in (one, two)]
    assert len(held[0] & held[1]) < 0.6 * len(held[0])


def dirichlet_by_hand(totals: list[int], clients: int, alpha: float, seed: int) -> list[list[int]]:
    """FedALA's procedure in plain loops, on the same draws."""
    stream = rng(seed, "partition", "dirichlet")
    rows = sum(totals)
    while True:
        hold = [[0] * len(totals) for _ in range(clients)]
        for label, total in enumerate(totals):
            wish = [float(p) for p in stream.dirichlet([alpha] * clients)]
            wish = [0.0 if sum(hold[i]) >= rows / clients else wish[i] for i in range(clients)]
            scale, before, reach = sum(wish), 0, 0.0
            for i in range(clients):
                reach += wish[i] / scale
                until = round(reach * total)
                hold[i][label] = until - before
                before = until
        if min(map(sum, hold)) >= min(40, rows / (2 * clients)):
            return hold


@pytest.mark.parametrize(("alpha", "clients", "seed"), [(0.1, 20, 0), (0.1, 20, 1), (0.5, 50, 2), (1.0, 5, 3)])
def test_dirichlet_follows_the_procedure(alpha: float, clients: int, seed: int, mnist_labels: Dataset) -> None:
    totals = np.bincount(mnist_labels.y).tolist()
    counts = dirichlet(alpha=alpha, clients=clients).counts(mnist_labels, seed)
    assert counts.tolist() == dirichlet_by_hand(totals, clients, alpha, seed)


def test_dirichlet_redraws_until_the_smallest_client_is_large_enough(make: Make) -> None:
    """Here most draws leave somebody with too little; what is returned is the first that does not, unrepaired."""
    dataset = make([300] * 10)
    partition = dirichlet(alpha=0.1, clients=20)
    for seed in range(4):
        counts = partition.counts(dataset, seed)
        assert counts.sum(1).min() >= 40
        assert counts.tolist() == dirichlet_by_hand([300] * 10, 20, 0.1, seed)


@given(
    exponent=st.floats(-6, 3),
    clients=st.integers(1, 40),
    totals=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
def test_dirichlet_always_ends_and_keeps_the_minimum(
    make: Make, exponent: float, clients: int, totals: list[int], seed: int
) -> None:
    totals[0] += max(0, 2 * clients - sum(totals))
    dataset = make(totals)
    partition = dirichlet(alpha=10**exponent, clients=clients)
    quick = type("quick", (dirichlet,), {"REDRAWS": 3})(alpha=10**exponent, clients=clients)
    for tried in (quick,) if clients > 10 else (quick, partition):
        counts = tried.counts(dataset, seed)
        assert counts.sum(0).tolist() == totals
        assert counts.min() >= 0
        assert counts.sum(1).min() >= max(2, min(40, sum(totals) // (2 * clients)))


@given(table=st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=2, max_size=10))
def test_the_repair_moves_what_is_missing_and_no_row_more(table: list[list[int]]) -> None:
    before = np.array(table)
    least = int(before.sum(1).mean())
    after = _repair(before, least)
    missing = np.maximum(least - before.sum(1), 0)
    assert np.array_equal(after.sum(0), before.sum(0))
    assert after.min() >= 0
    assert after.sum(1).min() >= least
    assert np.maximum(after.sum(1) - before.sum(1), 0).tolist() == missing.tolist()  # only the poor gain
    assert np.maximum(after - before, 0).sum() == missing.sum()


def test_a_tiny_alpha_and_many_clients_end_and_stay_uneven(mnist_labels: Dataset) -> None:
    federation = load(mnist_labels, "dirichlet(alpha=0.001, clients=200)")
    three = zip(federation.train, federation.validation, federation.test, strict=True)
    assert min(sum(len(rows) for rows in own) for own in three) >= 40
    counts = federation.label_counts()
    largest_share = counts.amax(1) / counts.sum(1)
    assert largest_share.median() > 0.95  # the repair hands out rows of one class


def test_small_alpha_concentrates_and_large_alpha_evens_out(mnist_labels: Dataset) -> None:
    def share_of_largest_class(alpha: float) -> float:
        counts = dirichlet(alpha=alpha, clients=20).counts(mnist_labels, 0)
        return float((counts.max(1) / counts.sum(1)).mean())

    shares = [share_of_largest_class(alpha) for alpha in (0.01, 0.1, 1.0, 1000.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.7
    assert shares[-1] < 0.13
