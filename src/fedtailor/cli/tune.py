"""`tune`: settings chosen on validation rows, then the runs with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli import options as o
from fedtailor.cli.announce import Facts, announce
from fedtailor.cli.runs import carry_out, load_federation
from fedtailor.cli.terminal import say
from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from fedtailor.compare import Part
    from fedtailor.data.federation import Federation

FILE = "tuning.json"


def tune(
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
    seed: o.Seed = None,
    seeds: o.Seeds = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="X", help="Optimiser steps to search with, for each method, in plain runs. 3.",
                     rich_help_panel=o.TRAINING, show_default=False),
    ] = None,
    out: o.Out = None,
    quiet: o.Quiet = None,
) -> None:  # fmt: skip
    """Choose each method's settings on validation rows, then compare the methods with them.

    Tried are the values that a method declares (`fedtailor list methods NAME`), at three rates around --lr. Every
    method has the same number of optimiser steps to search with; test rows play no part.

    \b
    Examples:
      fedtailor tune --data digits --method ditto --method fedbn --rounds 20
      fedtailor tune --method "FedMCSA()" --budget 5 --seeds 3
    """
    given = dict(locals())
    given.pop("budget")
    runs = 3.0 if budget is None else number(budget)
    asked = o.ask("tune", given.pop("file"), given)
    if not asked.methods:
        raise WrongInput("no method was given to tune; add --method ditto (`fedtailor list methods` shows them all)")
    federation = load_federation(asked)
    from fedtailor.compare import begin, plan, tried

    parts = plan(federation, asked.methods, seeds=asked.seeds, **asked.options)
    for _ in tried(federation, parts):  # whatever is wrong with one is known before anything is searched
        pass
    folder = asked.folder(federation.name, "tune")
    chosen = found_before(folder, parts, runs) or search(federation, parts, runs, asked.quiet)
    parts = tuple(part_with(part, chosen[part.label]) for part in parts)
    facts = [Facts.of(part.label, driver) for part, driver in tried(federation, parts)]
    begin(folder, federation, parts, f"{asked.command} --budget {runs:g}", asked.plugins)
    write(folder, chosen, runs)
    if not asked.quiet:
        announce(federation, facts, parts[0].spec, sorted({part.spec.seed for part in parts}), folder)
    try:
        carry_out(folder, federation, parts, asked.plugins, asked.quiet)
    finally:
        note(folder, parts, chosen)


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise WrongInput(f"budget={text!r} is not a number") from None


def search(federation: Federation, parts: tuple[Part, ...], budget: float, quiet: bool) -> dict[str, dict[str, Any]]:
    """What is chosen for each method, by its label; under the first seed, and then for all."""
    from fedtailor import task
    from fedtailor.report import words
    from fedtailor.tuning import Trial, tune

    def tell(done: int, of: int, trial: Trial) -> None:
        if not quiet:
            score = "diverged" if trial.score is None else words.value(trial.score, metric)
            say(f"{done} of {of}: {trial.spec.method!r}, lr {trial.spec.lr:g}: {score}")

    chosen: dict[str, dict[str, Any]] = {}
    metric = task.of(federation.task).primary
    for part in parts:
        if part.label in chosen:
            continue
        found = tune(federation, part.spec, budget, tell)
        chosen[part.label] = said = found.to_dict()
        if not quiet:
            say(f"{part.label}: chosen {said['chosen']['method']}, lr {said['chosen']['lr']:g}, among "
                f"{len(found.trials)} of {found.candidates} candidates, with {said['steps']:,} optimiser steps")
    return chosen


def part_with(part: Part, found: Mapping[str, Any]) -> Part:
    from fedtailor import registry

    method = registry.parse("method", found["chosen"]["method"])
    return replace(part, spec=replace(part.spec, method=method, lr=found["chosen"]["lr"]))


def found_before(folder: Path, parts: tuple[Part, ...], budget: float) -> dict[str, dict[str, Any]]:
    """What an interrupted command chose already, so that it goes on with the same."""
    if not (folder / FILE).exists():
        return {}
    kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
    asked = {part.label: {"method": repr(part.spec.method), "lr": part.spec.lr} for part in parts}
    if kept["budget"] != budget or {label: found["asked"] for label, found in kept["methods"].items()} != asked:
        raise WrongInput(f"{folder} holds another search; choose another folder with --out")
    found: dict[str, dict[str, Any]] = kept["methods"]
    return found


def write(folder: Path, chosen: Mapping[str, Any], budget: float) -> None:
    from fedtailor.record import to_json, write_atomically

    write_atomically(folder / FILE, to_json({"budget": budget, "methods": chosen}, indent=1))


def note(folder: Path, parts: tuple[Part, ...], chosen: Mapping[str, Any]) -> None:
    """Each run says what was chosen for it, and among what."""
    from fedtailor.record import RunFolder

    for part in parts:
        if (folder / part.path / "run.json").exists():
            RunFolder(folder / part.path).note(tuning=chosen[part.label])
