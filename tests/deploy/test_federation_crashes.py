"""kill -9 of everything there is, one after the other, in the rounds of one federation; and its end is as if nothing
had happened."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import real

from fedtailor import Driver
from fedtailor.record import RunFolder
from fedtailor.runners.sequential import Sequential

pytest.importorskip("flwr")
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

PAUSE = 0.3  # seconds in each of the six steps of a round


def in_round(processes: real.Processes, site: str, round: int) -> None:
    """Wait until a site works on a round: it has taken the letter, and not answered it."""
    state = processes.base / f"{site}-state" / processes.folder.settings.id

    def works() -> bool:
        done = [int(path.stem[6:]) for path in state.glob("round-*.safetensors")]
        journal = state / "journal.json"
        return max(done, default=0) == round - 1 and journal.exists() and '"answered": false' in journal.read_text()

    processes.wait(works, f"{site} to work on round {round}")


def took_part(folder: real.Folder) -> list[list[bool]]:
    """Round by round, who trained."""
    rows = RunFolder(folder.path / "run").rows()
    return [[steps > 0 for steps in row["steps"]] for row in rows if not row.get("finish")]


@pytest.mark.federation
@pytest.mark.parametrize("method", ["Ditto()"])
def test_everything_is_killed_and_nothing_is_stepped_twice(method: str, tmp_path: Path) -> None:
    run = {"method": method, "rounds": 9, "momentum": 0.5}
    folder = real.make(tmp_path / "server", run=run, deadline=120.0)
    with real.processes(folder, PAUSE) as processes:
        processes.serve()
        for site in real.SITES:
            processes.join(site)

        processes.wait_for_round(1)
        in_round(processes, "inverted-1", 2)
        processes.kill("inverted-1")
        processes.join("inverted-1")

        processes.wait_for_round(3)
        in_round(processes, "plain-1", 4)
        os.kill(processes.part("link"), signal.SIGKILL)

        processes.wait_for_round(5)
        in_round(processes, "plain-1", 6)
        os.kill(processes.part("loop"), signal.SIGKILL)

        processes.wait_for_round(7)
        in_round(processes, "noisy-1", 8)
        for name in ("serve", *real.SITES):
            processes.kill(name)
        processes.serve()
        for site in real.SITES:
            processes.join(site)
        processes.complete()
        for site in real.SITES:
            processes.wait(lambda site=site: processes.running[site].poll() is not None, f"{site} to end")
            assert processes.running[site].returncode == 0
    real.assert_equal(folder, real.simulated(folder))
    rows = RunFolder(folder.path / "run").rows()
    assert [sum(steps > 0 for steps in row["steps"]) for row in rows[:-1]] == [3] * 9


@pytest.mark.federation
def test_a_slow_site_and_a_late_one(tmp_path: Path) -> None:
    """A site past its deadline loses its round and its state stands still; one that comes later joins in."""
    folder = real.make(tmp_path / "server", run={"rounds": 99}, quorum=1, patience=3.0, deadline=8.0)
    slow, late = real.SITES[1], real.SITES[2]
    with real.processes(folder, 0.3) as processes:
        processes.serve()
        processes.join(real.SITES[0])
        processes.join(slow, FEDTAILOR_PAUSE="6.0")
        processes.wait_for_round(2)
        processes.kill(slow)
        processes.join(slow)
        processes.join(late)
        processes.wait(lambda: took_part(folder)[-1] == [True, True, True], "all three in one round")
        (folder.path / "stop").touch()
        processes.complete()
    taken = took_part(folder)
    assert all(of_round[0] for of_round in taken) and not taken[0][1] and not taken[1][1]
    assert not taken[0][2] and [True, True, True] in taken
    told = [event.get("reason") for event in real.events(folder) if event.get("site") == slow]
    assert "it did not answer in time" in told

    class Leaving(Sequential):
        """The simulation in which the same answers are missing."""

        def train(self, work, round, examine):  # type: ignore[no-untyped-def]
            return (r for r in super().train(work, round, examine) if taken[round - 1][r.number])

    driver = Driver(folder.settings.spec(), real.three_sites(), Leaving(1))
    for _ in taken:
        driver.step()
    _, state, _ = RunFolder(folder.path / "run").load()
    real.same(state["server"], driver.server)


@pytest.mark.federation_long
def test_a_full_disk_at_a_site(tmp_path: Path) -> None:
    """The site says so and goes on when there is room again; the federation goes on without it."""
    folder = real.make(tmp_path / "server", run={"method": "Ditto()", "rounds": 99}, quorum=2, deadline=60.0)
    site = real.SITES[0]
    state = tmp_path / f"{site}-state"
    with real.processes(folder, 0.5) as processes:
        processes.serve()
        for name in real.SITES:
            processes.join(name, FULL_DISK=str(tmp_path / "full"))
        processes.wait_for_round(2)
        (tmp_path / "full").write_text(str(state))
        processes.wait_for_word(site, "No space left on device; make room there, the earlier states are as they were")
        last = processes.round()
        processes.wait_for_round(last + 1)
        lost = len(took_part(folder))
        (tmp_path / "full").unlink()
        processes.wait(lambda: any(of_round[0] for of_round in took_part(folder)[lost:]), "the site to be back")
        (folder.path / "stop").touch()
        processes.complete()
    taken = [of_round[0] for of_round in took_part(folder)]
    assert taken[:2] == [True, True] and not all(taken[:lost]) and any(taken[lost:])
    assert "StoreError with its stored state" in str(real.events(folder))
