"""`reproduce`: the tables of the papers, run again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.table import Table as RichTable
from rich.text import Text

from fedtailor.cli import options as o
from fedtailor.cli.terminal import console, fail, say
from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from fedtailor.papers.plan import Job, Plan
    from fedtailor.papers.preset import Cell, Count, Scale

OUT = Path("runs/reproduce")


def reproduce(
    what: Annotated[
        str,
        typer.Argument(metavar="list|report|PAPER:TABLE", help="A table such as fedmcsa:table2.", show_default=False),
    ],
    records: Annotated[
        Path | None,
        typer.Argument(metavar="[RECORDS]", help="Of `report`: the folder of kept records.", show_default=False),
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", metavar="quick|reduced|full", help="How much of the paper's own setting.")
    ] = "quick",
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="FACET=VALUE,...", help="Some cells: method=FedAvg,data=MNIST,model=MLR.",
                     show_default=False),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="N", help="Runs of each cell, with seeds from 0.")] = "1",
    jobs: Annotated[
        str | None, typer.Option("--jobs", metavar="N", help="Cells at a time; as many as cores.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help=f"Where runs are kept, and found again; {OUT} if not given. Of "
                     "`report`: the page.", show_default=False),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="FOLDER", help="Keep a small record of each run there too.", show_default=False),
    ] = None,
) -> None:  # fmt: skip
    """Run the tables of the papers again and see our numbers beside theirs.

    Runs that are complete are not run again, and what was interrupted goes on: give the same command.

    \b
    Examples:
      fedtailor reproduce list
      fedtailor reproduce fedmcsa:table2
      fedtailor reproduce fedmcsa:table2 --scale full --only data=Synthetic,model=MLR --seeds 3
    """
    if what == "list":
        return list_tables()
    from fedtailor import papers

    if what == "report":
        return report(records, out)

    if records is not None:
        raise WrongInput(f"{records} is one argument too many; only `reproduce report` takes a folder")
    table = papers.table(what)
    processes = number("jobs", jobs) if jobs is not None else os.cpu_count() or 1
    from fedtailor.papers.plan import plan

    found = plan(table, scale_of(scale), only or (), number("seeds", seeds), out or OUT)
    carry_out(found, processes, keep, command(what, scale, only or (), seeds, jobs=jobs, out=out, keep=keep))


def report(records: Path | None, out: Path | None) -> None:
    """Write the page on what was reproduced."""
    if records is None:
        raise WrongInput("name the folder of the records, such as: fedtailor reproduce report results")
    from fedtailor.papers import reproduction

    page = out or records / "reproduction.md"
    for kept in reproduction.write(records, page):
        for name in kept.stale:
            say(f"note: {kept.found.table.id}: {name} belongs to no cell of the table as it is now")
    say(f"Written: {page}")


def number(name: str, text: str) -> int:
    value = o.read_text(name, text) if name == "seeds" else whole(name, text)
    if value < 1:
        raise WrongInput(f"{name}={value} is not possible; it must be 1 or more")
    return int(value)


def whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise WrongInput(f"{name}={text!r} is not a whole number") from None


def scale_of(text: str) -> Scale:
    from fedtailor.papers.preset import Scale

    for known in get_args(Scale):
        if text == known:
            return known  # type: ignore[no-any-return]
    raise WrongInput(f"scale={text!r} is not possible; choose {', '.join(get_args(Scale))}")


def command(what: str, scale: str, only: Sequence[str], seeds: str, **others: object) -> str:
    """What was asked for, once more: with the same folders, or it would begin anew."""
    parts = ["fedtailor", "reproduce", what, "--scale", scale, *(p for text in only for p in ("--only", text))]
    given = {"seeds": None if seeds == "1" else seeds, **others}
    return shlex.join([*parts, *(p for k, v in given.items() if v is not None for p in (f"--{k}", str(v)))])


def list_tables() -> None:
    """Every table and figure, its cells and about how long they take here."""
    from fedtailor import papers
    from fedtailor.papers import effort
    from fedtailor.papers.preset import SCALES
    from fedtailor.report import words

    cores = os.cpu_count() or 1
    slower = effort.machine()
    screen = RichTable(title=f"About how long each takes here, one seed, {cores} cores", title_justify="left")
    for title in ("Name", "What", *SCALES):
        screen.add_column(title, justify="left" if title in ("Name", "What") else "right")
    for name, table in papers.TABLES.items():
        times = []
        for scale in SCALES:
            if table.counts:
                times.append("seconds")
                continue
            if scale not in table.eligible:
                times.append("")
                continue
            cells = table.cells(scale)
            works = {cell.folder: effort.seconds(cell) for cell in cells}
            count = f"{len(cells)} cell{'s' if len(cells) > 1 else ''}"
            times.append(f"{words.duration(slower * sum(works.values()) / cores)}\n{count}")
        screen.add_row(Text(name), Text(table.title), *times)
    console().print(screen)
    for scale, meaning in SCALES.items():
        say(f"{scale}: {meaning}")
    say(f"Times are counted from the steps of each run and a loop of Python timed now ({slower:.1f} times that of the "
        "machine they were measured on); expect a factor of two either way.")  # fmt: skip


def carry_out(plan: Plan, processes: int, keep: Path | None, repeat: str) -> None:
    """Run what is not complete yet, and show the table as far as it is there."""
    from fedtailor.cli.cells import Shown
    from fedtailor.papers.kept import keep as keep_one
    from fedtailor.papers.kept import keep_counts
    from fedtailor.papers.running import carry_out, is_complete

    todo = [job for job in plan.jobs if not is_complete(job.folder)]
    announce(plan, todo, processes)
    failed: list[tuple[str, str]] = []
    for job in plan.jobs if keep is not None else ():
        keep_one(keep, plan.table, plan.scale, job)  # type: ignore[arg-type]
    interrupted = False
    with Shown(todo, processes) as shown:

        def ended(job: Job, reason: str) -> None:
            shown.ended(job, reason)
            if reason:
                failed.append((job.title, reason))
            elif keep is not None:
                keep_one(keep, plan.table, plan.scale, job)

        try:
            carry_out(todo, processes, shown.tell, ended)
        except KeyboardInterrupt:
            interrupted = True
    counts = {}
    if plan.table.counts and not interrupted:
        from fedtailor.papers.counting import number_of

        counts = {count: number_of(count) for count in plan.table.counts}
        if keep is not None:
            keep_counts(keep, plan.table, counts)
    show(plan, counts, failed, repeat)
    if interrupted:
        raise typer.Exit(fail(f"interrupted; what was reached is kept, go on with: {repeat}", 130))
    if failed:
        raise typer.Exit(1)


def announce(plan: Plan, todo: Sequence[Job], processes: int) -> None:
    """What is going to be run, with what in whose place, and what cannot be."""
    from fedtailor.papers import effort
    from fedtailor.report import words

    ready = len(plan.jobs) - len(todo)
    if plan.table.counts:
        return say(f"{plan.table.title}: {len(plan.table.counts)} numbers to count")
    cells = f"{len(plan.cells)} of {len(plan.table.cells(plan.scale))} cells, scale {plan.scale}"
    say(f"{plan.table.title}: {cells}, {len(plan.seeds)} seed{'s' if len(plan.seeds) > 1 else ''}")
    if ready:
        say(f"{ready} of {len(plan.jobs)} runs are complete already.")
    stand_ins = [cell.problem for cell in plan.cells if cell.problem.instead_of]
    for note in dict.fromkeys(f"{p.name} stands in for {'; '.join([p.instead_of, *p.differences])}" for p in stand_ins):
        say(f"note: {note}")
    reasons: dict[str, list[str]] = {}
    for cell, reason in plan.refused:
        reasons.setdefault(reason, []).append(cell.problem.name)
    for reason, names in reasons.items():
        say(f"note: {words.listing(list(dict.fromkeys(names)))} left out: {reason}")
    if todo:
        seconds = effort.machine() * sum(effort.seconds(job.cell) for job in todo) / min(processes, len(todo))
        at_once = min(processes, len(todo))
        say(f"About {words.duration(seconds)} for {len(todo)} runs, {at_once} at a time. Runs are kept in {plan.out}")
    say()


def show(plan: Plan, counts: Mapping[Count, int], failed: Sequence[tuple[str, str]], repeat: str) -> None:
    """The table and its claims here; the same as Markdown and, with its figures, as a page; and these as files."""
    from fedtailor.papers import page
    from fedtailor.papers.outcome import Records, outcome
    from fedtailor.papers.plan import folder_of
    from fedtailor.papers.record import of_run

    def records(cell: Cell) -> Records:
        found = {seed: of_run(folder_of(plan.out, cell, seed), cell, seed) for seed in plan.seeds}
        return {seed: record for seed, record in found.items() if record is not None}

    found = outcome(plan.table, plan.scale, plan.cells, records, counts, plan.refused, failed)
    screen = console()
    for block in page.blocks(found):
        screen.print(page.as_rich(block))
    if not found.done:
        say("No cell is complete yet, so there is nothing to show.")
        return
    plan.out.mkdir(parents=True, exist_ok=True)
    for text, number in found.notes.items():
        screen.print(Text(f"{number}. {text}"))
    screen.print(Text(page.caption(found), style="dim"))
    screen.print()
    for text, verdict, _ in page.claim_lines(found):
        screen.print(Text.assemble(f"{text}: ", (verdict, "bold")))
    screen.print(Text(page.coverage(found)))
    name = plan.table.id.replace(":", "-")
    (plan.out / f"{name}.md").write_text(page.as_markdown(found), encoding="utf-8")
    (plan.out / f"{name}.html").write_text(page.as_html(found, repeat), encoding="utf-8")
    say(f"The same with every comparison: {plan.out / name}.html and .md")
    if found.records:
        from fedtailor.papers import figures

        if figures.write(found, plan.out / f"{name}-figures"):
            say(f"Its figures, for one and two columns of a paper, as PDF and PNG: {plan.out / name}-figures")
