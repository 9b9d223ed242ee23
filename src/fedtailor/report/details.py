"""The smaller tables of the page: by site, by group, traffic, settings, methods, runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedtailor.metrics import How
from fedtailor.report import words
from fedtailor.report.curves import curve, over_traffic, reached
from fedtailor.report.outcomes import Outcome, exchanged, mean_of
from fedtailor.report.read import Comparison, Entry
from fedtailor.report.table import POINTS, SELECTIONS, columns
from fedtailor.report.verdict import differing

_SEES = {"sums": "sums of uploads", "models": "single models"}


def client_table(comparison: Comparison, found: Sequence[Outcome]) -> str:
    """Every client under every method; blue gains on Local and orange, with a mark, loses."""
    tested = [outcome for outcome in found if outcome.tested]
    if not tested:
        return ""
    gains = [
        abs(value - other)
        for outcome in tested
        for value, other in zip(outcome.values, outcome.alone or (), strict=False)
        if value is not None and other is not None and math.isfinite(value - other)
    ]
    most = max(gains, default=0.0)
    group = {client: name for name, members in comparison.groups for client in members}
    head = ["site", *(["group"] if len(comparison.groups) > 1 else []), "training rows"]
    head += [f"{outcome.label}: {' / '.join(outcome.points)}, {outcome.taken}" for outcome in tested]
    sizes = comparison.data.get("sizes") or [""] * len(comparison.clients)
    lines = []
    for client, name in enumerate(comparison.clients):
        cells = [f'<th scope="row">{escape(name)}</th>']
        cells += [f'<td class="text">{escape(group[client])}</td>'] if len(comparison.groups) > 1 else []
        cells.append(f"<td>{escape(str(sizes[client]))}</td>")
        for outcome in tested:
            other = None if outcome.alone is None else outcome.alone[client]
            cells.append(_shaded(outcome.values[client], other, most, comparison))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    note = f"On test rows, mean over seeds: {words.with_unit(comparison.primary)}."
    if gains:
        note += " Blue: better than Local; orange and ▼: worse."
    return (
        html_table(head, lines, "All numbers by site", tall=True, text=("group",))
        + f'<p class="caption">{escape(note)}</p>'
    )


def group_table(comparison: Comparison, found: Sequence[Outcome]) -> str:
    """Means over the clients of each group, such as a domain."""
    tested = [outcome for outcome in found if outcome.tested]
    if not tested or not 1 < len(comparison.groups) < len(comparison.clients):
        return ""
    lines = []
    for name, members in comparison.groups:
        means = [mean_of([outcome.values[client] for client in members]) for outcome in tested]
        cells = "".join(f"<td>{_number(mean, comparison.primary)}</td>" for mean in means)
        lines.append(f'<tr><th scope="row">{escape(name)}</th><td>{len(members)}</td>{cells}</tr>')
    head = ["group", "sites", *(f"{o.label}: {' / '.join(o.points)}, {o.taken}" for o in tested)]
    return html_table(head, lines, "Mean by group")


def traffic_table(comparison: Comparison, found: Sequence[Outcome]) -> str:
    """Bytes per round, per run, and until a method is as good as training alone."""
    lines = []
    for outcome in found:
        if not outcome.total_bytes or outcome.traffic is None:
            continue
        line = curve(outcome.entry, over_traffic(comparison))
        level = mean_of(outcome.alone)
        until = None if level is None else reached(line, level, comparison.higher_is_better)
        needed = "not computed" if level is None else "not reached" if until is None else words.size(until)
        numbers = [words.size(part) for part in (*outcome.traffic, outcome.total_bytes)]
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in (*numbers, needed))
        lines.append(f'<tr><th scope="row">{escape(outcome.label)}</th>{cells}</tr>')
    if not lines:
        return "<p>Nothing was exchanged.</p>"
    head = [
        "method",
        "down, per round and site",
        "up, per round and site",
        "whole run, all sites",
        "per site, until as good as Local",
    ]
    return html_table(head, lines, "Traffic")


def settings_list(comparison: Comparison) -> str:
    """The data, and the settings that all runs share; those that differ stand with the methods."""
    data, differ, first = comparison.data, differing(comparison), comparison.runs[0]
    shared = {
        key: value for key, value in first.settings.items() if key not in (*differ, "model") and value is not None
    }
    facts = {
        "data": data.get("source") or data["name"],
        "model": first.info.get("model") or first.settings.get("model"),
        "fingerprint of the data": data["fingerprint"],
        "seeds": words.listing([str(seed) for seed in sorted({run.seed for run in comparison.runs})]),
        "settings of all runs": ", ".join(f"{key} {_plain(value)}" for key, value in shared.items()),
    }
    if differ:
        facts["settings that differ"] = words.listing(differ)
    plan = first.info.get("plan") or {}
    facts["plan"] = ", ".join(f"{key} {_plain(value)}" for key, value in plan.items())
    return f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>' for k, v in facts.items() if v)}</dl>"


def method_table(comparison: Comparison) -> str:
    """Each method in full, what of the model it shares, what the server gets to see."""
    differ = differing(comparison)
    lines = []
    for entry in comparison.entries:
        info = entry.runs[0].info
        parameters = info.get("parameters") or {}
        cells = [
            f'<th scope="row">{escape(entry.label)}</th>',
            f'<td class="text wrap"><code>{escape(entry.runs[0].method)}</code></td>',
        ]
        cells += [f"<td>{escape(_thousands(parameters.get(part)))}</td>" for part in ("shared", "personal")]
        cells.append(f'<td class="text">{escape(_seen(entry, parameters.get("shared")))}</td>')
        cells += [f"<td>{escape(_plain(entry.runs[0].settings.get(key)))}</td>" for key in differ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    head = ["method", "in full", "shared parameters", "personal parameters", "the server sees", *differ]
    return "<h3>Methods</h3>" + html_table(head, lines, "Methods", text=("in full", "the server sees"))


def _seen(entry: Entry, shared: Any) -> str:
    """What the server sees; nothing where nothing is shared."""
    if entry.is_pooled:
        return "everybody's rows"
    return "nothing" if shared == 0 else _SEES.get(str(entry.runs[0].info.get("sees")), "")


def run_table(comparison: Comparison, beside: Path) -> str:
    """Every run that went into the report, and how far it came."""
    lines = []
    for entry in comparison.entries:
        for run in entry.runs:
            seconds = sum(float((row.get("seconds") or {}).get("total") or 0) for row in run.rows)
            steps = sum(sum(row.get("steps") or ()) for row in run.rows)
            state = "finished" if run.complete else "not finished"
            moved = "rows pooled" if entry.is_pooled else words.size(sum(exchanged(row) for row in run.rows))
            rounds = f"{run.reached} of {run.wanted}" if run.wanted else str(run.reached)
            numbers = [str(run.seed), rounds, f"{steps:,}", moved]
            numbers.append(words.duration(seconds))
            cells = "".join(f"<td>{escape(number)}</td>" for number in numbers)
            cells += (
                f'<td class="text">{state}</td><td class="text"><code>{escape(_where(run.path, beside))}</code></td>'
            )
            lines.append(f'<tr><th scope="row">{escape(entry.label)}</th>{cells}</tr>')
    head = ["method", "seed", "rounds", "optimiser steps", "exchanged", "time", "state", "folder"]
    return html_table(head, lines, "All runs", tall=True, text=("state", "folder"))


def explanation(comparison: Comparison, how: How) -> str:
    """What each number of the table is."""
    facts = {column.title: column.about for column in columns(comparison.primary) if column.key != "method"}
    facts |= {f"Tested model: {point}": about for point, about in POINTS.items() if point in _points(comparison)}
    facts["Which round"] = f"the numbers are {SELECTIONS[how]}"
    facts["95 % interval"] = (
        "the sites are drawn anew with replacement, each with both its numbers, and the middle 95 % of the resulting "
        "means are kept: how much the mean hangs on which sites took part, not on the seed"
    )
    return f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{escape(v)}</dd>' for k, v in facts.items())}</dl>"


def _points(comparison: Comparison) -> set[str]:
    return {str(row["point"]) for run in comparison.runs for row in run.rows if row.get("test")}


def _shaded(value: float | None, alone: float | None, most: float, comparison: Comparison) -> str:
    text = _number(value, comparison.primary)
    if value is None or alone is None or not math.isfinite(value - alone) or value == alone or not most:
        return f"<td>{text}</td>"
    better = (value > alone) == comparison.higher_is_better
    much = f"{abs(value - alone) / most:.2f}"
    difference = words.number(value - alone, comparison.primary, signed=True)
    side = "good" if better else "bad"
    return (
        f'<td class="shade side-{side}" style="--much: {much}" title="{difference} against Local">'
        f"{'' if better else '▼ '}{text}</td>"
    )


def _number(value: float | None, metric: str) -> str:
    return "none" if value is None else words.number(value, metric)


def html_table(
    head: Iterable[str], lines: Iterable[str], name: str, tall: bool = False, text: Sequence[str] = ()
) -> str:
    """Rows of cells in a box that scrolls; `text` are the titles of columns of words."""
    titles = "".join(
        f'<th scope="col"{" class=text" if not place or title in text else ""}>{escape(title)}</th>'
        for place, title in enumerate(head)
    )
    return (
        f'<div class="scroll{" tall" if tall else ""}" tabindex="0" role="region" aria-label="{escape(name)}"><table>'
        f"<thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _plain(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _thousands(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _where(path: Path, beside: Path) -> str:
    """The folder as seen from the page; of one that lies elsewhere the last parts, not somebody's home."""
    seen = Path(os.path.relpath(path.resolve(), beside.resolve()))
    return str(Path(*path.resolve().parts[-2:])) if ".." in seen.parts else str(seen)
