"""What `list` says without PyTorch is what the package says of itself.

`PYTHONPATH=tests python tests/cli/test_catalogue.py` writes the file again.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from typing import Any

import pytest

from fedtailor import registry
from fedtailor.cli import catalogue


def made_again(kind: str) -> dict[str, Any]:
    """Described from the things themselves; every method is tried."""
    entries = [registry.entry(kind, name) for name in registry.names(kind)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = [entry for entry in entries if not registry.is_plugged(entry)]
        return {entry.name: dataclasses.asdict(catalogue.described(kind, entry)) for entry in own}


@pytest.mark.parametrize("kind", ["method", "model", "data", "partition"])
def test_the_catalogue_is_what_the_things_say_of_themselves(kind: str) -> None:
    kept = {name: dataclasses.asdict(item) for name, item in catalogue.kept(kind).items()}
    again = made_again(kind)
    assert list(kept) == list(again), f"write it again: {(__doc__ or '').splitlines()[2]}"
    for name, item in again.items():
        assert kept[name] == item, f"write it again: {(__doc__ or '').splitlines()[2]}"


if __name__ == "__main__":
    kinds = ("method", "model", "data", "partition")
    text = json.dumps({kind: made_again(kind) for kind in kinds}, indent=1, ensure_ascii=False)
    catalogue.FILE.write_text(text + "\n", encoding="utf-8")
