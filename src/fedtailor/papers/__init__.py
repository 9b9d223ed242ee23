"""The published tables and figures of the papers, ready to be run again."""

from __future__ import annotations

import difflib

from fedtailor.papers import fedala, fedham, fedmcsa, partialfed, pfedla
from fedtailor.papers.preset import Table
from fedtailor.registry import WrongInput

PAPERS = (pfedla, fedham, partialfed, fedmcsa, fedala)
TABLES: dict[str, Table] = {table.id: table for paper in PAPERS for table in paper.TABLES}


def table(name: str) -> Table:
    """The table of a name such as `fedmcsa:table2`."""
    found = TABLES.get(name.strip().lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), TABLES, n=2, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(TABLES)}"
        raise WrongInput(f"there is no table {name!r}; {hint} (`fedtailor reproduce list`)")
    return found
