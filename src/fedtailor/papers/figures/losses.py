"""Loss curves that one client showed, in several rounds: the weight learning of ALA."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from matplotlib.figure import Figure

from fedtailor.papers.drawing import Losses
from fedtailor.papers.figures.picture import Picture, file_name, title_of
from fedtailor.papers.outcome import Outcome
from fedtailor.report.learned.courses import draw_curves
from fedtailor.report.learned.lessons import Curves, Sites
from fedtailor.report.style import PRINT, Palette


def pictures(drawing: Losses, found: Outcome) -> Iterator[Picture]:
    """One figure for each problem, of the first seed."""
    for line in {line.cell.folder: line for line in found.lines}.values():
        record = next(iter(found.records.get(line.cell.folder, {}).values()), None)
        if record is None or not record.curves.get(drawing.name):
            continue
        client = min(drawing.client, len(record.clients) - 1)
        by_round = {number: tuple(curves[client]) for number, curves in zip(
            record.rounds, record.curves[drawing.name], strict=True) if curves[client]}  # fmt: skip
        if not by_round:
            continue
        problem = title_of(line.cell.problem)
        lesson = Curves(drawing.what, drawing.axis, {0: by_round})
        sites = Sites((f"{problem}, {record.clients[client]}",), (("", (0,)),))
        first = min(by_round)
        told = (
            f"{drawing.what.capitalize()} of {record.clients[client]}, over the {drawing.axis}s of some of the rounds; "
            f"later rounds are stronger. In round {first} the weights are learned until they converge or reach the cap."
        )
        name = file_name(f"losses {problem}")
        yield Picture(name, f"{drawing.what.capitalize()}, {problem}", told, partial(draw, lesson, sites))


def draw(lesson: Curves, sites: Sites, palette: Palette = PRINT, width: float = 7.0) -> Figure:
    return draw_curves(lesson, sites, palette, width)
