"""`data show` and `data get`: what a data set is, and fetching it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fedtailor import registry
from fedtailor.cli import options as o
from fedtailor.cli.catalogue import usage
from fedtailor.cli.terminal import console, fail, say
from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from fedtailor.data.download import Origin, Remote
    from fedtailor.data.federation import Dataset

DOINGS = ("show", "get")


def data(
    doing: Annotated[str, typer.Argument(metavar="show|get", help="What to do with it.")],
    name: Annotated[str, typer.Argument(help="Data set, such as mnist or \"pictures('my-folder')\".")],
    plugin: o.Plugin = None,
) -> None:
    """Show what a data set is and whether its files are at hand; or get the files.

    They are kept in the folder that FEDTAILOR_DATA names. A download that broke off goes on where it was.

    \b
    Examples:
      fedtailor data show mnist
      fedtailor data get mnist
      fedtailor data show "table('clinics/', label='ill')"
    """
    o.load_plugins(plugin or ())
    if doing not in DOINGS:
        raise WrongInput(f"data {doing} is not possible; choose {' or '.join(DOINGS)}")
    written = name.partition("(")[0].strip()
    found = registry.entry("data", written)
    if doing == "show":
        show(found, name)
    else:
        get(found)


def show(found: registry.Entry, written: str) -> None:
    """What it is, on what terms, where its files are and, where they are at hand, what is in them."""
    from fedtailor.data.download import ORIGINS

    say_out = typer.echo
    say_out(usage("data", found))
    for line in (inspect.getdoc(found.factory) or "").splitlines():
        say_out(f"  {line}".rstrip())
    origin = ORIGINS.get(found.name)
    if origin is not None:
        for head, text in facts(found.name, origin):
            say_out(f"  {head:<9}{text}".rstrip())
    needed = [p.name for p in inspect.signature(found.factory).parameters.values() if p.default is p.empty]
    if needed and "(" not in written:
        say_out(f"  Give {' and '.join(needed)}, as in: fedtailor data show \"{found.name}({example(needed)})\"")
        return
    try:
        dataset: Dataset = registry.parse("data", written)
    except WrongInput as error:
        if origin is None:
            raise
        say_out(f"  {error}")
        return
    for head, text in contents(dataset, origin is None):
        say_out(f"  {head:<9}{text}")


def example(needed: list[str]) -> str:
    return ", ".join(f"{name}='...'" for name in needed)


def facts(name: str, origin: Origin) -> list[tuple[str, str]]:
    """Licence, and every file with its size, checksum and address."""
    from fedtailor.data.download import place
    from fedtailor.data.files import home

    lines = [("licence", origin.licence)]
    for remote in origin.files:
        path = place(name, remote.name)
        lines += [("file", f"{path} ({'at hand' if path.exists() else 'not there'})"), ("", about(remote))]
    if origin.by_hand:
        lines.append(("by hand", origin.by_hand.format(folder=place(name, ""))))
    if origin.compact:
        copy = home() / origin.compact
        lines.append(("copy", f"{copy} ({'at hand' if copy.exists() else 'not there'})"))
    return lines


def about(remote: Remote) -> str:
    size = "size unknown" if remote.size is None else f"{remote.size:,} bytes"
    checksum = remote.checksum if ":" in remote.checksum else f"checksum {remote.checksum}"
    return f"{size}, {checksum}, {remote.address}"


def contents(dataset: Dataset, own: bool) -> list[tuple[str, str]]:
    """What was read."""
    shape = " x ".join(str(size) for size in dataset.x.shape[1:])
    kind = {"uint8": "bytes", "int64": "numbers of words"}.get(str(dataset.x.dtype).removeprefix("torch."), "numbers")
    some = ", ".join(dataset.classes[:10]) + (" ..." if len(dataset.classes) > 10 else "")
    lines = [("rows", f"{len(dataset.x):,} of {shape} {kind}"), ("about", dataset.about)]
    if dataset.task != "regression":
        lines.append(("classes", f"{len(dataset.classes)}: {some}"))
    if dataset.domain is not None:
        lines.append(("domains", ", ".join(dataset.domain_names)))
    if dataset.owner_names:
        lines.append(("sites", ", ".join(dataset.owner_names)))
    lines.append(("split by", dataset.partition))
    settings = ", ".join(f"{key} {value}" for key, value in dataset.settings.items())
    lines.append(("model", f"{dataset.model}, trained with {settings}"))
    return [("licence", dataset.licence), *lines] if own and dataset.licence else lines


def get(found: registry.Entry) -> None:
    """Fetch what is not there yet, check it, and read it once."""
    from fedtailor.data.download import ORIGINS, NotFetched, fetch, place

    origin = ORIGINS.get(found.name)
    if origin is None:
        say(f"{found.name} needs no file to be fetched.")
        return
    if origin.by_hand:
        folder = place(found.name, "")
        if not any(folder.glob("*")):
            raise typer.Exit(fail(f"{found.name} has to be fetched by hand: {origin.by_hand.format(folder=folder)}", 1))
    say(f"licence: {origin.licence}")
    try:
        for remote in origin.files:
            path = place(found.name, remote.name)
            with bar() as progress:
                task = progress.add_task(remote.name, total=remote.size)
                fetched = fetch(remote, path, lambda done, size, task=task: progress.update(  # type: ignore[misc]
                    task, completed=done, total=size))  # fmt: skip
            say(f"{path}: {'fetched' if fetched else 'was there'}, {checked(remote, path)}")
    except NotFetched as error:
        raise typer.Exit(fail(str(error), 1)) from None
    except KeyboardInterrupt:
        raise typer.Exit(fail("interrupted; what was fetched is kept, the same command goes on there", 130)) from None
    dataset: Dataset = found.factory()
    for head, text in contents(dataset, False):
        typer.echo(f"{head:<9}{text}")


def checked(remote: Remote, path: Path) -> str:
    """What is known to be right of it."""
    size = f"{path.stat().st_size:,} bytes"
    if ":" in remote.checksum:
        return f"{size}, {remote.checksum.partition(':')[0]} as published"
    return f"{size}; no checksum is published, so only the format was checked"


def bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
        console=console(stderr=True), transient=True,
    )  # fmt: skip
