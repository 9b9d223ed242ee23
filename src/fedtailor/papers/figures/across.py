"""Numbers of a table over what its columns try out: a line for each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fedtailor.papers.drawing import Across
from fedtailor.papers.figures.picture import Picture, several_seeds
from fedtailor.papers.outcome import Outcome
from fedtailor.papers.verdict import deviation, mean
from fedtailor.report import words
from fedtailor.report.lines import Curve, draw_line, name_ends
from fedtailor.report.style import PRINT, Palette, looks_of, settings


def pictures(drawing: Across, found: Outcome) -> Iterator[Picture]:
    curves = {}
    for row in dict.fromkeys(line.row for line in found.lines):
        numbers = {drawing.at[line.column]: line.ours for line in found.lines
                   if line.row == row and line.ours and line.column in drawing.at}  # fmt: skip
        if numbers:
            x = tuple(sorted(numbers))
            spread = tuple(deviation(numbers[at]) or 0.0 for at in x)
            curves[row] = Curve(x, tuple(mean(numbers[at]) for at in x), spread)
    if not curves:
        return
    reading = found.lines[0].number.reading
    told = f"The number of the table over {drawing.axis}. Dashed and grey: {found.table.alone}."
    if several_seeds(found):
        told += " The band is one standard deviation over seeds."
    drawn = partial(draw, curves, found.table.alone, drawing.axis, words.with_unit(reading.metric))
    yield Picture("across", f"{reading.metric.capitalize()} over {drawing.axis}", told, drawn)


def draw(
    curves: Mapping[str, Curve], alone: str, x_title: str, y_title: str, palette: Palette = PRINT, width: float = 7.0
) -> Figure:
    tall = 2.9 if width > 5 else 2.1
    with mpl.rc_context(settings(palette)):
        figure = Figure((width, tall + 0.5), layout="constrained")
        axes = figure.subplots()
        look = looks_of(list(curves), [alone], palette)
        for number, (row, curve) in enumerate(curves.items()):
            draw_line(axes, curve, look[row], palette, row, number)
        axes.set_xscale("log")
        ticks = sorted({x for curve in curves.values() for x in curve.x})
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
        axes.set_xlim(right=ticks[-1] * (ticks[-1] / ticks[0]) ** 0.01)
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        name_ends(axes, curves, look, gap=0.15 / tall)
        return figure
