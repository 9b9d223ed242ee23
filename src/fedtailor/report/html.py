"""One self-contained page per report: no network, light and dark, from desktop to phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedtailor.metrics import How
from fedtailor.registry import WrongInput
from fedtailor.report import words
from fedtailor.report.details import (
    client_table,
    explanation,
    group_table,
    method_table,
    run_table,
    settings_list,
    traffic_table,
)
from fedtailor.report.figures import FORMATS, draw, write_figures
from fedtailor.report.learned.lessons import learned_by
from fedtailor.report.learned.section import section
from fedtailor.report.learned.section import write_figures as write_learned
from fedtailor.report.outcomes import Outcome, best_first, outcomes
from fedtailor.report.page import WIDTHS, fold, picture, shell
from fedtailor.report.read import Comparison, read
from fedtailor.report.sites import MOST_MARKS, MOST_ROWS, shown_methods
from fedtailor.report.style import MARKED, looks
from fedtailor.report.table import NOT_COMPUTED, as_html, as_markdown, tabulate
from fedtailor.report.verdict import headline, notices


def write_report(folders: Sequence[Path], out: Path, formats: Sequence[str] = ("html",), how: How = "last") -> Path:
    """Report on runs and comparisons; `out` is a folder, or the name of the page if it ends in .html.

    Formats are html, md (the tables), and pdf, png and svg (the figures, in a folder beside). Returns the page, or
    the first thing written if no page was asked for.
    """
    for kind in formats:
        if kind not in ("html", "md", *FORMATS):
            raise WrongInput(f"a report cannot be written as {kind!r}; choose html, md, {', '.join(FORMATS)}")
    comparisons = read(folders)
    page = out if out.suffix.lower() == ".html" else out / "report.html"
    written: list[Path] = []
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        if "html" in formats:
            page.write_text(render(comparisons, page.parent, how), encoding="utf-8")
            written.append(page)
        if "md" in formats:
            tables = [as_markdown(tabulate(comparison, how)) for comparison in comparisons]
            page.with_suffix(".md").write_text("\n".join(tables), encoding="utf-8")
            written.append(page.with_suffix(".md"))
        pictures = [kind for kind in formats if kind in FORMATS]
        for number, comparison in enumerate(comparisons if pictures else (), start=1):
            folder = page.parent / ("figures" if len(comparisons) == 1 else f"figures-{number}")
            write_figures(comparison, folder, pictures, how)
            write_learned(learned_by(comparison), folder, pictures)
            written.append(folder)
    except OSError as error:
        raise WrongInput(
            f"cannot write the report into {page.parent}: {error.strerror}; choose another folder"
        ) from None
    return written[0]


def render(comparisons: Sequence[Comparison], beside: Path, how: How = "last") -> str:
    """The page as text; run folders are named as seen from the folder `beside`."""
    found = [outcomes(comparison, how) for comparison in comparisons]
    several = len(comparisons) > 1
    title = f"{len(comparisons)} federations" if several else _title(comparisons[0])
    bodies = [
        _federation(comparison, result, f"f{number}", several, beside, how)
        for number, (comparison, result) in enumerate(zip(comparisons, found, strict=True), start=1)
    ]
    lead = "" if several else f'<p class="lead">{escape(headline(comparisons[0], found[0]))}</p>'
    return shell("Fedtailor report", title, lead, "".join(bodies))


def _federation(
    comparison: Comparison, found: Sequence[Outcome], prefix: str, several: bool, beside: Path, how: How
) -> str:
    look = looks(comparison, MARKED)
    marks = {
        label: f'<span class="mark" style="background: {style.variable}" aria-hidden="true"></span>'
        for label, style in look.items()
    }
    drawn = {width: draw(comparison, found, MARKED, width) for width in WIDTHS.values()}
    captions = _captions(comparison, found)

    def drawn_of(name: str) -> str:
        if name not in drawn[WIDTHS["wide"]]:
            return ""
        return picture(lambda width: drawn[width][name], f"{prefix}-{name}", *captions[name])

    commands = escape("\n".join(comparison.commands))
    citations = dict.fromkeys(str(run.info.get("citation") or "").strip() for run in comparison.runs)
    cited = "".join(f"<pre>{escape(citation)}</pre>" for citation in citations if citation)
    versions = {
        name: words.listing(sorted({str(run.info[name]) for run in comparison.runs if run.info.get(name)}))
        for name in ("fedtailor", "torch", "numpy", "python")
    }
    by_group = group_table(comparison, found)
    parts = {
        "Comparison": as_html(tabulate(comparison, how, found), marks),
        "Over the rounds": drawn_of("rounds"),
        "Site by site": drawn_of("sites")
        + fold("Mean by group", by_group)
        + fold("All numbers by site", client_table(comparison, found)),
        "Who holds what": drawn_of("holdings"),
        "Traffic": drawn_of("traffic") + traffic_table(comparison, found),
        "Training loss": drawn_of("training"),
        "What was learned": section(learned_by(comparison), prefix, len(comparison.entries) > 1),
        "How to read it": explanation(comparison, how),
        "Settings": settings_list(comparison) + method_table(comparison),
        "To repeat it": (f"<pre><code>{commands}</code></pre>" if commands else "<p>No command is on record.</p>")
        + f"<p class='caption'>With {escape(words.listing([f'{k} {v}' for k, v in versions.items() if v]))}.</p>"
        + fold("All runs", run_table(comparison, beside)),
        "To cite": cited,
    }
    shown = {name: body for name, body in parts.items() if body}
    anchors = {name: f"{prefix}-{name.lower().replace(' ', '-')}" for name in shown}
    links = "".join(f'<a href="#{anchors[name]}">{name}</a>' for name in shown)
    sections = "".join(
        f'<section id="{anchors[name]}" aria-label="{name}"><h2>{name}</h2>{body}</section>'
        for name, body in shown.items()
    )
    told = notices(comparison, found)
    warnings = "".join(f"<li>{escape(notice)}</li>" for notice in told)
    warned = f'<section class="notices" role="note"><h2>Before you rely on this</h2><ul>{warnings}</ul></section>'
    head = ""
    if several:
        head = f'<h2 class="federation">{escape(_title(comparison))}</h2>'
        head += f'<p class="lead">{escape(headline(comparison, found))}</p>'
    return (
        head
        + _tiles(comparison, found)
        + (warned if told else "")
        + f"<nav aria-label='Sections'>{links}</nav>"
        + sections
    )


def _title(comparison: Comparison) -> str:
    labels = [entry.label for entry in comparison.entries]
    methods = words.listing(labels) if len(labels) <= 5 else f"{len(labels)} methods"
    return f"{methods} on {comparison.data['name']}, {len(comparison.clients)} sites"


def _tiles(comparison: Comparison, found: Sequence[Outcome]) -> str:
    """The four numbers that most readers want, of the best method that shares."""
    metric = comparison.primary
    ranked = best_first(found, comparison.higher_is_better)
    best = next((o for o in ranked if o.macro and not (o.entry.is_alone or o.entry.is_pooled)), None)
    if best is None or best.macro is None or best.worst is None:
        return ""
    gained = words.difference(best.gain.mean, metric) if best.gain else NOT_COMPUTED
    worse = f"{words.count(best.gain.worse)} of {best.gain.clients}" if best.gain else NOT_COMPUTED
    tiles = {
        f"{metric} with {best.label}, mean over sites": words.value(best.macro[0], metric),
        "against training alone": gained,
        "sites worse off than alone": worse,
        f"{metric} of the worst site": words.value(best.worst[0], metric),
    }
    items = "".join(
        f"<li><strong>{escape(value)}</strong><span>{escape(name)}</span></li>" for name, value in tiles.items()
    )
    return f'<ul class="tiles">{items}</ul>'


def _captions(comparison: Comparison, found: Sequence[Outcome]) -> dict[str, tuple[str, str]]:
    """Title and text of each figure; every number in a figure is told apart like those of the table."""
    metric = comparison.primary
    points: dict[str, list[str]] = {}
    for outcome in found:
        for point in outcome.points:
            points.setdefault(point, []).append(outcome.label)
    tested = "; ".join(f"the model {point}: {words.listing(labels)}" for point, labels in points.items())
    tested = f"Tested is {tested}." if points else ""
    band = " The band is one standard deviation over seeds." if any(o.tested > 1 for o in found) else ""
    finished = any(run.complete for run in comparison.runs)
    ended = " The larger mark at the end is the model that the clients end with." if finished else ""
    shown = shown_methods(comparison, found)
    alone = any(outcome.entry.is_alone and outcome.macro for outcome in found)
    rows = f"{_when(shown)}.{' The upright grey mark is Local.' if alone else ''}"
    if len(comparison.clients) > MOST_ROWS:
        rows = f"sorted for each method{', less what the site has under Local' if alone else ''}; {_when(shown)}."
    if len(shown) < sum(1 for outcome in found if outcome.tested):
        rows += f" Of the methods only Local and the {MOST_MARKS} best others are shown; all are in the table below."
    seeds = "mean over seeds; " if any(outcome.tested > 1 for outcome in found) else ""
    return {
        "rounds": (
            f"{metric} over the rounds",
            f"Mean {metric} over sites on their test rows, after each tested round.{band}{ended} {tested}",
        ),
        "sites": (
            f"{metric} of each site under each method",
            f"Each site's {metric} on its test rows; {seeds}{rows}",
        ),
        "holdings": (
            "Training rows by site and class",
            "Training rows that each site holds: by class (stronger is more, on a square-root scale) and in total.",
        ),
        "traffic": (
            f"{metric} over traffic",
            f"Mean {metric} over sites against what a site has exchanged until then, as encoded."
            f"{' The dashed line is where training alone ends.' if alone else ''} {tested}",
        ),
        "training": (
            "Training loss over the rounds",
            f"Training loss, mean over the sites that trained.{band}",
        ),
    }


def _when(shown: Sequence[Outcome]) -> str:
    """Which round the numbers are of: once for all where it is the same."""
    taken: dict[str, list[str]] = {}
    for outcome in shown:
        taken.setdefault(outcome.taken, []).append(outcome.label)
    if len(taken) == 1:
        return shown[0].taken
    return "; ".join(f"{when}: {words.listing(labels)}" for when, labels in taken.items())
