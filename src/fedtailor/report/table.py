"""The comparison table: numbers first, then the same cells for the terminal, Markdown and HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.table import Table as RichTable
from rich.text import Text

from fedtailor.metrics import How
from fedtailor.report import words
from fedtailor.report.outcomes import Outcome, Spread, best_first, outcomes
from fedtailor.report.read import Comparison

NOT_COMPUTED = "not computed"
POINTS = {
    "received": "the model a client holds after receiving and before training",
    "trained": "the model a client holds after its own training",
    "adapted": "a copy that the method adapts to the client for testing",
}
SELECTIONS: dict[How, str] = {
    "last": "taken at the end of each run, not at its best round",
    "best": "taken at each run's best round on the test rows, which flatters every method",
    "best_on_validation": "taken at each run's best round on the validation rows",
}


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    about: str  # one sentence: what the number is
    rank: int = 0  # what a narrow terminal leaves out first: the highest


@dataclass(frozen=True)
class Cell:
    text: str
    note: str = ""  # belongs to the text: an interval
    value: float | None = None
    spread: float | None = None  # standard deviation over seeds
    interval: tuple[float, float] | None = None

    @property
    def full(self) -> str:
        return f"{self.text} {self.note}" if self.note else self.text


@dataclass(frozen=True)
class Row:
    cells: dict[str, Cell]
    role: str = ""  # "alone" for Local, "pooled" for Centralised
    best: bool = False

    def __getitem__(self, key: str) -> Cell:
        return self.cells[key]


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str


def tabulate(comparison: Comparison, how: How = "last", found: Sequence[Outcome] | None = None) -> Table:
    """The comparison as a table, best mean first; `found` are its outcomes where they are known already."""
    metric = comparison.primary
    found = best_first(outcomes(comparison, how) if found is None else found, comparison.higher_is_better)
    best = next((o.label for o in found if o.macro is not None and not o.entry.is_pooled), None)
    rows = tuple(_row(outcome, metric, outcome.label == best and len(found) > 1) for outcome in found)
    clients = f"{len(comparison.clients)} client{'s' if len(comparison.clients) > 1 else ''}"
    title = f"{comparison.data['name']}, {clients}: {words.with_unit(metric)} on test rows"
    return Table(title, columns(metric), rows, caption(comparison, found, how))


def caption(comparison: Comparison, found: Sequence[Outcome], how: How) -> str:
    """Which model, when, on whose data, averaged how: what must stand under every number."""
    points = list(dict.fromkeys(point for outcome in found for point in outcome.points))
    parts = [
        f"{comparison.primary.capitalize()} on each client's test rows; mean = unweighted over clients (macro)",
        *([] if comparison.higher_is_better else ["lower is better"]),
        "± is the standard deviation over seeds"
        if any(outcome.tested > 1 for outcome in found)
        else "one seed, so no ±",
        SELECTIONS[how],
        *(f"{point} = {POINTS[point]}" for point in points if point in POINTS),
    ]
    if len(points) > 1:
        parts.append("the methods are tested at different points, each as stated")
    if any(outcome.gain for outcome in found):
        parts.append("in brackets the 95 % paired bootstrap interval over clients")
    return "; ".join(parts) + "."


def as_rich(table: Table, width: int | None = None) -> RichTable:
    """For the terminal. What does not fit into `width` is left out, and the caption says so; of a name that would take
    more than half of it, the words are broken over lines."""
    shown = list(table.columns)
    least = {column.key: _width(table, column) for column in shown}
    if width is not None:
        least["method"] = min(least["method"], width // 2)
    while width is not None and len(shown) > 2 and sum(least[column.key] + 3 for column in shown) + 1 > width:
        shown.remove(max(shown, key=lambda column: column.rank))
    hidden = [column.title.lower() for column in table.columns if column not in shown]
    note = f" Left out for lack of width: {words.listing(hidden)}." if hidden else ""
    rich = RichTable(title=table.title, caption=table.caption + note, caption_justify="left", title_justify="left")
    needed = sum(least[column.key] + 3 for column in shown) + 1
    spare = max(0, (width or 10_000) - needed)  # for titles that need not be broken
    for column in shown:
        text, room = column.key in ("method", "point"), min(spare, max(0, len(column.title) - least[column.key]))
        spare -= room
        rich.add_column(column.title, justify="left" if text else "right", width=least[column.key] + room)
    for row in table.rows:
        style = "bold" if row.best else "dim" if row.role else ""
        rich.add_row(*(Text(row[column.key].full) for column in shown), style=style)
    return rich


def as_markdown(table: Table) -> str:
    """For a README or a paper's notes."""

    def line(cells: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in cells)
            + " |"
        )

    rule = [":---" if column.key in ("method", "point") else "---:" for column in table.columns]
    lines = [
        f"**{table.title}**",
        "",
        line([column.title for column in table.columns]),
        "| " + " | ".join(rule) + " |",
    ]
    lines += [line([row[column.key].full for column in table.columns]) for row in table.rows]
    return "\n".join([*lines, "", table.caption, ""])


def as_html(table: Table, marks: dict[str, str] | None = None) -> str:
    """For a page; `marks` are snippets of HTML shown before a method's name. The tested model stands under the name."""
    shown = [column for column in table.columns if column.key != "point"]
    head = "".join(
        f'<th scope="col" title="{escape(column.about)}"{" class=text" if column.key == "method" else ""}>'
        f"{escape(column.title)}</th>"
        for column in shown
    )
    lines = []
    for row in table.rows:
        name, point = row["method"].text, row["point"].text
        cells = [f'<th scope="row">{(marks or {}).get(name, "")}{escape(name)}<small>{escape(point)}</small></th>']
        for cell in (row[column.key] for column in shown[1:]):
            cells.append(f"<td>{escape(cell.text)}{f'<small>{escape(cell.note)}</small>' if cell.note else ''}</td>")
        css = " ".join(filter(None, [row.role, "best" if row.best else ""]))
        lines.append(f'<tr class="{css}">{"".join(cells)}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<p class="caption">{escape(table.caption)}</p>'
    )


def columns(metric: str) -> tuple[Column, ...]:
    return (
        Column("method", "Method", "the method, and its settings where that is needed to tell two apart"),
        Column("point", "Tested model", "which model was tested, and when", 2),
        Column("seeds", "Seeds", "runs that the means are over", 7),
        Column("macro", "Mean", f"unweighted mean of the clients' {metric}"),
        Column(
            "gain",
            "Against Local",
            "mean over clients of the difference to training alone, with its 95 % interval",
            1,
        ),
        Column("worse", "Worse off", "clients that would do better alone, mean over seeds; a tie is not worse", 1),
        Column("worst", "Worst client", f"the worst client's {metric}", 3),
        Column("tenth", "Bottom tenth", f"mean {metric} of the worst tenth of the clients, at least one", 5),
        Column("std", "Std over clients", f"standard deviation of {metric} over clients", 6),
        Column("micro", "Micro", f"mean {metric} weighted by the clients' test rows", 8),
        Column("traffic", "Down / up", "bytes of one client in one round", 4),
        Column("seconds", "Time", "of one run: training and testing", 5),
    )


def _row(outcome: Outcome, metric: str, best: bool) -> Row:
    role = "alone" if outcome.entry.is_alone else "pooled" if outcome.entry.is_pooled else ""
    gain, runs = outcome.gain, len(outcome.entry.runs)
    point = f"{' / '.join(outcome.points)}, {outcome.taken}" if outcome.points else outcome.taken
    absent = Cell("reference" if role == "alone" else NOT_COMPUTED)
    cells = {
        "method": Cell(outcome.label),
        "point": Cell(point),
        "seeds": Cell(str(runs) if outcome.tested == runs else f"{outcome.tested} of {runs}", value=outcome.tested),
        "macro": _spread(outcome.macro, metric, with_std=True),
        "gain": absent,
        "worse": absent,
        "worst": _spread(outcome.worst, metric),
        "tenth": _spread(outcome.bottom_tenth, metric),
        "std": _spread(outcome.over_clients, metric),
        "micro": _spread(outcome.micro, metric),
        "traffic": Cell("rows pooled" if role == "pooled" else "none"),
        "seconds": Cell("not yet"),
    }
    if gain is not None:
        low, high = (words.number(bound, metric, signed=True) for bound in (gain.low, gain.high))
        mean = words.number(gain.mean, metric, signed=True)
        cells["gain"] = Cell(mean, f"[{low}, {high}]", value=gain.mean, interval=(gain.low, gain.high))
        cells["worse"] = Cell(f"{words.count(gain.worse)} of {gain.clients}", value=gain.worse)
    if outcome.seconds is not None:
        cells["seconds"] = Cell(words.duration(outcome.seconds), value=outcome.seconds)
    if outcome.traffic is not None and sum(outcome.traffic) > 0:
        down, up = outcome.traffic
        cells["traffic"] = Cell(f"{words.size(down)} / {words.size(up)}", value=down + up)
    return Row(cells, role, best)


def _spread(spread: Spread | None, metric: str, with_std: bool = False) -> Cell:
    if spread is None:
        return Cell("no result")
    mean, std = spread
    text = words.number(mean, metric)
    if with_std and std is not None and math.isfinite(mean):
        text += f" ± {words.number(std, metric)}"
    return Cell(text, value=mean, spread=std)


def _width(table: Table, column: Column) -> int:
    """The narrowest a column may get: a title breaks at spaces, a cell does not."""
    return max(*(len(part) for part in column.title.split()), *(len(row[column.key].full) for row in table.rows))
