"""The way of one client's model through its rounds, in the plane in which it moves most, over the loss in that plane.

Zhang et al., AAAI 2023, figure 4; the plane is found by principal components, as in Li et al., "Visualizing the Loss
Landscape of Neural Nets", NeurIPS 2018. While the run lasts, the models are files in its folder, so that a run that was
cut off can go on; what stays are coordinates and a coarse grid of losses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fedtailor.driver import Callback, Driver
from fedtailor.papers.preset import Follow
from fedtailor.papers.record import TRAJECTORY
from fedtailor.record import Row
from fedtailor.runners import Exams, Runner, Work
from fedtailor.site import Reply, Site, model_of, statistics
from fedtailor.tree import Tree

CELLS = 15  # of the grid, along each component
MARGIN = 0.2  # of the grid beyond the way, as a share of its extent
DIGITS = 5


class Following:
    """Runs clients as another runner does, and keeps the models with which one of them begins and ends its rounds."""

    def __init__(self, runner: Runner, follow: Follow, folder: Path):
        self.runner, self.follow, self.folder = runner, follow, folder

    def plan(self) -> Mapping[str, Any]:
        return self.runner.plan()

    def begin(self, sites: Sequence[Site]) -> None:
        self.runner.begin(sites)

    def end(self) -> None:
        self.runner.end()

    def examine(self, work: Iterable[Work], round: int, final: bool = False) -> Iterator[tuple[int, Exams]]:
        return self.runner.examine(work, round, final)

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        work = list(work)
        mine = [part for part in work if part.site.number == self.follow.client and round >= self.follow.first]
        begins = [model_of(part.site, part.kept, part.got, round) for part in mine]
        for reply in self.runner.train(work, round, examine):
            if mine and reply.number == self.follow.client and reply.upload is not None:
                models(self.folder).mkdir(exist_ok=True)
                ends: Tree = reply.upload["model"]
                pair = {**named("begin", begins[0]), **named("end", ends)}
                safetensors.torch.save_file(pair, models(self.folder) / f"round-{round:06d}.safetensors")
            yield reply


class Plane(Callback):
    """After the last round, what was followed as a few numbers."""

    def __init__(self, follow: Follow, folder: Path):
        self.follow, self.folder = follow, folder

    def on_start(self, driver: Driver) -> None:
        self.conclude(driver)

    def on_round(self, driver: Driver, row: Row) -> None:
        self.conclude(driver)

    def conclude(self, driver: Driver) -> None:
        files = sorted(models(self.folder).glob("round-*.safetensors"))
        if driver.round < driver.spec.rounds or not files:
            return
        text = json.dumps(trajectory(driver, self.follow, files))
        (self.folder / TRAJECTORY).write_text(text, encoding="utf-8")
        for file in files:
            file.unlink()
        models(self.folder).rmdir()


def models(folder: Path) -> Path:
    return folder / "models"


def named(when: str, model: Tree) -> Tree:
    return {f"{when}/{name}": value.detach().cpu().contiguous().clone() for name, value in model.items()}


def trajectory(driver: Driver, follow: Follow, files: Sequence[Path]) -> dict[str, Any]:
    """Coordinates and losses at the beginning and at the end of every round, and the loss on a grid around them."""
    site = driver.sites[follow.client]
    pairs = [safetensors.torch.load_file(file) for file in files]
    ways = [{name.removeprefix(f"{when}/"): value for name, value in pair.items() if name.startswith(f"{when}/")}
            for pair in pairs for when in ("begin", "end")]  # fmt: skip
    names = sorted(driver.arch.trainable & ways[0].keys())
    vectors = torch.stack([torch.cat([way[name].flatten() for name in names]) for way in ways])
    middle, directions, places, shares = plane(vectors)
    last = {**driver.initial, **ways[-1]}

    def loss(model: Tree) -> float:
        found = driver.task.metrics(statistics(site, driver.on_device(model), site.rows))["loss"]
        return round(float(found), DIGITS)

    def at(one: float, two: float) -> Tree:
        vector = middle + one * directions[0] + two * directions[1]
        pieces = torch.split(vector, [last[name].numel() for name in names])
        return {**last, **{name: piece.view(last[name].shape) for name, piece in zip(names, pieces, strict=True)}}

    axes = [ticks(places[:, component]) for component in (0, 1)]
    losses = [loss({**driver.initial, **way}) for way in ways]
    return {
        "client": driver.data.clients[follow.client], "rounds": [int(file.stem.split("-")[1]) for file in files],
        "turn": follow.turn, "begin": points(places[0::2]), "end": points(places[1::2]),
        "loss_begin": losses[0::2], "loss_end": losses[1::2], "shares": [round(float(s), DIGITS) for s in shares],
        "axes": axes, "loss": [[loss(at(one, two)) for one in axes[0]] for two in axes[1]],
    }  # fmt: skip


def plane(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean, the two principal directions, each vector's coordinates, and the shares of the variance.

    By way of the products of the vectors with each other, which are few: the directions are never a matrix of all
    parameters by all parameters. The first vector has no negative coordinate, for the sign of a direction is free.
    """
    middle = vectors.mean(0)
    centred = (vectors - middle).double()
    values, bases = torch.linalg.eigh(centred @ centred.T)
    values, bases = values.flip(0)[:2].clamp(min=0), bases.flip(1)[:, :2]
    places = bases * values.sqrt()
    signs = torch.where(places[0] < 0, -1.0, 1.0).double()
    directions = (centred.T @ bases / values.sqrt().clamp(min=1e-12) * signs).T
    total = centred.square().sum().clamp(min=1e-12)
    return middle, directions.to(vectors.dtype), places * signs, values / total


def ticks(places: Tensor) -> list[float]:
    low, high = float(places.min()), float(places.max())
    margin = MARGIN * max(high - low, 1e-6)
    return [round(float(x), DIGITS) for x in torch.linspace(low - margin, high + margin, CELLS)]


def points(places: Tensor) -> list[list[float]]:
    return [[round(float(x), DIGITS) for x in place] for place in places]


