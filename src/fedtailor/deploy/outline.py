"""A federation whose rows are elsewhere: the names and sizes of all sites, and of one of them perhaps its own rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtailor.data.federation import Federation
from fedtailor.deploy.settings import Form
from fedtailor.registry import WrongInput


@dataclass(frozen=True, eq=False)
class Outline(Federation):
    """What a driver needs to know of a federation that it cannot look into."""

    held: tuple[int, ...] = ()  # training rows of each site, as it says itself
    vocabulary: int = 0  # the largest number of a word, where rows are texts

    def __post_init__(self) -> None:
        """Nothing: the rows, where there are any, were checked when they were read."""

    @property
    def sizes(self) -> Tensor:
        return torch.tensor(self.held)

    @property
    def words(self) -> int | None:
        return self.vocabulary or None

    def label_counts(self) -> Tensor:
        """None: how many rows of each class a site has is its own affair."""
        return torch.zeros(self.n, 0, dtype=torch.int64)

    def fingerprint(self) -> str:
        """Of the names and the form, which is all there is."""
        what = (self.clients, self.classes, self.task, tuple(self.x.shape[1:]))
        return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


def outline(
    name: str, form: Form, clients: Sequence[str], groups: Sequence[str], held: Sequence[int], model: Any,
    me: int | None = None, own: Federation | None = None,
) -> Outline:  # fmt: skip
    """The outline of a federation; site `me` holds the rows of `own`, a federation of one client."""
    none = torch.empty(0, dtype=torch.int64)

    def lists(rows: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
        return tuple(rows[0] if rows is not None and i == me else none for i in range(len(clients)))

    named = tuple(dict.fromkeys(groups))
    floating = form.task == "regression"
    return Outline(
        name=name, x=own.x if own else torch.empty(0, *form.shape, dtype=torch.int64 if form.words else torch.float32),
        y=own.y if own else torch.empty(0, dtype=torch.float32 if floating else torch.int64),
        train=lists(own.train if own else None),
        validation=lists(own.validation if own else None), test=lists(own.test if own else None),
        clients=tuple(clients), groups=tuple(map(named.index, groups)), group_names=named, classes=form.classes,
        task=form.task, model=model, held=tuple(held), vocabulary=form.words, source=f"federation {name}",
    )  # fmt: skip


def check_form(own: Federation, form: Form) -> None:
    """That a site's rows look as the federation says."""
    found = Form.of(own)
    for what in ("task", "shape", "classes"):
        if getattr(found, what) != getattr(form, what):
            raise WrongInput(
                f"the data do not fit the federation: their {what} is {getattr(found, what)!r}, and it needs "
                f"{getattr(form, what)!r}; prepare them so"
            )
    if bool(found.words) != bool(form.words) or found.words > form.words:
        raise WrongInput(
            f"the data do not fit the federation: the largest number of a word is {found.words}, and it needs at most "
            f"{form.words} (0: no texts); prepare them so"
        )


def one_site(federation: Federation, client: str | None, site: str) -> Federation:
    """The rows of one client, as a federation of that client alone."""
    names = federation.clients
    wanted = client or (site if site in names else names[0] if len(names) == 1 else None)
    if wanted not in names:
        asked = f"no client {client!r}" if client else f"{len(names)} clients, none of them called {site!r}"
        raise WrongInput(f"the data have {asked}; name one with --client: {', '.join(names)}")
    i = names.index(wanted)
    lists = (federation.train[i], federation.validation[i], federation.test[i])
    rows = torch.cat(lists)
    ends = [len(part) for part in lists]
    train, validation, test = torch.split(torch.arange(len(rows)), ends)
    return Federation(
        name=federation.name, x=federation.x[rows], y=federation.y[rows], train=(train,), validation=(validation,),
        test=(test,), clients=(site,), groups=(0,), group_names=("all",), classes=federation.classes,
        task=federation.task, model=federation.model, columns=federation.columns,
    )  # fmt: skip
