from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedtailor.data import Dataset, Federation, load
from fedtailor.registry import WrongInput

X = torch.arange(24.0).reshape(12, 2)
Y = torch.tensor([0, 1, 2] * 4)


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


@pytest.fixture
def three() -> Federation:
    return Federation(
        name="three",
        x=X,
        y=Y,
        train=(rows(0, 1), rows(2, 3, 4), rows(5)),
        validation=(rows(6), rows(), rows()),
        test=(rows(7), rows(8, 9), rows()),
        clients=("u", "v", "w"),
        groups=(0, 1, 1),
        group_names=("one", "two"),
        classes=("p", "q", "r"),
        public=rows(10),
    )


def test_sizes_and_label_counts(three: Federation) -> None:
    assert three.n == 3
    assert three.sizes.tolist() == [2, 3, 1]
    assert three.label_counts().tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 1]]
    assert three.tested is three


def test_a_regression_has_no_label_counts(three: Federation) -> None:
    assert replace(three, y=torch.rand(12), task="regression").label_counts().shape == (3, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": (rows(0, 1), rows(1), rows(5))}, "held already"),
        ({"train": (rows(0, 0), rows(1), rows(5))}, "held already"),
        ({"test": (rows(0), rows(), rows())}, "held already"),
        ({"public": rows(5)}, "public rows hold a row that is held already"),
        ({"train": (rows(0), rows(), rows(5))}, "v has no training row"),
        ({"train": (rows(0), rows(12), rows(5))}, "leave 0 to 11"),
        ({"train": (rows(-1), rows(2), rows(5))}, "leave 0 to 11"),
        ({"train": (rows(0), torch.tensor([2.0]), rows(5))}, "int64"),
        ({"train": (rows(0), rows(2))}, "2 training lists but 3 validation"),
        ({"train": ()}, "at least one client"),
        ({"clients": ("u", "v", "u")}, "two clients are called 'u'"),
        ({"clients": ("u", "v")}, "3 training lists but 2 clients"),
        ({"groups": (0, 1, 2)}, "name each"),
        ({"groups": (0, -1, 1)}, "name each"),
        ({"y": Y + 1}, "labels run from 1 to 3"),
        ({"y": Y.float()}, "int64 label"),
        ({"y": Y[1:]}, "12 rows and y has 11"),
        ({"x": X / 0}, "NaN"),
        ({"task": "clustering"}, "no task 'clustering'"),
    ],
)
def test_what_is_not_a_federation_is_refused(three: Federation, change: dict[str, object], message: str) -> None:
    with pytest.raises(WrongInput, match=message):
        replace(three, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"domain": torch.zeros(11, dtype=torch.int64), "domain_names": ("a",)},
        {"domain": torch.arange(12), "domain_names": ("a",)},
        {"domain": torch.zeros(12), "domain_names": ("a",)},
        {"owner": -torch.ones(12, dtype=torch.int64)},
        {"owner": torch.zeros(12, 1, dtype=torch.int64)},
        {"classes": ("p",)},
        {"x": X[:0], "y": Y[:0]},
    ],
)
def test_what_is_not_a_dataset_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(WrongInput, match=r"^mine: "):
        replace(Dataset("mine", X, Y, ("p", "q", "r")), **change)


def test_pooled_trains_on_the_union_and_is_tested_site_by_site(three: Federation) -> None:
    pooled = three.pooled()
    assert pooled.n == 1
    assert sorted(pooled.train[0].tolist()) == [0, 1, 2, 3, 4, 5]
    assert pooled.validation[0].tolist() == [6]
    assert sorted(pooled.test[0].tolist()) == [7, 8, 9]
    assert pooled.public.tolist() == [10]
    assert pooled.label_counts().tolist() == [three.label_counts().sum(0).tolist()]
    assert pooled.tested is three
    assert pooled.pooled().tested is three  # pooling what is pooled changes nothing


def test_the_fingerprint_tells_every_change_and_nothing_else(three: Federation) -> None:
    x, y = X.clone(), Y.clone()
    x[11, 1] += 1e-3
    y[11] = 0
    changes: list[dict[str, object]] = [
        {"x": x},
        {"y": y},
        {"x": X.double()},
        {"x": X.reshape(12, 1, 2)},
        {"train": (rows(1, 0), rows(2, 3, 4), rows(5))},
        {"train": (rows(0, 1, 2), rows(3, 4), rows(5))},
        {"train": (rows(0, 1), rows(2, 3, 4), rows(5, 6)), "validation": (rows(), rows(), rows())},
        {"public": rows(11)},
        {"clients": ("u", "v", "x")},
        {"groups": (0, 0, 1)},
        {"group_names": ("one", "three")},
        {"classes": ("p", "q", "s")},
    ]
    prints = {three.fingerprint(), *(replace(three, **change).fingerprint() for change in changes)}
    assert len(prints) == len(changes) + 1
    assert all(len(text) == 16 and int(text, 16) >= 0 for text in prints)
    assert replace(three, x=X.clone(), source="elsewhere").fingerprint() == three.fingerprint()
    strided = replace(three, x=X.t().contiguous().t())  # the same numbers, in another order in memory
    assert strided.fingerprint() == three.fingerprint()


def test_to_moves_every_tensor_and_shares_the_rows(three: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def elsewhere(tensor: torch.Tensor, device: object) -> torch.Tensor:
        asked.append(device)
        return tensor.clone()

    with monkeypatch.context() as patch:  # a second device, for machines that have none
        patch.setattr(torch.Tensor, "to", elsewhere)
        moved = three.pooled().to("elsewhere")
    assert set(asked) == {"elsewhere"}
    assert moved.sites is not None
    assert moved.sites.x is moved.x
    for one, other in ((moved, three.pooled()), (moved.sites, three)):
        assert one.fingerprint() == other.fingerprint()
        pairs = [(one.y, other.y), (one.public, other.public)]
        for part in ("train", "validation", "test"):
            pairs += zip(getattr(one, part), getattr(other, part), strict=True)
        assert all(a is not b for a, b in pairs)


def test_public_rows_are_taken_out_of_the_training_rows_and_nowhere_else(dataset: Dataset) -> None:
    whole = load(dataset, "iid", clients=6)
    shared = whole.with_public(0.2, seed=4)
    for before, after in zip(whole.train, shared.train, strict=True):
        assert len(after) == len(before) - round(0.2 * len(before))
        assert set(after.tolist()) < set(before.tolist())
    given = set(torch.cat(whole.train).tolist()) - set(torch.cat(shared.train).tolist())
    assert given == set(shared.public.tolist())
    assert [rows.tolist() for rows in shared.test] == [rows.tolist() for rows in whole.test]
    assert shared.with_public(0.99).sizes.min() >= 1
    assert whole.with_public(0.2, seed=5).public.tolist() != shared.public.tolist()


def test_rows_are_not_copied_per_client(dataset: Dataset) -> None:
    federation = load(dataset, "iid", clients=6)
    assert federation.x is dataset.x
    assert federation.pooled().x is dataset.x
