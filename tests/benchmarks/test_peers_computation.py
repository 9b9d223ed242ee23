"""That all compute the same, and that it would be seen if one did not."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from peers import measure, ours
from peers.bundle import Bundle, Settings
from peers.by_hand import TRAINED, ByHand
from peers.line import Process
from peers.measure import Differs, Entrant, compare
from peers.models import MODELS
from peers.plain import PlainLoop
from peers.workloads import WORKLOADS, fashion, to_compare

from fedtailor.nn import make

SIZES = (5, 3, 4)
LR, BATCH = 0.1, 2


def small(**settings: Any) -> Bundle:
    """Three unequal clients, four numbers a row, three classes."""
    random = torch.Generator().manual_seed(1)
    lists = list(torch.split(torch.arange(sum(SIZES) + 3), [*SIZES, 1, 1, 1]))
    x, y = torch.randn(15, 1, 2, 2, generator=random), torch.randint(0, 3, (15,), generator=random)
    values = dict(make("mlr", classes=3, shape=(1, 2, 2), seed=0).state_dict())
    known = {"classes": 3, "batch": BATCH, "lr": LR, "cohort": 3, "double": True, **settings}
    return Bundle(Settings("small", "mlr", **known), x.double(), y, lists[:3], lists[3:], values)


def by_numpy(bundle: Bundle, rounds: int) -> dict[str, NDArray[np.float64]]:
    """FedAvg on softmax regression, rows in the order given: the gradient (p - onehot)' x / B, the mean by size."""
    w, b = (bundle.values[name].double().numpy() for name in ("head.weight", "head.bias"))
    x, y = bundle.x.flatten(1).numpy(), bundle.y.numpy()
    for _ in range(rounds):
        found = []
        for rows in (each.numpy() for each in bundle.train):
            u, c = w.copy(), b.copy()
            for start in range(0, len(rows), BATCH):
                some = rows[start : start + BATCH]
                z = x[some] @ u.T + c
                slope = np.exp(z) / np.exp(z).sum(1, keepdims=True)
                slope[np.arange(len(some)), y[some]] -= 1
                u, c = u - LR * slope.T @ x[some] / len(some), c - LR * slope.mean(0)
            found.append((u, c))
        shares = np.array(SIZES) / sum(SIZES)
        w, b = (sum(s * one[part] for s, one in zip(shares, found, strict=True)) for part in (0, 1))
    return {"head.weight": w, "head.bias": b}


def test_the_plain_loop_is_federated_averaging(tmp_path: Path) -> None:
    bundle = small(ordered=True)
    bundle.save(tmp_path / "small.npz")
    with closing(Process(Path(sys.executable), "plain", tmp_path / "plain.log", True, tmp_path)) as process:
        process.hear()
        process.ask(do="prepare", bundle=str(tmp_path / "small.npz"), options={})
        process.ask(do="rounds", count=2)
        process.ask(do="save", path=str(tmp_path / "after.npz"))
        assert process.ask(do="tell")["threads"] == 1
    with np.load(tmp_path / "after.npz") as found:
        for name, value in by_numpy(bundle, rounds=2).items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12)


def test_a_round_by_hand() -> None:
    """One client, one row x = 1, two classes, all values 0: p = (1/2, 1/2), so a step of 0.1 moves them by 0.05."""
    values = {"head.weight": torch.zeros(2, 1), "head.bias": torch.zeros(2)}
    settings = Settings("by hand", "mlr", classes=2, batch=1, lr=0.1, cohort=1, ordered=True)
    rows = [torch.tensor([0])]
    loop = PlainLoop(Bundle(settings, torch.ones(1, 1), torch.tensor([1]), rows, rows, values))
    loop.round()
    assert loop.model["head.weight"].flatten().tolist() == pytest.approx([-0.05, 0.05])
    assert loop.model["head.bias"].tolist() == pytest.approx([-0.05, 0.05])


@pytest.mark.parametrize("workload", [one for one in WORKLOADS if one.model in TRAINED], ids=lambda one: one.model)
def test_loops_written_by_hand_end_where_the_plain_one_does(workload: Any) -> None:
    """Two rounds of two clients of one size, in batches of 8, 8 and 4 rows."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(40, *workload.shape, generator=random, dtype=torch.float64)
    values = dict(make(workload.model, classes=10, shape=workload.shape, seed=0).state_dict())
    settings = Settings("two", workload.model, 10, batch=8, lr=0.02, cohort=2, ordered=True, double=True)
    rows = list(torch.arange(40).split(20))
    bundle = Bundle(settings, x, torch.randint(0, 10, (40,), generator=random), rows, rows, values)
    by_hand, plain = ByHand(bundle), PlainLoop(bundle)
    for _ in range(2):
        by_hand.round()
        plain.round()
    for name, value in by_hand.model.items():
        torch.testing.assert_close(value, plain.model[name], rtol=0, atol=1e-12)


class Scripted:
    """Asks for rounds, and keeps what the model was after them."""

    def __init__(self, rounds: int):
        self.count = rounds

    def rounds(self, values: Any, facts: Any) -> Iterator[None]:
        for _ in range(self.count):
            yield
        self.model, self.facts = {name: value.clone() for name, value in values().items()}, facts()


@pytest.mark.parametrize("cohort", [3, 1])  # of one, it is the second client
def test_the_others_are_given_this_packages_round(cohort: int) -> None:
    """Its cohort, and the rows in its order: then a loop in NumPy ends where this package does."""
    mine, others = to_compare(small(cohort=cohort), batches=1.5)
    assert [len(rows) for rows in mine.train] == [3, 3, 3] and len(others.train) == cohort and others.settings.ordered
    line = Scripted(rounds=1)
    ours.run(mine, line)  # type: ignore[arg-type]
    loop = PlainLoop(others)
    loop.round()
    for name, value in loop.model.items():
        torch.testing.assert_close(line.model[name], value, rtol=0, atol=1e-12)
    assert line.facts["trainers"] == cohort


class Known:
    """Stands for a process whose model after a round is known."""

    def __init__(self, values: Mapping[str, Any]):
        self.values = values

    def ask(self, **order: Any) -> dict[str, Any]:
        if order["do"] == "save":
            np.savez(order["path"], **{name: np.asarray(value) for name, value in self.values.items()})
        return {}


PLAIN, OURS = Entrant("plain", Path()), Entrant("ours", Path())


def compared(found: Mapping[str, Any], tmp_path: Path, kind: str = "float64") -> dict[str, float]:
    bundle = small()
    moved = {name: value + 1 for name, value in bundle.values.items()}
    processes = {PLAIN: Known(moved), OURS: Known({**moved, **found})}
    return compare(bundle, processes, kind, None, tmp_path)  # type: ignore[arg-type]


def test_another_result_is_seen(tmp_path: Path) -> None:
    bias = small().values["head.bias"].double() + 1
    assert compared({}, tmp_path) == {"plain": 0.0, "ours": 0.0}
    assert compared({"head.bias": bias + 1e-6}, tmp_path)["ours"] == pytest.approx(1e-6, rel=0.1)
    with pytest.raises(Differs, match="ours does not compute what the plain loop does"):
        compared({"head.bias": bias + 2e-5}, tmp_path)
    assert compared({"head.bias": bias + 2e-5}, tmp_path, "float32")["ours"] == pytest.approx(2e-5, rel=0.1)
    with pytest.raises(Differs, match="not compute"):
        compared({"head.bias": bias * float("nan")}, tmp_path, "float32")


def test_a_result_that_lacks_what_is_trained_is_seen(tmp_path: Path) -> None:
    moved = {name: value + 1 for name, value in small().values.items()}
    processes = {PLAIN: Known(moved), OURS: Known({"head.bias": torch.zeros(3)})}
    with pytest.raises(Differs, match=r"ours gives no head\.weight"):
        compare(small(), processes, "float64", None, tmp_path)  # type: ignore[arg-type]


def test_a_bundle_comes_back_from_its_file(tmp_path: Path) -> None:
    bundle = small(evaluate=False, double=False)
    bundle.save(tmp_path / "one.npz")
    again = Bundle.load(tmp_path / "one.npz", evaluate=True, method="FedBN")
    assert again.settings == Settings(**{**vars(bundle.settings), "evaluate": True, "method": "FedBN"})
    assert torch.equal(again.x, bundle.x) and torch.equal(again.y, bundle.y)
    assert [rows.tolist() for rows in again.train] == [rows.tolist() for rows in bundle.train]
    assert [rows.tolist() for rows in again.test] == [rows.tolist() for rows in bundle.test]
    assert all(torch.equal(again.values[name], value) for name, value in bundle.values.items())


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one.model)
def test_the_plain_networks_are_this_packages(workload: Any) -> None:
    """The same tensors in the same order, and the same outputs."""
    named = make(workload.model, classes=workload.classes, shape=workload.shape, seed=0)
    plain = MODELS[workload.model](workload.classes, workload.shape)
    plain.load_state_dict(named.state_dict())
    x = torch.randn(3, *workload.shape, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(plain.train()(x), named.train()(x))


def test_the_operations_of_a_round_are_counted() -> None:
    """MLR, 784 to 10: a row costs 2 * 7840 forward and as much for the weights' gradient; 12 rows."""
    bundle = small(double=False)
    counted = measure.flop_of_a_round(Bundle(**{**vars(bundle), "x": bundle.x.float()}))
    assert counted == 12 * 2 * (2 * 4 * 3)


def test_the_numbers_of_fashion_mnist(data_folder: Path) -> None:
    """The first training image is a boot (class 9); its pixels' sum is known from the set as published."""
    x, y = fashion(data_folder / "fashion_mnist.npz", 100)
    assert x.shape == (100, 1, 28, 28) and y[0] == 9
    assert float(x[0].sum() * 255) == pytest.approx(76247, abs=0.5)
