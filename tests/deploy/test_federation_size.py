"""What size costs: many tensors are as quick as one, and a large model does not fill the server's memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.mark.federation
@pytest.mark.timeout(600)
def test_three_hundred_tensors_are_as_quick_as_one() -> None:
    """The same megabyte; one object per tensor would take more than ten times as long."""
    import federation

    one, _ = federation.ours(1.0, tensors=1)
    many, _ = federation.ours(1.0, tensors=300)
    assert many < 3 * one, (one, many)


@pytest.mark.federation
def test_the_link_needs_no_pytorch() -> None:
    code = "import sys, fedtailor.deploy.serve, fedtailor.deploy.flower_routes; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.federation_long
@pytest.mark.timeout(900)
def test_two_hundred_megabytes_stay_below_ten_times_that() -> None:
    """The server's three processes together, each at its most, and all that they are without a model."""
    import federation

    _, peak = federation.ours(200.0, rounds=2)
    print(f"most memory for 200 MB: {peak}")
    assert sum(peak.values()) < 2000
