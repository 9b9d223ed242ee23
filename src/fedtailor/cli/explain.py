"""`explain`: what a method learned, as tables here and as pictures on a page."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedtailor import registry
from fedtailor.cli import options as o
from fedtailor.cli.terminal import console, say
from fedtailor.registry import WrongInput


def explain(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs and of comparisons.", show_default=False)],
    round: Annotated[
        int | None,
        typer.Option("--round", metavar="N", help="The round to look at; the last that shows it.", show_default=False),
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="One client only.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder, or .html file; the run's own folder if there is one.", show_default=False),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="pdf|png|svg", help="Write the pictures as files too.", show_default=False),
    ] = None,
) -> None:
    """Show what methods learned: attention maps, mixtures, strategies, weights; tables here, and a page with pictures.

    \b
    Examples:
      fedtailor explain runs/digits-fedmcsa-20250101-120000
      fedtailor explain runs/digits-compare-20250101-120000 --round 10 --client noisy-1 --format pdf
    """
    from fedtailor.report.read import read

    comparisons = read(runs)  # what is no run is said before anything heavy is imported
    from fedtailor.report.explain import NothingLearned, find, write_explanation
    from fedtailor.report.learned.numbers import as_rich, tables
    from fedtailor.report.learned.section import notes

    try:
        found = find(comparisons, round, client)
    except NothingLearned as error:
        raise WrongInput(f"{error}; explain is for {', '.join(explaining())}") from None
    place = out or (runs[0] if len(runs) == 1 else o.new_folder("explain"))
    page = write_explanation(found, place, tuple(dict.fromkeys(["html", *(format or ())])))
    screen = console()
    for one in found:
        screen.print(Text.assemble((one.label, "bold"), f"  {' '.join(notes(one))}"))
        for lesson in one.lessons:
            for table in tables(lesson, one.sites):
                for part in as_rich(table, screen.width):
                    screen.print(part)
        screen.print()
    shown = {run.path for one in found for run in (one.run,)}
    silent = [e.label for c in comparisons for e in c.entries if not shown & {run.path for run in e.runs}]
    if silent:
        say(f"Nothing to show of {', '.join(silent)}.")
    say(f"Open {page} in a browser for the pictures.")


def explaining() -> list[str]:
    """The methods that show what they learned."""
    from fedtailor.method import Method, overrides
    from fedtailor.methods.fedavg import FedAvg

    names = []
    for name in registry.names("method"):
        factory = registry.entry("method", name).factory
        needed = [p for p in inspect.signature(factory).parameters.values() if p.default is p.empty]
        try:
            method = factory(**{p.name: FedAvg() for p in needed})
        except (TypeError, ValueError):  # a user's own that needs more
            continue
        if isinstance(method, Method) and (overrides(method, "explain") or overrides(method, "explain_server")):
            names.append(name)
    return names
