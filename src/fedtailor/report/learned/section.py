"""What was learned as a part of a page, and its figures as files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import chain, count
from pathlib import Path

from matplotlib.figure import Figure

from fedtailor.report import words
from fedtailor.report.learned import cells, courses, maps
from fedtailor.report.learned.lessons import Cells, Courses, Learned, Lesson, Maps, Sites
from fedtailor.report.learned.numbers import as_html, tables
from fedtailor.report.page import fold, picture
from fedtailor.report.style import MARKED, PRINT, Palette, save


def draw(lesson: Lesson, sites: Sites, palette: Palette = PRINT, width: float = 7.2) -> Figure:
    """The picture of a lesson."""
    if isinstance(lesson, Maps):
        return maps.draw(lesson, sites, palette, width)
    if isinstance(lesson, Cells):
        return cells.draw(lesson, sites, palette, width)
    if isinstance(lesson, Courses):
        return courses.draw_courses(lesson, sites, palette, width)
    return courses.draw_curves(lesson, sites, palette, width)


def section(found: Sequence[Learned], prefix: str, several: bool) -> str:
    """The methods below a heading; nothing where none showed anything."""
    return "".join(
        (f"<h3>{escape(one.label)}</h3>" if several else "")
        + of_method(one, f"{prefix}-learned-{number}", level=4 if several else 3)
        for number, one in enumerate(found, start=1)
    )


def of_method(found: Learned, prefix: str, level: int) -> str:
    """The pictures and tables of one method, with headings of a level."""
    body = "".join(
        f'<div class="lesson"><h{level}>{escape(lesson.what)}</h{level}>'
        f"{_of_lesson(lesson, found.sites, f'{prefix}-{number}')}</div>"
        for number, lesson in enumerate(found.lessons, start=1)
    )
    return f'<p class="caption">{escape(" ".join(notes(found)))}</p>{body}'


def _of_lesson(lesson: Lesson, sites: Sites, name: str) -> str:
    shown = picture(lambda width: draw(lesson, sites, MARKED, width), name, lesson.what, caption(lesson, sites))
    found = tables(lesson, sites)
    beside = "".join(as_html(table) for table in found if table.about)
    return shown + beside + "".join(fold(table.title, as_html(table)) for table in found if not table.about)


def notes(found: Learned) -> list[str]:
    """Which run, which round, and whose values are older."""
    told = [f"Round {found.round} of {found.run.wanted or found.run.reached}, seed {found.run.seed}."]
    if found.others:
        seeds = "seed" if len(found.others) == 1 else "seeds"
        told.append(f"{seeds.capitalize()} {words.listing([str(seed) for seed in found.others])} not shown.")
    if found.since:
        who = "One client" if len(found.since) == 1 else f"{len(found.since)} clients"
        told.append(f"{who} did not take part in it: what is shown of them is of their last round before.")
    for who, by_server in (("the server", True), ("each client of itself", False)):
        names = [one.what for one in found.lessons if (isinstance(one, Maps) and one.of_server) is by_server]
        if names:
            told.append(f"Shown by {who}: {words.listing(list(dict.fromkeys(names)))}.")
    if found.unread:
        told.append(f"Recorded too, in a form that has no picture: {words.listing(list(found.unread))}.")
    return told


def caption(lesson: Lesson, sites: Sites) -> str:
    """How to read a picture."""
    if isinstance(lesson, Maps):
        row = "Each row is one client" if len(lesson.maps[0].rows) > 1 else "The row is one client"
        lines = "; lines part the groups" if sites.grouped else ""
        signs = " Orange is below zero." if any((one.values < 0).any() for one in lesson.maps) else ""
        return (
            f"{row}, and shows what it gives to the model of each client{lines}. "
            f"Stronger is more, on a square-root scale.{signs}"
        )
    if isinstance(lesson, Cells):
        if lesson.edges:
            return "Each row is a client's histogram: the stronger, the more values lie there, on a square-root scale."
        shares = "An equal share has no colour, blue is more and orange less."
        return f"A row for each client. {shares if lesson.are_shares else 'Stronger is more.'}"
    if isinstance(lesson, Courses):
        return f"Over the rounds. {courses.lines_in_words(lesson, sites)}"
    many = len(lesson.curves) > courses.MOST_PANELS
    panels = "Means over clients" if many else "Each panel is a client" if len(lesson.curves) > 1 else "One client"
    return f"Over the {lesson.axis}s of some of the rounds. {panels}; later rounds are stronger."


def write_figures(found: Iterable[Learned], folder: Path, formats: Sequence[str], several: bool = True) -> list[Path]:
    """Every picture as a file of each format: `learned-fedmcsa-attention.pdf`."""
    written: dict[str, list[Path]] = {}
    for one in found:
        for lesson in one.lessons:
            folder.mkdir(parents=True, exist_ok=True)
            figure = draw(lesson, one.sites)
            name = _file_name(f"learned {one.label if several else ''} {lesson.what}")
            name = next(free for free in chain([name], (f"{name}-{n}" for n in count(2))) if free not in written)
            written[name] = [folder / f"{name}.{kind}" for kind in formats]
            for path, kind in zip(written[name], formats, strict=True):
                save(figure, path, kind)
    return [path for paths in written.values() for path in paths]


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80]
