from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from fedtailor.data import Dataset, Federation, digits, load
from fedtailor.data.digits import scanned


@pytest.fixture(scope="module")
def data() -> Dataset:
    return digits()


@pytest.fixture(scope="module")
def federation() -> Federation:
    return load("digits")


def of(data: Dataset, name: str) -> torch.Tensor:
    assert data.domain is not None
    return torch.nonzero(data.domain == data.domain_names.index(name)).flatten()


def test_the_labels_are_those_of_the_scans(data: Dataset) -> None:
    assert data.x.shape == (1797, 3, 28, 28)
    assert data.x.dtype is torch.float32
    assert data.y.tolist() == load_digits().target.tolist()


def test_every_domain_has_as_many_of_each_class(data: Dataset) -> None:
    assert data.domain is not None
    table = torch.zeros(6, 10, dtype=torch.int64)
    table.index_put_((data.domain, data.y), torch.ones(1797, dtype=torch.int64), accumulate=True)
    assert (table.amax(0) - table.amin(0)).max() <= 1
    assert table.sum(1).amax() - table.sum(1).amin() <= 3


@pytest.mark.parametrize(
    ("name", "sign"), [("plain", 1), ("inverted", -1), ("noisy", 1), ("strokes", 1), ("coloured", 1)]
)
def test_a_picture_shows_its_own_scan(name: str, sign: int, data: Dataset) -> None:
    """Reduced to 8 x 8 again, it resembles the scan of its row more than any of 300 others, nearly always."""
    rows = of(data, name)
    small = F.adaptive_avg_pool2d(F.pad(sign * data.x[rows].mean(1, keepdim=True), (-3, -3, -3, -3)), 8).flatten(1)
    scans = torch.from_numpy(load_digits().data).float()[rows]
    likeness = F.normalize(small - small.mean(1, keepdim=True)) @ F.normalize(scans - scans.mean(1, keepdim=True)).T
    assert (likeness.argmax(1) == torch.arange(len(rows))).double().mean() > 0.8


def test_values_are_256_levels_from_minus_one_to_one(data: Dataset) -> None:
    levels = (data.x.double() + 1) * 127.5
    assert (levels - levels.round()).abs().max() < 1e-4
    assert levels.min() >= 0
    assert levels.round().max() <= 255


def test_domains_differ_as_their_names_say(data: Dataset) -> None:
    plain, inverted, noisy = (data.x[of(data, name)] for name in ("plain", "inverted", "noisy"))
    coloured, strokes, slanted = (data.x[of(data, name)] for name in ("coloured", "strokes", "slanted"))
    assert torch.allclose(plain[:, 0], plain[:, 2])  # grey
    assert (coloured[:, 0] - coloured[:, 2]).abs().mean() > 0.2
    assert plain.mean() < -0.3 < 0.3 < inverted.mean()
    corner = (..., slice(0, 3), slice(0, 28))  # the margin
    assert noisy[corner].std() > 4 * plain[corner].std()
    assert coloured[corner].std() > 4 * plain[corner].std()
    amount = [(images > 0).double().mean((1, 2, 3)) for images in (plain, strokes)]
    assert amount[1].std() > 1.5 * amount[0].std()  # thin or thick, seldom in between
    moments = [tilt(images) for images in (plain, slanted)]
    assert abs(moments[0]) < 0.3 < abs(moments[1])


def tilt(images: torch.Tensor) -> float:
    """Mean correlation of the row and column of ink: how far a digit leans."""
    ink = (images.mean(1) + 1).double()
    row, column = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    ink = ink / ink.sum((1, 2), keepdim=True)
    r, c = ((ink * of).sum((1, 2)).reshape(-1, 1, 1) for of in (row, column))
    covariance = (ink * (row - r) * (column - c)).sum((1, 2))
    spread = (ink * (row - r) ** 2).sum((1, 2)) * (ink * (column - c) ** 2).sum((1, 2))
    return float((covariance / spread.sqrt()).mean())


def test_it_is_made_the_same_every_time(data: Dataset) -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    again = digits()
    assert torch.equal(again.x, data.x)
    assert again.domain is not None
    assert data.domain is not None
    assert torch.equal(again.domain, data.domain)


def test_the_federation_is_twelve_small_sites(federation: Federation) -> None:
    assert federation.n == 12
    assert federation.sizes.tolist() == [40] * 12
    assert [len(rows) for rows in federation.validation] == [20] * 12
    assert {len(rows) for rows in federation.test} <= {88, 89, 90, 91}
    held = torch.cat([*federation.train, *federation.validation, *federation.test])
    assert sorted(held.tolist()) == list(range(1797))  # each picture belongs to one site and one part
    assert federation.groups == (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    assert federation.group_names == ("plain", "inverted", "slanted", "coloured", "noisy", "strokes")
    assert federation.model == "lenet_bn"


def test_another_seed_moves_pictures_between_sites_not_between_domains(federation: Federation) -> None:
    other = load("digits", seed=1)
    assert torch.equal(other.x, federation.x)
    assert other.train[0].tolist() != federation.train[0].tolist()
    for site in range(0, 12, 2):
        domain = [torch.cat([*f.train[site : site + 2], *f.validation[site : site + 2], *f.test[site : site + 2]])
                  for f in (federation, other)]  # fmt: skip
        assert sorted(domain[0].tolist()) == sorted(domain[1].tolist())


def test_the_scans_are_read_as_scikit_learn_reads_them() -> None:
    scans, labels = load_digits(return_X_y=True)
    own, own_labels = scanned()
    assert np.array_equal(own, scans) and np.array_equal(own_labels, labels)
