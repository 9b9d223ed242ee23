from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtailor import registry
from fedtailor.data import Dataset, Parts, by_size, domain, iid, load, natural
from fedtailor.data.partition import shares
from fedtailor.registry import WrongInput

EVERY = [
    "iid(clients=7)",
    "by_size(sigma=1.5, clients=7)",
    "natural()",
    "as_given()",
    "domain(sites=3, train=None, validation=0.1, test=0.25)",
    "pathological(classes=2, clients=6)",
    "pathological(classes=6, clients=4, validation=0.0)",
    "dirichlet(alpha=0.3, clients=5)",
    "class_pairs(clients=6)",
]


def held(parts: Parts) -> list[int]:
    return [row for part in (parts.train, parts.validation, parts.test) for rows in part for row in rows.tolist()]


def lists(parts: Parts) -> list[list[list[int]]]:
    return [[rows.tolist() for rows in part] for part in (parts.train, parts.validation, parts.test)]


def test_every_registered_partition_is_in_the_list_above() -> None:
    assert {registry.parse("partition", text).__class__.__name__ for text in EVERY} == set(registry.names("partition"))


@pytest.mark.parametrize("text", EVERY)
class TestEveryPartition:
    def test_holds_every_row_once(self, text: str, dataset: Dataset) -> None:
        parts = registry.parse("partition", text).cut(dataset, 3)
        assert sorted(held(parts)) == list(range(len(dataset.x)))

    def test_every_client_has_rows_to_train_on_and_a_name(self, text: str, dataset: Dataset) -> None:
        parts = registry.parse("partition", text).cut(dataset, 3)
        n = len(parts.train)
        assert all(len(rows) for rows in parts.train)
        assert len(parts.validation) == len(parts.test) == len(parts.groups) == len(set(parts.clients)) == n
        assert set(parts.groups) == set(range(len(parts.group_names)))

    def test_is_a_pure_function_of_dataset_and_seed(self, text: str, dataset: Dataset) -> None:
        partition = registry.parse("partition", text)
        first = lists(partition.cut(dataset, 3))
        before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), random.getstate()
        np.random.seed(11)
        torch.manual_seed(11)
        assert lists(partition.cut(dataset, 3)) == first
        assert (lists(partition.cut(dataset, 4)) == first) == (text == "as_given()")
        np.random.seed(12)
        state = np.random.get_state()[1].tolist()
        partition.cut(dataset, 3)
        assert np.random.get_state()[1].tolist() == state
        assert random.getstate() == before[2]

    def test_prints_what_can_be_read_back(self, text: str, dataset: Dataset) -> None:
        partition = registry.parse("partition", text)
        assert registry.parse("partition", repr(partition)) == partition

    def test_lists_are_ascending_int64(self, text: str, dataset: Dataset) -> None:
        parts = registry.parse("partition", text).cut(dataset, 0)
        for rows in (*parts.train, *parts.validation, *parts.test):
            assert rows.dtype is torch.int64
            assert rows.tolist() == sorted(rows.tolist())


@pytest.mark.parametrize(("validation", "test"), [(0.1, 0.25), (0.0, 0.25), (0.2, 0.0), (0.0, 0.0), (0.3, 0.5)])
def test_validation_and_test_are_shares_of_the_clients_own_rows(
    validation: float, test: float, dataset: Dataset
) -> None:
    parts = by_size(sigma=1.0, clients=9, validation=validation, test=test).cut(dataset, 1)
    for train, checked, tested in zip(parts.train, parts.validation, parts.test, strict=True):
        n = len(train) + len(checked) + len(tested)
        assert abs(len(tested) - test * n) <= 0.5 or len(tested) == 1
        assert abs(len(checked) - validation * n) <= 0.5 or len(checked) == 1
        assert (len(tested) == 0) == (test == 0)
        assert (len(checked) == 0) == (validation == 0)


def test_small_clients_train_first_then_test_then_validate(make: Callable[[list[int]], Dataset]) -> None:
    for n, expected in ((1, (1, 0, 0)), (2, (1, 0, 1)), (3, (1, 1, 1)), (4, (2, 1, 1))):
        one = Dataset("tiny", torch.zeros(n, 1), torch.zeros(n).long(), ("only",), owner=torch.zeros(n).long())
        parts = natural().cut(one, 0)
        assert (len(parts.train[0]), len(parts.validation[0]), len(parts.test[0])) == expected


def test_three_quarters_of_the_largest_mnist_client_are_the_papers_3834(mnist_labels: Dataset) -> None:
    parts = registry.parse("partition", "class_pairs(validation=0.0)").cut(mnist_labels, 0)
    assert max(len(rows) for rows in parts.train) == 3834  # FedMCSA, section 4: the printed largest training set


def test_the_split_is_drawn_at_random_not_cut_from_the_end(dataset: Dataset) -> None:
    parts = iid(clients=1, validation=0, test=0.5).cut(dataset, 0)
    middle = len(dataset.x) / 2
    assert abs(parts.test[0].double().mean() - middle) < middle / 5


@pytest.mark.parametrize("clients", [1, 2, 7, 300])
def test_iid_sizes_differ_by_one_at_most(clients: int, dataset: Dataset) -> None:
    parts = iid(clients=clients).cut(dataset, 0)
    sizes = totals(parts)
    assert len(sizes) == clients
    assert max(sizes) - min(sizes) <= 1


def test_iid_label_shares_are_those_of_the_whole(mnist_labels: Dataset) -> None:
    federation = load(mnist_labels, iid(clients=5))
    counts = federation.label_counts().double()
    whole = torch.bincount(mnist_labels.y).double()
    share = whole / whole.sum()
    n = federation.sizes.double().unsqueeze(1)
    z = (counts - n * share) / (n * share * (1 - share)).sqrt()
    assert z.abs().max() < 4


def totals(parts: Parts) -> list[int]:
    three = zip(parts.train, parts.validation, parts.test, strict=True)
    return [sum(len(rows) for rows in own) for own in three]


def test_by_size_is_lognormal_in_size(mnist_labels: Dataset) -> None:
    logs = np.log(totals(by_size(sigma=0.8, clients=400).cut(mnist_labels, 0)))
    assert abs(logs.std() - 0.8) < 0.1
    assert max(totals(by_size(sigma=0.0, clients=10).cut(mnist_labels, 0))) == 7000


def test_by_size_leaves_everybody_a_row_to_train_on_and_one_to_test_on(dataset: Dataset) -> None:
    parts = by_size(sigma=10.0, clients=100).cut(dataset, 0)
    assert min(totals(parts)) == 2
    assert min(len(rows) for rows in parts.test) == 1


@given(
    rows=st.integers(1, 500),
    weights=st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=40),
)
def test_shares_are_positive_and_sum_to_the_rows(rows: int, weights: list[float]) -> None:
    rows = max(rows, len(weights))
    cut = shares(rows, np.array(weights))
    assert cut.sum() == rows
    assert cut.min() >= 1
    ideal = 1 + np.array(weights) / sum(weights) * (rows - len(weights))
    assert np.abs(cut - ideal).max() <= 1 + 1e-6


def test_domain_gives_each_site_one_domain_and_the_numbers_asked_for(dataset: Dataset) -> None:
    federation = load(dataset, domain(sites=2, train=20, validation=5))
    assert federation.clients == tuple(f"{name}-{site}" for name in "abcde" for site in (1, 2))
    assert federation.groups == (0, 0, 1, 1, 2, 2, 3, 3, 4, 4)
    assert federation.group_names == dataset.domain_names
    assert dataset.domain is not None
    for client, group in enumerate(federation.groups):
        own = torch.cat([federation.train[client], federation.validation[client], federation.test[client]])
        assert set(dataset.domain[own].tolist()) == {group}
    assert set(map(len, federation.train)) == {20}
    assert set(map(len, federation.validation)) == {5}
    assert sum(map(len, federation.test)) == 600 - 10 * 25


def test_domain_numbers_and_shares_mean_what_they_say(dataset: Dataset) -> None:
    parts = domain(sites=1, train=50, validation=0, test=0.2).cut(dataset, 0)  # 120 rows a domain, 46 unused
    assert parts.clients == dataset.domain_names
    assert [(len(a), len(b), len(c)) for a, b, c in zip(*lists(parts), strict=True)] == [(50, 0, 24)] * 5
    parts = domain(sites=1, train=None, validation=0.1, test=30).cut(dataset, 0)
    assert [(len(a), len(b), len(c)) for a, b, c in zip(*lists(parts), strict=True)] == [(78, 12, 30)] * 5
    assert len(set(held(parts))) == len(held(parts))


def test_natural_keeps_rows_with_their_owner(dataset: Dataset) -> None:
    federation = load(dataset, natural())
    assert dataset.owner is not None
    for client in range(federation.n):
        own = torch.cat([federation.train[client], federation.validation[client], federation.test[client]])
        assert sorted(own.tolist()) == torch.nonzero(dataset.owner == client).flatten().tolist()
    assert federation.group_names == ("all",)  # owners that hold several domains are one group


def test_as_given_takes_what_the_source_says_of_each_row() -> None:
    rows = torch.arange(8)
    one = Dataset(
        "told", rows.float()[:, None], rows % 2, ("k", "l"), owner=torch.tensor([2, 2, 0, 0, 2, 0, 2, 0]),
        owner_names=("south", "nobody", "north"), part=torch.tensor([0, 2, 0, 1, 1, 0, 0, 2]),
        domain=torch.tensor([1, 1, 0, 0, 1, 0, 1, 0]), domain_names=("sea", "land"),
    )  # fmt: skip
    made = load(one, "as_given")
    assert made.clients == ("south", "north") and made.groups == (0, 1) and made.group_names == ("sea", "land")
    assert lists(Parts(made.train, made.validation, made.test, (), (), ())) == [
        [[2, 5], [0, 6]], [[3], [4]], [[7], [1]],
    ]  # fmt: skip
    assert load(one, "natural").clients == ("south", "north")


def test_as_given_without_rows_to_train_on_is_refused(dataset: Dataset) -> None:
    rows = torch.arange(4)
    one = Dataset("told", rows.float()[:, None], rows % 2, ("k", "l"), owner=rows // 2, part=torch.tensor([0, 2, 1, 2]))
    with pytest.raises(WrongInput, match="as_given: client 1 of told has no row to train on"):
        load(one, "as_given")
    with pytest.raises(WrongInput, match="as_given: digits says of no row what it is for"):
        load("digits", "as_given")
    with pytest.raises(WrongInput, match=r"part must be one int64 number|part 3 has no name"):
        Dataset("told", rows.float()[:, None], rows % 2, ("k", "l"), part=torch.tensor([0, 1, 2, 3]))


def test_natural_owners_of_one_domain_each_are_grouped_by_it(dataset: Dataset) -> None:
    assert dataset.domain is not None
    owner = dataset.domain + 5 * (torch.arange(600) % 2)
    grouped = Dataset("g", dataset.x, dataset.y, dataset.classes, domain=dataset.domain,
                      domain_names=dataset.domain_names, owner=owner)  # fmt: skip
    federation = load(grouped, natural())
    assert federation.groups == (0, 1, 2, 3, 4, 0, 1, 2, 3, 4)
    assert federation.group_names == dataset.domain_names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("iid(clients=0)", ["clients=0", "whole number from 1"]),
        ("iid(clients=301)", ["600 rows", "301 clients", "at most 300"]),
        ("by_size(clients=301)", ["at most 300"]),
        ("by_size(sigma=-1.0)", ["sigma=-1.0", "from 0 to 10"]),
        ("by_size(sigma=inf)", ["sigma=inf"]),
        ("iid(test=1.0)", ["validation=0.1", "test=1.0", "below 1"]),
        ("iid(validation=0.6, test=0.5)", ["below 1"]),
        ("iid(validation=-0.1)", ["below 1"]),
        ("dirichlet(alpha=0.0)", ["alpha=0.0"]),
        ("dirichlet(alpha=-1.0)", ["alpha=-1.0"]),
        ("dirichlet(clients=301)", ["at most 300"]),
        ("pathological(classes=7)", ["classes=7", "has 6", "1 to 6"]),
        ("pathological(classes=0)", ["classes=0"]),
        ("pathological(classes=1, clients=5)", ["5 clients", "clients=6 or more"]),
        ("pathological(classes=6, clients=31)", ["'class 2'", "60 rows", "fewer clients"]),
        ("class_pairs(clients=2)", ["2 pairs", "6 classes", "clients=3"]),
        ("class_pairs(clients=500)", ["fewer"]),
        ("class_pairs(legacy_seed=-1)", ["legacy_seed=-1"]),
        ("domain(sites=0)", ["sites=0"]),
        ("domain(sites=3)", ["a-1", "40 rows", "fewer rows or fewer sites"]),
        ("domain(train=None)", ["only one of"]),
        ("domain(train=0)", ["train=0"]),
        ("domain(train=-4)", ["train=-4"]),
        ("domain(train=1.0)", ["train=1.0", "share below 1"]),
        ("domain(train=0.001)", ["train=0.001", "too few"]),
        ("domain(train=0.6, validation=0.6, test=None)", ["too few"]),
    ],
)
def test_impossible_partitions_are_refused_in_words(text: str, words: Sequence[str], dataset: Dataset) -> None:
    with pytest.raises(WrongInput) as caught:
        registry.parse("partition", text).cut(dataset, 0)
    assert all(word in str(caught.value) for word in words), caught.value


def test_numbers_that_python_lets_through_are_refused_too() -> None:
    for make_it in (lambda: iid(clients=2.5), lambda: iid(test=float("nan")), lambda: domain(train=float("nan"))):
        with pytest.raises(WrongInput):
            make_it()


def test_data_without_classes_domains_or_owners_says_so(dataset: Dataset) -> None:
    bare = Dataset("bare", torch.rand(100, 2), torch.rand(100), (), task="regression")
    for text, word in (
        ("dirichlet", "class"),
        ("pathological", "class"),
        ("class_pairs", "class"),
        ("domain", "domains"),
        ("natural", "owner"),
    ):
        with pytest.raises(WrongInput, match=f"bare .*{word}|{word}.* bare|bare have no {word}"):
            registry.parse("partition", text).cut(bare, 0)
    assert load(bare, "by_size", clients=4).n == 4
