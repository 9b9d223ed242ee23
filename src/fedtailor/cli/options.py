"""The options of `run` and `compare`, from the command line or a TOML file, as one value.

An option that is not given is None and comes from the settings that the data state; what the command line gives goes
over what the file gives. A file has the same names as the command line, at its top level.
"""

from __future__ import annotations

import difflib
import itertools
import re
import shlex
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtailor import registry
from fedtailor.registry import WrongInput
from fedtailor.settings import HINTS, check_settings

WHAT, TRAINING, TESTING, RUNNING = "What is run", "Training", "Testing", "How it is run"


def _option(name: str, text: str, panel: str, metavar: str) -> Any:
    return typer.Option(f"--{name}", help=text, rich_help_panel=panel, metavar=metavar, show_default=False)


File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE.toml]", help="Settings as a file; options on the command line go over it.", show_default=False
    ),
]
Data = Annotated[
    str | None, _option("data", "Dataset, such as 'synthetic(alpha=1, beta=1)'; digits if not given.", WHAT, "NAME")
]
Partition = Annotated[
    str | None,
    _option("partition", "Who holds what: 'dirichlet(alpha=0.1)'; the data's own if not given.", WHAT, "NAME"),
]
Clients = Annotated[str | None, _option("clients", "Number of clients, where the partition takes one.", WHAT, "N")]
DataSeed = Annotated[str | None, _option("data-seed", "Seed of the partition: which rows go where. 0.", WHAT, "N")]
Model = Annotated[
    str | None, _option("model", "Model, such as 'dnn(hidden=32)'; the data's own if not given.", WHAT, "NAME")
]
Method = Annotated[
    str | None, _option("method", "Method, such as 'Proximal(FedAvg(), mu=0.1)'; fedavg if not given.", WHAT, "NAME")
]
Methods = Annotated[
    list[str] | None, _option("method", "Method to compare, such as 'Ditto(lam=0.1)'; give several.", WHAT, "NAME")
]
Plugin = Annotated[
    list[str] | None, _option("plugin", "File that registers a method, model or data of your own.", WHAT, "FILE.py")
]
Rounds = Annotated[str | None, _option("rounds", "Rounds of exchange.", TRAINING, "N")]
Cohort = Annotated[
    str | None, _option("cohort", "Clients in a round: a share (0.5; 1.0 is all) or a number.", TRAINING, "SHARE|N")
]
Epochs = Annotated[str | None, _option("epochs", "Local work of a client in a round, in epochs ...", TRAINING, "N")]
Steps = Annotated[str | None, _option("steps", "... or in optimiser steps.", TRAINING, "N")]
Batch = Annotated[str | None, _option("batch", "Rows in a batch; 0 is all of them.", TRAINING, "N")]
Lr = Annotated[str | None, _option("lr", "Learning rate.", TRAINING, "X")]
Momentum = Annotated[str | None, _option("momentum", "Momentum, from 0 and below 1.", TRAINING, "X")]
WeightDecay = Annotated[str | None, _option("weight-decay", "Weight decay.", TRAINING, "X")]
Clip = Annotated[str | None, _option("clip", "Norm that gradients are clipped to; 0 does not clip.", TRAINING, "X")]
LrDecay = Annotated[str | None, _option("lr-decay", "Factor on the learning rate after each round.", TRAINING, "X")]
Weighting = Annotated[
    str | None,
    _option("weighting", "Weights of the mean over clients; auto is the method's.", TRAINING, "auto|size|uniform"),
]
Buffers = Annotated[
    str | None,
    _option("buffers", "Batch norm's statistics: shared like their layer, or local.", TRAINING, "with_layer|local"),
]
Point = Annotated[
    str | None,
    _option("point", "The model tested; the method's own choice if not given.", TESTING, "received|trained|adapted"),
]
EvalEvery = Annotated[str | None, _option("eval-every", "Test after every so many rounds.", TESTING, "N")]
FinishEpochs = Annotated[
    str | None, _option("finish-epochs", "Epochs of local tuning after the last round.", TESTING, "N")
]
Seed = Annotated[str | None, _option("seed", "Seed of the run: initial values, batches, cohorts. 0.", RUNNING, "N")]
Seeds = Annotated[str | None, _option("seeds", "Repeat with so many seeds, from --seed on.", RUNNING, "N")]
Runner = Annotated[
    str | None, _option("runner", "How a process trains its clients; auto chooses.", RUNNING, "auto|sequential|stacked")
]
Workers = Annotated[
    str | None, _option("workers", "Processes that share a round's clients; chosen if not given.", RUNNING, "N")
]
Device = Annotated[str | None, _option("device", "Where tensors are: cpu, cuda, cuda:1, mps.", RUNNING, "NAME")]
OnNan = Annotated[
    str | None, _option("on-nan", "A client that diverges stops the run, or loses its round.", RUNNING, "stop|drop")
]
CheckpointEvery = Annotated[
    str | None, _option("checkpoint-every", "Checkpoint after every so many rounds.", RUNNING, "N")
]
Out = Annotated[
    str | None, _option("out", "Folder of the record; a new one under runs/ if not given.", RUNNING, "FOLDER")
]
Quiet = Annotated[bool | None, typer.Option("--quiet", help="Nothing but the final table.", rich_help_panel=RUNNING)]

_Texts = str | tuple[str, ...]  # one, or a list
_OWN: dict[str, Any] = {
    "data": str, "partition": str, "clients": int, "data_seed": int, "model": str, "method": _Texts, "plugin": _Texts,
    "seeds": int, "out": str, "quiet": bool,
}  # fmt: skip
_HINTS = {**_OWN, **HINTS}


@dataclass(frozen=True)
class Asked:
    """What a command is to do."""

    data: str
    partition: str | None
    clients: int | None
    data_seed: int
    methods: tuple[str, ...]
    seeds: int
    plugins: tuple[str, ...]
    out: str | None
    quiet: bool
    options: Mapping[str, Any]  # of `RunSpec`; only those given
    command: str  # that repeats it

    def folder(self, name: str, what: str) -> Path:
        """Where the record goes."""
        return new_folder(f"{name}-{what}") if self.out is None else Path(self.out)


def ask(command: str, file: Path | None, given: Mapping[str, Any]) -> Asked:
    """Options of the command line (`given`) over those of the file; the user's plugins are loaded."""
    written = {key: read_text(key, value) for key, value in given.items() if value is not None and value != []}
    settings = {} if file is None else read_file(file)
    if "epochs" in written or "steps" in written:
        settings = {key: value for key, value in settings.items() if key not in ("epochs", "steps")}
    chosen = {**settings, **written}
    plugins = load_plugins(_several(chosen.get("plugin")))
    if chosen.get("seeds", 1) < 1:
        raise WrongInput(f"seeds={chosen['seeds']} is not possible; it must be 1 or more")
    check_settings({key: value for key, value in chosen.items() if key in HINTS})
    return Asked(
        data=chosen.get("data", "digits"), partition=chosen.get("partition"), clients=chosen.get("clients"),
        data_seed=chosen.get("data_seed", 0), methods=_several(chosen.get("method")), seeds=chosen.get("seeds", 1),
        plugins=plugins, out=chosen.get("out"), quiet=chosen.get("quiet", False),
        options={key: value for key, value in chosen.items() if key in HINTS or key == "model"},
        command=spell(command, chosen),
    )  # fmt: skip


def spell(command: str, chosen: Mapping[str, Any]) -> str:
    """The command line that asks for the same, wherever its parts came from."""
    parts = ["fedtailor", command]
    for key, value in chosen.items():
        if key not in ("out", "quiet"):
            for one in value if isinstance(value, list | tuple) else [value]:
                parts += [f"--{key.replace('_', '-')}", str(one)]
    return shlex.join(parts)


def read_text(key: str, value: Any) -> Any:
    """The value of an option as its type has it; options are texts until here, so that one message serves all."""
    hint = _HINTS[key]
    if not isinstance(value, str) or registry.fits(value, hint):
        return value
    for kind in (float,) if hint is float else (int, float):
        if registry.fits(kind(), hint):
            try:
                return kind(value)
            except ValueError:
                continue
    raise WrongInput(f"{key}={value!r} is not {_words(hint)}")


def read_file(file: Path) -> dict[str, Any]:
    """The settings of a TOML file, each of a known name and of its type."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WrongInput(
            f"there is no settings file {file}; give a TOML file, or write options such as --method fedbn"
        ) from None
    except (OSError, ValueError) as error:
        raise WrongInput(f"{file} cannot be read as TOML: {error}") from None
    settings: dict[str, Any] = {}
    for written, value in found.items():
        key = written.replace("-", "_")
        if key not in _HINTS:
            known = [name.replace("_", "-") for name in _HINTS]
            near = difflib.get_close_matches(written.replace("_", "-"), known, n=1, cutoff=0.7)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
            raise WrongInput(f"{file}: there is no key {written!r}; {hint}")
        if not registry.fits(value, _HINTS[key]):
            raise WrongInput(f"{file}: {written} = {value!r} is not {_words(_HINTS[key])}")
        settings[key] = float(value) if _HINTS[key] is float else value
    if "plugin" in settings:  # a file's plugins are found beside it
        settings["plugin"] = [str(file.parent / plugin) for plugin in _several(settings["plugin"])]
    return settings


def _words(hint: Any) -> str:
    if hint == _Texts:
        return "a text or a list of texts"
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    return registry.spell(options[0]) if len(options) == 1 else registry.spell(hint)


def _several(value: str | list[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def load_plugins(plugins: typing.Iterable[str]) -> tuple[str, ...]:
    """Run the user's own files; gives their paths."""
    paths = tuple(plugins)
    for path in paths:
        try:
            registry.load_plugin(Path(path))
        except SystemExit as error:
            raise WrongInput(f"the plugin {path} ends the program ({error}) while it is read; it must not") from None
    return paths


def new_folder(name: str) -> Path:
    """A folder under runs/ that is not there yet."""
    plain = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
    path = Path("runs") / f"{plain}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    further = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([path], further) if not folder.exists())
