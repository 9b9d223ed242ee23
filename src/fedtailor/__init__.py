"""Fedtailor: personalised federated learning, from a first experiment to a real federation."""

from __future__ import annotations

import importlib.util as _finder
from importlib import import_module as _import
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedtailor.interface import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """What the package offers is imported when first asked for: much that the command line answers needs none."""
        dunder = name.startswith("__") and name != "__all__"
        if not dunder and _finder.find_spec(f"{__name__}.{name}"):
            return _import(f"{__name__}.{name}")
        offered = None if dunder else _import(f"{__name__}.interface")
        if offered is None or (name != "__all__" and name not in offered.__all__):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(offered, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")} - {"TYPE_CHECKING"})
