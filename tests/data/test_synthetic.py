from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedtailor.data import Dataset, Federation, load, synthetic
from fedtailor.registry import WrongInput


@pytest.fixture(scope="module")
def data() -> Dataset:
    return synthetic()


def test_the_sizes_are_the_published_ones(data: Dataset) -> None:
    assert data.owner is not None
    sizes = torch.bincount(data.owner)
    assert len(data.x) == len(data.y) == 205_795  # FedMCSA, section 4
    assert (len(sizes), int(sizes.min()), int(sizes.max())) == (100, 250, 25_810)
    assert data.x.shape[1] == 60
    assert set(data.y.tolist()) == set(range(10))


def test_many_clients_of_bounded_sizes() -> None:
    """Sizes as drawn, between the bounds; by hand for the first ten."""
    made = synthetic(clients=300, sizes=(50, 500))
    assert made.owner is not None
    counts = torch.bincount(made.owner).tolist()
    stream = np.random.RandomState(0)
    assert counts[:10] == [min(500, max(50, int(stream.lognormal(4, 2)))) for _ in range(10)]
    assert len(counts) == 300 and min(counts) == 50 and max(counts) == 500
    assert load("synthetic(clients=12, sizes=(3, 9))").n == 12
    for wrong in ({"clients": 0}, {"sizes": (0, 5)}, {"sizes": (9, 3)}):
        with pytest.raises(WrongInput, match="is not possible"):
            synthetic(**wrong)  # type: ignore[arg-type]


def client_by_hand(wanted: int, alpha: float, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """One client's rows, everything drawn number by number in the order of the definition."""
    stream = np.random.RandomState(0)
    sizes = [(int(stream.lognormal(4, 2)) + 50) * 5 for _ in range(100)]
    u = [stream.normal(0, alpha) for _ in range(100)]
    big_b = [stream.normal(0, beta) for _ in range(100)]
    v = [[stream.normal(big_b[k], 1) for _ in range(60)] for k in range(100)]
    for k in range(wanted + 1):
        w = [[stream.normal(u[k], 1) for _ in range(10)] for _ in range(60)]
        b = [stream.normal(u[k], 1) for _ in range(10)]
        x = np.empty((sizes[k], 60))
        for row in range(sizes[k]):
            for j in range(60):
                x[row, j] = stream.normal(v[k][j], math.sqrt((j + 1) ** -1.2))
    y = []
    for row in x:
        logits = [sum(row[j] * w[j][c] for j in range(60)) + b[c] for c in range(10)]
        y.append(max(range(10), key=lambda c: logits[c]))
    return x, np.array(y)


@pytest.mark.parametrize(("client", "alpha", "beta"), [(1, 0.5, 0.5), (1, 0.2, 0.9)])
def test_a_client_is_what_the_definition_says(client: int, alpha: float, beta: float) -> None:
    made = synthetic(alpha=alpha, beta=beta)
    x, y = client_by_hand(client, alpha, beta)
    own = made.owner == client
    assert np.allclose(made.x[own].numpy(), x, atol=1e-5)
    assert made.y[own].tolist() == y.tolist()


def test_beta_is_the_deviation_of_the_clients_mean_inputs(data: Dataset) -> None:
    def deviation(beta: float) -> float:
        made = synthetic(beta=beta)
        return float(torch.stack([made.x[made.owner == k].mean() for k in range(100)]).std())

    own = 60**-0.5  # of the mean of 60 entries v[j] ~ N(B, 1)
    assert deviation(0.0) == pytest.approx(own, rel=0.25)
    assert deviation(3.0) == pytest.approx(math.hypot(3.0, own), rel=0.25)


def test_alpha_adds_the_same_to_every_logit_and_so_changes_no_label(data: Dataset) -> None:
    """x (W + u) + (b + u) = x W + b + u (sum x + 1): a property of the published generator, kept as it is."""
    for alpha in (0.0, 5.0):
        other = synthetic(alpha=alpha)
        assert torch.equal(other.x, data.x)
        assert torch.equal(other.y, data.y)


def test_the_federation_has_natural_owners_and_the_papers_settings(data: Dataset) -> None:
    federation: Federation = load("synthetic")
    assert federation.n == 100
    assert federation.model == "mlr"
    assert data.owner is not None
    assert set(data.owner[federation.train[7]].tolist()) == {7}
    expected = {"rounds": 800, "steps": 20, "batch": 20, "lr": 0.02, "cohort": 20, "weight_decay": 0.001}
    assert dict(federation.settings) == expected
    paper = load("synthetic", "natural(validation=0.0)")
    assert abs(int(paper.sizes.sum()) - 0.75 * 205_795) < 50


@pytest.mark.parametrize("wrong", [{"alpha": -0.1}, {"beta": math.inf}, {"alpha": math.nan}])
def test_impossible_deviations_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(WrongInput, match="standard deviation"):
        synthetic(**wrong)
