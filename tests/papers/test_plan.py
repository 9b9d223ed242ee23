"""Which cells are run: by what is asked for, and by what data are at hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from fedtailor.papers import effort
from fedtailor.papers.plan import pick, plan
from fedtailor.papers.preset import Table
from fedtailor.registry import WrongInput


def test_data_that_are_not_at_hand(small_table: Table, tmp_path: Path) -> None:
    found = plan(small_table, "quick", (), 2, tmp_path)
    assert [cell.problem.label for cell in found.cells] == ["MNIST", "MNIST", "MNIST", "digits"]
    [(refused, reason)] = found.refused
    assert refused.problem.label == "FMNIST" and "nowhere.npz" in reason
    stands_in = found.cells[-1]
    assert stands_in.problem.instead_of == "CIFAR10" and stands_in.numbers[0].column == "CIFAR10/MLR"
    assert len(found.jobs) == 8 and Counter(job.seed for job in found.jobs) == {0: 4, 1: 4}
    assert len({job.folder for job in found.jobs}) == 8
    full = plan(small_table, "full", (), 1, tmp_path)
    assert len(full.cells) == 3 and len(full.refused) == 2, "nothing stands in at the paper's own scale"


def test_equal_work_is_run_once(small_table: Table, tmp_path: Path) -> None:
    found = plan(small_table, "quick", (), 1, tmp_path)
    assert replace(found, cells=found.cells * 2).jobs == found.jobs


def test_picking(small_table: Table) -> None:
    cells = small_table.cells("quick")

    def picked(*only: str) -> list[str]:
        return [f"{cell.row} {cell.problem.label}" for cell in pick(cells, only)]

    assert len(picked()) == 5
    assert picked("method=FedAvg") == ["FedAvg MNIST", "FedAvg FMNIST", "FedAvg CIFAR10"]
    assert picked("method=fedavg,data=mnist") == ["FedAvg MNIST"]
    assert picked("data=MNIST, method=FedAvg", "method=Local") == ["FedAvg MNIST", "Local MNIST"]
    assert picked("model=MLR") == picked()


@pytest.mark.parametrize(
    ("only", "told"),
    [
        ("method=FedProx", "there are FedAvg, FedMCSA, Local"),
        ("data=SVHN", "there are MNIST, FMNIST, CIFAR10"),
        ("colour=red", "choose method, data, model"),
        ("FedAvg", "write something like data=MNIST"),
        ("method=", "write something like data=MNIST"),
    ],
)
def test_picking_what_is_not_there(small_table: Table, only: str, told: str) -> None:
    with pytest.raises(WrongInput, match=told):
        pick(small_table.cells("quick"), [only])


def test_no_seed(small_table: Table, tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match="1 or more"):
        plan(small_table, "quick", (), 0, tmp_path)


def test_estimates_grow_with_the_work(small_table: Table) -> None:
    fedavg, fedmcsa, *_ = small_table.cells("quick")

    def steps(count: int, method: str = "FedAvg()") -> float:
        return effort.seconds(replace(fedavg, method=method, settings={**fedavg.settings, "steps": count}))

    base = steps(100_000)
    assert steps(200_000) - base == pytest.approx(steps(300_000) - steps(200_000))
    assert steps(100_000, "pFedMe(K=5)") > 4 * base
    assert effort.factor("AdaptiveLocalAggregation(Ditto(lam=1.0))") == pytest.approx(1.3 * 2)
    # ALA: 0.8 times 20 epochs at first, and five more than the one of the factor in each of seven rounds
    ala = replace(fedavg, method="FedALA(cap=20, later_epochs=6, after=3)", settings={**fedavg.settings, "rounds": 10})
    assert effort.weight_learning(ala) == pytest.approx(0.8 * (20 + 7 * 5)) and effort.weight_learning(fedavg) == 0
    # FedMCSA trains everybody, whoever is drawn
    assert effort.trainers(replace(fedavg, settings={**fedavg.settings, "cohort": 1})) == 1
    assert effort.trainers(replace(fedmcsa, settings={**fedmcsa.settings, "cohort": 1})) == 3
    assert effort.machine() > 0
