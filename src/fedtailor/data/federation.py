"""What a run learns from: one tensor of rows, and for each client the numbers of the rows it holds.

A *dataset* is what a source gives, before it is cut; a *federation* is the same rows with an owner and a
part (train, validation, test) for each. No client has a copy of anything: it has three lists of row
numbers.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor import schedule
from fedtailor.pixels import unpacked
from fedtailor.registry import WrongInput
from fedtailor.tree import buffer

TASKS = ("classification", "multilabel_margin", "regression")


def _no_rows() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


def _check_rows(name: str, x: Tensor, y: Tensor, classes: tuple[str, ...], task: str) -> None:
    """The rows themselves: as many targets as samples, finite, and no label without a class."""
    if task not in TASKS:
        raise WrongInput(f"{name}: there is no task {task!r}; allowed are {', '.join(TASKS)}")
    if len(x) == 0 or len(x) != len(y):
        raise WrongInput(f"{name}: x has {len(x)} rows and y has {len(y)}; give one target a row, at least one row")
    if not x.is_floating_point() and x.dtype not in (torch.uint8, torch.int64):
        raise WrongInput(
            f"{name}: x is {x.dtype}; give float32 for measurements, uint8 for pictures (0 to 255) or int64 for texts "
            "(the numbers of their words)"
        )
    if x.dtype is torch.int64 and int(x.min()) < 0:
        raise WrongInput(f"{name}: x holds {int(x.min())}, but the numbers of words run from 0; 0 is padding")
    if x.is_floating_point() and not bool(torch.stack(torch.aminmax(x)).isfinite().all()):
        raise WrongInput(f"{name}: x holds infinite values or NaN; remove or replace those rows")
    if task != "regression":
        if y.dtype is not torch.int64 or y.dim() != 1:
            raise WrongInput(f"{name}: y is {y.dtype}, {tuple(y.shape)}; {task} needs one int64 label a row")
        if int(y.min()) < 0 or int(y.max()) >= len(classes):
            raise WrongInput(
                f"{name}: labels run from {int(y.min())} to {int(y.max())}, but {len(classes)} classes are "
                f"named; number the labels from 0 or name every class"
            )


def _check_column(name: str, column: str, values: Tensor | None, rows: int, names: int | None) -> None:
    """An optional whole number a row: its domain (one of `names`) or its owner."""
    if values is None:
        return
    if values.dtype is not torch.int64 or values.shape != (rows,) or int(values.min()) < 0:
        raise WrongInput(f"{name}: {column} must be one int64 number from 0 for each of the {rows} rows")
    if names is not None and int(values.max()) >= names:
        raise WrongInput(f"{name}: {column} {int(values.max())} has no name; give {column}_names one for each")


class Column(NamedTuple):
    """What one number of a row is, where rows are those of a table: a column, or whether it holds this word; scaled."""

    name: str
    word: str | None
    mean: float
    deviation: float


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows with labels, as a source gives them, and what goes well with them if nothing else is asked for."""

    name: str
    x: Tensor  # float32; uint8 for pictures [rows, channels, height, width]; int64 for texts [rows, words]
    y: Tensor  # int64 labels, or float targets
    classes: tuple[str, ...]
    task: str = "classification"
    domain: Tensor | None = None  # int64 [rows]: the domain of each row
    domain_names: tuple[str, ...] = ()
    owner: Tensor | None = None  # int64 [rows]: the client that holds the row by nature
    owner_names: tuple[str, ...] = ()  # of all owners, where they have names
    part: Tensor | None = None  # int64 [rows]: 0, 1 or 2 for rows to train, validate or test on, where that is given
    columns: tuple[Column, ...] = ()  # of a table: how further rows of it become numbers
    model: str = "dnn"  # as text for the registry
    partition: str = "iid"  # as text for the registry
    settings: Mapping[str, Any] = field(default_factory=dict)  # of a run: rounds, batch, lr ...
    licence: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        _check_rows(self.name, self.x, self.y, self.classes, self.task)
        _check_column(self.name, "domain", self.domain, len(self.x), len(self.domain_names))
        _check_column(self.name, "owner", self.owner, len(self.x), len(self.owner_names) or None)
        _check_column(self.name, "part", self.part, len(self.x), 3)


@dataclass(frozen=True, eq=False)
class Federation:
    """Rows and who holds them: `train[i]`, `validation[i]` and `test[i]` are the row numbers of client i.

    Every row is in one list at most. The validation rows are for choosing (a round, a rate), never for
    learning.

    A *pooled* federation has a single client that trains on all rows, and remembers in `sites` the
    federation it was made from: its model is tested on each of `tested.test`, so that it can be compared
    client by client.
    """

    name: str
    x: Tensor
    y: Tensor
    train: tuple[Tensor, ...]
    validation: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    clients: tuple[str, ...]
    groups: tuple[int, ...]  # the group of each client, for instance its domain
    group_names: tuple[str, ...]
    classes: tuple[str, ...]
    task: str = "classification"
    model: str = "dnn"
    settings: Mapping[str, Any] = field(default_factory=dict)
    licence: str = ""
    about: str = ""
    public: Tensor = field(default_factory=_no_rows)  # rows that everybody may use, and no client holds
    source: str = ""  # the text that makes this federation again: see `fedtailor.data.again`
    sites: Federation | None = None  # of a pooled federation: the one it pools
    columns: tuple[Column, ...] = ()  # of a table: how further rows of it become numbers

    def __post_init__(self) -> None:
        _check_rows(self.name, self.x, self.y, self.classes, self.task)
        n = len(self.train)
        if n == 0:
            raise WrongInput(f"{self.name}: a federation needs at least one client; this one has none")
        for what in ("validation", "test", "clients", "groups"):
            if len(getattr(self, what)) != n:
                found = len(getattr(self, what))
                raise WrongInput(f"{self.name}: {n} training lists but {found} {what}; give one for each client")
        twice = sorted(name for name, count in Counter(self.clients).items() if count > 1)
        if twice:
            raise WrongInput(f"{self.name}: two clients are called {twice[0]!r}; give each its own name")
        if min(self.groups) < 0 or max(self.groups) >= len(self.group_names):
            named = len(self.group_names)
            raise WrongInput(f"{self.name}: groups go up to {max(self.groups)} and {named} are named; name each")
        seen = torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
        for where, rows in self._lists():
            self._check_list(where, rows, seen)
        for client, rows in zip(self.clients, self.train, strict=True):
            if len(rows) == 0:
                raise WrongInput(f"{self.name}: {client} has no training row; give it one or leave it out")

    def _check_list(self, where: str, rows: Tensor, seen: Tensor) -> None:
        if rows.dtype is not torch.int64 or rows.dim() != 1:
            raise WrongInput(f"{self.name}: the {where} must be a list of int64 numbers, not {rows.dtype}")
        if len(rows) == 0:
            return
        if int(rows.min()) < 0 or int(rows.max()) >= len(self.x):
            raise WrongInput(f"{self.name}: the {where} leave 0 to {len(self.x) - 1}; number rows as in x")
        if bool(seen[rows].any()) or len(torch.unique(rows)) != len(rows):
            raise WrongInput(f"{self.name}: the {where} hold a row that is held already; give it to one list only")
        seen[rows] = True

    def _lists(self) -> Iterator[tuple[str, Tensor]]:
        for part in ("train", "validation", "test"):
            for client, rows in zip(self.clients, getattr(self, part), strict=True):
                yield f"{part} rows of {client}", rows
        yield "public rows", self.public

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.train)

    @cached_property
    def sizes(self) -> Tensor:
        """The training rows of each client, int64 [n]."""
        return torch.tensor([len(rows) for rows in self.train])

    @property
    def words(self) -> int | None:
        """The largest number of a word, where the samples are texts."""
        return int(self.x.max()) if self.x.dtype is torch.int64 else None

    def inputs(self, rows: Tensor) -> Tensor:
        """Rows as a network takes them: pictures that are kept as bytes run from -1 to 1."""
        return unpacked(self.x[rows], torch.float32)

    @property
    def tested(self) -> Federation:
        """The federation whose clients are tested: this one, or the one it pools."""
        return self.sites or self

    def label_counts(self) -> Tensor:
        """Training rows of each client in each class, int64 [n, classes]; no columns where y is no label."""
        if self.y.is_floating_point() or self.y.dim() != 1:
            return torch.zeros(self.n, 0, dtype=torch.int64)
        width = len(self.classes)
        return torch.stack([torch.bincount(self.y[rows], minlength=width).cpu() for rows in self.train])

    def pooled(self) -> Federation:
        """One client that holds everybody's rows: the bound of training centrally, tested site by site."""
        return replace(
            self,
            train=(torch.cat(self.train),),
            validation=(torch.cat(self.validation),),
            test=(torch.cat(self.test),),
            clients=("pooled",),
            groups=(0,),
            group_names=("pooled",),
            sites=self.tested,
        )

    def with_public(self, share: float, seed: int = 0) -> Federation:
        """The same federation after every client made a `share` of its training rows public; it keeps one or more."""
        kept, public = [], [self.public]
        for client, rows in zip(self.clients, self.train, strict=True):
            order = torch.from_numpy(schedule.rng(seed, "public", client).permutation(len(rows))).to(rows.device)
            given = min(max(1, round(share * len(rows))), len(rows) - 1)
            public.append(rows[order[:given]])
            kept.append(rows[order[given:].sort().values])
        return replace(self, train=tuple(kept), public=torch.cat(public))

    def to(self, device: str | torch.device) -> Federation:
        """The same federation with its tensors on `device`: itself, where they are there."""
        if str(device) == str(self.x.device):
            return self

        def move(lists: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(rows.to(device) for rows in lists)

        x, y = self.x.to(device), self.y.to(device)

        def moved(federation: Federation, sites: Federation | None) -> Federation:
            return replace(
                federation,
                x=x,
                y=y,
                train=move(federation.train),
                validation=move(federation.validation),
                test=move(federation.test),
                public=federation.public.to(device),
                sites=sites,
            )

        return moved(self, None if self.sites is None else moved(self.sites, None))

    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any row, label, list or name; the same on every device."""
        digest = hashlib.sha256()
        for tensor in (self.x, self.y, *(rows for _, rows in self._lists())):
            digest.update(repr((str(tensor.dtype), tuple(tensor.shape))).encode())
            digest.update(buffer(tensor))
        digest.update(repr((self.clients, self.groups, self.group_names, self.classes, self.task)).encode())
        return digest.hexdigest()[:16]
