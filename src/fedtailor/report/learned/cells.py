"""Values by client and label: the shares of a mixture, the bins of a histogram."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedtailor.report.learned.clients import LETTER, borders, name, room
from fedtailor.report.learned.colours import Frame, bar, paint, scale_around, scale_of, write_numbers
from fedtailor.report.learned.lessons import Cells, Numbers, Sites
from fedtailor.report.style import PRINT, Palette, brief, settings

_LEAST = {"labels": 0.17, "bins": 0.09}  # inches a column needs


def draw(lesson: Cells, sites: Sites, palette: Palette = PRINT, width: float = 7.2) -> Figure:
    """A row for each client, a panel for each part, a column for each label.

    Shares are coloured by how far they are from equal ones, histograms from nothing to the fullest bin.
    """
    panels = with_average(lesson)
    k, n = len(lesson.labels), len(lesson.clients)
    pitch = 0.28 if n == 1 else max(0.115, min(0.24, 9.0 / n))
    left = 0.1 + min(room(sites, lesson.clients), 0.3 * width)
    free = width - left - Frame.right
    title = max(len(brief(part, 14)) for part, _ in panels) * LETTER
    least = max(title, k * _LEAST["bins" if lesson.edges else "labels"])
    across = max(1, min(len(panels), int((free + Frame.gap) / (least + Frame.gap))))
    panel = min((free - Frame.gap * (across - 1)) / across, 0.9 * k)
    column = panel / k
    turned = max(len(label) for label in lesson.labels) * LETTER + 0.06 > column
    below = 0.45 if lesson.edges else 0.22 if not turned else 0.1 + LETTER * max(len(label) for label in lesson.labels)
    shares = lesson.are_shares
    scale = scale_around(lesson.values, 1 / k) if shares else scale_of([lesson.values], root=lesson.edges is not None)
    with mpl.rc_context(settings(palette)):
        head = 0.26 if any(part for part, _ in panels) else 0.08
        frame = Frame(width, left, below, pitch * n, (panel,) * across, len(panels), head, between=below)
        figure, places, place = frame.draw(palette)
        for number, (axes, (part, values)) in enumerate(zip(places, panels, strict=True)):
            paint(axes, values, scale)
            if pitch > 0.13:
                write_numbers(axes, values, scale, palette, column, digits=3 if shares else 2)
            borders(axes.axhline, lesson.clients, sites, palette, pitch)
            style = "italic" if part == AVERAGE else "normal"
            axes.set_title(brief(part, max(4, int(panel / LETTER))), fontstyle=style)
            name(axes, lesson.clients, sites, pitch, upright=False, shown=number % across == 0)
            _columns(axes, lesson, turned)
        if lesson.edges:
            places[-1].set_xlabel(lesson.what)
        bar(place, scale, "share" if lesson.edges else lesson.what, palette)
        return figure


AVERAGE = "average"


def with_average(lesson: Cells) -> Sequence[tuple[str, Numbers]]:
    """The parts, [clients, labels] each; of shares in several parts also their mean."""
    panels = [(part, lesson.values[:, number]) for number, part in enumerate(lesson.parts)]
    if lesson.are_shares and len(panels) > 1:
        panels.append((AVERAGE, lesson.values.mean(1)))
    return panels


def _columns(axes: Axes, lesson: Cells, turned: bool) -> None:
    """Labels below their columns; of a histogram the two ends and the middle."""
    k = len(lesson.labels)
    if lesson.edges:
        low, high = lesson.edges
        axes.set_xticks([-0.5, (k - 1) / 2, k - 0.5], [f"{x:g}" for x in (low, (low + high) / 2, high)])
        first, *_, last = axes.get_xticklabels()  # the ends of two panels would touch
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
    else:
        axes.set_xticks(range(k), lesson.labels, rotation=90 if turned else 0)
