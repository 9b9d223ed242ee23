"""The figures of a reproduced table, drawn from its records and from nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedtailor.papers.drawing import Across, Bars, Courses, Drawing, Learned, Losses, PerClient, Sweep, Trajectory
from fedtailor.papers.figures import across, bars, clients, courses, learned, losses, sweep, trajectory
from fedtailor.papers.figures.picture import Picture
from fedtailor.papers.outcome import Outcome
from fedtailor.report.style import PRINT, save, save_small

WIDTHS = {"": 7.0, "-narrow": 3.3}  # inches: two columns of a paper, and one


def pictures(found: Outcome) -> list[Picture]:
    """The figures that these records have numbers for, in the order of the table's drawings."""
    return [picture for drawing in found.table.drawings for picture in _of(drawing, found)]


def _of(drawing: Drawing, found: Outcome) -> Iterator[Picture]:
    if isinstance(drawing, Courses):
        yield from courses.pictures(drawing, found)
    elif isinstance(drawing, PerClient):
        yield from clients.pictures(found)
    elif isinstance(drawing, Sweep):
        yield from sweep.pictures(drawing, found)
    elif isinstance(drawing, Across):
        yield from across.pictures(drawing, found)
    elif isinstance(drawing, Bars):
        yield from bars.pictures(found)
    elif isinstance(drawing, Learned):
        yield from learned.pictures(drawing, found)
    elif isinstance(drawing, Losses):
        yield from losses.pictures(drawing, found)
    elif isinstance(drawing, Trajectory):
        yield from trajectory.pictures(found)


def write(found: Outcome, folder: Path, formats: Sequence[str] = ("pdf", "png")) -> list[Path]:
    """Every figure in both widths: `rounds.pdf`, and `rounds-narrow.pdf` for one column of a paper."""
    written = []
    for picture in pictures(found):
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, width in WIDTHS.items():
            figure = picture.draw(PRINT, width)
            for kind in formats:
                written.append(folder / f"{picture.name}{suffix}.{kind}")
                save(figure, written[-1], kind)
    return written


def write_small(found: Outcome, folder: Path) -> dict[Path, Picture]:
    """Every figure as a small PNG, `fedmcsa-table2-full-rounds.png`: for the pages of a repository."""
    written = {}
    for picture in pictures(found):
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", f"{found.table.id} {found.scale} {picture.name}".lower())
        save_small(picture.draw(PRINT, WIDTHS[""]), folder / f"{name}.png")
        written[folder / f"{name}.png"] = picture
    return written
