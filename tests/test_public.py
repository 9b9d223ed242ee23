"""What `import fedtailor` offers is what `__all__` says, and each name of it says what it is."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys

import pytest

import fedtailor


def submodules() -> set[str]:
    return {found.name for found in pkgutil.iter_modules(fedtailor.__path__)}


def test_the_namespace_is_exactly_what_is_listed() -> None:
    """In a fresh process: tests import submodules, which puts their names here as well."""
    asked = "import fedtailor; print(*dir(fedtailor))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, env=env).stdout
    offered = set(told.split())
    public = {name for name in offered if not name.startswith("_")} - {"annotations"}
    assert public - submodules() == set(fedtailor.__all__) - submodules()
    assert set(fedtailor.__all__) <= public


def test_nothing_is_listed_twice() -> None:
    assert len(set(fedtailor.__all__)) == len(fedtailor.__all__)


@pytest.mark.parametrize("name", fedtailor.__all__)
def test_every_name_is_documented(name: str) -> None:
    """In its own words: a dataclass without any has its signature for a docstring."""
    thing = getattr(fedtailor, name)
    words = inspect.getdoc(thing) or ""
    assert len(words) > 20 and not words.startswith(f"{name}("), name
    inherited = inspect.isclass(thing) and "__doc__" not in vars(thing)
    assert not inherited


@pytest.mark.parametrize("name", sorted(submodules() - {"__main__"}))
def test_every_module_says_what_it_is_for(name: str) -> None:
    module = importlib.import_module(f"fedtailor.{name}")
    assert len(module.__doc__ or "") > 20


def test_methods_are_frozen_and_hashable() -> None:
    for name in fedtailor.__all__:
        thing = getattr(fedtailor, name)
        if inspect.isclass(thing) and issubclass(thing, fedtailor.Method) and dataclasses.is_dataclass(thing):
            assert thing.__dataclass_params__.frozen, name  # type: ignore[attr-defined]
            assert "__repr__" not in vars(thing), f"{name} must print as the command line reads it: repr=False"
