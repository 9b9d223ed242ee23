"""Several methods and seeds on one federation, with training alone beside them.

    >>> compared = compare(load("digits"), [FedAvg(), FedBN()], seeds=3, rounds=40)
    >>> print(compared.table())

A comparison is a folder of run folders with a `comparison.json` that says what belongs to it, so that one that was
interrupted goes on where it stopped: `compare` again with the same folder, or `fedtailor resume`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fedtailor import registry
from fedtailor.data import again
from fedtailor.data.federation import Federation
from fedtailor.driver import Callback, Diverged, Driver
from fedtailor.method import Method, short
from fedtailor.methods.alone import Local
from fedtailor.record import FORMAT, RunFolder, to_json, write_atomically
from fedtailor.registry import WrongInput
from fedtailor.rounds import federate, resume
from fedtailor.spec import RunSpec

FILE = "comparison.json"


@dataclass(frozen=True)
class Part:
    """One run of a comparison."""

    path: str  # as seen from the comparison's folder
    label: str
    spec: RunSpec


@dataclass(frozen=True)
class Compared:
    """A comparison that was carried out, or as far as it got."""

    folder: Path
    parts: tuple[Part, ...]
    diverged: Mapping[str, str]  # path of a run that was stopped: why

    def table(self) -> str:
        """Mean and deviation over seeds, difference to Local, sites worse off, as Markdown."""
        from fedtailor.report.read import read
        from fedtailor.report.table import as_markdown, tabulate

        return as_markdown(tabulate(read([self.folder])[0]))


def compare(
    federation: Federation,
    methods: Sequence[Method | str],
    *,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    alone: bool = True,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Compared:
    """Run every method under every seed, and write a report; `options` are those of `RunSpec`, equal for all.

    `seeds` vary the runs, never the data. Local is run along unless `alone` is false. A run that diverges does not stop
    the others. What `out` holds of this comparison already is not run again.
    """
    parts = plan(federation, methods, seeds=seeds, alone=alone, **options)
    for _ in tried(federation, parts):
        pass
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path(out) if out is not None else Path("runs") / f"{slug(federation.name)}-compare-{stamp}"
    begin(folder, federation, parts)
    diverged = carry_out(folder, federation, parts, callbacks)
    from fedtailor.report.html import write_report  # matplotlib comes when there is something to draw

    write_report([folder], folder)
    return Compared(folder, parts, diverged)


def plan(
    federation: Federation,
    methods: Sequence[Method | str],
    *,
    seeds: int | Sequence[int] = 1,
    alone: bool = True,
    **options: Any,
) -> tuple[Part, ...]:
    """The runs, seed by seed, so that a comparison cut short has whole seeds to show."""
    if not methods:
        raise WrongInput("no method was given to compare; name one or more, such as fedbn")
    first = options.pop("seed", None) or 0
    numbers = range(first, first + seeds) if isinstance(seeds, int) else seeds
    if not numbers:
        raise WrongInput(f"seeds={seeds} is not possible; it must be 1 or more")
    asked = labelled(methods)
    extra = [] if not alone or any(isinstance(method, Local) for method, _ in asked) else labelled([Local()])
    folders = folders_of([label for _, label in [*extra, *asked]])
    # a Local that nobody asked for has no adapted model, and is then tested at its own point
    with_local = {key: value for key, value in options.items() if (key, value) != ("point", "adapted")}
    return tuple(
        Part(f"{folders[label]}/seed-{seed}", label, RunSpec.of(federation, method, **chosen, seed=seed))
        for seed in numbers
        for methods_of, chosen in ((extra, with_local), (asked, options))
        for method, label in methods_of
    )


def labelled(methods: Sequence[Method | str]) -> list[tuple[Method, str]]:
    """Each method once, named as it was written; an object by what differs from its defaults."""
    found: dict[str, tuple[Method, str]] = {}
    for asked in methods:
        method = registry.parse("method", asked) if isinstance(asked, str) else asked
        if not isinstance(method, Method):
            raise WrongInput(f"{asked!r} is not a method; give one such as FedAvg(), or its name")
        label = registry.tidy("method", asked) if isinstance(asked, str) else short(method)
        found.setdefault(repr(method), (method, label))
    count = Counter(label for _, label in found.values())
    return [
        (method, label if count[label] == 1 else repr(method).removesuffix("()")) for method, label in found.values()
    ]


def slug(text: str) -> str:
    """A name that every file system takes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60] or "run"


def folders_of(labels: Sequence[str]) -> dict[str, str]:
    """A folder name for each label; those that look alike are numbered."""
    found: dict[str, str] = {}
    for label in labels:
        name, number = slug(label), 2
        while name in found.values():
            name, number = f"{slug(label)}-{number}", number + 1
        found[label] = name
    return found


def tried(federation: Federation, parts: Sequence[Part]) -> Iterator[tuple[Part, Driver]]:
    """Each method set up once, so that whatever is wrong with one is known before anything is run."""
    seen = set()
    for part in parts:
        if part.label not in seen:
            seen.add(part.label)
            yield part, Driver(part.spec, federation)


def begin(
    folder: Path, federation: Federation, parts: Sequence[Part], command: str = "", plugins: Sequence[str] = ()
) -> None:
    """Write what the comparison is to be; one that is there already must be part of it."""
    about = {
        "format": FORMAT,
        "command": command,
        "plugins": plugins,
        "data": {"source": federation.source, "fingerprint": federation.fingerprint()},
        "runs": [
            {
                "path": part.path, "method": repr(part.spec.method), "label": part.label, "seed": part.spec.seed,
                "spec": part.spec.to_dict(),
            }
            for part in parts
        ],
    }  # fmt: skip
    if (folder / "run.json").exists():
        raise WrongInput(f"{folder} already holds a run; choose another folder with --out")
    if (folder / FILE).exists():
        _check_same(folder, read_plan(folder), json.loads(to_json(about)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, to_json(about, indent=1))
    except OSError as error:
        raise WrongInput(f"cannot write into {folder}: {error.strerror}; choose another folder with --out") from None


def reopen(folder: Path, federation: Federation | None = None) -> tuple[Federation, tuple[Part, ...], dict[str, Any]]:
    """A comparison as its folder tells it: the federation, the runs, and what else stands there."""
    about = read_plan(folder)
    federation = federation or again(about["data"]["source"])
    if federation.fingerprint() != about["data"]["fingerprint"]:
        raise WrongInput(
            f"the data are not those of {folder}: their fingerprint is {federation.fingerprint()}, that of the "
            f"comparison {about['data']['fingerprint']}; go on with the data it began with"
        )
    parts = tuple(Part(run["path"], run["label"], RunSpec.from_dict(run["spec"])) for run in about["runs"])
    return federation, parts, about


def extended(parts: Sequence[Part], rounds: int | None) -> tuple[Part, ...]:
    """The same runs, to end at `rounds`."""
    if rounds is None:
        return tuple(parts)
    most = max(part.spec.rounds for part in parts)
    if rounds < most:
        raise WrongInput(f"the comparison is made for {most} rounds and cannot end at {rounds}; ask for {most} or more")
    return tuple(replace(part, spec=replace(part.spec, rounds=rounds)) for part in parts)


def left(folder: Path, parts: Sequence[Part]) -> tuple[Part, ...]:
    """The runs that are not complete yet."""
    return tuple(part for part in parts if not _complete(folder / part.path, part.spec.rounds))


def carry_out(
    folder: Path, federation: Federation, parts: Sequence[Part], callbacks: Sequence[Callback] = ()
) -> dict[str, str]:
    """Run what is not complete; gives the runs that diverged, and why."""
    diverged: dict[str, str] = {}
    for part in left(folder, parts):
        path, spec = folder / part.path, part.spec
        try:
            if (path / "run.json").exists():
                model = None if isinstance(spec.model, str) else spec.model
                resume(path, federation=federation, model=model, rounds=spec.rounds, callbacks=callbacks)
            else:
                federate(spec, federation, out=path, callbacks=callbacks)
        except Diverged as error:
            diverged[part.path] = f"{part.label}, seed {spec.seed}: {error}"
    return diverged


def _complete(path: Path, rounds: int) -> bool:
    if not (path / "run.json").exists():
        return False
    run = RunFolder.open(path)
    rows = run.rows()
    return bool(rows) and bool(rows[-1].get("finish")) and rows[-1]["round"] == rounds == run.info()["spec"]["rounds"]


def read_plan(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / FILE).read_text(encoding="utf-8"))
        missing = {"data", "runs"} - about.keys() if about.get("format") == FORMAT else set()
        missing |= {key for run in about.get("runs", ()) for key in {"path", "label", "spec"} - run.keys()}
    except (OSError, ValueError, AttributeError) as error:
        raise WrongInput(f"{folder / FILE} cannot be read ({error}); restore it, or start again") from None
    if about.get("format") != FORMAT:
        raise WrongInput(
            f"{folder} is a comparison of format {about.get('format')!r} and this fedtailor reads format {FORMAT}; "
            "use the version that wrote it"
        )
    if missing:
        raise WrongInput(f"{folder / FILE} lacks {', '.join(sorted(missing))}; restore it, or start again")
    found: dict[str, Any] = about
    return found


def _check_same(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Methods, seeds and rounds may have been added; nothing else may differ."""
    other = f"{folder} already holds another comparison"
    advice = f"`fedtailor resume {folder}` goes on with it; or choose another folder with --out"
    if old["data"]["fingerprint"] != new["data"]["fingerprint"]:
        raise WrongInput(f"{other}, on other data; {advice}")
    planned = {run["path"]: run for run in new["runs"]}
    for run in old["runs"]:
        if run["path"] not in planned:
            raise WrongInput(f"{other}, with {run['label']} and seed {run['spec']['seed']}; {advice}")
        before, after = run["spec"], planned[run["path"]]["spec"]
        for key in before:
            fits = before[key] <= after[key] if key == "rounds" else repr(before[key]) == repr(after.get(key))
            if not fits:
                raise WrongInput(f"{other}, of {key} {before[key]} and not {after.get(key)}; {advice}")
