"""What all tests share: one thread, no display, steady random examples, the larger data where they exist."""

from __future__ import annotations

import os
from pathlib import Path

# For the processes that tests start as well; read when torch and matplotlib are imported, so set before.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MPLBACKEND"] = "Agg"

# A data folder beside the checkout is found by itself; FEDTAILOR_DATA names any other.
beside_the_checkout = Path(__file__).parents[2] / "shared" / "data"
if beside_the_checkout.is_dir():
    os.environ.setdefault("FEDTAILOR_DATA", str(beside_the_checkout))

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from fedtailor import registry  # noqa: E402
from fedtailor.runners import planner  # noqa: E402

torch.set_num_threads(1)

# The same examples in every run, and no deadline: the first call of a torch kernel is slow.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def a_memory_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests measure is not remembered for their user, and what that one has measured plays no part."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def the_oracle(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Laws and limits hold to the last bit one client after the other; tests/runners show that the others agree."""
    if "runners" not in request.path.parts:
        monkeypatch.setattr(planner, "planned", lambda _: (planner.KINDS["sequential"](1), ""))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that forgets what a test adds."""
    entries = {kind: dict(known) for kind, known in registry._entries.items()}
    monkeypatch.setattr(registry, "_entries", entries)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of the larger data sets; a test that needs it is skipped where there is none."""
    folder = os.environ.get("FEDTAILOR_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the larger data sets: set FEDTAILOR_DATA to their folder")
    return Path(folder)
