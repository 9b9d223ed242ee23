"""Clients along an axis: by name where there is room, and the borders of their groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from matplotlib.axes import Axes

from fedtailor.report.learned.lessons import Sites
from fedtailor.report.style import Palette, brief

LETTER = 0.063  # inches that a letter of a name takes
_NAMED = 6.2  # points a cell needs for its client to be named


def named(cell: float) -> bool:
    """Whether cells of so many inches have room for names."""
    return 72 * cell >= _NAMED


def room(sites: Sites, clients: Iterable[int]) -> float:
    """Inches that the longest of the names takes."""
    return 0.12 + LETTER * max(len(brief(sites.names[client])) for client in clients)


def blocks(clients: Sequence[int], sites: Sites) -> list[tuple[int, int, str]]:
    """Where each group begins and ends among clients that stand group by group, and its name."""
    group, found = sites.group, list[tuple[int, int, str]]()
    for number, (name, _) in enumerate(sites.groups if sites.grouped else ()):
        places = [place for place, client in enumerate(clients) if group[client] == number]
        if places:
            found.append((places[0], places[-1] + 1, name))
    return found


def borders(line: Callable[..., object], clients: Sequence[int], sites: Sites, palette: Palette, cell: float) -> None:
    """A line between groups."""
    for start, _, _ in blocks(clients, sites)[1:]:
        line(start - 0.5, color=palette.ink, linewidth=min(0.7, max(0.25, 10 * cell)), alpha=0.75)


def name(axes: Axes, clients: Sequence[int], sites: Sites, cell: float, upright: bool, shown: bool) -> None:
    """Clients by name where there is room, or else their groups, or else some of them."""
    size = min(8.0, 0.9 * 72 * cell)
    places: list[float] = list(range(len(clients)))
    names = [brief(sites.names[client]) for client in clients]
    if not named(cell) and sites.grouped:
        centres = [((first + end - 1) / 2, group) for first, end, group in blocks(clients, sites)]
        kept = centres[:1]
        for centre, group in centres[1:]:  # groups of few clients may have no room for a name either
            if (centre - kept[-1][0]) * 72 * cell > 8.5:
                kept.append((centre, group))
        places, names, size = [centre for centre, _ in kept], [brief(group) for _, group in kept], 7.5
    elif not named(cell):
        step = math.ceil(_NAMED / (72 * cell))
        places, names, size = places[::step], names[::step], 6.0
    if not shown:
        places, names = [], []
    if upright:
        axes.set_xticks(places, names, rotation=90, fontsize=size)
    else:
        axes.set_yticks(places, names, fontsize=size)
