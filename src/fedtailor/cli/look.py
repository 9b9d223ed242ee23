"""`report`, `list`, `inspect` and `cite`: nothing is run."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
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
TRIED_CLIENTS, TRIED_ROUNDS = 8, 100  # of the federation that the list of methods tries each of them on


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
    if kind == "method":
        model = f"lenet_bn, among {TRIED_CLIENTS} clients that all take part"
        screen.print(Text(f"Traffic is of one client in one round half way through a run, in models of {model}."))
        screen.print(Text("For your own data and model: fedtailor inspect --data NAME --model NAME --method NAME"))


def usage(kind: str, found: Entry) -> str:
    """The name with its options and their defaults: `dirichlet(alpha=0.1, clients=20)`."""
    parameters = inspect.signature(found.factory).parameters.values()
    filled = FROM_DATA if kind == "model" else ()
    own = [p for p in parameters if p.name not in filled and p.kind is not p.VAR_KEYWORD]
    options = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in own]
    return f"{found.name}({', '.join(options)})" if options else found.name


def _of_method(found: Entry) -> Iterator[str]:
    """What a method keeps, sends and shows, found by trying it; of a user's own, perhaps why that failed."""
    from fedtailor.method import Method
    from fedtailor.methods.fedavg import FedAvg

    needed = [p for p in inspect.signature(found.factory).parameters.values() if p.default is p.empty]
    try:
        method = found.factory(**{p.name: FedAvg() for p in needed})
    except (TypeError, ValueError):
        return
    if not isinstance(method, Method):
        return
    try:
        stays, traffic = _tried(method)
    except Exception as error:  # of a user's own method: the list goes on
        yield f"could not be tried on lenet_bn: {type(error).__name__}: {error}"
        stays = traffic = "?"
    around = f"; here around {FedAvg()!r}" if needed else ""
    public = " and the public rows" if method.public_share else ""
    sees = "everybody's rows" if method.pools else "nothing" if stays == WHOLE else f"{SEES[method.sees]}{public}"
    yield f"stays at the client: {stays}{around}"
    yield f"traffic: {traffic}; the server sees {sees}"
    tuned = f", and after {method.finish_epochs} epochs of tuning at the end" if method.finish_epochs else ""
    yield f"tested: {method.point}{tuned}; {'; '.join(_papers(method)) or 'no paper stated'}"


def _papers(method: Method) -> list[str]:
    """Of all that a method is made of, the innermost first; FedAvg's where there is no other."""
    from fedtailor.method import Wrapper
    from fedtailor.methods.fedavg import FedAvg

    inside = [method]
    while isinstance(inside[-1], Wrapper):
        inside.append(inside[-1].inner)
    papers = [part.paper for part in reversed(inside) if part.paper]
    return list(dict.fromkeys([paper for paper in papers if paper != FedAvg.paper] or papers))


def _tried(method: Method) -> tuple[str, str]:
    """What stays at a client and what travels, in words, of LeNet with batch norm: it has every kind of layer.

    One client takes part in a first round, all others are given its upload, and what it then exchanges half way through
    the run is counted.
    """
    import torch

    from fedtailor import tree
    from fedtailor.arch import Arch
    from fedtailor.data.federation import Federation
    from fedtailor.driver import Driver
    from fedtailor.nn import make
    from fedtailor.spec import RunSpec

    n, none = TRIED_CLIENTS, torch.empty(0, dtype=torch.int64)
    rows = torch.arange(4 * n)
    images = torch.rand(4 * n, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    federation = Federation(
        name="tried", x=images, y=rows % 10, clients=tuple(map(str, range(n))), groups=(0,) * n, group_names=("all",),
        classes=tuple("0123456789"), train=torch.split(rows, 4), validation=(none,) * n, test=(none,) * n,
    )  # fmt: skip
    spec = RunSpec(method=method, model="lenet_bn", rounds=TRIED_ROUNDS, batch=0, steps=1, lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        driver = Driver(spec, federation)
        public = driver.public_due(0) > 0
        everybody = range(driver.data.n)
        _, upload, driver.kept[0] = _exchange(driver, 0, everybody, 1)
        driver.server = driver.aggregate(driver.fed(1), driver.server, dict.fromkeys(everybody, upload))
        down, up, _ = _exchange(driver, 0, everybody, TRIED_ROUNDS // 2)
    base = Arch(make("lenet_bn", classes=10, shape=(3, 28, 28), seed=0))
    received, sent = (tree.nbytes(way) / tree.nbytes(base.values()) for way in (down, up))
    traffic = f"{_models(received)} down, {_number(sent)} up" if received or sent else "none"
    if method.pools:
        traffic = "the rows themselves, before the first round"
    return _stays(driver, frozenset(base.names)), f"{traffic}, and the public rows once" if public else traffic


def _number(value: float) -> str:
    """With two digits, or as a whole number where it is one."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _models(value: float) -> str:
    return f"{_number(value)} model{'' if _number(value) == '1' else 's'}"


def _stays(driver: Driver, base: frozenset[str]) -> str:
    """What never leaves the client, in words."""
    arch, personal = driver.arch, driver.private
    groups = {
        "normalisation layers": arch.norm, "last layer": arch.head, "the layers it adds": frozenset(arch.names) - base
    }  # fmt: skip
    words = [name for name, names in groups.items() if names and names <= personal]
    others = len(personal - frozenset().union(*groups.values()))
    words += [f"{others} further tensors"] if others else []
    words = [WHOLE] if personal == frozenset(arch.names) else words
    state, own = driver.kept[0]["method"], set[str]()
    while state is not None:
        own |= state.keys() - {"inner"}
        state = state.get("inner")
    words += [f"a state of its own ({', '.join(sorted(own))})"] if own else []
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
    smallest = min(range(driver.data.n), key=lambda i: len(driver.sites[i].rows))
    down, up, _ = _exchange(driver, smallest, [smallest], 1)
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


def _exchange(driver: Driver, number: int, cohort: Sequence[int], round: int) -> tuple[State, State, State]:
    """What one client of a cohort receives, sends and keeps in a round."""
    import torch

    from fedtailor.site import take_part

    payload = driver.common.method.send(driver.fed(round), driver.server, torch.tensor(cohort))
    got = driver.message(payload, cohort.index(number), number)
    reply = take_part(driver.sites[number], driver.kept[number], got, round, examine=False)
    down = {"model": got.model, "extra": got.extra, "peers": got.peers}
    return down, dict(reply.upload or {}), dict(reply.kept or {})


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
