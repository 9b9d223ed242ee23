"""Figures with one line per method: accuracy over rounds, loss over rounds, accuracy over traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedtailor.report import words
from fedtailor.report.lines import Curve, Reading, draw_level, draw_line, fold, name_ends
from fedtailor.report.outcomes import Outcome, exchanged, mean_of, values
from fedtailor.report.read import Comparison, Entry
from fedtailor.report.style import PRINT, Palette, legend_columns, looks, settings

Read = Callable[[Mapping[str, Any], float], tuple[float, float | None]]  # of a row, and the bytes exchanged until then


def rounds(comparison: Comparison, palette: Palette = PRINT, width: float = 7.2) -> Figure | None:
    """The mean over clients after each tested round, and the mark of the models that the clients end with."""

    def read(row: Mapping[str, Any], total: float) -> tuple[float, float | None]:
        return float(row["round"]), macro(comparison, row)

    curves = {entry.label: curve(entry, read) for entry in comparison.entries}
    return _draw(comparison, curves, palette, width, "round", _title(comparison.primary))


def training(comparison: Comparison, palette: Palette = PRINT, width: float = 7.2) -> Figure | None:
    """Training loss, mean over the clients that trained in a round."""

    def read(row: Mapping[str, Any], total: float) -> tuple[float, float | None]:
        return float(row["round"]), mean_of(row.get("train_loss"))

    curves = {entry.label: curve(entry, read) for entry in comparison.entries}
    return _draw(comparison, curves, palette, width, "round", "training loss", loss=True)


def traffic(
    comparison: Comparison, found: Sequence[Outcome], palette: Palette = PRINT, width: float = 7.2
) -> Figure | None:
    """The mean over clients against the bytes that a client has exchanged until then; None if nothing was."""
    moving = [outcome.entry for outcome in found if outcome.total_bytes]
    curves = {entry.label: curve(entry, over_traffic(comparison)) for entry in comparison.entries if entry in moving}
    level = next((o.macro[0] for o in found if o.entry.is_alone and o.macro is not None), None)
    figure = _draw(
        comparison,
        curves,
        palette,
        width,
        "exchanged per client, down and up",
        _title(comparison.primary),
        level=level,
    )
    if figure is not None:
        axis = figure.axes[0].xaxis
        axis.set_major_formatter(FuncFormatter(lambda value, _: words.size(value)))
        axis.set_major_locator(MaxNLocator(4 if width < 5 else 7))
    return figure


def over_traffic(comparison: Comparison) -> Read:
    """Reads rows as (bytes per client until then, mean over clients)."""
    clients = len(comparison.clients)
    return lambda row, total: (total / clients, macro(comparison, row))


def macro(comparison: Comparison, row: Mapping[str, Any]) -> float | None:
    """The mean over clients in one row; None if it was not tested."""
    return mean_of(values(comparison, row)) if row.get("test") else None


def curve(entry: Entry, read: Read) -> Curve:
    """What `read` finds, at each round for which every run of the entry has a number."""
    runs: list[dict[int, Reading]] = []
    ends: list[float | None] = []
    for run in entry.counted:
        total, points, end = 0.0, {}, None
        for row in run.rows:
            total += exchanged(row)
            x, y = read(row, total)
            if y is not None and math.isfinite(y) and row.get("finish"):
                end = y
            elif y is not None and math.isfinite(y):
                points[int(row["round"])] = x, y
        runs += [points] if points else []
        ends += [end] if points else []
    return fold(runs, ends)


def _draw(
    comparison: Comparison,
    curves: Mapping[str, Curve],
    palette: Palette,
    width: float,
    x_title: str,
    y_title: str,
    loss: bool = False,
    level: float | None = None,
) -> Figure | None:
    """One line per method with its name at the end, or a legend where the names are too many or too long."""
    shown = {label: curve for label, curve in curves.items() if curve.x}
    if not shown:
        return None
    look = looks(comparison, palette)
    scale = 1.0 if loss else words.scale(comparison.primary)
    direct = max(map(len, shown)) <= (16 if width > 5 else 12) and len(shown) <= 8
    columns = legend_columns(shown, width)
    height = (3.4 if width > 5 else 2.9) + (0 if direct else 0.2 * math.ceil(len(shown) / columns))
    with mpl.rc_context(settings(palette)):
        figure = Figure((width, height), layout="constrained")
        axes = figure.subplots()
        for number, (label, line) in enumerate(shown.items()):
            draw_line(axes, line, look[label], palette, label, number, scale)
        if level is not None and math.isfinite(level):
            draw_level(axes, scale * level, "Local", palette)
        heights = np.concatenate([np.array(line.mean) for line in shown.values()])
        if loss and heights.min() > 0 and heights.max() > 30 * heights.min():
            axes.set_yscale("log")
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=x_title == "round"))
        if direct:
            name_ends(axes, shown, look, scale)
        else:
            figure.legend(loc="outside lower left", ncols=columns)
        return figure


def _title(metric: str) -> str:
    return f"{words.with_unit(metric)}, mean over clients"


def reached(line: Curve, target: float, higher_is_better: bool) -> float | None:
    """The first x at which a curve is as good as `target`; None if it never is."""
    pairs: Iterable[Reading] = zip(line.x, line.mean, strict=True)
    return next((x for x, y in pairs if (y >= target if higher_is_better else y <= target)), None)
