"""`state`, `export` and `predict`: what a site keeps, and its personal model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedtailor.cli import options as o
from fedtailor.cli.terminal import console, interruptible, say
from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from fedtailor.deploy.store import Store

app = typer.Typer(help="Look at what a site keeps: ls, show, rollback.", no_args_is_help=True)

State = Annotated[Path, typer.Argument(metavar="STATE", help="Folder given to `join --state`.", show_default=False)]
Federation = Annotated[
    str | None, typer.Option("--federation", help="Which one, by the start of its id.", show_default=False)
]


def ls(state: State) -> None:
    """The federations that a site has taken part in, and the rounds of which it has a state."""
    from fedtailor.deploy.export import states

    table = Table("federation", "id", "site", "method", "rounds kept", "final model", box=None)
    for store, about in states(state):
        rounds = ", ".join(map(str, store.rounds())) or "none"
        final = "yes" if (store.path / "final.safetensors").exists() else "no"
        site = about["clients"][about["me"]] if about else "?"
        method = about["spec"]["method"] if about else "?"
        table.add_row(about.get("name", "?"), store.path.name, site, method, rounds, final)
    console().print(table)


def show(state: State, federation: Federation = None) -> None:
    """What the newest state holds, tensor by tensor; nothing of the values."""
    from fedtailor import tree
    from fedtailor.deploy.wire import outline

    store = _one(state, federation)
    rounds = store.rounds()
    if not rounds:
        raise WrongInput(f"{store.path} has no state yet; it is there after the first round")
    table = Table("tensor", "type and shape", box=None)
    for path, tensor in tree.leaves(store.load(rounds[-1])):
        table.add_row(path, outline(tensor))
    console().print(f"{store.path}, after round {rounds[-1]}")
    console().print(table)


def rollback(
    state: State,
    to: Annotated[int, typer.Option("--to", help="The round to go back to.", show_default=False)],
    federation: Federation = None,
) -> None:
    """Forget the states after a round; the server goes on with this site from there."""
    from fedtailor.deploy.lock import held

    with held(state / "lock", f"the state in {state}"):
        gone = _one(state, federation).rollback(to)
    say(f"went back to round {to}; forgot {', '.join(map(str, gone)) or 'nothing'}")


def _one(state: Path, federation: str | None) -> Store:
    from fedtailor.deploy.store import stores

    found = [store for store in stores(state) if store.path.name.startswith(federation or "")]
    if len(found) != 1:
        names = ", ".join(store.path.name for store in stores(state)) or "none"
        raise WrongInput(f"{state} has {len(found)} federations that fit; name one with --federation: {names}")
    return found[0]


def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN_OR_STATE", help="A run's folder, or a site's state.", show_default=False)
    ],
    client: Annotated[str | None, typer.Option("--client", help="Whose model.", show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File.safetensors; CLIENT.safetensors if not given.", show_default=False),
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write an ONNX file as well.")] = False,
    plugin: o.Plugin = None,
) -> None:
    """Take out a client's personal model: a safetensors file, and a card that says what it is.

    \\b
    Examples:
      fedtailor export runs/digits-fedbn-20250101-120000 --client noisy-1
      fedtailor export north-state --out north.safetensors
    """
    from fedtailor.deploy import export as exports

    o.load_plugins(plugin or ())
    card, module = exports.of_client(source, client)
    path = out or Path(f"{card.client}.safetensors")
    exports.write(path, card, module)
    written = [path, path.with_suffix(".json")]
    if onnx:
        exports.write_onnx(path.with_suffix(".onnx"), card, module)
        written.append(path.with_suffix(".onnx"))
    say(f"wrote {', '.join(map(str, written))}: {card.method}, {card.client}, after round {card.round}")


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What `export` wrote.", show_default=False)],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Rows: .npy, .csv, or pictures.", show_default=False)
    ],
    plugin: o.Plugin = None,
) -> None:
    """Apply an exported model to files: file, row, label and its probability, as CSV.

    \\b
    Example:
      fedtailor predict noisy-1.safetensors scan.png rows.npy
    """
    from fedtailor.deploy import export as exports

    o.load_plugins(plugin or ())
    card, module = exports.read(model)
    given = [(file, exports.rows_of(file, card)) for file in files]  # whatever is wrong is said before anything else
    typer.echo("file,row,label,probability")
    for file, rows in given:
        for row, (label, probability) in enumerate(exports.predict(card, module, rows)):
            typer.echo(f"{file},{row},{label},{probability:.4f}")


for command in (ls, show, rollback):
    app.command(command.__name__)(interruptible(command))
