"""A client that is followed: its models are those of the run, the plane is that of principal components."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_records import PROBLEM, made_outcome

from fedtailor import Federation, RunSpec, federate, load, registry
from fedtailor.driver import Callback, Driver
from fedtailor.papers.drawing import Losses, Trajectory
from fedtailor.papers.figures import pictures
from fedtailor.papers.plan import Job
from fedtailor.papers.preset import Cell, Follow, Number, Reading, Table
from fedtailor.papers.record import of_run
from fedtailor.papers.running import run_one
from fedtailor.papers.trajectory import CELLS, models, plane
from fedtailor.record import Row
from fedtailor.report.style import MARKED, PRINT, inline

FOLLOW = Follow(1, 2, 3, "FedAvg", "FedALA")
METHOD = "FedALA(p=1, cap=2, eta=1000.0, after=3)"
CELL = Cell("turning", PROBLEM, METHOD, {"rounds": 5, "batch": 64, "lr": 0.001, "eval_every": 1, "checkpoint_every": 1},
            (Number("MNIST/MLR", Reading()),), follow=FOLLOW, learned="ALA loss")  # fmt: skip


def job(folder: Path, cell: Cell = CELL) -> Job:
    return Job(cell, 0, folder)


def quiet(*_: Any) -> None: ...


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("followed") / "seed-0"
    assert run_one(job(folder), quiet) == ""
    return folder


class Begins(Callback):
    """The loss of the server's model on the training rows of client 1: with it the client's next round begins."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def on_round(self, driver: Driver, row: Row) -> None:
        rows = driver.data.train[1]
        out, _ = driver.arch.apply(driver.server["model"], driver.data.x[rows], train=False)
        self.losses[row["round"] + 1] = float(torch.nn.functional.cross_entropy(out, driver.data.y[rows]))


def test_it_begins_where_the_run_begins(ran: Path) -> None:
    """In rounds 2 and 3, without ALA, that is the server's model: its loss is computed here, in another run."""
    way = json.loads((ran / "trajectory.json").read_text(encoding="utf-8"))
    federation: Federation = load(PROBLEM.data, PROBLEM.partition)
    watch = Begins()
    options = {**CELL.settings, "rounds": 3, "model": "mlr"}
    federate(RunSpec.of(federation, registry.parse("method", "FedAvg()"), **options), federation, callbacks=[watch])
    assert way["rounds"] == [2, 3, 4, 5] and way["client"] == federation.clients[1] and way["turn"] == 3
    assert way["loss_begin"][:2] == pytest.approx([watch.losses[2], watch.losses[3]], abs=2e-5)
    assert all(end < begin for begin, end in zip(way["loss_begin"], way["loss_end"], strict=True)), "training helps"
    assert abs(way["loss_begin"][2] - watch.losses[4]) > 1e-4, "from round 4 on it starts elsewhere"


def test_the_grid_is_of_the_loss_around_the_way(ran: Path) -> None:
    way = json.loads((ran / "trajectory.json").read_text(encoding="utf-8"))
    places = np.array([*way["begin"], *way["end"]])
    grid = np.array(way["loss"])
    assert grid.shape == (CELLS, CELLS) and np.isfinite(grid).all()
    for axis, values in zip(way["axes"], places.T, strict=True):
        assert axis[0] < values.min() and axis[-1] > values.max() and axis == sorted(axis)
    assert 0.5 < sum(way["shares"]) <= 1.00001 and way["shares"][0] >= way["shares"][1]
    # the models of the way lie near the plane, so that the grid beside each has nearly its loss
    for place, loss in zip(places, [*way["loss_begin"], *way["loss_end"]], strict=True):
        nearest = [int(np.abs(np.array(axis) - x).argmin()) for axis, x in zip(way["axes"], place, strict=True)]
        assert grid[nearest[1], nearest[0]] == pytest.approx(loss, abs=0.15 * float(np.ptp(grid)))


def test_what_it_leaves_is_small_and_its_models_are_gone(ran: Path) -> None:
    assert not models(ran).exists() and (ran / "trajectory.json").stat().st_size < 10_000
    record = of_run(ran, CELL, 0)
    assert record is not None and record.trajectory["rounds"] == [2, 3, 4, 5]
    curves = record.curves["ALA loss[epoch]"]
    assert [[len(curve) for curve in of_round] for of_round in curves] == [[0] * 3] * 3 + [[2] * 3, [1] * 3]


def test_a_run_that_is_followed_is_the_run(ran: Path, tmp_path: Path) -> None:
    """Following changes nothing; and it goes on after an interrupt as if there had been none."""
    plain = tmp_path / "plain"
    alone = replace(CELL, follow=None, settings={**CELL.settings, "runner": "sequential"})
    assert run_one(job(plain, alone), quiet) == ""
    assert results_of(plain) == results_of(ran) and not (plain / "trajectory.json").exists()

    def stop(of: Job, done: int, rounds: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(job(tmp_path / "cut"), stop)
    assert run_one(job(tmp_path / "cut"), quiet) == ""
    assert (tmp_path / "cut/trajectory.json").read_text() == (ran / "trajectory.json").read_text()


def results_of(folder: Path) -> list[Any]:
    return [json.loads(line)["test"] for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_plane_is_that_of_principal_components() -> None:
    """Against the singular value decomposition of NumPy."""
    vectors = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    middle, directions, places, shares = plane(vectors)
    centred = (vectors - vectors.mean(0)).double().numpy()
    _, singular, right = np.linalg.svd(centred, full_matrices=False)
    assert torch.allclose(middle, vectors.mean(0))
    for component in (0, 1):
        assert abs(directions[component].double().numpy() @ right[component]) == pytest.approx(1, abs=1e-5)
        assert places[:, component].abs().numpy() == pytest.approx(np.abs(centred @ right[component]), abs=1e-5)
    assert shares.numpy() == pytest.approx(singular[:2] ** 2 / (singular**2).sum())
    assert (places[0] >= 0).all(), "the sign is free, and is always chosen alike"
    back = middle + places.float() @ directions
    assert ((vectors - back) ** 2).sum() == pytest.approx(float((singular[2:] ** 2).sum()), rel=1e-4)


def test_the_plane_of_a_line_has_no_second_direction() -> None:
    """By hand: 0, 1 and 2 times (3, 4) lie on a line of length 5 a step."""
    vectors = torch.arange(3.0)[:, None] * torch.tensor([[3.0, 4.0]])
    _, directions, places, shares = plane(vectors)
    assert places[:, 0].tolist() == pytest.approx([5, 0, -5]) and places[:, 1].abs().max() < 1e-5
    assert directions[0].tolist() == pytest.approx([-0.6, -0.8]) and shares.tolist() == pytest.approx([1, 0])


# ---------- the pictures ----------

WAY = {
    "client": "middle", "rounds": [2, 3, 4], "turn": 3, "begin": [[0.0, 0.0], [1.0, 1.0], [2.0, 0.5]],
    "end": [[0.5, 1.0], [1.5, 2.0], [2.5, 1.0]], "loss_begin": [0.5, 0.7, 0.1], "loss_end": [0.3, 0.2, 0.05],
    "shares": [0.7, 0.2], "axes": [[-1.0, 1.0, 3.0], [-1.0, 1.0, 3.0]],
    "loss": [[1.0, 0.5, 0.2], [0.5, 0.1, 0.05], [0.8, 0.4, 0.3]],
}  # fmt: skip


def made(drawing: Any, **changes: Any) -> Any:
    table = Table("fedala", "figure4", "A figure", lambda scale: (CELL,), drawings=(drawing,))
    return pictures(made_outcome(table, {"turning": [changes]}))


@pytest.mark.parametrize("width", [7.0, 3.3])
def test_the_way_is_drawn_from_begin_to_end_to_begin(width: float) -> None:
    [picture] = made(Trajectory(), trajectory=WAY)
    figure = picture.draw(PRINT, width)
    [axes] = figure.axes
    lines = {str(line.get_label()): line.get_xydata().tolist() for line in axes.lines}
    assert lines["FedAvg"] == [[0, 0], [0.5, 1], [1, 1], [1.5, 2]]
    assert lines["FedALA"] == [[1.5, 2], [2, 0.5], [2.5, 1]]
    marks = [(line.get_marker(), line.get_xydata().tolist()) for line in axes.lines if line.get_linestyle() == "None"]
    assert marks == [("o", [[0, 0], [1, 1]]), ("s", [[0.5, 1], [1.5, 2]]), ("o", [[2, 0.5]]), ("s", [[2.5, 1]])]
    assert axes.get_xlabel() == "first principal component"
    assert "begins is 0.6 on average with FedAvg and 0.1 with FedALA" in picture.caption
    assert "where it ends, 0.25 and 0.05" in picture.caption and "70 and 20 %" in picture.caption
    page = inline(picture.draw(MARKED, width), "way", picture.title, picture.caption)
    assert "var(--muted)" in page and "#0a0" not in page, "the page's own colours, lines of equal loss included"
    assert not made(Trajectory()), "a run that was not followed"


def test_losses_of_weight_learning() -> None:
    curves = [[[], [], []], [[0.9], [0.9, 0.5, 0.4], []], [[0.3], [0.35, 0.3], [0.2]]]
    drawing = Losses("ALA loss[epoch]", "loss of weight learning", "epoch", 1)
    [picture] = made(drawing, curves={"ALA loss[epoch]": curves})
    figure = picture.draw(PRINT, 7.0)
    found = [line.get_xydata().tolist() for line in figure.axes[0].lines]
    assert found == [[[1, 0.9], [2, 0.5], [3, 0.4]], [[1, 0.35], [2, 0.3]]]
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("epoch", "loss of weight learning")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["round 4", "round 6"]
    assert "middle" in figure.axes[0].get_title() and "In round 4" in picture.caption
    assert not made(Losses("other", "loss", "epoch", 1), curves={"ALA loss[epoch]": curves})


