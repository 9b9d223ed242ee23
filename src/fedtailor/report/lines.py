"""Lines of a picture: each with a mark here and there and its name at its end, so that no legend is looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedtailor.report.style import Look, Palette, brief, spread

Reading = tuple[float, float]  # x and y of one round
SIZE = 8.5  # points of a name at the end of its line


@dataclass(frozen=True)
class Curve:
    """One line: the mean over seeds and its standard deviation; `end` is where the finished runs stand."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    end: float | None = None


def fold(runs: Sequence[Mapping[int, Reading]], ends: Sequence[float | None] = ()) -> Curve:
    """Runs under several seeds as one line, at each round for which every run has a number."""
    common = sorted(set.intersection(*(set(points) for points in runs))) if runs else []
    if not common:
        return Curve((), (), ())
    heights = np.array([[points[i][1] for i in common] for points in runs])
    deviation = heights.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(common))
    reached = [end for end in ends if end is not None]
    return Curve(
        tuple(float(np.mean([points[i][0] for points in runs])) for i in common),
        tuple(heights.mean(0).tolist()),
        tuple(deviation.tolist()),
        float(np.mean(reached)) if reached and len(reached) == len(runs) else None,
    )


def draw_line(
    axes: Axes, line: Curve, look: Look, palette: Palette, label: str, number: int, scale: float = 1.0,
    ended: float = 8.5,
) -> None:  # fmt: skip
    """The mean, its band over seeds, and a mark of `ended` points where the finished runs stand."""
    mean, deviation = scale * np.array(line.mean), scale * np.array(line.deviation)
    axes.fill_between(line.x, mean - deviation, mean + deviation, color=look.colour, alpha=0.14, linewidth=0)
    mark: dict[str, Any] = {"marker": look.on_lines, "color": look.colour, "markeredgecolor": palette.surface}
    # A mark here and there, not at the same rounds for all, tells lines apart without colour.
    step = max(1, len(line.x) // 6)
    here: dict[str, Any] = {"markersize": 4.5, "markeredgewidth": 0.4, "markevery": (number % step, step)}
    axes.plot(line.x, mean, linestyle=look.dash, label=brief(label), zorder=3, **mark, **here)
    if line.end is not None:
        axes.plot(line.x[-1], scale * line.end, linestyle="", markersize=ended, zorder=4, clip_on=False, **mark)


def draw_level(axes: Axes, height: float, label: str, palette: Palette, size: float = 8) -> None:
    """A dashed line to hold others against, with its name at the left."""
    axes.axhline(height, color=palette.alone, linestyle=(0, (4, 2)), linewidth=1.2, zorder=1)
    axes.annotate(
        label, (0, height), (2, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
        color=palette.muted, fontsize=size,
    )  # fmt: skip


def name_ends(
    axes: Axes, shown: Mapping[str, Curve], look: Mapping[str, Look], scale: float = 1.0, gap: float = 0.055,
    size: float = SIZE,
) -> None:  # fmt: skip
    """Each name in its colour beside the end of its line, moved apart where lines end close together.

    `gap` is the least distance of two names, as a fraction of the height of the axes.
    """
    axes.set_ylim(axes.get_ylim())
    to_axes = axes.transScale + axes.transLimits  # data to fractions of the axes, log scale included
    ends = [(line.x[-1], scale * (line.mean[-1] if line.end is None else line.end)) for line in shown.values()]
    places = [to_axes.transform(end) for end in ends]
    heights = spread([float(place[1]) for place in places], gap, 0.0, 1.0)
    for label, place, height in zip(shown, places, heights, strict=True):
        axes.annotate(
            label, (float(place[0]), height), (8, 0), xycoords="axes fraction", textcoords="offset points",
            va="center", color=look[label].colour, fontsize=size, fontweight="bold", annotation_clip=False,
        )  # fmt: skip
