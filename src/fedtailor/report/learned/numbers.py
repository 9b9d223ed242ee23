"""What was learned in numbers: tables for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from rich.table import Table as RichTable
from rich.text import Text

from fedtailor.report.details import html_table
from fedtailor.report.learned.cells import AVERAGE, with_average
from fedtailor.report.learned.courses import some_rounds
from fedtailor.report.learned.lessons import Cells, Courses, Curves, Lesson, Map, Maps, Sites
from fedtailor.report.learned.maps import LEAST, Mass, in_words, mass
from fedtailor.report.words import MINUS

MOST = "most to"  # the title of a column of words
_FIRST = 3  # clients that are named where a row gives most


@dataclass(frozen=True)
class Table:
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1  # leading columns of words
    caption: str = ""
    about: bool = False  # stands beside the picture, where others are folded away


def tables(lesson: Lesson, sites: Sites) -> list[Table]:
    """All tables of a lesson, the one that sums it up first."""
    if isinstance(lesson, Maps):
        return list(_of_maps(lesson, sites))
    if isinstance(lesson, Cells):
        return [_of_cells(lesson, sites)]
    return [_of_courses(lesson, sites) if isinstance(lesson, Courses) else _of_curves(lesson, sites)]


def _of_maps(lesson: Maps, sites: Sites) -> Iterator[Table]:
    """Where the weights go; then who gives most to whom, or of one client all that it gives."""
    grouped = sites.grouped
    found = [mass(shown, sites) for shown in lesson.maps]
    rows = []
    for shown, one in zip(lesson.maps, found, strict=True):
        beyond = (_number(one.far), _number(one.each_far), _ratio(one)) if grouped else ()
        rows.append((shown.part or lesson.what, *map(_number, (one.own, one.near, one.each_near)), *beyond))
    alone = len(lesson.maps[0].rows) == 1
    caption = "" if alone else "Means over the rows of the map. "
    if grouped:
        caption += "Group: all its clients but oneself together; each: one of them; ratio: of the two columns each. "
    if len(found) == 1:
        caption += in_words(found[0])
    head = ("itself", "own group", "each", "other groups", "each", "ratio") if grouped else ("itself", "others", "each")
    yield Table(f"{lesson.what}: to whom it goes", ("", *head), tuple(rows), caption=caption.strip(), about=True)
    if alone:
        yield _of_one(lesson, sites)
    elif len(lesson.maps) == 1:
        yield _of_each(lesson, lesson.maps[0], sites)


def _of_each(lesson: Maps, shown: Map, sites: Sites) -> Table:
    rows = []
    for place, client in enumerate(shown.rows):
        row = shown.values[place]
        own = Map("", (client,), shown.columns, row[None])
        found = mass(own, sites)
        others = [at for at in np.argsort(-row, kind="stable") if shown.columns[at] != client and row[at] >= LEAST]
        names = ", ".join(f"{sites.names[shown.columns[at]]} {_number(row[at])}" for at in others[:_FIRST])
        numbers = (found.own, found.each_near, *((found.each_far,) if sites.grouped else ()))
        rows.append((sites.names[client], *map(_number, numbers), names or "nobody"))
    head = ("client", "itself", *(("own group", "other groups") if sites.grouped else ("others",)), MOST)
    about = "To oneself, and on average to each of the others."
    return Table(f"{lesson.what}: client by client", head, tuple(rows), caption=about)


def _of_one(lesson: Maps, sites: Sites) -> Table:
    """All that one client gives, group by group."""
    columns = lesson.maps[0].columns
    rows = [
        (sites.names[client], *(_number(shown.values[0, place]) for shown in lesson.maps))
        for place, client in enumerate(columns)
    ]
    head = ("to client", *(shown.part or lesson.what for shown in lesson.maps))
    return Table(f"{lesson.what} of {sites.names[lesson.maps[0].rows[0]]}", head, tuple(rows))


def _of_cells(lesson: Cells, sites: Sites) -> Table:
    """As pFedLA's table 11: a line for each client and label, a column for each part and their mean."""
    names, digits = [sites.names[client] for client in lesson.clients], 4 if lesson.are_shares else 3
    if lesson.parts == ("",):
        rows = [(name, *(_number(v, digits) for v in lesson.values[at, 0])) for at, name in enumerate(names)]
        return Table(lesson.what, ("client", *lesson.labels), tuple(rows))
    if lesson.edges:
        rows = [
            (name, part, *(_number(100 * v, 0) for v in lesson.values[at, number]))
            for at, name in enumerate(names)
            for number, part in enumerate(lesson.parts)
        ]
        lower = tuple(label.partition(" to ")[0] for label in lesson.labels)
        about = f"Per cent of the values that lie from this value up to the next; the last ends at {lesson.edges[1]:g}."
        return Table(lesson.what, ("client", "part", *lower), tuple(rows), names=2, caption=about)
    panels = with_average(lesson)
    rows = [
        (name, label, *(_number(values[at, number], digits) for _, values in panels))
        for at, name in enumerate(names)
        for number, label in enumerate(lesson.labels)
    ]
    caption = f"{AVERAGE.capitalize()}: plain mean over the parts." if len(panels) > len(lesson.parts) else ""
    return Table(lesson.what, ("client", "", *(part for part, _ in panels)), tuple(rows), names=2, caption=caption)


def _of_courses(lesson: Courses, sites: Sites) -> Table:
    """The last values."""
    rows = [
        (sites.names[client], *map(_number, values))
        for client, values in zip(lesson.clients, lesson.latest, strict=True)
    ]
    head = ("client", *(part or lesson.what for part in lesson.parts))
    return Table(f"{lesson.what}, round {lesson.rounds[-1]}", head, tuple(rows))


def _of_curves(lesson: Curves, sites: Sites) -> Table:
    rounds = some_rounds(lesson, 4)
    rows = []
    for client in sites.sort(lesson.curves):
        curves = [lesson.curves[client].get(round, ()) for round in rounds]
        rows.append((sites.names[client], *(_ends(curve) for curve in curves)))
    head = ("client", *(f"round {round}" for round in rounds))
    return Table(lesson.what, head, tuple(rows), caption=f"First and last value, and the number of {lesson.axis}s.")


def _ends(curve: Sequence[float]) -> str:
    if not curve:
        return "none"
    last = f" to {_number(curve[-1])}" if len(curve) > 1 else ""
    return f"{_number(curve[0])}{last} ({len(curve)})"


def _ratio(found: Mass) -> str:
    ratio = found.ratio
    return "" if ratio is None else f"{ratio:.2g}" if ratio < 100 else f"{ratio:.0f}"


def _number(value: float | None, digits: int = 3) -> str:
    """With so many digits after the point; 0 is what rounds to it, and nothing stays empty."""
    if value is None or not np.isfinite(value):
        return ""
    text = f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.3g}"
    return "0" if float(text) == 0 else text.replace("-", MINUS)


def as_rich(table: Table, width: int) -> list[RichTable]:
    """For the terminal: one below the other where not all columns fit side by side."""
    least = [_least(table, column) + 3 for column in range(len(table.head))]
    fixed = sum(least[: table.names]) + 1
    pieces: list[list[int]] = [[]]
    for column in range(table.names, len(table.head)):
        if pieces[-1] and fixed + sum(least[at] for at in pieces[-1]) + least[column] > width:
            pieces.append([])
        pieces[-1].append(column)
    found = []
    for number, piece in enumerate(pieces):
        title, caption = table.title if not number else None, table.caption if piece is pieces[-1] else None
        rich = RichTable(title=title, title_justify="left", caption=caption, caption_justify="left")
        shown = [*range(table.names), *piece]
        spare = max(0, width - 1 - sum(least[column] for column in shown))  # for titles that need not be broken
        for column in shown:
            left = column < table.names or table.head[column] == MOST
            room = min(spare, max(0, len(table.head[column]) + 3 - least[column]))
            spare -= room
            rich.add_column(
                Text(table.head[column]), justify="left" if left else "right", width=least[column] - 3 + room
            )
        for before, row in zip((None, *table.rows), table.rows, strict=False):
            again = before is not None and table.names > 1 and before[0] == row[0]
            rich.add_row(*(Text("" if again and not column else row[column]) for column in shown))
        found.append(rich)
    return found


def _least(table: Table, column: int) -> int:
    """The narrowest a column may get: a title breaks at spaces, a cell does not."""
    words = max((len(word) for word in table.head[column].split()), default=0)
    return max(words, *(len(row[column]) for row in table.rows))


def as_html(table: Table) -> str:
    """For the page."""
    lines = []
    for row in table.rows:
        cells = [f'<th scope="row">{escape(row[0])}</th>']
        cells += [f'<td class="text">{escape(cell)}</td>' for cell in row[1 : table.names]]
        for title, cell in zip(table.head[table.names :], row[table.names :], strict=True):
            cells.append(f"<td{' class=text' if title == MOST else ''}>{escape(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    words = (MOST, *table.head[1 : table.names])
    caption = f'<p class="caption">{escape(table.caption)}</p>' if table.caption else ""
    return html_table(table.head, lines, table.title, tall=len(lines) > 20, text=words) + caption
