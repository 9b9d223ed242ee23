"""Run folders and comparison folders, read into plain values.

Everything in `fedtailor.report` stands on what is read here and on nothing else: a report can be made years later,
from the folder alone. A run still in progress, or one that was killed, is read as far as it got.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from fedtailor.registry import WrongInput
from fedtailor.sparse import from_json

FORMAT = 1
_RUN_NEEDS = ("format", "method", "spec", "data", "primary", "higher_is_better")
_DATA_NEEDS = ("name", "fingerprint", "clients")
# Settings that do not make two runs different experiments.
_INCIDENTAL = frozenset({"seed", "method", "device", "runner", "workers", "checkpoint_every", "on_nan"})


@dataclass(frozen=True)
class RunRecord:
    """One run: what was asked for (`info`, run.json) and what came out (`rows`, rows.jsonl)."""

    path: Path
    info: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    label: str = ""
    torn: bool = False  # the last line was half written and is left out

    @property
    def method(self) -> str:
        """The method as it prints: `Ditto(lam=1.0)`."""
        return str(self.info["method"])

    @property
    def family(self) -> str:
        """The method's outermost name: `Ditto`."""
        found = re.match(r"\s*(\w+)", self.method)
        return found.group(1) if found else self.method

    @property
    def spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.info["spec"]
        return spec

    @property
    def data(self) -> Mapping[str, Any]:
        data: Mapping[str, Any] = self.info["data"]
        return data

    @property
    def seed(self) -> int:
        return int(self.spec.get("seed", 0))

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.data["clients"])

    @property
    def complete(self) -> bool:
        """Whether the run came to its end, finish phase included."""
        return bool(self.rows) and bool(self.rows[-1].get("finish"))

    @property
    def rounds(self) -> tuple[Mapping[str, Any], ...]:
        """The rows of rounds, without the finish row."""
        return tuple(row for row in self.rows if not row.get("finish"))

    @property
    def reached(self) -> int:
        """The last round that is on record."""
        return int(self.rows[-1]["round"]) if self.rows else 0

    @property
    def wanted(self) -> int | None:
        """The rounds that were asked for."""
        rounds = self.spec.get("rounds")
        return None if rounds is None else int(rounds)

    @property
    def stopped(self) -> dict[str, int]:
        """Clients that were stopped by NaN, with the first round in which it happened."""
        # Pooled data are held by one client that is none of the sites.
        names = ("the pooled client",) if self.family == "Centralised" else self.clients
        first: dict[str, int] = {}
        for row in self.rows:
            for client in row.get("stopped") or ():
                first.setdefault(names[int(client)], int(row["round"]))
        return first

    @property
    def finish_epochs(self) -> int:
        """Epochs of local tuning that the final models had, by the run's settings or by the method's own."""
        return int(self.info.get("finish_epochs") or self.spec.get("finish_epochs") or 0)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that make it this experiment, whatever the seed and the machine."""
        asked = {key: value for key, value in self.spec.items() if key not in _INCIDENTAL}
        return {**asked, "finish_epochs": self.finish_epochs}


@dataclass(frozen=True)
class Entry:
    """One line of a comparison: the same method and settings under one or more seeds."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The runs that numbers are made of: a run cut short is no equal of finished ones, so it waits outside."""
        return tuple(run for run in self.runs if run.complete) or self.runs

    @property
    def is_alone(self) -> bool:
        return self.runs[0].family == "Local"

    @property
    def is_pooled(self) -> bool:
        return self.runs[0].family == "Centralised"


@dataclass(frozen=True)
class Comparison:
    """Entries on one federation."""

    data: Mapping[str, Any]
    entries: tuple[Entry, ...]
    commands: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # runs that the folder announces and that have not started

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.data["clients"])

    @property
    def primary(self) -> str:
        return str(self.entries[0].runs[0].info["primary"])

    @property
    def higher_is_better(self) -> bool:
        return bool(self.entries[0].runs[0].info["higher_is_better"])

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        return tuple(run for entry in self.entries for run in entry.runs)

    @property
    def groups(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and client numbers of each group of clients, such as a domain; one nameless group if there are none."""
        numbers = list(self.data.get("groups") or [])
        names = list(self.data.get("group_names") or [])
        everyone = tuple(range(len(self.clients)))
        if len(numbers) != len(everyone) or len(set(numbers)) < 2:
            return (("", everyone),)
        return tuple(
            (
                str(names[group]) if group < len(names) else f"group {group}",
                tuple(i for i in everyone if numbers[i] == group),
            )
            for group in sorted(set(numbers))
        )

    def alone(self, entry: Entry) -> dict[int, RunRecord]:
        """Local runs by seed, to hold this entry against; of several, the one whose settings are nearest."""
        candidates = [other for other in self.entries if other.is_alone]
        if not candidates or entry.is_alone:
            return {}
        mine = entry.runs[0].settings
        nearest = max(candidates, key=lambda other: sum(other.runs[0].settings.get(k) == v for k, v in mine.items()))
        return {run.seed: run for run in nearest.counted}


def read_run(folder: Path, label: str = "") -> RunRecord:
    """The record of one run; whatever was half written when it stopped is left out."""
    file = folder / "run.json"
    if not file.is_file():
        raise WrongInput(
            f"{folder} is not the folder of a run: it has no run.json; give one that `fedtailor run` or `compare` wrote"
        )
    info = _object(file, "run.json")
    _check_format(info, folder)
    _check_keys(info, _RUN_NEEDS, folder, "run.json")
    if not isinstance(info["data"], dict) or not isinstance(info["spec"], dict):
        raise WrongInput(
            f"run.json in {folder} is damaged: `data` and `spec` must be objects; restore the folder or run it again"
        )
    _check_keys(info["data"], _DATA_NEEDS, folder, "run.json, block `data`,")
    rows, torn = _rows(folder / "rows.jsonl")
    record = RunRecord(folder, info, rows, torn=torn)
    return replace(record, label=label or str(info.get("label") or "") or _short(record.method))


def read(folders: Sequence[Path]) -> tuple[Comparison, ...]:
    """All runs of the given run and comparison folders, gathered by federation."""
    if not folders:
        raise WrongInput("no folder was given to report on; give one or more folders of runs or comparisons")
    runs: list[RunRecord] = []
    commands: dict[Path, str] = {}
    missing: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise WrongInput(f"there is no folder {folder}; give a folder that `fedtailor run` or `compare` wrote")
        if (folder / "comparison.json").is_file():
            found, command, absent = _read_comparison(folder)
            missing += absent
            commands.update({run.path: command for run in found if command})
        else:
            found = [read_run(folder)]
        known = {run.path.resolve() for run in runs}
        runs += [run for run in found if run.path.resolve() not in known]
    return gather(runs, commands, missing)


def gather(
    runs: Iterable[RunRecord], commands: Mapping[Path, str] | None = None, missing: Sequence[str] = ()
) -> tuple[Comparison, ...]:
    """Runs by federation, and in each by method and settings; `commands` are those of whole comparisons, by run."""
    federations: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        federations.setdefault((str(run.data["fingerprint"]), str(run.info["primary"])), []).append(run)
    comparisons = []
    for members in federations.values():
        written = [(commands or {}).get(run.path) or str(run.info.get("command") or "") for run in members]
        told = tuple(dict.fromkeys(filter(None, written)))
        comparisons.append(Comparison(members[0].data, _entries(members), told, tuple(missing)))
    return tuple(comparisons)


def _read_comparison(folder: Path) -> tuple[list[RunRecord], str, list[str]]:
    plan = _object(folder / "comparison.json", "comparison.json")
    _check_format(plan, folder)
    _check_keys(plan, ("runs",), folder, "comparison.json")
    found, absent = [], []
    for item in plan["runs"]:
        if not isinstance(item, dict) or "path" not in item:
            raise WrongInput(f"comparison.json in {folder} is damaged: each of its `runs` needs a `path`; restore it")
        place = folder / str(item["path"])
        if (place / "run.json").is_file():
            found.append(read_run(place, str(item.get("label") or "")))
        else:
            absent.append(f"{item.get('label') or item['path']}, seed {item.get('seed', '?')}")
    if not found:
        raise WrongInput(f"no run of the comparison {folder} has started yet; wait for one, or run it again")
    return found, str(plan.get("command") or ""), absent


def _object(file: Path, name: str) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise WrongInput(
            f"{name} in {file.parent} cannot be read ({error}); restore the file or run it again"
        ) from None
    if not isinstance(value, dict):
        raise WrongInput(
            f"{name} in {file.parent} is damaged: it must hold one object; restore the file or run it again"
        )
    return value


def _check_format(info: Mapping[str, Any], folder: Path) -> None:
    if info.get("format") != FORMAT:
        written = info.get("fedtailor", "unknown")
        raise WrongInput(
            f"{folder} is written in format {info.get('format')!r} (by fedtailor {written}) and this version reads "
            f"format {FORMAT}; use the version that wrote it"
        )


def _check_keys(info: Mapping[str, Any], keys: Sequence[str], folder: Path, name: str) -> None:
    absent = [key for key in keys if key not in info]
    if absent:
        raise WrongInput(f"{name} in {folder} lacks {', '.join(absent)}; restore the file or run it again")


def _rows(file: Path) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """The rows of a run and whether its last line was cut off; anything else that is broken is an error."""
    if not file.is_file():
        return (), False
    lines = file.read_bytes().split(b"\n")
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif number == len(lines):  # no line break after it: the writer was stopped there
            return tuple(rows), True
        else:
            raise WrongInput(
                f"line {number} of rows.jsonl in {file.parent} is damaged; restore the file, or run it again"
            )
    return tuple(rows), False


def _row(line: bytes) -> dict[str, Any] | None:
    """One line of rows.jsonl; None if it is not a whole row."""
    try:
        row = json.loads(line, object_hook=from_json)
        return {**row, "round": int(row["round"]), **{part: _with_nan(row[part]) for part in ("test", "validation")}}
    except (ValueError, KeyError, TypeError):
        return None


def _with_nan(tested: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """JSON has no NaN: a client that was tested on rows and has no number is one whose model diverged."""
    if tested is None:
        return None
    return {
        name: [
            math.nan if value is None and count else value for value, count in zip(column, tested["count"], strict=True)
        ]
        for name, column in tested.items()
    }


def _entries(runs: Sequence[RunRecord]) -> tuple[Entry, ...]:
    """Runs of the same method and settings are seeds of one entry; labels are made to differ where entries do."""
    groups: dict[tuple[str, int], list[RunRecord]] = {}
    for run in runs:
        same = json.dumps([run.label, run.method, run.settings], sort_keys=True, default=str)
        # A second run of the same seed is not a further seed: it goes to a copy of the entry.
        copy = next(n for n in count() if all(run.seed != other.seed for other in groups.get((same, n), ())))
        groups.setdefault((same, copy), []).append(run)
    members = [tuple(sorted(group, key=lambda run: run.seed)) for group in groups.values()]
    names = _labels([group[0] for group in members])
    return tuple(Entry(name, group) for name, group in zip(names, members, strict=True))


def _labels(firsts: Sequence[RunRecord]) -> list[str]:
    """Short where that is enough; else the method in full, then the settings that differ, then the folder."""
    names = [run.label for run in firsts]
    for spell in (_in_full, _with_settings, _with_folder):
        shared = {name for name, count in Counter(names).items() if count > 1}
        for name in shared:
            alike = [i for i in range(len(names)) if names[i] == name]
            for i in alike:
                names[i] = spell(name, firsts[i], [firsts[j] for j in alike])
    return names


def _in_full(name: str, run: RunRecord, alike: Sequence[RunRecord]) -> str:
    return name if len({other.method for other in alike}) == 1 else run.method.removesuffix("()")


def _with_settings(name: str, run: RunRecord, alike: Sequence[RunRecord]) -> str:
    keys = sorted({key for other in alike for key in other.settings})
    differ = [key for key in keys if len({json.dumps(other.settings.get(key), default=str) for other in alike}) > 1]
    return f"{name}, {', '.join(f'{key} {run.settings.get(key)}' for key in differ)}" if differ else name


def _with_folder(name: str, run: RunRecord, alike: Sequence[RunRecord]) -> str:
    return f"{name} [{run.path.parent.name}/{run.path.name}]"


def _short(method: str) -> str:
    """`Ditto(lam=1.0)` as `Ditto`; a wrapper keeps what it wraps."""
    return re.sub(r"\((?:[^()]*)\)$", "", method) if method.count("(") == 1 else method.replace("()", "")
