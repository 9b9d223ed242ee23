"""`report`, `list`, `inspect` and `cite`: nothing is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from fedtailor import registry
from fedtailor.cli import catalogue
from fedtailor.cli import options as o
from fedtailor.cli.terminal import console, say, show_results
from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from fedtailor.tree import State

KINDS = {"methods": "method", "data": "data", "models": "model", "partitions": "partition"}


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs and of comparisons.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder, or .html file; the run's own folder if there is one.", show_default=False),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(
            "--format", metavar="pdf|png|svg|md", help="Write figures as well, or tables.", show_default=False
        ),
    ] = None,
    select: Annotated[
        str, typer.Option("--select", metavar="last|best|best_on_validation", help="The round that counts.")
    ] = "last",
) -> None:
    """Draw runs: their table here, and a page with pictures and every number.

    \b
    Examples:
      fedtailor report runs/digits-compare-20250101-120000
      fedtailor report runs/digits-fedavg-* runs/digits-local-* --out both --format pdf
    """
    from fedtailor.report.html import write_report
    from fedtailor.report.table import SELECTIONS

    if select not in SELECTIONS:
        raise WrongInput(f"select={select!r} is not possible; choose {', '.join(SELECTIONS)}")
    place = out or (runs[0] if len(runs) == 1 else o.new_folder("report"))
    page = write_report(runs, place, tuple(dict.fromkeys(["html", *(format or ())])), how=select)
    show_results(runs, select)
    say(f"Open {page} in a browser for pictures and every number.")


def list_(
    what: Annotated[str, typer.Argument(metavar="methods|data|models|partitions", help="What to list.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these, with all that is known of them.",
                                         show_default=False)
    ] = None,
    plugin: o.Plugin = None,
) -> None:  # fmt: skip
    """List what can be named: methods, data, models or partitions. With names: their options, and what they do.

    \b
    Examples:
      fedtailor list methods
      fedtailor list methods ditto fedala
    """
    plugins = o.load_plugins(plugin or ())
    kind = KINDS.get(what, what if what in KINDS.values() else "")
    if not kind:
        raise WrongInput(f"there is no list of {what!r}; choose {', '.join(KINDS)}")
    found = catalogue.whole(kind) if plugins else catalogue.kept(kind)
    if kind == "method" and not names:
        return overview(found)
    details(kind, found if not names else {name: found[name] for name in catalogue.meant(kind, found, names)})


def overview(found: Mapping[str, catalogue.Item]) -> None:
    """The methods by family, with a word on each."""
    screen = console()
    width = max(map(len, found))
    for family, members in catalogue.families(found).items():
        screen.print(Text(family, "bold"))
        lines = RichTable.grid(padding=(0, 2, 0, 0))
        lines.add_column(min_width=width)
        lines.add_column()
        for name in members:
            lines.add_row(Text(name), Text(found[name].about[0]))
        screen.print(lines)
        screen.print()
    screen.print(Text("Options, what stays, what is sent and who sees it: fedtailor list methods NAME"))


def details(kind: str, found: Mapping[str, catalogue.Item]) -> None:
    """Each with its options and all that is known of it."""
    screen = console()
    for item in found.values():
        also = f"  also {', '.join(item.also)}" if item.also else ""
        screen.print(Text.assemble((item.usage, "bold"), (also, "dim")))
        for line in item.about:
            screen.print(Padding(Text(line), (0, 0, 0, 4)))
        screen.print()
    if kind == "method":
        model = f"lenet_bn, among {catalogue.CLIENTS} clients that all take part"
        screen.print(Text(f"Traffic is of one client in one round half way through a run, in models of {model}."))
        screen.print(Text("For your own data and model: fedtailor inspect --data NAME --model NAME --method NAME"))


def inspect_(
    model: o.Model = None,
    method: o.Method = None,
    data: o.Data = None,
    buffers: o.Buffers = None,
    plugin: o.Plugin = None,
) -> None:
    """Show every tensor of a model under a method: its role, whether it is shared, and its bytes each way.

    \b
    Example:
      fedtailor inspect --data digits --model lenet_bn --method fedbn
    """
    o.load_plugins(plugin or ())
    from fedtailor import tree
    from fedtailor.cli.tried import exchange
    from fedtailor.data import load
    from fedtailor.driver import Driver
    from fedtailor.report import words
    from fedtailor.spec import RunSpec

    federation = load(data or "digits")
    chosen = registry.parse("method", method or "fedavg")
    called = registry.tidy("method", method or "fedavg")
    spec = RunSpec.of(federation, chosen, model=model, buffers=buffers, rounds=1, steps=1, cohort=1)
    driver = Driver(spec, federation)
    smallest = min(range(driver.data.n), key=lambda i: len(driver.sites[i].rows))
    down, up, _ = exchange(driver, smallest, [smallest], 1)
    arch, screen = driver.arch, console()
    layer = {name: layer for layer, names in arch.layers.items() for name in names}
    table = RichTable(title=f"{model or federation.model} under {called}, on {federation.name}", title_justify="left")
    for title in ("Tensor", "Layer", "Role", "Kept"):
        table.add_column(title)
    for title in ("Shape", "Down", "Up"):
        table.add_column(title, justify="right")
    for name in arch.names:
        sizes = [tree.nbytes(tree.pick(way.get("model", {}), {name})) for way in (down, up)]
        shape = " x ".join(map(str, driver.initial[name].shape)) or "1"
        kept = "personal" if name in driver.private else "shared"
        style = "green" if kept == "personal" else ""
        cells = [name, layer.get(name, ""), arch.role(name), kept, shape, *map(words.size, sizes)]
        table.add_row(*(Text(cell) for cell in cells), style=style)
    for name, (received, sent) in _beside(down, up).items():
        table.add_row(Text(name), "", "beside the model", "", "", words.size(received), words.size(sent), style="cyan")
    table.add_section()
    table.add_row("total", "", "", "", "", words.size(tree.nbytes(down)), words.size(tree.nbytes(up)), style="bold")
    screen.print(table)
    parameters = tree.drop(driver.initial, arch.buffers)
    total, personal = driver.size_of(parameters), driver.size_of(tree.pick(parameters, driver.private))
    screen.print(Text(f"{total:,} parameters: {total - personal:,} shared, {personal:,} personal."))
    own = tree.nbytes(driver.kept[0]["method"])
    if own:
        screen.print(Text(f"Each client keeps a state of the method's own beside its model: {words.size(own)}."))
    if chosen.pools:
        screen.print(Text("The bytes are of one pooled client: the data themselves are brought together, uncounted."))
    screen.print(Text("Bytes are of one client in one round: down from the server, up to it."))


def _beside(down: State, up: State) -> dict[str, tuple[int, int]]:
    """Bytes each way of what travels beside the model, by its first name."""
    from fedtailor import tree

    def sizes(way: State) -> dict[str, int]:
        found: dict[str, int] = {}
        for path, tensor in tree.flatten({**way.get("extra", {}), "peers": way.get("peers", {})}).items():
            name = path.split("/")[0]
            found[name] = found.get(name, 0) + tree.nbytes({"": tensor})
        return found

    received, sent = sizes(down), sizes(up)
    return {name: (received.get(name, 0), sent.get(name, 0)) for name in dict.fromkeys([*received, *sent])}


def cite(
    method: Annotated[str, typer.Argument(help="Method, such as fedbn or 'Proximal(FedAvg(), mu=0.1)'.")],
    plugin: o.Plugin = None,
) -> None:
    """Print BibTeX for a method, what it is made of, and Fedtailor.

    \b
    Example:
      fedtailor cite ditto >> references.bib
    """
    from fedtailor import __version__

    o.load_plugins(plugin or ())
    chosen = registry.parse("method", method)
    found = list(dict.fromkeys(citations(chosen)))
    if not found:
        say(f"{chosen!r} has no paper of its own; this is Fedtailor's entry.")
    own = (
        "@software{fedtailor,\n  title   = {Fedtailor: personalised federated learning},\n"
        f"  author  = {{{{The Fedtailor developers}}}},\n  version = {{{__version__}}}\n}}"
    )
    for entry in [*found, own]:
        typer.echo(entry)


def citations(method: Any) -> Iterable[str]:
    """Of the method, then of the methods inside it."""
    from dataclasses import fields

    from fedtailor.method import Method

    if method.citation:
        yield method.citation
    for field in fields(method):
        inner = getattr(method, field.name)
        if isinstance(inner, Method):
            yield from citations(inner)
