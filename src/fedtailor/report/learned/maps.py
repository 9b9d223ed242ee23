"""Maps over clients: what each gives to each, with the borders of groups; and how much of it stays within a group."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedtailor.report.learned.clients import LETTER, borders, name, named, room
from fedtailor.report.learned.colours import Frame, bar, paint, scale_of, write_numbers
from fedtailor.report.learned.lessons import Map, Maps, Numbers, Sites
from fedtailor.report.style import PRINT, Palette, brief, settings

_MOST = 5.8  # inches of one map: all of it is seen at a glance
LEAST = 0.0005  # weights below are printed as 0


@dataclass(frozen=True)
class Mass:
    """Where the weights of a map go, as means over its rows: in all, and for each single client."""

    own: float | None  # None where no row has such a client
    near: float | None  # all others of one's group
    far: float | None  # all clients of other groups
    each_near: float | None
    each_far: float | None

    @property
    def ratio(self) -> float | None:
        """Of what each other of one's group gets to what each client of another group gets, where that is something."""
        if self.each_near is None or self.each_far is None or min(self.each_near, self.each_far) < 0:
            return None
        return self.each_near / self.each_far if self.each_far >= LEAST else None


def mass(drawn: Map, sites: Sites) -> Mass:
    """Weight on oneself, within one's group and beyond it; without groups all others are near."""
    group = sites.group
    same = np.array([[group[i] == group[j] for j in drawn.columns] for i in drawn.rows])
    own = np.array([[i == j for j in drawn.columns] for i in drawn.rows])
    return Mass(
        _mean_sum(drawn.values, own),
        _mean_sum(drawn.values, same & ~own),
        _mean_sum(drawn.values, ~same),
        _mean_each(drawn.values, same & ~own),
        _mean_each(drawn.values, ~same),
    )


def _mean_sum(values: Numbers, where: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float | None:
    """Mean over the rows of the sum of what is marked."""
    known = where & np.isfinite(values)
    return float(np.where(known, values, 0).sum(1).mean()) if known.any() else None


def _mean_each(values: Numbers, where: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float | None:
    """Mean over the rows that have any of the mean of what is marked."""
    known = where & np.isfinite(values)
    counts = known.sum(1)
    if not counts.any():
        return None
    return float((np.where(known, values, 0).sum(1)[counts > 0] / counts[counts > 0]).mean())


def draw(lesson: Maps, sites: Sites, palette: Palette = PRINT, width: float = 7.2) -> Figure:
    """One square for each part, all in the same colours; a single client's rows stand below each other."""
    maps = lesson.maps
    rows, columns = (max(len(getattr(m, side)) for m in maps) for side in ("rows", "columns"))
    across = 1 if rows == 1 else _across(len(maps), width)
    names = room(sites, {client for m in maps for client in (*m.rows, *m.columns)})
    left = 0.25 + min(names, 0.25 * width)
    panel = min(_MOST, (width - left - Frame.right - Frame.gap * (across - 1)) / across)
    cell = panel / columns
    deep = max(cell, 0.28) if rows == 1 else cell
    below = (names if named(cell) or not sites.grouped else 0.7) + 0.25
    scale = scale_of([m.values for m in maps], root=True)
    with mpl.rc_context(settings(palette)):
        head = 0.26 if any(m.part for m in maps) else 0.08
        figure, panels, place = Frame(width, left, below, deep * rows, (panel,) * across, len(maps), head).draw(palette)
        for number, (axes, shown) in enumerate(zip(panels, maps, strict=True)):
            paint(axes, shown.values, scale)
            write_numbers(axes, shown.values, scale, palette, cell)
            borders(axes.axvline, shown.columns, sites, palette, cell)
            borders(axes.axhline, shown.rows, sites, palette, cell)
            axes.set_title(brief(shown.part, max(8, int(panel / LETTER))))
            name(axes, shown.columns, sites, cell, upright=True, shown=number + across >= len(maps))
            name(axes, shown.rows, sites, deep, upright=False, shown=number % across == 0)
        panels[0].set_ylabel("of client" if rows > 1 else "")
        panels[-1].set_xlabel("to client")
        bar(place, scale, lesson.what, palette)
        return figure


def _across(parts: int, width: float) -> int:
    """Panels side by side."""
    if width < 5:
        return min(parts, 2)
    return min(parts, 3 if parts <= 6 or parts == 9 else 4 if parts <= 20 else 5)


def in_words(found: Mass) -> str:
    """What the numbers come to, in a sentence; nothing where no group is set against others."""
    ratio = found.ratio
    if ratio is None:
        return ""
    if 0.95 < ratio < 1.05:
        return "A client gives others of its own group as much as it gives those of other groups."
    times = f"{ratio:.2g} times what it gives each client of other groups"
    return f"On average a client gives each other of its own group {times}."
