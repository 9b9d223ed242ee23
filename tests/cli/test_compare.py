"""`fedtailor.compare` from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from calling import untimed
from torch import nn

from fedtailor import Callback, Ditto, Driver, FedAvg, FedBN, Federation, Local, Proximal, RunSpec, WrongInput, federate
from fedtailor.compare import compare, labelled, plan

pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture
def federation() -> Federation:
    """Three clients with a few numbers each."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(36, 4, generator=draw)
    lists = [torch.arange(12 * i, 12 * i + 12) for i in range(3)]
    return Federation(
        name="three", x=x, y=(x.sum(1) > 0).long(), train=tuple(rows[:6] for rows in lists),
        validation=tuple(rows[6:8] for rows in lists), test=tuple(rows[8:] for rows in lists),
        clients=("a", "b", "c"), groups=(0, 0, 0), group_names=("all",), classes=("no", "yes"), model="mlr",
        settings={"rounds": 2, "batch": 4, "lr": 0.1},
    )  # fmt: skip


class Counting(Callback):
    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []

    def on_start(self, driver: Driver) -> None:
        self.started.append((repr(driver.spec.method), driver.spec.seed))


def test_local_is_run_along_once_a_seed(federation: Federation) -> None:
    for methods in ([FedAvg()], [FedAvg(), Local()], ["fedavg", "single", "local"]):
        found = [(part.label, part.spec.seed) for part in plan(federation, methods, seeds=2)]
        assert sorted(found) == [("FedAvg", 0), ("FedAvg", 1), ("Local", 0), ("Local", 1)]
    assert {part.label for part in plan(federation, [FedAvg()], alone=False)} == {"FedAvg"}


def test_seeds_vary_the_run_and_nothing_else(federation: Federation) -> None:
    parts = plan(federation, [FedAvg()], seeds=3, seed=5, batch=3)
    assert sorted({part.spec.seed for part in parts}) == [5, 6, 7]
    assert {part.spec.batch for part in parts} == {3}
    assert sorted({part.spec.seed for part in plan(federation, [FedAvg()], seeds=[2, 9])}) == [2, 9]


def test_a_local_that_nobody_asked_for_is_tested_where_it_can_be(federation: Federation) -> None:
    points = {part.label: part.spec.point for part in plan(federation, [Ditto()], point="adapted")}
    assert points == {"Ditto": "adapted", "Local": None}


def test_labels_are_short_and_apart() -> None:
    methods = ["fedprox", "ditto( lam=0.1)", Ditto(lam=2.0), Proximal(FedBN()), Proximal(Ditto(lam=2.0), mu=1.0)]
    methods += ["ala(localattention(FedAvg(), kind='se'))", "ala(fed_bn(), p=2)", "fedavg", FedAvg()]
    labels = [label for _, label in labelled(methods)]
    assert labels[:4] == ["FedProx", "Ditto(lam=0.1)", "Ditto(lam=2.0)", "Proximal(FedBN)"]
    assert labels[4] == "Proximal(Ditto(lam=2.0), mu=1.0)"
    assert labels[5] == "AdaptiveLocalAggregation(LocalAttention(FedAvg, kind='se'))"
    assert labels[6:] == ["AdaptiveLocalAggregation(FedBN, p=2)", "FedAvg"], "the same method is not run twice"


def test_labels_tell_methods_apart() -> None:
    labels = [label for _, label in labelled(["ditto", "Ditto(lam=2)", Ditto(lam=3.0), "fed-prox"])]
    assert labels == ["Ditto", "Ditto(lam=2)", "Ditto(lam=3.0)", "FedProx"]
    labels = [label for _, label in labelled([Proximal(FedAvg(), mu=True), "Proximal(FedAvg(), mu=1)"])]
    assert len(set(labels)) == len(labels)
    labels = [label for _, label in labelled(["FedProx", "Proximal(FedAvg(), mu=0.01, inner_steps=1)", "fedprox()"])]
    assert labels == ["FedProx"], "the same method under three names is run once"


def test_folders_are_safe_and_apart(federation: Federation) -> None:
    parts = plan(federation, [Ditto(lam=1e-05), Ditto(lam=10.0), Proximal(Ditto(), mu=0.5), Proximal(Ditto(), mu=1.5)])
    folders = [part.path.split("/")[0] for part in parts]
    assert len(set(folders)) == len(parts) == 5
    assert all(set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for folder in folders)


def test_a_run_of_a_comparison_is_the_run_alone(federation: Federation, tmp_path: Path) -> None:
    compared = compare(federation, [FedAvg()], seeds=2, out=tmp_path / "c")
    assert compared.folder == tmp_path / "c"
    assert not compared.diverged
    federate(RunSpec.of(federation, FedAvg(), seed=1), federation, out=tmp_path / "alone")
    assert untimed(tmp_path / "c/fedavg/seed-1") == untimed(tmp_path / "alone")
    assert "FedAvg" in compared.table() and "Local" in compared.table()


def test_what_is_complete_is_not_run_again(federation: Federation, tmp_path: Path) -> None:
    compare(federation, [FedAvg()], out=tmp_path / "c")
    counting = Counting()
    compare(federation, [FedAvg()], out=tmp_path / "c", callbacks=[counting])
    assert counting.started == []
    compare(federation, [FedAvg(), Ditto()], seeds=2, out=tmp_path / "c", callbacks=[counting])
    assert counting.started == [("Ditto(lam=1.0)", 0), ("Local()", 1), ("FedAvg()", 1), ("Ditto(lam=1.0)", 1)]
    runs = json.loads((tmp_path / "c/comparison.json").read_text(encoding="utf-8"))["runs"]
    assert [run["path"] for run in runs] == [
        "local/seed-0", "fedavg/seed-0", "ditto/seed-0", "local/seed-1", "fedavg/seed-1", "ditto/seed-1",
    ]  # fmt: skip


def test_another_comparison_is_not_overwritten(federation: Federation, tmp_path: Path) -> None:
    compare(federation, [FedAvg()], out=tmp_path / "c", rounds=1)
    before = (tmp_path / "c/comparison.json").read_bytes()
    for methods, options in (([Ditto()], {}), ([FedAvg()], {"lr": 0.2}), ([FedAvg()], {"seed": 3})):
        with pytest.raises(WrongInput, match="another comparison"):
            compare(federation, methods, out=tmp_path / "c", **{"rounds": 1, **options})
    assert (tmp_path / "c/comparison.json").read_bytes() == before


def test_wrong_input_leaves_nothing_behind(federation: Federation, tmp_path: Path) -> None:
    for methods, options in (
        ([], {}), (["magic"], {}), ([FedAvg(), FedBN()], {}), ([FedAvg()], {"lr": -1.0}), ([FedAvg()], {"seeds": 0}),
        ([FedAvg], {}),
    ):  # fmt: skip
        with pytest.raises(WrongInput):
            compare(federation, methods, out=tmp_path / "c", **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_model_of_ones_own(federation: Federation, tmp_path: Path) -> None:
    net = nn.Linear(4, 2)
    compare(federation, [FedAvg()], out=tmp_path / "c", model=net, rounds=1)
    counting = Counting()
    compare(federation, [FedAvg()], out=tmp_path / "c", model=net, rounds=2, callbacks=[counting])
    assert len(counting.started) == 2
    assert untimed(tmp_path / "c/fedavg/seed-0")[-1]["round"] == 2
