"""Accuracy over rounds, traffic or time: a line for each row, named at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedtailor.papers.drawing import Courses, Over, Panel
from fedtailor.papers.figures.picture import Picture, Shown, grid, numbered, panels, several_seeds, sheets, shown
from fedtailor.papers.outcome import Outcome, Records
from fedtailor.papers.preset import Reading
from fedtailor.papers.record import at_the_end, series_of, spent
from fedtailor.report import words
from fedtailor.report.lines import Curve, draw_level, draw_line, fold, name_ends
from fedtailor.report.style import PRINT, Palette, brief, looks_of, settings

AXES: Mapping[Over, str] = {
    "rounds": "round", "models": "exchanges of a whole model, per client", "minutes": "minutes of training"
}  # fmt: skip
TITLES: Mapping[Over, str] = {"rounds": "over the rounds", "models": "over traffic", "minutes": "over time"}
STEPS = (1, 2, 2.5, 5, 10)  # of the numbers of an axis
LETTER = 0.073  # inches of a letter of a name at the end of a line
NAME = 14  # letters that have room
SIZE = 8.0  # points of these names


@dataclass(frozen=True)
class Part:
    """One panel: lines by name, and how they look, which depends on their place in the table alone."""

    title: str
    problem: str
    names: tuple[str, ...]  # of all rows of the panel, whether or not they were run
    curves: Mapping[str, Curve]
    levels: Mapping[str, float]  # rows that are no line, for they exchange nothing: the height they end at
    alone: str
    target: float | None


def pictures(drawing: Courses, found: Outcome) -> Iterator[Picture]:
    """One figure, or several where the panels are too many."""
    problems = shown(found)
    drawn = sheets([parts_of(one, drawing, found) for one in problems])
    for number, own in enumerate(drawn, start=1):
        reading = problems[0].reading
        what = f"{reading.metric.capitalize()} {TITLES[drawing.over]}"
        if len(drawn) > 1:
            what += f": {words.listing(list(dict.fromkeys(part.problem for part in own)))}"
        told = caption(drawing, own, reading, several_seeds(found))
        name = numbered(drawing.over, number, len(drawn))
        yield Picture(name, what, told, partial(draw, own, AXES[drawing.over], words.with_unit(reading.metric)))


def parts_of(problem: Shown, drawing: Courses, found: Outcome) -> list[Part]:
    """The panels of one problem."""
    rows = list(dict.fromkeys(line.row for line in found.lines))
    alone = found.table.alone
    parts, drawn = list[Part](), set[str]()
    for panel in drawing.panels or (Panel("", {row: row for row in rows if row != alone}),):
        names = {**panel.rows, alone: alone}
        run = {row: curve_of(found.records[line.cell.folder], line.number.reading, drawing.over)
               for row in names if (line := problem.lines.get(row)) is not None}  # fmt: skip
        run = {row: curve for row, curve in run.items() if curve.x}
        still = {row for row, curve in run.items() if drawing.over == "models" and not curve.x[-1]}
        moving = run.keys() - still
        if moving - {alone} - drawn:  # more than what stands in other panels too
            target = problem.reading.target if problem.reading.select == "when" else None
            curves = {names[row]: run[row] for row in run if row in moving}
            levels = {names[row]: 100 * run[row].mean[-1] for row in run if row in still}
            parts.append(Part(panel.title, problem.title, tuple(names.values()), curves, levels, alone, target))
            drawn |= moving
    return parts


def curve_of(records: Records, reading: Reading, over: Over) -> Curve:
    """Of all seeds; where the number of the table is of the models that clients end with, these have a mark."""
    runs, ends = [], []
    for record in records.values():
        places = (spent(record, at, over) for at in range(len(record.rounds)))
        series = zip(record.rounds, places, series_of(record, reading), strict=True)
        points = {number: (x, y) for number, x, y in series if y is not None}
        if points:
            runs.append(points)
            ends.append(at_the_end(record, reading) if reading.select == "last" else None)
    return fold(runs, ends)


def caption(drawing: Courses, parts: Sequence[Part], reading: Reading, seeds: bool) -> str:
    mean = "mean over clients" if reading.over == "macro" else "over the test rows of all clients"
    told = [f"{reading.metric.capitalize()} ({mean}) after each tested round."]
    if drawing.over == "models":
        told.append("One exchange is a model of full size to a client and back; Local exchanges nothing.")
    elif any(part.alone in part.curves for part in parts):
        told.append(f"Dashed and grey: {parts[0].alone}, every client on its own.")
    if parts[0].target is not None:
        told.append(f"The other dashed line is the target, {parts[0].target:g} %.")
    if seeds:
        told.append("The band is one standard deviation over seeds.")
    if any(curve.end is not None for part in parts for curve in part.curves.values()):
        told.append("The larger mark is of the models that the clients end with, which is the number of the table.")
    if any(view([part])[2] for part in parts):
        told.append("Some lines begin below the picture.")
    return " ".join(told)


def draw(parts: Sequence[Part], x_title: str, y_title: str, palette: Palette = PRINT, width: float = 7.0) -> Figure:
    """Panel by panel; those of one problem have one scale."""
    room = LETTER * max(min(NAME, len(name)) for part in parts for name in part.curves)
    down, across = grid(len(parts), min(3, int(width / (room + 1.6))))
    lines = max(len(part.curves) for part in parts)
    tall = max(0.16 * lines + 0.2, (2.9 if width > 5 else 2.1) if len(parts) == 1 else 1.4)
    titles = max(len(title_of(part, parts)) for part in parts)
    with mpl.rc_context(settings(palette)):
        figure = Figure((width, down * (tall + 0.25 + 0.16 * titles) + 0.3), layout="constrained")
        axes_of = panels(figure, down, across, len(parts))
        for axes, part in zip(axes_of, parts, strict=True):
            low, high, _ = view([other for other in parts if other.problem == part.problem])
            axes.set_ylim(low, high)
            draw_part(axes, part, palette, tall)
            letters = int((width / across - 0.5) / 0.075)
            axes.set_title("\n".join(brief(text, letters) for text in title_of(part, parts)), loc="left")
        figure.supxlabel(x_title, fontsize=9, color=palette.muted)
        figure.supylabel(y_title, fontsize=9, color=palette.muted)
        return figure


def title_of(part: Part, parts: Sequence[Part]) -> list[str]:
    """Of the problem and the panel, what tells it from the others."""
    several = len({other.problem for other in parts}) > 1
    return [text for text in (part.problem if several else "", part.title) if text]


def draw_part(axes: Axes, part: Part, palette: Palette, tall: float) -> None:
    look = looks_of(part.names, [part.alone], palette)
    for name, curve in part.curves.items():
        draw_line(axes, curve, look[name], palette, name, part.names.index(name), 100, ended=6.5)
    for height in part.levels.values():
        axes.axhline(height, color=palette.alone, linestyle=(0, (4, 2)), linewidth=1.2, zorder=1)
    if part.target is not None:
        draw_level(axes, part.target, f"{part.target:g} %", palette, 7.5)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
    left, right = min(c.x[0] for c in part.curves.values()), max(c.x[-1] for c in part.curves.values())
    axes.set_xlim(left - 0.04 * (right - left), right + 0.01 * (right - left))
    levels = {name: Curve((right,), (height / 100,), (0.0,)) for name, height in part.levels.items()}
    name_ends(axes, {**part.curves, **levels}, look, 100, gap=0.135 / tall, size=SIZE)


def view(parts: Sequence[Part]) -> tuple[float, float, bool]:
    """From where to where the y axis goes, and whether lines begin below it: the first tenth may lie outside."""
    curves = [curve for part in parts for curve in part.curves.values()]
    every = [100 * y for curve in curves for y in (*curve.mean, *([] if curve.end is None else [curve.end]))]
    every += [height for part in parts for height in part.levels.values()]
    later = [100 * y for curve in curves for y in curve.mean[len(curve.mean) // 10 :]]
    targets = [part.target for part in parts if part.target is not None]
    low, high = min([*later, *targets]), max([*every, *targets])
    room = max(high - low, 1.0)
    low = min(every) if min(every) >= low - 0.15 * room else low
    return low - 0.05 * room, high + 0.05 * room, min(every) < low
