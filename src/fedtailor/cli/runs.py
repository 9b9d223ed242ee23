"""`demo`, `run`, `compare` and `resume`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli import options as o
from fedtailor.cli.announce import Facts, announce
from fedtailor.cli.terminal import console, fail, kept_in, resuming, say, show_results
from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from fedtailor.compare import Part
    from fedtailor.data.federation import Federation

DEMO = ("local", "fedavg", "LocalAttention(FedBN())", "fedham", "partialfed", "fedmcsa", "fedala")
DEMO_ROUNDS = 20  # about forty seconds on two cores


def demo(out: o.Out = None, quiet: o.Quiet = None) -> None:
    """Compare seven methods on an embedded federation: the first thing to run.

    Twelve sites hold 40 pictures of digits each, taken in six different ways. Takes less than a minute.

    \b
    Example:
      fedtailor demo
    """
    given = {"data": "digits", "method": list(DEMO), "rounds": DEMO_ROUNDS, "eval_every": 2, "out": out, "quiet": quiet}
    asked = o.ask("compare", None, given)
    _compare(asked, load_federation(asked), "demo")


def run(
    file: o.File = None,
    data: o.Data = None,
    partition: o.Partition = None,
    clients: o.Clients = None,
    data_seed: o.DataSeed = None,
    model: o.Model = None,
    method: o.Method = None,
    plugin: o.Plugin = None,
    rounds: o.Rounds = None,
    cohort: o.Cohort = None,
    epochs: o.Epochs = None,
    steps: o.Steps = None,
    batch: o.Batch = None,
    lr: o.Lr = None,
    momentum: o.Momentum = None,
    weight_decay: o.WeightDecay = None,
    clip: o.Clip = None,
    lr_decay: o.LrDecay = None,
    weighting: o.Weighting = None,
    buffers: o.Buffers = None,
    point: o.Point = None,
    eval_every: o.EvalEvery = None,
    finish_epochs: o.FinishEpochs = None,
    seed: o.Seed = None,
    seeds: o.Seeds = None,
    runner: o.Runner = None,
    workers: o.Workers = None,
    device: o.Device = None,
    on_nan: o.OnNan = None,
    checkpoint_every: o.CheckpointEvery = None,
    out: o.Out = None,
    quiet: o.Quiet = None,
) -> None:
    """Run one method on a federation.

    What is not given comes from the settings that the data state.

    \b
    Examples:
      fedtailor run --data digits --method fedbn --rounds 40
      fedtailor run --method "Ditto(lam=0.1)" --partition "dirichlet(alpha=0.1)" --clients 10
      fedtailor run experiment.toml --seed 1
    """
    given = dict(locals())
    asked = o.ask("run", given.pop("file"), given)
    federation = load_federation(asked)
    methods = asked.methods or ("fedavg",)
    if len(methods) > 1:
        raise WrongInput(f"run takes one method and {len(methods)} are given; `fedtailor compare` takes several")
    if asked.seeds > 1:
        return _compare(asked, federation, "run", alone=False)
    from fedtailor.compare import labelled, slug
    from fedtailor.driver import Callback, Driver
    from fedtailor.progress import Progress
    from fedtailor.record import RunFolder
    from fedtailor.rounds import federate
    from fedtailor.spec import RunSpec

    [(chosen, label)] = labelled(methods)
    spec = RunSpec.of(federation, chosen, **asked.options)
    folder = asked.folder(federation.name, slug(label))
    if (folder / "comparison.json").exists():
        raise WrongInput(f"{folder} already holds a comparison; choose another folder with --out")

    class Opening(Callback):
        """Notes how the run was made, and says what it will do, as soon as it has a folder."""

        def on_start(self, driver: Driver) -> None:
            RunFolder(folder).note(command=asked.command, plugins=asked.plugins, label=label)
            if not asked.quiet:
                announce(federation, [Facts.of(label, driver)], spec, [spec.seed], folder)

    with kept_in(folder, asked.plugins), Progress(console(stderr=True), {repr(chosen): label}) as progress:
        listeners: list[Callback] = [Opening(), *([] if asked.quiet else [progress])]
        federate(spec, federation, out=folder, callbacks=listeners)
    _show_run(folder, asked.quiet)


def compare(
    file: o.File = None,
    data: o.Data = None,
    partition: o.Partition = None,
    clients: o.Clients = None,
    data_seed: o.DataSeed = None,
    model: o.Model = None,
    method: o.Methods = None,
    plugin: o.Plugin = None,
    rounds: o.Rounds = None,
    cohort: o.Cohort = None,
    epochs: o.Epochs = None,
    steps: o.Steps = None,
    batch: o.Batch = None,
    lr: o.Lr = None,
    momentum: o.Momentum = None,
    weight_decay: o.WeightDecay = None,
    clip: o.Clip = None,
    lr_decay: o.LrDecay = None,
    weighting: o.Weighting = None,
    buffers: o.Buffers = None,
    point: o.Point = None,
    eval_every: o.EvalEvery = None,
    finish_epochs: o.FinishEpochs = None,
    seed: o.Seed = None,
    seeds: o.Seeds = None,
    runner: o.Runner = None,
    workers: o.Workers = None,
    device: o.Device = None,
    on_nan: o.OnNan = None,
    checkpoint_every: o.CheckpointEvery = None,
    out: o.Out = None,
    quiet: o.Quiet = None,
) -> None:
    """Run several methods and seeds on one federation, with training alone (Local) beside them.

    What is not given comes from the settings that the data state.

    \b
    Examples:
      fedtailor compare --data digits --method fedavg --method fedbn --method ditto --seeds 3
      fedtailor compare --method "Ditto(lam=0.1)" --method "Ditto(lam=1)" --rounds 20
      fedtailor compare experiment.toml --seeds 5
    """
    given = dict(locals())
    asked = o.ask("compare", given.pop("file"), given)
    if not asked.methods:
        raise WrongInput("no method was given to compare; add --method fedbn (`fedtailor list methods` shows them all)")
    _compare(asked, load_federation(asked), "compare")


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run or of a comparison.", show_default=False)],
    rounds: Annotated[
        str | None,
        typer.Option("--rounds", metavar="N", help="Go on up to this round, also if complete.", show_default=False),
    ] = None,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", help="The plugins that it was started with.", show_default=False)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Nothing but the final table.")] = False,
) -> None:
    """Go on with a run or a comparison that was interrupted; or extend a complete one.

    \b
    Examples:
      fedtailor resume runs/digits-fedbn-20250101-120000
      fedtailor resume runs/digits-fedbn-20250101-120000 --rounds 80
    """
    plugins = o.load_plugins(plugin or ())
    until = None if rounds is None else o.read_text("rounds", rounds)
    if (run / "comparison.json").exists():
        _resume_comparison(run, until, plugins, quiet)
    else:
        _resume_run(run, until, plugins, quiet)


def load_federation(asked: o.Asked) -> Federation:
    from fedtailor.data import load

    return load(asked.data, asked.partition, asked.clients, asked.data_seed)


def _compare(asked: o.Asked, federation: Federation, what: str, alone: bool = True) -> None:
    from fedtailor.compare import begin, plan, slug, tried

    parts = plan(federation, asked.methods or ("fedavg",), seeds=asked.seeds, alone=alone, **asked.options)
    facts = [Facts.of(part.label, driver) for part, driver in tried(federation, parts)]
    folder = asked.folder(federation.name, slug(facts[0].label) if what == "run" else what)
    begin(folder, federation, parts, asked.command, asked.plugins)
    if not asked.quiet:
        announce(federation, facts, parts[0].spec, sorted({part.spec.seed for part in parts}), folder)
    carry_out(folder, federation, parts, asked.plugins, asked.quiet)


def carry_out(
    folder: Path, federation: Federation, parts: Sequence[Part], plugins: Sequence[str], quiet: bool
) -> None:
    from fedtailor.compare import carry_out as run_all
    from fedtailor.compare import left
    from fedtailor.progress import Progress

    todo = left(folder, parts)
    if not quiet and len(todo) < len(parts):
        say(f"{len(parts) - len(todo)} of {len(parts)} runs are complete already.")
    names = {repr(part.spec.method): part.label for part in parts}
    whole = sum(part.spec.rounds for part in todo)
    with kept_in(folder, plugins):
        with Progress(console(stderr=True), names, len(todo), whole) as progress:
            diverged = run_all(folder, federation, parts, [] if quiet else [progress])
        from fedtailor.report.html import write_report  # matplotlib comes when there is something to draw

        page = write_report([folder], folder)
        show_results([folder], quiet=quiet)
    if not quiet:
        say(f"Kept in {folder}. Open {page} in a browser for pictures and every number.")
    for reason in diverged.values():
        fail(reason, 1)
    if diverged:
        raise typer.Exit(1)


def _resume_comparison(folder: Path, rounds: int | None, plugins: Sequence[str], quiet: bool) -> None:
    from fedtailor.compare import begin, extended, left, read_plan, reopen

    _check_plugins(folder, read_plan(folder).get("plugins"), plugins)
    federation, parts, about = reopen(folder)
    parts = extended(parts, rounds)
    if not left(folder, parts) and not quiet:
        say(f"{folder} is complete; `--rounds N` extends it.")
    begin(folder, federation, parts, about.get("command", ""), about.get("plugins", ()))
    carry_out(folder, federation, parts, plugins, quiet)


def _resume_run(folder: Path, rounds: int | None, plugins: Sequence[str], quiet: bool) -> None:
    from fedtailor import __version__
    from fedtailor.driver import Callback, Driver
    from fedtailor.progress import Progress
    from fedtailor.record import RunFolder
    from fedtailor.rounds import resume

    record = RunFolder.open(folder)
    info, rows = record.info(), record.rows()
    _check_plugins(folder, info.get("plugins"), plugins)
    wanted = info["spec"]["rounds"]
    if rows and rows[-1].get("finish") and rounds in (None, wanted):
        if not quiet:
            say(f"{folder} is complete, with {wanted} rounds; `--rounds N` extends it.")
        return _show_run(folder, quiet)
    if info.get("fedtailor") != __version__:
        say(f"note: the run was made with fedtailor {info.get('fedtailor')} and goes on with {__version__}")

    class Opening(Callback):
        """Says where it has to start over."""

        def on_start(self, driver: Driver) -> None:
            if not driver.round:
                say("note: there is no checkpoint yet, so the run starts again from round 1")

    names = {str(info["method"]): str(info.get("label") or info["method"])}
    with kept_in(folder, plugins), Progress(console(stderr=True), names) as progress:
        resume(folder, rounds=rounds, callbacks=[Opening(), *([] if quiet else [progress])])
    _show_run(folder, quiet)


def _check_plugins(folder: Path, needed: Sequence[str] | None, given: Sequence[str]) -> None:
    """A record may name code, but only the user may have it run."""
    if needed and not given:
        raise WrongInput(f"{folder} was made with plugins, which have to be given again: {resuming(folder, needed)}")


def _show_run(folder: Path, quiet: bool) -> None:
    show_results([folder], quiet=quiet)
    if not quiet:
        say(f"Kept in {folder}. `fedtailor report {folder}` draws it.")
