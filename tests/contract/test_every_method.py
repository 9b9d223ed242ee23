"""Every registered method against every law of the contract."""

from __future__ import annotations

import inspect

import pytest

import fedtailor as ft
from fedtailor import registry
from fedtailor.contract import LAWS, Method


def example(name: str) -> Method:
    """The method by that name; a plug-in around FedAvg."""
    entry = registry.entry("method", name)
    inner = inspect.signature(entry.factory).parameters.get("inner")
    text = f"{name}(FedAvg())" if inner is not None and inner.default is inner.empty else name
    return registry.parse("method", text)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", registry.names("method"))
def test_keeps_the_law(name: str, law: str) -> None:
    LAWS[law](example(name))


def test_every_exported_method_is_registered() -> None:
    registered = {registry.entry("method", name).factory for name in registry.names("method")}
    exported = {getattr(ft, name) for name in ft.__all__ if getattr(ft, name).__class__ is type}
    methods = {cls for cls in exported if issubclass(cls, ft.Method)} - {ft.Method, ft.Wrapper}
    assert methods <= registered
