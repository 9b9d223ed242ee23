from __future__ import annotations

import pytest
from small_table import SMALL_TABLE

from fedtailor import papers
from fedtailor.papers.preset import Table


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """In place of FedMCSA's table 2."""
    monkeypatch.setitem(papers.TABLES, "fedmcsa:table2", SMALL_TABLE)
    return SMALL_TABLE
