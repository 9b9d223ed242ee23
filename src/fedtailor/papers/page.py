"""An outcome for the terminal, as Markdown and as a page of HTML: the same cells in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from fedtailor.papers.outcome import Counted, Line, Outcome
from fedtailor.papers.preset import SCALES
from fedtailor.papers.verdict import Judged, Seeds, deviation, mean
from fedtailor.report import words
from fedtailor.report.table import POINTS

if TYPE_CHECKING:
    from rich.table import Table as RichTable

HEAD = ("Method", "Tested", "Ours", "Alone", "Paper", "Difference", "Verdict", "Notes")
COUNTS = ("Network", "Counted", "As printed", "Paper", "Verdict", "Notes")
LEFT = ("Method", "Network", "Tested", "Verdict", "Notes")  # aligned so
ROOM = 20  # comparisons of a claim that are told one by one


@dataclass(frozen=True)
class Block:
    """One column of the published table: its heading and its rows as text."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def blocks(found: Outcome) -> list[Block]:
    """Column by column, what has a number; a column without any is left out."""
    shown = []
    for column in found.columns:
        lines = [line for line in found.lines if line.column == column and line.verdict != "not run"]
        if lines:
            problem = lines[0].cell.problem
            title = f"{column}, with {problem.label} in its place" if problem.instead_of else column
            shown.append(Block(title, HEAD, tuple(row_of(line, found) for line in lines)))
    if found.counted:
        shown.append(Block(found.counted[0].count.column, COUNTS, tuple(count_of(c, found) for c in found.counted)))
    return shown


def count_of(counted: Counted, found: Outcome) -> tuple[str, ...]:
    count, paper = counted.count, f"{counted.printed.mean:g}"
    told = notes(found, count.differences)
    return count.row, f"{counted.number:,}", counted.as_printed, paper, counted.verdict, told


def notes(found: Outcome, texts: Sequence[str]) -> str:
    return ", ".join(map(str, sorted(found.notes[text] for text in texts)))


def row_of(line: Line, found: Outcome) -> tuple[str, ...]:
    printed = line.printed
    difference = ""
    if printed is not None and line.ours and not line.cell.problem.instead_of:
        difference = signed(mean(line.ours) - printed.mean)
    return (
        line.row, line.point, spread(line.ours), "" if line.row == found.table.alone else spread(line.alone),
        "" if printed is None else number(printed.mean, printed.deviation), difference,
        "" if line.verdict == "not printed" else line.verdict, notes(found, line.differences),
    )  # fmt: skip


def number(value: float, deviation: float | None = None) -> str:
    return f"{value:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")


def spread(values: Seeds) -> str:
    return number(mean(values), deviation(values)) if values else ""


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", words.MINUS)


# ---------- words ----------


def coverage(found: Outcome) -> str:
    """How much of the table there is, and at which scale."""
    if not found.lines:
        return f"{found.done} of {found.of} numbers counted; {sum(c.verdict == 'exact' for c in found.counted)} exact."
    told = f"{found.done} of {found.of} cells, scale {found.scale} ({SCALES[found.scale]}), "
    seeds = len(found.seeds)
    return told + (f"{seeds} seeds." if seeds != 1 else "one seed, so no deviation of ours.")


def caption(found: Outcome) -> str:
    """What must stand under every number."""
    if not found.lines:
        return "Exact: what is counted, written with the paper's digits, is what it prints."
    readings = list(dict.fromkeys(line.number.reading.words for line in found.lines))
    table = found.table
    several = ", ± the standard deviation over seeds" if len(found.seeds) > 1 else ""
    points = {line.point for line in found.lines}
    parts = [
        f"Ours: {'; '.join(readings)}, in per cent{several}",
        *(f"{point}: {about}" for point, about in POINTS.items() if point in points),
        f"Alone: the same of {table.alone}, every client trained on its own",
        f"Paper: {table.printed.protocol}" if table.printed else "the paper prints no numbers",
        f"met: no further than {table.band:g} from the paper",
        "not compared: the setting differs too much for the two numbers to be held together",
    ]
    return "; ".join(parts) + "."


def claim_lines(found: Outcome) -> list[tuple[str, str, list[str]]]:
    """Text, verdict and details of each claim."""
    told = []
    for judged in found.claims:
        whose = "" if judged.claim.whose == "paper" else " (our question, not the paper's)"
        told.append((judged.claim.text + whose, verdict_of(judged), details(judged)))
    return told


def verdict_of(judged: Judged) -> str:
    if judged.missing and judged.compared:
        return f"{judged.verdict}; {judged.missing} not run"
    return judged.verdict


def details(judged: Judged) -> list[str]:
    """Each comparison with its difference in points, those against the claim first."""
    order = {"does not hold": 0, "level": 1, "holds": 2}
    compared = sorted(judged.compared, key=lambda one: order[one.holds])
    lines = [f"{one.place}: {one.better} {signed(one.difference)} against {one.worse}" for one in compared[:ROOM]]
    return [*lines, f"and {len(compared) - ROOM} more"] if len(compared) > ROOM else lines


# ---------- the terminal ----------


def as_rich(block: Block) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(title=block.title, title_justify="left")
    for title in block.head:
        table.add_column(title, justify="left" if title in LEFT else "right", no_wrap=True)
    for row in block.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


# ---------- Markdown ----------


def as_markdown(found: Outcome, level: int = 1) -> str:
    parts = [f"{'#' * level} {found.table.title}", "", coverage(found), ""]
    for block in blocks(found):
        parts += [f"**{block.title}**", "", *markdown_table(block.head, block.rows), ""]
    parts += [caption(found), ""]
    if found.notes:
        parts += ["Notes:", "", *(f"{number}. {text}" for text, number in found.notes.items()), ""]
    claims = [
        f"- {text}: **{verdict}**" + (f" ({'; '.join(detail)})" if detail else "")
        for text, verdict, detail in claim_lines(found)
    ]
    parts += ["Claims:", "", *claims] if claims else []
    for title, lines in omissions(found):
        parts += ["", f"{title}:", "", *(f"- {line}" for line in lines)]
    return "\n".join(parts) + "\n"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"

    rule = [":---" if title in LEFT else "---:" for title in head]
    return [line(head), "| " + " | ".join(rule) + " |", *(line(row) for row in rows)]


def omissions(found: Outcome) -> list[tuple[str, list[str]]]:
    """What is not there, and why."""
    reasons: dict[str, list[str]] = {}
    for cell, reason in found.refused:
        reasons.setdefault(reason, []).append(cell.problem.name)
    refused = [f"{words.listing(list(dict.fromkeys(names)))}: {reason}" for reason, names in reasons.items()]
    failed = [f"{name}: {reason}" for name, reason in found.failed]
    printed = f"In print: {found.table.printed.notes}." if found.table.printed and found.table.printed.notes else ""
    about = [text for text in (found.table.about, printed) if text]
    return [(title, lines) for title, lines in (
        ("Left out", refused), ("Failed", failed), ("About this table", about)) if lines]  # fmt: skip


# ---------- HTML ----------


def as_html(found: Outcome, command: str) -> str:
    """One page that needs no network."""
    from fedtailor.papers.figures import pictures
    from fedtailor.report.page import fold, picture, shell
    from fedtailor.report.style import MARKED

    claims = "".join(
        f"<li>{escape(text)}: <strong>{escape(verdict)}</strong>{fold('Each comparison', listed(detail))}</li>"
        for text, verdict, detail in claim_lines(found)
    )
    parts = {
        "Claims": f"<ul>{claims}</ul>",
        **{block.title: html_table(block) for block in blocks(found)},
        **{p.title: picture(partial(p.draw, MARKED), p.name, p.title, p.caption) for p in pictures(found)},
        "How to read it": f"<p>{escape(caption(found))}</p>",
        "Notes": listed(list(found.notes), "ol"),
        **{title: listed(lines) for title, lines in omissions(found)},
        "To repeat it": f"<pre><code>{escape(command)}</code></pre>",
        "To cite": f"<p>{escape(found.table.source.citation)}</p>",
    }
    body = "".join(f"<section><h2>{escape(title)}</h2>{part}</section>" for title, part in parts.items() if part)
    lead = f'<p class="lead">{escape(coverage(found))}</p>'
    return shell(f"Reproduction of {found.table.id}", found.table.title, lead, body)


def listed(lines: Sequence[str], tag: str = "ul") -> str:
    return f"<{tag}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</{tag}>" if lines else ""


def html_table(block: Block) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"

    body = "".join(cells("td", row) for row in block.rows)
    return f'<div class="scroll"><table><thead>{cells("th", block.head)}</thead><tbody>{body}</tbody></table></div>'
