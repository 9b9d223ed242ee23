"""What is written where: results on standard output, everything else on standard error."""

from __future__ import annotations

import functools
import io
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TextIO, cast

import typer
from rich.console import Console
from rich.text import Text

from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from fedtailor.report.outcomes import Outcome
    from fedtailor.report.read import Comparison

P = ParamSpec("P")

WIDTH = 100  # of what is not written to a terminal
BAR = 40
MOST_SITES = 30  # that are drawn one by one


class Plain(io.TextIOBase):
    """A file or a pipe, without the spaces that fill the lines of a table up."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(re.sub(r" +(?=\n)", "", text))
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding


def console(stderr: bool = False) -> Console:
    found = Console(stderr=stderr, highlight=False)
    if found.is_terminal:
        return found
    stream = Plain(sys.stderr if stderr else sys.stdout)
    return Console(file=cast(TextIO, stream), highlight=False, width=WIDTH)


def say(text: str = "", style: str = "") -> None:
    """One line for the reader, whatever its length."""
    console(stderr=True).print(Text(text, style=style), soft_wrap=True)


def fail(text: str, code: int) -> int:
    """Say what is wrong in one line; gives the exit code."""
    console(stderr=True).print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
    return code


def keep_traceback(error: BaseException, folder: Path | None = None) -> Path:
    """Write the traceback into the run's folder, or where temporary files go."""
    if folder is None or not folder.is_dir():
        folder = Path(tempfile.mkdtemp(prefix="fedtailor-"))
    path = folder / "traceback.txt"
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return path


def interruptible(doing: Callable[P, None]) -> Callable[P, None]:
    """A command that Ctrl-C ends with a word and the exit code for it; a run that has begun says more, in `kept_in`."""

    @functools.wraps(doing)
    def do(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            doing(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(fail("interrupted before anything was started", 130)) from None

    return do


def resuming(folder: Path, plugins: Sequence[str] = ()) -> str:
    """The command that goes on with a run."""
    return shlex.join(["fedtailor", "resume", str(folder), *(f"--plugin={plugin}" for plugin in plugins)])


@contextmanager
def kept_in(folder: Path, plugins: Sequence[str] = ()) -> Iterator[None]:
    """Whatever ends a run too early says why, where it stands, and how to go on."""
    from fedtailor.driver import Diverged

    go_on = f"go on with: {resuming(folder, plugins)}"
    try:
        yield
    except KeyboardInterrupt:
        begun = folder.is_dir()
        say(f"interrupted; what was reached is kept, {go_on}" if begun else "interrupted before the run began", "bold")
        raise typer.Exit(130) from None
    except Diverged as error:
        raise typer.Exit(fail(f"{error} (the record is {folder})", 1)) from None
    except WrongInput:
        raise
    except Exception as error:
        where = "; ".join([_where(error), *getattr(error, "__notes__", [])])
        fail(f"{type(error).__name__}: {error} ({where})", 1)
        say(f"The traceback is in {keep_traceback(error, folder)}; once the cause is mended, {go_on}")
        raise typer.Exit(1) from None


def _where(error: Exception) -> str:
    """The last line that is not of an installed package: most likely the user's own."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<")] or list(frames)
    outside = [f for f in own if Path(__file__).parents[1] not in Path(f.filename).parents] or own
    return f"{Path(outside[-1].filename).name}, line {outside[-1].lineno}, in {outside[-1].name}"


def show_results(folders: Sequence[Path], how: str = "last", quiet: bool = False) -> None:
    """The table of each federation; unless quiet, the sites and what came out, in words."""
    from fedtailor.report.outcomes import outcomes
    from fedtailor.report.read import read
    from fedtailor.report.table import as_rich, tabulate
    from fedtailor.report.verdict import headline, notices

    screen = console()
    for comparison in read(folders):
        found = outcomes(comparison, how)  # type: ignore[arg-type]
        screen.print(as_rich(tabulate(comparison, how, found), screen.width))  # type: ignore[arg-type]
        if quiet:
            continue
        screen.print()
        for line in sites(comparison, found):
            screen.print(line)
        for notice in notices(comparison, found):
            screen.print(Text(f"note: {notice}"))
        if len(comparison.entries) > 1:
            screen.print(Text(headline(comparison, found), style="bold"))


def sites(comparison: Comparison, found: Sequence[Outcome]) -> list[Text]:
    """A bar for each site under the best method that shares, with a mark where training alone leads."""
    from fedtailor.report import words
    from fedtailor.report.outcomes import best_first

    metric = comparison.primary
    tested = [o for o in best_first(found, comparison.higher_is_better) if o.macro is not None]
    sharing = [o for o in tested if not (o.entry.is_alone or o.entry.is_pooled)] or tested
    if not sharing or not words.is_share(metric) or len(comparison.clients) > MOST_SITES:
        return []
    best, alone = sharing[0], next((o for o in tested if o.entry.is_alone), None)
    others = alone.values if alone is not None and alone is not best else (None,) * len(best.values)
    width = max(len(name) for name in comparison.clients)
    mark = ", │ where Local is, and the difference" if any(v is not None for v in others) else ""
    lines = [Text(f"{best.label}, site by site: {words.with_unit(metric)}{mark}", style="italic")]
    for name, value, other in zip(comparison.clients, best.values, others, strict=True):
        if value is None or value != value:
            lines.append(Text(f"  {name:<{width}}  not tested" if value is None else f"  {name:<{width}}  diverged"))
            continue
        bar = list("█" * round(value * BAR) + " " * (BAR - round(value * BAR)))
        styles = ["cyan"] * BAR
        gain = ""
        if other is not None and other == other:
            place = min(BAR - 1, round(other * BAR))
            bar[place], styles[place] = "│", "bold"
            gain = words.number(value - other, metric, signed=True)
        line = Text(f"  {name:<{width}}  ")
        for letter, style in zip(bar, styles, strict=True):
            line.append(letter, style)
        line.append(f"  {words.number(value, metric):>5}")
        line.append(f"  {gain:>5}", "" if gain.startswith("+") else "bold yellow")
        lines.append(line)
    return [*lines, Text()]
