"""What can be named, as `list` tells it.

Of what the package brings it is kept in `catalogue.json`, so that a list needs no PyTorch; a test makes the file again
and compares. What a user's plugin registers is described on the spot.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedtailor import registry
from fedtailor.registry import Entry

FILE = Path(__file__).with_name("catalogue.json")
FROM_DATA = ("classes", "shape")  # a model's arguments that are not the user's
CLIENTS = 8  # of the federation that each method is tried on
OWN = "Your own"
FAMILIES = {  # of methods, in the order in which they are listed
    "The five papers": (
        "pFedLA", "FedHAM", "PartialFedAdaptive", "PartialFedFix", "FedMCSA", "FedMCSAWithoutAttention", "FedALA",
    ),
    "Baselines: one model for all": ("FedAvg", "FedSGD", "FedProx", "SCAFFOLD"),
    "Baselines: one model, tuned at each client": ("FedAvgFT", "FedAvgC", "FedProxC", "FTL", "PerFedAvg"),
    "Baselines: a part of one's own": ("FedBN", "FedPer", "FedRep", "FedBABU"),
    "Baselines: a model of one's own": ("Ditto", "pFedMe", "FedPHP", "FedHealth"),
    "Baselines: mixtures of models": ("FedAMP", "HeurFedAMP", "FedFomo", "APPLE"),
    "Plug-ins, which wrap another method": (
        "LocalAttention", "ComponentAttention", "AdaptiveLocalAggregation", "TunedStart", "Proximal",
    ),
    "Bounds": ("Local", "Centralised"),
}  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One name: how it is written with its options, what else it is called, and what is said of it."""

    usage: str
    also: list[str]
    about: list[str]


def kept(kind: str) -> dict[str, Item]:
    """What the package brings, in alphabetical order, without reading the package."""
    found: Mapping[str, Mapping[str, dict[str, list[str]]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Item(**item) for name, item in found[kind].items()}  # type: ignore[arg-type]


def whole(kind: str) -> dict[str, Item]:
    """What the package and the plugins bring, in alphabetical order."""
    known = kept(kind)
    entries = [registry.entry(kind, name) for name in registry.names(kind)]
    return {e.name: described(kind, e) if registry.is_plugged(e) else known[e.name] for e in entries}


def meant(kind: str, found: Mapping[str, Item], written: Iterable[str]) -> list[str]:
    """The names that are meant, however they are spelled; a wrong one is an error that lists the nearest."""
    known = {registry.key(word): name for name, item in found.items() for word in (name, *item.also)}
    return [known.get(registry.key(word)) or registry.entry(kind, word).name for word in written]


def families(names: Iterable[str]) -> dict[str, list[str]]:
    """These methods by family; what the package does not bring stands last."""
    left = list(names)
    found = {family: [name for name in members if name in left] for family, members in FAMILIES.items()}
    found[OWN] = [name for name in left if not any(name in members for members in FAMILIES.values())]
    return {family: members for family, members in found.items() if members}


def described(kind: str, found: Entry) -> Item:
    """One name, from what it stands for; a method is tried."""
    from fedtailor.cli.tried import facts

    about = [found.summary, *(facts(found) if kind == "method" else ())]
    return Item(usage(kind, found), list(found.aliases), about)


def usage(kind: str, found: Entry) -> str:
    """The name with its options and their defaults: `dirichlet(alpha=0.1, clients=20)`."""
    parameters = inspect.signature(found.factory).parameters.values()
    filled = FROM_DATA if kind == "model" else ()
    own = [p for p in parameters if p.name not in filled and p.kind is not p.VAR_KEYWORD]
    options = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in own]
    return f"{found.name}({', '.join(options)})" if options else found.name
