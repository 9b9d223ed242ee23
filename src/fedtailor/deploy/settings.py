"""The settings of a federation, `federation.toml`: written once with comments, read and checked ever after.

PyTorch is imported only where methods are looked up: much of what a server does needs none of it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor import registry
from fedtailor.registry import WrongInput
from fedtailor.settings import HINTS

if TYPE_CHECKING:
    from fedtailor.data.federation import Federation
    from fedtailor.method import Method
    from fedtailor.spec import RunSpec

FILE = "federation.toml"
SERVER = "server"  # what the server is called in letters; no site may be
DEFAULT_PORT = 9443


@dataclass(frozen=True)
class Form:
    """What the rows of every site must look like."""

    task: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of one row
    words: int = 0  # the largest number of a word, where rows are texts; 0 where they are not

    @classmethod
    def of(cls, federation: Federation) -> Form:
        shape = tuple(federation.x.shape[1:])
        return cls(federation.task, federation.classes, shape, federation.words or 0)

    def to_dict(self) -> dict[str, Any]:
        return {"task": self.task, "classes": list(self.classes), "shape": list(self.shape), "words": self.words}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Form:
        return cls(plain["task"], tuple(plain["classes"]), tuple(plain["shape"]), plain.get("words", 0))


@dataclass(frozen=True)
class Settings:
    """All that `federation.toml` states."""

    name: str
    id: str  # of this federation and no other; part of every letter and of every site's states
    host: str
    port: int
    form: Form
    run: Mapping[str, Any]  # options of `RunSpec`; the method as text
    listen: str = ""  # the address to listen on; empty: that of `host`
    plugin: tuple[str, ...] = ()
    quorum: int = 1
    deadline: float = 600.0
    patience: float = 60.0
    norm_limit: float = 1000.0
    combine: str = "mean"
    largest_letter: int = 2 << 30

    def spec(self) -> RunSpec:
        """What is run: a checkpoint after every round, and a site that diverges loses its round."""
        from fedtailor.method import Method
        from fedtailor.spec import RunSpec

        options = {"on_nan": "drop", "model": None, **self.run, "checkpoint_every": 1}
        method = registry.parse("method", options.pop("method", "FedAvg"))
        if not isinstance(method, Method):
            raise WrongInput(f'{FILE}: method is not a method; write one such as "FedAvg"')
        check_method(method, self.combine)
        return RunSpec(method=method, **options)


def check_method(method: Method, combine: str) -> None:
    """What a simulation can do with everybody's rows, a federation cannot."""
    from fedtailor.deploy import robust

    if method.pools:
        raise WrongInput(f"{method!r} trains on everybody's rows in one place, which is what a federation avoids")
    if method.public_share:
        raise WrongInput(
            f"{method!r} needs public rows, and a federation over a network has none to give out yet; simulate it, or "
            "choose a method without them"
        )
    robust.check(combine, method)


_HINTS: dict[str, Any] = {
    "name": str, "id": str, "host": str, "port": int, "listen": str, "plugin": tuple[str, ...], "quorum": int,
    "deadline": float, "patience": float, "norm_limit": float, "combine": str, "largest_letter": int,
}  # fmt: skip
_FORM: dict[str, Any] = {"task": str, "classes": tuple[str, ...], "shape": tuple[int, ...], "words": int}
_FIXED = ("checkpoint_every", "runner", "workers", "device")  # of a run, and not the server's to choose


def read(folder: Path) -> Settings:
    """The settings of a federation's folder."""
    path = folder / FILE
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WrongInput(f"{folder} has no {FILE}; `fedtailor federation init {folder}` makes one") from None
    except (OSError, ValueError) as error:
        raise WrongInput(f"{path} cannot be read as TOML: {error}") from None
    form, run = found.pop("data", {}), found.pop("run", {})
    _check(path, found, _HINTS, ("name", "id", "host", "port"))
    _check(path, form, _FORM, ("task", "classes", "shape"), "[data] ")
    hints = {**{key: HINTS[key] for key in HINTS if key not in _FIXED}, "method": str, "model": str}
    _check(path, run, hints, ("model",), "[run] ")
    found["plugin"] = tuple(str(folder / plugin) for plugin in found.get("plugin", ()))
    run = {key: float(value) if hints[key] is float else value for key, value in run.items()}
    settings = Settings(form=Form.from_dict(form), run=run, **found)
    leasts = {"quorum": 1, "deadline": 1, "patience": 0, "norm_limit": 0, "largest_letter": 1 << 20}
    for name, least in leasts.items():
        if getattr(settings, name) < least:
            raise WrongInput(f"{path}: {name} = {getattr(settings, name)} is not possible; it must be {least} or more")
    return settings


def _check(path: Path, found: Any, hints: Mapping[str, Any], needed: tuple[str, ...], where: str = "") -> None:
    if not isinstance(found, dict):
        raise WrongInput(f"{path}: {where.strip()} is not a table")
    for key, value in found.items():
        if key not in hints:
            raise WrongInput(f"{path}: there is no key {where}{key!r}; known are {', '.join(hints)}")
        if not registry.fits(value, hints[key]):
            raise WrongInput(f"{path}: {where}{key} = {value!r} is not {registry.spell(hints[key])}")
    lacking = [key for key in needed if key not in found]
    if lacking:
        raise WrongInput(f"{path} lacks {where}{lacking[0]}; add it")


def write(folder: Path, settings: Settings) -> None:
    """A commented file."""

    def value(of: Any) -> str:
        if isinstance(of, bool):
            return str(of).lower()
        return json.dumps(list(of) if isinstance(of, tuple) else of, ensure_ascii=False)

    run = "\n".join(f"{key} = {value(option)}" for key, option in settings.run.items())
    text = f"""# A federation: what is trained, and by which rules. `fedtailor serve` reads this when it starts.

name = {value(settings.name)}
id = {value(settings.id)}  # of this federation and no other: leave it
host = {value(settings.host)}  # where the sites find the server; its certificate is for this name
port = {settings.port}
listen = {value(settings.listen)}  # the address to listen on: "0.0.0.0" for all, "" for that of host

quorum = {settings.quorum}  # answers that a round needs; with fewer by the deadline the others are asked again
deadline = {settings.deadline}  # seconds for a site to answer; what comes later is ignored
patience = {settings.patience}  # seconds to wait for sites that are away, before a start and when one drops out
norm_limit = {settings.norm_limit}  # an upload longer than so many times what was sent is dropped
largest_letter = {settings.largest_letter}  # bytes; a larger one is dropped
combine = {value(settings.combine)}  # "mean"; or "median", "trimmed_mean(0.1)", "norm_bound(1.0)" against odd uploads
plugin = {value(settings.plugin)}  # your own Python files, beside this one; sites need them too, from you

[data]  # every site's rows must look like this
task = {value(settings.form.task)}
classes = {value(settings.form.classes)}
shape = {value(settings.form.shape)}
words = {settings.form.words}  # of texts: the largest number of a word; 0 for all else

[run]  # as for `fedtailor run`: rounds, cohort, epochs, batch, lr, momentum, point, seed, ...
{run}
"""
    path = folder / FILE
    if path.exists():
        raise WrongInput(f"{path} is there already; change it by hand, or choose another folder")
    path.write_text(text, encoding="utf-8")
