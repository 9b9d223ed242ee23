"""The page on what was reproduced says what the kept records say, and shows nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedtailor.papers import reproduction

ROOT = Path(__file__).parents[2]
RECORDS, PAGE = ROOT / "results", ROOT / "docs" / "explanation" / "reproduction.md"


@pytest.mark.skipif(not RECORDS.is_dir(), reason="the records are in the repository and not in a release")
def test_the_page_is_made_of_the_records(tmp_path: Path) -> None:
    kept = reproduction.write(RECORDS, tmp_path / PAGE.name)
    assert not [name for one in kept for name in one.stale]
    assert (tmp_path / PAGE.name).read_text() == PAGE.read_text(), (
        "write it anew: fedtailor reproduce report results --out docs/explanation/reproduction.md"
    )
    shown = set(re.findall(r"\]\(([^)]+\.png)\)", PAGE.read_text()))
    there = {str(file.relative_to(PAGE.parent)) for file in (PAGE.parent / PAGE.stem).glob("*.png")}
    assert shown == there
