"""What a site keeps: whole or refused, and never stepped twice."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fedtailor import WrongInput
from fedtailor.deploy import store as stores
from fedtailor.deploy.lock import held
from fedtailor.deploy.store import KEPT, Store, StoreError


def state(value: float) -> dict[str, Any]:
    return {"personal": {"w": torch.full((4,), value)}, "method": {}, "count": torch.tensor(int(value))}


def value_of(kept: dict[str, Any]) -> int:
    assert kept["method"] == {} and kept["personal"]["w"].tolist() == [float(kept["count"])] * 4
    return int(kept["count"])


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, "clinic")
    for round in range(1, 9):
        store.save(round, state(round), round - 1)
    assert store.rounds() == [5, 6, 7, 8] and len(store.rounds()) == KEPT + 1
    assert value_of(store.load(8)) == 8


def test_a_repeated_round_replaces_what_came_of_it(tmp_path: Path) -> None:
    """The answers of rounds 4 and 5 never arrived: round 6 goes on from round 3."""
    store = Store(tmp_path, "clinic")
    for round, base in ((1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (6, 3)):
        store.save(round, state(round), base)
    assert store.rounds() == [1, 2, 3, 6]


class Rounds(RuleBasedStateMachine):
    """A counter that each round steps once, through lost answers and crashes at any write."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.round = self.base = 0
        self.steps = {0: 0}  # rounds that count, and the steps they should have come to

    def teardown(self) -> None:
        self.folder.cleanup()

    def train(self, crash: bool) -> int | None:
        store = Store(Path(self.folder.name), "clinic")
        before = 0 if self.base == 0 else value_of(store.load(self.base))
        try:
            if crash:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(os, "replace", crashing)
                    store.save(self.round, state(before + 1), self.base)
            store.save(self.round, state(before + 1), self.base)
        except KeyboardInterrupt:
            return None
        return before + 1

    @rule(lost=st.booleans(), crash=st.booleans())
    def play(self, lost: bool, crash: bool) -> None:
        self.round += 1
        steps = self.train(crash)
        steps = self.train(False) if steps is None else steps  # started again, it is given the letter again
        assert steps == self.steps[self.base] + 1
        if not lost:
            self.base = self.round
            self.steps[self.round] = steps

    @rule()
    def server_goes_back(self) -> None:
        """To the checkpoint before; the site has that state still."""
        earlier = [round for round in self.steps if round < self.base]
        if earlier:
            del self.steps[self.base]
            self.base = max(self.steps)
            self.round = max(self.round - 1, self.base)

    @invariant()
    def the_state_that_counts_is_there(self) -> None:
        store = Store(Path(self.folder.name), "clinic")
        if self.base and self.base in store.rounds():
            assert value_of(store.load(self.base)) == self.steps[self.base]


def crashing(*_: Any) -> None:
    raise KeyboardInterrupt


Rounds.TestCase.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
TestRounds = Rounds.TestCase


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_damaged_state_is_noticed(tmp_path: Path, data: Any) -> None:
    """Any bit flipped, any length cut: refused, put aside, and the one before it is as it was."""
    store = Store(tmp_path, "clinic")
    store.save(1, state(1), 0)
    store.save(2, state(2), 1)
    file = store.path / "round-000002.safetensors"
    whole = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    else:
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(whole)
    with pytest.raises(StoreError, match="damaged"):
        store.load(2)
    assert store.rounds() == [1] and value_of(store.load(1)) == 1


def test_any_bytes_are_no_state(tmp_path: Path) -> None:
    store = Store(tmp_path, "clinic")
    for content in (b"", b"\0" * 8, b"{}", os.urandom(500), b"\x10\0\0\0\0\0\0\0" + b'{"__metadata__":{' * 3):
        (store.path / "round-000003.safetensors").write_bytes(content)
        with pytest.raises(StoreError):
            store.load(3)


def test_a_state_under_the_name_of_another_round_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, "clinic")
    store.save(1, state(1), 0)
    os.rename(store.path / "round-000001.safetensors", store.path / "round-000002.safetensors")
    with pytest.raises(StoreError, match="that of round 1"):
        store.load(2)


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, "clinic")
    store.save(1, state(1), 0)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StoreError, match="No space left on device; make room there, the earlier states are as they were"
    ):
        store.save(2, state(2), 1)
    monkeypatch.undo()
    assert store.rounds() == [1] and value_of(store.load(1)) == 1
    assert [file.name for file in store.path.iterdir()] == ["round-000001.safetensors"]


def test_rollback(tmp_path: Path) -> None:
    store = Store(tmp_path, "clinic")
    for round in (1, 2, 3):
        store.save(round, state(round), round - 1)
    store.save_final(3, {"w": torch.ones(1)})
    assert store.rollback(2) == [3] and store.rounds() == [1, 2] and store.load_final() is None
    with pytest.raises(WrongInput, match="no state of round 7; there is 1, 2"):
        store.rollback(7)


def take(path: Path, has: Any, let_go: Any) -> None:
    with held(path, "the state"):
        has.set()
        let_go.wait(60)


def test_two_processes_do_not_share_a_state(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    has, let_go = context.Event(), context.Event()
    other = context.Process(target=take, args=(tmp_path / "lock", has, let_go))
    other.start()
    assert has.wait(60)
    with pytest.raises(WrongInput, match="in use by another process"), held(tmp_path / "lock", "the state"):
        pass
    other.kill()  # whoever is killed lets go
    other.join()
    with held(tmp_path / "lock", "the state"):
        pass


def test_federations_are_listed(tmp_path: Path) -> None:
    Store(tmp_path, "one").note("journal", {})
    Store(tmp_path, "empty")
    assert [store.path.name for store in stores.stores(tmp_path)] == ["one"]
    with pytest.raises(WrongInput, match="no folder"):
        stores.stores(tmp_path / "none")
