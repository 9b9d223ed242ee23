"""The command line: `fedtailor` and `python -m fedtailor`.

Exit codes: 0 done, 1 failed while running, 2 wrong input, 130 interrupted.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from fedtailor.cli import federation, personal
from fedtailor.cli.data import data
from fedtailor.cli.explain import explain
from fedtailor.cli.look import cite, inspect_, list_, report
from fedtailor.cli.reproduce import reproduce
from fedtailor.cli.runs import compare, demo, resume, run
from fedtailor.cli.terminal import fail, interruptible, keep_traceback, say
from fedtailor.cli.tune import tune
from fedtailor.registry import WrongInput

# Typer carries click with it, or stands on it, as its version has it; this class is the same in either case.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run": (demo, run, compare, resume, tune, reproduce),
    "Look": (report, explain, list_, inspect_, cite, data),
    "Federate over a network": (federation.serve, federation.join, personal.export, personal.predict),
}
for panel, doings in _COMMANDS.items():
    for doing in doings:
        app.command(doing.__name__.rstrip("_"), rich_help_panel=panel)(interruptible(doing))
app.add_typer(federation.app, name="federation", rich_help_panel="Federate over a network")
app.add_typer(personal.app, name="state", rich_help_panel="Federate over a network")


def _say_version(asked: bool) -> None:
    if asked:
        from fedtailor import __version__

        typer.echo(f"fedtailor {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def fedtailor(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Say the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Personalised federated learning: compare methods on a federation, see who gains by taking part.

    \b
    Start here:
      fedtailor demo
      fedtailor compare --data digits --method fedavg --method fedbn
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def note(text: str, said: set[str]) -> None:
    """Say it once, in however many rounds and runs it is warned of."""
    if text not in said:
        said.add(text)
        say(f"note: {text}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; gives the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a letter shows a question mark
            stream.reconfigure(errors="replace")
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        said: set[str] = set()
        warnings.showwarning = lambda message, *_: note(str(message), said)
        try:
            code = app(args=arguments, prog_name="fedtailor", standalone_mode=False)
        except _UsageError as error:
            where = getattr(getattr(error, "ctx", None), "command_path", "fedtailor")
            return fail(f"{error.format_message()} (`{where} --help` explains)", 2)  # type: ignore[attr-defined]
        except WrongInput as error:
            return fail(str(error), 2)
        except Exception as error:
            return fail(f"{type(error).__name__}: {error}; the traceback is in {keep_traceback(error)}", 1)
    return code if isinstance(code, int) else 0
