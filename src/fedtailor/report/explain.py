"""`fedtailor explain`: what methods learned, as one page and as figures."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from fedtailor.registry import WrongInput
from fedtailor.report import words
from fedtailor.report.figures import FORMATS
from fedtailor.report.learned.lessons import Learned, learned_by, rounds_shown, rounds_tested
from fedtailor.report.learned.section import of_method, write_figures
from fedtailor.report.page import shell
from fedtailor.report.read import Comparison, RunRecord


class NothingLearned(WrongInput):
    """The methods of these runs show nothing beside their models."""


def find(comparisons: Sequence[Comparison], round: int | None = None, client: str | None = None) -> list[Learned]:
    """What was learned in a round (or the last that shows it), by all clients or by one; raises where it is nothing."""
    runs = [run for comparison in comparisons for entry in comparison.entries for run in entry.counted]
    if not any(rounds_shown(run) for run in runs):
        raise NothingLearned(_nothing(runs))
    found = [one for comparison in comparisons for one in learned_by(comparison, round)]
    if not found:
        assert round is not None, "some round shows something"
        raise WrongInput(_no_round(next(run for run in runs if rounds_shown(run)), round))
    if client is None:
        return found
    numbers = [(one, _number(one, client)) for one in found if client in one.sites.names]
    if not numbers:
        names = list(dict.fromkeys(name for one in found for name in one.sites.names))
        raise WrongInput(f"there is no client {client!r}; {_near(client, names)}")
    kept = [mine for one, number in numbers if (mine := one.only(number)) is not None]
    if not kept:
        raise WrongInput(f"{client} took part in no round that shows what it learned, up to round {found[0].round}")
    return kept


def write_explanation(found: Sequence[Learned], out: Path, formats: Sequence[str] = ("html",)) -> Path:
    """The page, and the figures in a folder beside it; `out` is a folder, or the name of the page if it ends in .html.

    Returns the page, or the folder of figures if no page was asked for.
    """
    for kind in formats:
        if kind not in ("html", *FORMATS):
            raise WrongInput(f"what was learned cannot be written as {kind!r}; choose html, {', '.join(FORMATS)}")
    page = out if out.suffix.lower() == ".html" else out / "explain.html"
    folder = page.parent / "figures"
    pictures = [kind for kind in formats if kind in FORMATS]
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        if "html" in formats:
            page.write_text(render(found), encoding="utf-8")
        if pictures:
            write_figures(found, folder, pictures, several=len(found) > 1)
    except OSError as error:
        raise WrongInput(f"cannot write into {page.parent}: {error.strerror}; choose another folder") from None
    return page if "html" in formats else folder


def render(found: Sequence[Learned]) -> str:
    """The page as text: a section for each method."""
    labels = list(dict.fromkeys(one.label for one in found))
    name = words.listing(labels) if len(labels) <= 5 else f"{len(labels)} methods"
    data = words.listing(list(dict.fromkeys(str(one.run.data["name"]) for one in found)))
    several = len(found) > 1
    sections = "".join(
        f'<section id="m{number}" aria-label="{escape(one.label)}">'
        f"{f'<h2>{escape(one.label)}</h2>' if several else ''}"
        f"{of_method(one, f'm{number}', level=3 if several else 2)}</section>"
        for number, one in enumerate(found, start=1)
    )
    links = "".join(f'<a href="#m{number}">{escape(one.label)}</a>' for number, one in enumerate(found, start=1))
    nav = f"<nav aria-label='Sections'>{links}</nav>" if several else ""
    return shell("What was learned", f"What {name} learned on {data}", "", nav + sections)


def _number(found: Learned, client: str) -> int:
    return found.sites.names.index(client)


def _near(client: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(client, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names[:20])}{' ...' * (len(names) > 20)}"


def _nothing(runs: Sequence[RunRecord]) -> str:
    """In plain words: not tested yet, or nothing to show."""
    names = words.listing(list(dict.fromkeys(run.label for run in runs)))
    tested = sorted({round for run in runs for round in rounds_tested(run)})
    if not tested:
        return f"{names}: no round has been tested yet, and what is learned is recorded when a round is tested"
    return (
        f"{names} recorded nothing that was learned beside the models, in {_listed(tested)}, "
        "so there is nothing to explain"
    )


def _no_round(run: RunRecord, round: int) -> str:
    """Why a round shows nothing, and which do."""
    shown = _listed(rounds_shown(run))
    if round in rounds_tested(run):
        return f"{run.label} showed nothing that it learned in round {round}; it did in {shown}"
    if any(int(row["round"]) == round for row in run.rounds):
        return f"round {round} of {run.label} was not tested, and what is learned is recorded then; choose of {shown}"
    return f"there is no round {round} of {run.label}, which has {run.reached}; choose of {shown}"


def _listed(rounds: Sequence[int]) -> str:
    """`rounds 1 to 4, 10 and 20`."""
    runs = [[n for _, n in group] for _, group in groupby(enumerate(rounds), key=lambda pair: pair[1] - pair[0])]
    parts = [part for run in runs for part in ([str(n) for n in run] if len(run) < 3 else [f"{run[0]} to {run[-1]}"])]
    if len(parts) > 12:
        parts = [*parts[:6], "...", *parts[-3:]]
    return f"round{'s' if len(rounds) > 1 else ''} {words.listing(parts)}"
