"""Empty modules in place of those that software imports and does not use here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Nothing(type):
    """A class that can be inherited from and called, and of which every attribute is such a class too."""

    def __getattr__(cls, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {})


class Empty(ModuleType):
    """A module in which every name is a class that does nothing."""

    __path__ = ()

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {})


class StandIn:
    """Finds the modules named, and all below them, as empty ones."""

    def __init__(self, names: Sequence[str]):
        self.names = frozenset(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if self.names & {name, name.split(".")[0]} else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in(*names: str) -> None:
    """From now on these modules, where they are not installed, are empty ones."""
    sys.meta_path.append(StandIn(names))  # at the end: what is installed is found first
