"""Reading what a method showed: by the shapes and names of its tensors, and by nothing else.

    what/part           of the server, [k, k]: a map, row i is what client i gives to each client
                        of a client, [n]: its row of a map
                        of a client, []: a value, followed over the rounds
    what[a, b, c]/part  of a client, [3]: a value for each label
    what[0..1]/part     of a client, [b]: a histogram, b bins of equal width from 0 to 1
    what[epoch]/part    of a client, [e]: a curve over epochs 1 to e, cut where it is null
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.report.read import Comparison, Entry, RunRecord

Numbers = NDArray[np.float64]

_NAME = re.compile(r"(?P<what>[^\[\]/]+?)\s*(?:\[(?P<labels>[^\[\]]+)\])?(?:/(?P<part>.+))?")
_BINS = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)")
_SHARES = 1e-3  # how far from 1 the sum of shares may be: they may have been rounded


@dataclass(frozen=True)
class Sites:
    """The clients by name and group; they are shown group by group."""

    names: tuple[str, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]  # one nameless group where nothing is known of any

    @property
    def grouped(self) -> bool:
        return len(self.groups) > 1

    @property
    def order(self) -> list[int]:
        return [client for _, members in self.groups for client in members]

    @property
    def group(self) -> dict[int, int]:
        """The number of each client's group."""
        return {client: number for number, (_, members) in enumerate(self.groups) for client in members}

    def sort(self, clients: Iterable[int]) -> tuple[int, ...]:
        chosen = set(clients)
        return tuple(client for client in self.order if client in chosen)


@dataclass(frozen=True)
class Map:
    """What some clients (rows) give to clients (columns)."""

    part: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    values: Numbers


@dataclass(frozen=True)
class Maps:
    what: str
    of_server: bool  # the server knows it; else each row is known to its client
    maps: tuple[Map, ...]

    def only(self, client: int) -> Maps | None:
        chosen = [replace(m, rows=(client,), values=m.values[[m.rows.index(client)]]) for m in self.maps
                  if client in m.rows]  # fmt: skip
        return replace(self, maps=tuple(chosen)) if chosen else None


@dataclass(frozen=True)
class Cells:
    """Values by client, part and label."""

    what: str
    parts: tuple[str, ...]
    labels: tuple[str, ...]
    edges: tuple[float, float] | None  # of a histogram
    clients: tuple[int, ...]
    values: Numbers  # [clients, parts, labels]

    @property
    def are_shares(self) -> bool:
        """Whether the labels share out a whole."""
        sums = self.values.sum(2)
        return self.edges is None and bool((self.values >= 0).all() and (abs(sums - 1) < _SHARES).all())

    def only(self, client: int) -> Cells | None:
        if client not in self.clients:
            return None
        return replace(self, clients=(client,), values=self.values[[self.clients.index(client)]])


@dataclass(frozen=True)
class Courses:
    """A value by client and part, over the rounds."""

    what: str
    parts: tuple[str, ...]
    clients: tuple[int, ...]
    rounds: tuple[int, ...]
    values: Numbers  # [clients, parts, rounds], NaN where a client showed nothing

    @property
    def latest(self) -> Numbers:
        """The last value that each client showed, [clients, parts]."""
        seen = np.isfinite(self.values)
        last = self.values.shape[2] - 1 - seen[:, :, ::-1].argmax(2)
        return np.take_along_axis(self.values, last[:, :, None], 2)[:, :, 0]

    def only(self, client: int) -> Courses | None:
        if client not in self.clients:
            return None
        return replace(self, clients=(client,), values=self.values[[self.clients.index(client)]])


@dataclass(frozen=True)
class Curves:
    """A curve by client and round."""

    what: str
    axis: str
    curves: Mapping[int, Mapping[int, tuple[float, ...]]]  # client, round, values from step 1 on

    def only(self, client: int) -> Curves | None:
        return replace(self, curves={client: self.curves[client]}) if client in self.curves else None


Lesson = Maps | Cells | Courses | Curves


@dataclass(frozen=True)
class Learned:
    """What one run showed up to a round."""

    label: str
    run: RunRecord
    others: tuple[int, ...]  # further seeds of the same, which are not shown
    round: int
    sites: Sites
    lessons: tuple[Lesson, ...]
    since: Mapping[int, int]  # clients that showed something last in an earlier round, and which
    unread: tuple[str, ...]  # names whose shape fits no convention

    def only(self, client: int) -> Learned | None:
        """What concerns one client; None where it showed nothing."""
        lessons = [lesson.only(client) for lesson in self.lessons]
        kept = tuple(lesson for lesson in lessons if lesson is not None)
        since = {number: round for number, round in self.since.items() if number == client}
        return replace(self, lessons=kept, since=since) if kept else None


def sites_of(comparison: Comparison) -> Sites:
    return Sites(comparison.clients, comparison.groups)


def learned(comparison: Comparison, entry: Entry, round: int | None = None) -> Learned | None:
    """What the first run of an entry that showed anything had learned in a round (or the last one that shows it)."""
    for run in entry.counted:
        shown = rounds_shown(run)
        if shown and (round is None or round in shown):
            at = shown[-1] if round is None else round
            others = tuple(other.seed for other in entry.counted if other is not run)
            return _read(run, at, sites_of(comparison), entry.label, others)
    return None


def learned_by(comparison: Comparison, round: int | None = None) -> list[Learned]:
    """What each entry learned, of those that showed anything."""
    found = (learned(comparison, entry, round) for entry in comparison.entries)
    return [one for one in found if one is not None]


def rounds_shown(run: RunRecord) -> list[int]:
    """The rounds in which a run showed something."""
    return [int(row["round"]) for row in run.rounds if row.get("explain")]


def rounds_tested(run: RunRecord) -> list[int]:
    """The rounds in which a run was tested, which is when it shows what it learned."""
    return [int(row["round"]) for row in run.rounds if row.get("test") or row.get("explain")]


def _read(run: RunRecord, at: int, sites: Sites, label: str, others: tuple[int, ...]) -> Learned:
    rows = [row for row in run.rounds if row.get("explain") and int(row["round"]) <= at]
    of_server, unread = _of_server(rows[-1]["explain"].get("server") or {}, len(sites.names), sites)
    tensors: dict[str, dict[int, dict[int, Numbers]]] = {}  # name, client, round
    for row in rows:
        for number, shown in (row["explain"].get("clients") or {}).items():
            for name, values in shown.items():
                tensors.setdefault(name, {}).setdefault(int(number), {})[int(row["round"])] = _numbers(values)
    kinds: dict[tuple[str, str, str], dict[str, dict[int, dict[int, Numbers]]]] = {}
    for name, by_client in tensors.items():
        what, labels, part = taken_apart(name)
        shape = next(array.shape for by_round in by_client.values() for array in by_round.values())
        kind = _kind(labels, shape, len(sites.names))
        same = {client: {r: a for r, a in by_client[client].items() if a.shape == shape} for client in by_client}
        if kind:
            alike = sites.sort(client for client, by_round in same.items() if by_round)
            kinds.setdefault((kind, what, labels), {})[part] = {client: same[client] for client in alike}
        if not kind or any(len(same[client]) < len(by_client[client]) for client in same):
            unread.append(name)
    lessons: list[Lesson] = [*of_server]
    for wanted in ("rows", "cells", "curve", "value"):
        for (kind, what, labels), parts in kinds.items():
            if kind == wanted:
                lessons += _lesson(kind, what, labels, parts, sites)
    rounds = {client: max(by_round) for by_client in tensors.values() for client, by_round in by_client.items()}
    since = {client: rounds[client] for client in sites.sort(rounds) if rounds[client] < at}
    return Learned(label, run, others, at, sites, tuple(lessons), since, tuple(unread))


def taken_apart(name: str) -> tuple[str, str, str]:
    """`mixture[SE,ECA]/v/layer1` as "mixture of v", "SE,ECA" and "layer1"."""
    found = _NAME.fullmatch(name)
    if found is None:
        return name, "", ""
    of, _, part = (found["part"] or "").rpartition("/")
    return f"{found['what']} of {of}" if of else found["what"], found["labels"] or "", part


def _numbers(values: Any) -> Numbers:
    """As an array; null is NaN, and what is no array of numbers has a shape that fits nothing."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        return np.empty((0, 0, 0))


def _kind(labels: str, shape: tuple[int, ...], n: int) -> str:
    """What a client's tensor is: a row of a map, cells, a curve, a value; or nothing that is known."""
    if not labels:
        return "value" if shape == () else "rows" if shape == (n,) and n > 1 else ""
    if len(shape) != 1 or not shape[0]:
        return ""
    if _BINS.fullmatch(labels):
        return "cells"
    names = labels.split(",")
    return "curve" if len(names) == 1 else "cells" if len(names) == shape[0] else ""


def _of_server(shown: Mapping[str, Any], n: int, sites: Sites) -> tuple[list[Lesson], list[str]]:
    """Maps over the clients that `clients` lists, or over all."""
    listed = tuple(int(number) for number in shown.get("clients") or range(n))
    maps: dict[str, list[Map]] = {}
    unread = []
    for name, values in shown.items():
        array, (what, labels, part) = _numbers(values), taken_apart(name)
        if name == "clients":
            continue
        if labels or array.shape != (len(listed), len(listed)) or not set(listed) <= set(range(n)):
            unread.append(name)
            continue
        order = sites.sort(listed)
        places = [listed.index(client) for client in order]
        maps.setdefault(what, []).append(Map(part, order, order, array[np.ix_(places, places)]))
    return [Maps(what, True, tuple(found)) for what, found in maps.items()], unread


def _lesson(
    kind: str, what: str, labels: str, parts: Mapping[str, Mapping[int, Mapping[int, Numbers]]], sites: Sites
) -> list[Lesson]:
    """One for all parts; of curves one for each."""
    everybody = sites.sort(client for by_client in parts.values() for client in by_client)
    latest = {part: {i: of[max(of)] for i, of in by_client.items()} for part, by_client in parts.items()}
    if kind == "rows":
        order = sites.order
        maps = [Map(part, tuple(rows), tuple(order), np.array([row[order] for row in rows.values()]))
                for part, rows in latest.items()]  # fmt: skip
        return [Maps(what, False, tuple(maps))]
    if kind == "curve":
        return [Curves(f"{what}, {part}" if part else what, labels.strip(), _cut(by_client))
                for part, by_client in parts.items()]  # fmt: skip
    if kind == "cells":
        bins = _BINS.fullmatch(labels)
        size = max(len(array) for rows in latest.values() for array in rows.values())
        table = np.full((len(everybody), len(parts), size), np.nan)
        for column, rows in enumerate(latest.values()):
            for client, array in rows.items():
                table[everybody.index(client), column, : len(array)] = array
        edges = (float(bins[1]), float(bins[2])) if bins else None
        names = _bin_names(edges, size) if edges else tuple(name.strip() for name in labels.split(","))
        return [Cells(what, tuple(parts), names, edges, everybody, table)]
    rounds = sorted({r for by_client in parts.values() for by_round in by_client.values() for r in by_round})
    course = np.full((len(everybody), len(parts), len(rounds)), np.nan)
    for column, by_client in enumerate(parts.values()):
        for client, by_round in by_client.items():
            for round, array in by_round.items():
                course[everybody.index(client), column, rounds.index(round)] = array
    return [Courses(what, tuple(parts), everybody, tuple(rounds), course)]


def _bin_names(ends: tuple[float, float], bins: int) -> tuple[str, ...]:
    low, high = ends
    edges = [f"{low + (high - low) * i / bins:.3g}" for i in range(bins + 1)]
    return tuple(f"{a} to {b}" for a, b in itertools.pairwise(edges))


def _cut(by_client: Mapping[int, Mapping[int, Numbers]]) -> dict[int, dict[int, tuple[float, ...]]]:
    """Curves up to where they end; of those without a step nothing."""
    found: dict[int, dict[int, tuple[float, ...]]] = {}
    for client, by_round in by_client.items():
        for round, array in by_round.items():
            end = int(np.isfinite(array).argmin()) if not np.isfinite(array).all() else len(array)
            if end:
                found.setdefault(client, {})[round] = tuple(array[:end].tolist())
    return found
