"""Who is sent whose model: groupings against exhaustive search and loops, and the bytes that travel in a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from nets import Frozen
from quadratic import Line, federation, play, regressions, squares

from fedtailor import Driver, FedHAM
from fedtailor.method import Fed
from fedtailor.methods import clusters
from fedtailor.tree import State

NOTED = pytest.mark.filterwarnings("ignore::fedtailor.method.MethodNote")


def kept(points: Sequence[Sequence[float]], absent: Sequence[int] = ()) -> State:
    """A server's models of one tensor, and who has sent any."""
    seen = torch.tensor([0 if i in absent else 4 for i in range(len(points))])
    return {"models": {"w": torch.tensor(points, dtype=torch.float64)}, "seen": seen}


def fed(n: int, round: int = 5) -> Fed:
    driver = play(FedHAM(p=0), federation(regressions((2,) * n)), Line(0.0, 0.0), 0)
    return driver.fed(round)


def seen_by(state: State, k: int, grouping: clusters.Grouping, round: int = 5) -> list[set[int]]:
    visible = clusters.visible(state, fed(len(state["seen"]), round), k, grouping)
    return [set(row.nonzero()[:, 0].tolist()) for row in visible]


def mates(groups: Sequence[Sequence[int]]) -> list[set[int]]:
    """What each client of these groups sees."""
    found = {i: set(group) - {i} for group in groups for i in group}
    return [found[i] for i in sorted(found)]


# ---------- k-means ----------


def spread_within(points: np.ndarray, labels: Sequence[int]) -> float:
    """What k-means minimises: the squared distances to the mean of the cluster."""
    total = 0.0
    for label in set(labels):
        own = points[[i for i, other in enumerate(labels) if other == label]]
        total += float(((own - own.mean(0)) ** 2).sum())
    return total


def best_partition(points: np.ndarray, k: int) -> list[list[int]]:
    n = len(points)
    partitions = (labels for labels in itertools.product(range(k), repeat=n) if len(set(labels)) == k)
    best = min(partitions, key=lambda labels: spread_within(points, labels))
    return [[i for i in range(n) if best[i] == label] for label in range(k)]


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_k_means_finds_the_best_of_all_partitions(k: int, scale: float) -> None:
    draw = np.random.default_rng(k)
    points = 5 * draw.normal(size=(k, 2))[np.arange(7) % k] + draw.normal(size=(7, 2))
    assert seen_by(kept((scale * points).tolist()), k, "kmeans") == mates(best_partition(points, k))


def test_clusters_of_one_and_two_by_hand() -> None:
    points = [(0.0, 0.0), (5.0, 5.0), (0.0, 0.1), (5.0, 5.1), (-9.0, 0.0)]
    assert seen_by(kept(points), 3, "kmeans") == [{2}, {3}, {0}, {1}, set()]
    assert seen_by(kept(points), 5, "kmeans") == [set()] * 5
    assert seen_by(kept(points), 99, "kmeans") == [set()] * 5
    assert seen_by(kept(points), 1, "kmeans") == [{0, 1, 2, 3, 4} - {i} for i in range(5)]


def test_clients_with_equal_models_are_never_parted() -> None:
    points = [(0.0, 0.0), (1.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 0.0)]
    for k in (2, 3, 5):
        assert seen_by(kept(points), k, "kmeans") == [{2, 4}, {3}, {0, 4}, {1}, {0, 2}]
    assert seen_by(kept([(1.0, 2.0)] * 4), 2, "kmeans") == [{0, 1, 2, 3} - {i} for i in range(4)]


def test_clusters_are_the_same_whenever_they_are_asked_for() -> None:
    points = np.random.default_rng(0).normal(size=(12, 3)).tolist()
    assert seen_by(kept(points), 4, "kmeans") == seen_by(kept(points), 4, "kmeans")
    groups = seen_by(kept(points), 4, "kmeans")
    assert all((i in groups[j]) == (j in groups[i]) for i in range(12) for j in range(12))
    assert len({frozenset(group | {i}) for i, group in enumerate(groups)}) == 4


def test_distances_are_over_what_is_trained() -> None:
    # a frozen body that is far apart, as after a run with another one, does not part two clients
    driver = play(FedHAM(p=0), federation(regressions(dtype=np.float32)), Frozen(), 0)
    models = {name: x.clone() for name, x in driver.server["models"].items()}
    models["body.weight"][2] += 100.0
    models["head.weight"][0] += 1.0
    state = {"models": models, "seen": torch.ones(3)}
    visible = clusters.visible(state, driver.fed(5), 2, "kmeans")
    assert [set(row.nonzero()[:, 0].tolist()) for row in visible] == [set(), {2}, {1}]


@pytest.mark.parametrize("n", [2, 5, 9])
def test_coordinates_keep_all_distances(n: int) -> None:
    points = np.random.default_rng(n).normal(size=(n, 40))
    squared = ((points[:, None] - points[None]) ** 2).sum(2)
    found = clusters.coordinates(squared)
    assert found.shape == (n, n)
    np.testing.assert_allclose(((found[:, None] - found[None]) ** 2).sum(2), squared, rtol=1e-9, atol=1e-9)


# ---------- mean shift ----------


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_mean_shift_finds_how_many_groups_there_are(scale: float) -> None:
    square = np.array([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.5)])
    places = np.array([(0.0, 0.0), (9.0, 0.0), (0.0, 9.0)])
    points = scale * (places[:, None] + square).reshape(15, 2)
    expected = mates([range(5), range(5, 10), range(10, 15)])
    assert seen_by(kept(points.tolist()), 1, "meanshift") == expected
    assert seen_by(kept(points.tolist()), 7, "meanshift") == expected  # k is not asked


def test_mean_shift_leaves_an_outlier_alone_and_equal_models_together() -> None:
    points = [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.1, 0.1), (50.0, 50.0)]
    assert seen_by(kept(points), 1, "meanshift") == [*mates([range(4)]), set()]
    assert seen_by(kept([(0.0, 0.0)] * 3 + [(1.0, 0.0)]), 1, "meanshift") == [{1, 2}, {0, 2}, {0, 1}, set()]
    assert seen_by(kept([(1.0, 2.0)] * 3), 1, "meanshift") == [{1, 2}, {0, 2}, {0, 1}]


# ---------- the nearest ----------


@pytest.mark.parametrize("k", [2, 3, 4, 9, 50])
def test_the_nearest_are_a_kth_of_the_others_rounded_up(k: int) -> None:
    points = np.random.default_rng(k).normal(size=(10, 3))
    seen = seen_by(kept(points.tolist()), k, "nearest")
    for i, own in enumerate(points):
        order = sorted((j for j in range(10) if j != i), key=lambda j: float(((points[j] - own) ** 2).sum()))
        assert seen[i] == set(order[: math.ceil(9 / k)])


def test_the_nearest_need_not_be_mutual() -> None:
    assert seen_by(kept([(0.0, 0.0), (1.0, 0.0), (3.0, 0.0)]), 2, "nearest") == [{1}, {0}, {1}]


# ---------- clients that have not sent anything ----------


def test_a_client_that_has_sent_nothing_is_seen_by_nobody_and_sees_all_where_there_is_one_cluster() -> None:
    points = [(0.0, 0.0), (0.1, 0.0), (5.0, 0.0), (5.1, 0.0), (0.05, 0.0)]
    one = kept(points, absent=[4])
    for grouping in ("kmeans", "nearest"):
        assert seen_by(one, 1, grouping) == [{1, 2, 3}, {0, 2, 3}, {0, 1, 3}, {0, 1, 2}, {0, 1, 2, 3}]
        assert seen_by(one, 2, grouping)[4] == set()  # it cannot be compared
        assert not any(4 in seen for seen in seen_by(one, 2, grouping))
    assert seen_by(one, 2, "kmeans") == [{1}, {0}, {3}, {2}, set()]
    assert seen_by(one, 1, "meanshift")[4] == set()
    nobody = kept(points, absent=range(5))
    for grouping in ("kmeans", "meanshift", "nearest"):
        for k in (1, 2):
            assert seen_by(nobody, k, grouping) == [set()] * 5
    single = kept(points, absent=[0, 1, 2, 4])
    for grouping in ("kmeans", "meanshift", "nearest"):
        assert seen_by(single, 2, grouping) == [set()] * 5


def test_what_is_sent_is_padded() -> None:
    visible = torch.tensor([[False, True, True], [False, False, False], [True, False, False]])
    assert clusters.padded(visible, torch.tensor([0, 1, 2])).tolist() == [[1, 2], [-1, -1], [0, -1]]
    assert clusters.padded(visible, torch.tensor([2])).tolist() == [[0]]
    assert clusters.padded(visible, torch.tensor([1])).shape == (1, 0)


# ---------- in a run ----------


def five(method: FedHAM, rounds: int = 4, **options: object) -> Driver:
    """Two sites around 0, two around 100 and one at -200, which part in their first training."""
    data = squares((0.0, 0.1, 100.0, 100.1, -200.0), (1.0,) * 5, (2, 3, 4, 5, 6))
    return play(method, data, Line(0.0), rounds, **options)


@NOTED
@pytest.mark.parametrize(
    ("method", "others"),
    [
        (FedHAM(p=1), [4, 4, 4, 4, 4]),
        (FedHAM(p=1, k=3), [1, 1, 1, 1, 0]),
        (FedHAM(p=1, k=2), [3, 3, 3, 3, 0]),
        (FedHAM(p=1, k=5), [0, 0, 0, 0, 0]),
        (FedHAM(p=1, k=3, grouping="nearest"), [2, 2, 2, 2, 2]),
        (FedHAM(p=1, k=4, grouping="nearest"), [1, 1, 1, 1, 1]),
        (FedHAM(p=1, k=2, grouping="nearest"), [2, 2, 2, 2, 2]),
    ],
    ids=repr,
)
def test_the_models_of_the_cluster_travel_and_are_counted_in_bytes(method: FedHAM, others: list[int]) -> None:
    first, second, *_ = five(method, 2).rows
    size = 8  # one number in float64
    assert first["down"] == [size] * 5
    assert second["down"] == [size * (1 + count) for count in others]
    assert first["up"] == second["up"] == [size + 16] * 5  # and two numbers beside the model


@NOTED
def test_attention_goes_to_mates_only_and_a_client_alone_hears_of_the_mean_alone() -> None:
    driver = five(FedHAM(p=1, k=3), 1)
    message = driver.last_delivery()
    assert [None if got.peer_ids is None else got.peer_ids.tolist() for got in message] == [[1], [0], [3], [2], []]
    for i, j in ((0, 1), (1, 0), (2, 3), (3, 2)):
        assert torch.equal(message[i].peers["w"], driver.kept[j]["trained"]["w"][None])
    driver.step()
    shown = [driver.rows[-1]["explain"]["clients"][str(i)]["alpha"] for i in range(5)]
    assert shown == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    beta = driver.kept[4]["method"]["beta"]
    assert float(beta[1]) == float(beta[2])  # x^a and x^g are one
    before = 0.1 * -200.0  # after one step from 0
    hybrid = float(beta[0] * before + (beta[1] + beta[2]) * message[4].model["w"])
    assert float(driver.kept[4]["trained"]["w"]) == pytest.approx(hybrid + 0.1 * (-200.0 - hybrid), rel=1e-12)


@NOTED
@pytest.mark.filterwarnings("ignore:.*turned to the clients' own:UserWarning")
def test_clusters_follow_the_models_of_clients_that_were_not_drawn_too() -> None:
    # with two of five a round, a client hears of those that were drawn before
    driver = five(FedHAM(p=0, k=2), 8, cohort=2)
    sent: set[int] = set()
    for row in driver.rows:
        for i in range(5):
            heard = 0 if not row["down"][i] else row["down"][i] // 8 - 1
            assert heard <= len(sent - {i})
        sent |= set(row["cohort"])
    assert sent == set(range(5))
    got = driver.last_delivery()
    models = [float(kept["trained"]["w"]) for kept in driver.kept]
    assert driver.server["models"]["w"][:, 0].tolist() == models
    assert [set(one.peer_ids.tolist()) for one in got] == mates(best_partition(np.array(models)[:, None], 2))
