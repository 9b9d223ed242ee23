"""The examples do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtailor import RunSpec, check_method, federate, load, registry

OWN = Path(__file__).parents[1] / "examples" / "your_own_method.py"


@pytest.mark.usefixtures("fresh")
def test_a_method_of_ones_own_in_thirty_lines() -> None:
    registry.load_plugin(OWN)
    blend = registry.parse("method", "Blend(share=0.7)")
    check_method(blend)
    federation = load("digits")
    run = federate(RunSpec.of(federation, blend, rounds=2), federation)
    assert [row["round"] for row in run.rows] == [1, 2, 2]
    lines = [line for line in OWN.read_text(encoding="utf-8").split('"""', 2)[2].splitlines() if line.strip()]
    assert len(lines) <= 30
