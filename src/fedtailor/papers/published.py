"""The numbers that the papers print, as data.

One JSON file a paper:

    {"paper": its title, "citation": who wrote it, where and when,
     "tables": {"table2": {"caption", "setting", "metric", "protocol": what they are the numbers of,
                           "notes": what is known to be wrong with the printed table, or "",
                           "rows": {method: {variant: {column: 94.06, or [mean, deviation], or a text}}}}}}

Single numbers are facts; they are quoted for comparison, with the paper cited wherever they are shown. Methods,
variants and columns are called as in the paper, and a variant that has no name is "-". Accuracies are in per cent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.registry import WrongInput


class Key(NamedTuple):
    """Where a number stands in a printed table."""

    method: str
    column: str
    variant: str = "-"


class Printed(NamedTuple):
    """A number as it is printed, and the deviation over runs where there is one."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class PrintedTable:
    """What a paper says in one table or figure."""

    caption: str
    setting: str
    metric: str
    protocol: str
    notes: str
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]]

    def at(self, key: Key) -> Printed:
        try:
            value = self.rows[key.method][key.variant][key.column]
        except KeyError:
            raise WrongInput(f"the paper prints no number for {key.method}, {key.variant}, {key.column}") from None
        if isinstance(value, list):
            return Printed(*value)
        if isinstance(value, str):
            raise WrongInput(f"what the paper prints for {key.method}, {key.column} is {value!r} and no number")
        return Printed(value)

    def __iter__(self) -> Iterator[tuple[Key, Any]]:
        for method, variants in self.rows.items():
            for variant, columns in variants.items():
                for column, value in columns.items():
                    yield Key(method, column, variant), value


@dataclass(frozen=True)
class Paper:
    title: str
    citation: str
    tables: Mapping[str, PrintedTable]


@cache
def published(paper: str) -> Paper:
    """`published("fedmcsa").tables["table2"].at(Key("FedAvg", "MNIST/MLR")).mean`."""
    found = json.loads(Path(__file__).with_name(f"{paper}.json").read_text(encoding="utf-8"))
    return Paper(found["paper"], found["citation"], {n: PrintedTable(**t) for n, t in found["tables"].items()})
