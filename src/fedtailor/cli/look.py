"""`report`, `list`, `inspect` and `cite`: nothing is run."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedtailor import registry
from fedtailor.cli import options as o
from fedtailor.cli.terminal import console, say, show_results
from fedtailor.registry import Entry, WrongInput

if TYPE_CHECKING:
    from fedtailor.driver import Driver
    from fedtailor.method import Method
    from fedtailor.tree import State

KINDS = {"methods": "method", "data": "data", "models": "model", "partitions": "partition"}
SEES = {"sums": "sums of uploads only", "models": "single clients' models"}
WHOLE = "the whole model"
FROM_DATA = ("classes", "shape")  # a model's arguments that are not the user's


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
    plugin: o.Plugin = None,
) -> None:
    """List what can be named: methods, data, models or partitions, with their options.

    \b
    Example:
      fedtailor list methods
    """
    o.load_plugins(plugin or ())
    kind = KINDS.get(what, what if what in KINDS.values() else "")
    if not kind:
        raise WrongInput(f"there is no list of {what!r}; choose {', '.join(KINDS)}")
    screen = console()
    for name in registry.names(kind):
        found = registry.entry(kind, name)
        also = f"  also {', '.join(found.aliases)}" if found.aliases else ""
        screen.print(Text.assemble((usage(kind, found), "bold"), (also, "dim")))
        for line in [found.summary, *(_of_method(found) if kind == "method" else ())]:
            screen.print(Padding(Text(line), (0, 0, 0, 4)))
        screen.print()


def usage(kind: str, found: Entry) -> str:
    """The name with its options and their defaults: `dirichlet(alpha=0.1, clients=20)`."""
    parameters = inspect.signature(found.factory).parameters.values()
    filled = FROM_DATA if kind == "model" else ()
    own = [p for p in parameters if p.name not in filled and p.kind is not p.VAR_KEYWORD]
    options = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in own]
    return f"{found.name}({', '.join(options)})" if options else found.name


def _of_method(found: Entry) -> Iterator[str]:
    from fedtailor.method import Method
    from fedtailor.methods.fedavg import FedAvg

    needed = [p for p in inspect.signature(found.factory).parameters.values() if p.default is p.empty]
    try:
        method = found.factory(**{p.name: FedAvg() for p in needed})
    except (TypeError, ValueError):
        return
    if isinstance(method, Method):
        given = f"; here around {FedAvg()!r}" if needed else ""
        stays = _personal(method)
        sees = "everybody's rows" if method.pools else "nothing" if stays == WHOLE else SEES[method.sees]
        yield f"stays at the client: {stays}{given}"
        yield f"the server sees {sees}; tested: {method.point}; {method.paper or 'no paper stated'}"


def _personal(method: Method) -> str:
    """What never leaves the client, in words: of LeNet with batch norm, which has every kind of layer."""
    import torch

    from fedtailor.arch import Arch
    from fedtailor.method import Fed
    from fedtailor.nn import make

    net = make("lenet_bn", classes=10, shape=(3, 28, 28), seed=0)
    before = frozenset(Arch(net).names)
    arch = Arch(method.build(net))
    personal = method.personal(arch)
    groups = {
        "normalisation layers": arch.norm, "last layer": arch.head, "the layers it adds": frozenset(arch.names) - before
    }  # fmt: skip
    words = [name for name, names in groups.items() if names and names <= personal]
    others = len(personal - frozenset().union(*groups.values()))
    words += [f"{others} further tensors"] if others else []
    words = [WHOLE] if personal == frozenset(arch.names) else words
    fed = Fed(arch, 1, torch.ones(1), (0,), 0, 1, 0)
    own = sorted(method.init_client(fed, arch.values()).keys() - {"inner"})
    words += [f"a state of its own ({', '.join(own)})"] if own else []
    return ", ".join(words) or "nothing"


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
    from fedtailor.data import load
    from fedtailor.driver import Driver
    from fedtailor.report import words
    from fedtailor.spec import RunSpec

    federation = load(data or "digits")
    chosen = registry.parse("method", method or "fedavg")
    spec = RunSpec.of(federation, chosen, model=model, buffers=buffers, rounds=1, steps=1, cohort=1)
    driver = Driver(spec, federation)
    down, up = _exchange(driver)
    arch, screen = driver.arch, console()
    layer = {name: layer for layer, names in arch.layers.items() for name in names}
    table = Table(title=f"{model or federation.model} under {chosen!r}, on {federation.name}", title_justify="left")
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


def _exchange(driver: Driver) -> tuple[State, State]:
    """What one client receives and sends in a round of one step."""
    import torch

    from fedtailor.site import take_part

    number = min(range(driver.data.n), key=lambda i: len(driver.sites[i].rows))
    payload = driver.common.method.send(driver.fed(1), driver.server, torch.tensor([number]))
    got = driver.message(payload, 0, number)
    reply = take_part(driver.sites[number], driver.kept[number], got, 1, examine=False)
    return {"model": got.model, "extra": got.extra, "peers": got.peers}, dict(reply.upload or {})


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
