"""Very many clients: their states are in a file, their checkpoints add what changed, and neither changes a result."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from small import (
    Everything,
    StopAfter,
    assert_same_state,
    go_on,
    method_named,
    rows_of,
    small_federation,
    small_spec,
)
from test_record import bits, outline, states

import fedtailor
from fedtailor import Driver, FedAvg, RunSpec, WrongInput, federate, load, registry, shards, sparse, store, tree
from fedtailor.contract import must_equal
from fedtailor.record import RunFolder, to_json
from fedtailor.runners.sequential import Sequential
from fedtailor.sparse import Sparse, spread
from fedtailor.store import Kept, Layout, Shelf
from fedtailor.toy import run

# ---------- the file of states ----------


@settings(max_examples=100)
@given(st.lists(states(), min_size=1, max_size=4))
def test_a_shelf_gives_back_what_was_put(some: list[dict[str, Any]]) -> None:
    shelf = Shelf()
    slips = [shelf.put(state) for state in some]
    for state, slip in zip(some, slips, strict=True):
        again = shelf.get(slip)
        assert outline(again) == outline(state) and bits(again) == bits(state)


def test_what_is_one_tensor_is_written_once_and_stays_one() -> None:
    model = torch.arange(1000.0)
    layout, values = Layout.of({"a": model, "b": {"c": model.detach()}, "d": {}})
    assert len(values) == 1 and layout.size == 4032  # 4000 bytes and the rest of the last 64
    again = Shelf().put({"a": model, "b": {"c": model}}).shelf
    assert again.length == 4032


def test_places_are_used_again_when_nobody_has_their_slip() -> None:
    shelf = Shelf()
    first, second = shelf.put({"w": torch.zeros(16)}), shelf.put({"w": torch.ones(16)})
    assert shelf.length == 128
    del first
    third = shelf.put({"w": torch.full((16,), 2.0)})
    assert shelf.length == 128
    assert shelf.get(second)["w"].tolist() == [1] * 16 and shelf.get(third)["w"].tolist() == [2] * 16


def kept_of(n: int, monkeypatch: pytest.MonkeyPatch, many: int) -> Kept:
    monkeypatch.setattr(store, "MANY", many)
    return Kept(n, lambda number: {"w": torch.full((2,), float(number)), "none": {}})


@pytest.mark.parametrize("many", [2, 1000])
def test_states_are_values(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that does not come to its end leaves those of the round before; and nothing is an alias."""
    before = kept_of(5, monkeypatch, many)
    assert (before.shelf is None) == (many == 1000)
    after = before.copy()
    mine = torch.tensor([7.0, 8.0])
    after.put(3, {"w": mine, "none": {}}, 1)
    mine += 1
    if after.shelf is not None:
        after[3]["w"].zero_()
        assert after[3]["w"].tolist() == [7, 8]
    assert before[3]["w"].tolist() == [3, 3] and before.replaced() == []
    assert after.replaced() == [3] and after.replaced(after=1) == []
    last = after.copy()
    last.put(3, {"w": torch.tensor([0.0, 1.0]), "none": {}}, 2)
    assert after[3]["w"].tolist()[0] == 7 + (many == 1000) and last[3]["w"].tolist() == [0, 1]
    assert [state["w"][0].item() for state in last] == [0, 1, 2, 0, 4] and len(last) == 5


def test_a_first_state_is_made_once_and_let_go_when_it_is_replaced() -> None:
    """Also by rounds that replace nothing, as those of a method that keeps nothing."""
    made: list[int] = []

    def first(number: int) -> dict[str, Any]:
        made.append(number)
        return {"w": torch.full((2,), float(number))}

    kept = Kept(3, first)
    made.clear()
    for round in range(1, 4):
        kept = kept.copy()
        assert [state["w"][0].item() for state in kept][:2] == [0, 1]
        kept.put(2, {"w": torch.zeros(2)}, round)
    assert made == [0, 1, 2] and set(kept.firsts) == {0, 1}


def test_a_lane_is_cut_out_of_its_stack() -> None:
    """Else one client's state would keep those of all that trained beside it."""
    stack = torch.randn(64, 100)
    kept = Kept(2, lambda number: {"w": stack[0].clone()})
    kept.put(0, {"w": stack[5], "again": stack[5]}, 1)
    assert kept[0]["w"].untyped_storage().nbytes() == 400 and kept[0]["w"] is kept[0]["again"]
    assert torch.equal(kept[0]["w"], stack[5])


# ---------- runs ----------


@pytest.mark.parametrize("name", ["Everything", "ALA(FedBN())", "Ditto", "FedAvg"])
def test_the_same_bits_wherever_states_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = Everything() if name == "Everything" else registry.parse("method", name)
    ends = []
    for many in (1000, 2):
        monkeypatch.setattr(store, "MANY", many)
        monkeypatch.setattr(sparse, "MANY", many)
        driver = run(Driver(small_spec(method), small_federation(), Sequential(1)))
        driver.finish()
        ends.append(driver)
    assert ends[1].kept.shelf is not None and ends[0].kept.shelf is None
    must_equal(*ends, "with its states in a file")


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five clients are very many."""
    monkeypatch.setattr(store, "MANY", 2)
    monkeypatch.setattr(sparse, "MANY", 2)


def header(path: Path) -> dict[str, Any]:
    """Of a safetensors file, read by hand."""
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return found


def shards_in(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "checkpoints").glob("sites-*"))


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("name", ["Everything", "ALA(FedBN())"])
def test_a_run_is_resumed_from_shards(
    name: str, anew: bool, many: None, fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after any round; also where the shards are written anew at every checkpoint."""
    if anew:
        monkeypatch.setattr(shards, "MOST", 0)
    method = method_named(name) if name == "Everything" else registry.parse("method", name)
    federate(small_spec(method, cohort=2), small_federation(), out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(store, "MANY", 1000)
        federate(small_spec(method, cohort=2), small_federation(), out=tmp_path / "in-memory")
    round, state, _ = RunFolder(tmp_path / "whole").load()
    plain = RunFolder(tmp_path / "in-memory").load()
    assert_same_state((round, {**state, "clients": dict(state["clients"])}, []), plain)
    for after in (1, 2, 4):
        path = tmp_path / f"stopped-{after}"
        with pytest.raises(KeyboardInterrupt):
            federate(small_spec(method, cohort=2), small_federation(), out=path, callbacks=[StopAfter(after)])
        assert shards_in(path)
        go_on(path)
        assert rows_of(path) == rows_of(tmp_path / "whole")
        assert_same_state(RunFolder(path).load(), RunFolder(tmp_path / "whole").load())


def test_a_checkpoint_writes_what_changed(many: None, tmp_path: Path) -> None:
    """One of five clients trains: one state is written; and shards without a reader go."""
    path = tmp_path / "run"
    federate(small_spec(registry.parse("method", "FedBN"), cohort=1, rounds=4), small_federation(), out=path)
    lines = [json.loads(line) for line in (path / "rows.jsonl").read_text().splitlines()]
    assert lines[0]["steps"]["of"] == 5 and len(lines[0]["steps"]["at"]) == 1
    newest, older = RunFolder(path).checkpoints()
    rows = [header(path / "checkpoints" / name)["number"]["shape"] for name in shards_in(path)]
    assert rows == [[1]] * 4
    assert newest.name == "round-000004.safetensors" and older.name == "round-000003.safetensors"


def test_a_damaged_shard_is_noticed_and_passed_over(many: None, tmp_path: Path) -> None:
    path = tmp_path / "run"
    spec = small_spec(registry.parse("method", "FedBN"), cohort=1, rounds=4)
    federate(spec, small_federation(), out=path)
    newest = path / "checkpoints" / shards_in(path)[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    round, _, said = RunFolder(path).load()
    assert round == 3 and "round-000004.safetensors is damaged" in said[0] and newest.name in said[0]
    with pytest.warns(UserWarning, match="is damaged"):
        go_on(path)
    federate(spec, small_federation(), out=tmp_path / "whole")
    assert_same_state(RunFolder(path).load(), RunFolder(tmp_path / "whole").load())
    (path / "checkpoints" / shards_in(path)[0]).unlink()
    with pytest.raises(WrongInput, match=r"no checkpoint of .* is good any more"):
        RunFolder(path).load()


# ---------- lists over all clients ----------


def test_a_sparse_list_reads_like_a_list() -> None:
    few = {3: 1.5, 7: None}
    one = Sparse(5000, few, 0)
    plain = [few.get(i, 0) for i in range(5000)]
    assert one == plain and list(one) == plain and one != plain[:-1] and one != Sparse(5000, {3: 1.5}, 0)
    assert (one[3], one[-1], one[7], one[2:5], len(one)) == (1.5, 0, None, [0, 1.5, 0], 5000)
    assert sum(entry or 0 for entry in one) == 1.5
    with pytest.raises(IndexError):
        one[5000]
    assert isinstance(spread(5000, few, 0), Sparse) and spread(5, few, 0) == [0, 0, 0, 1.5, 0]
    again = json.loads(to_json({"row": {"steps": one}}), object_hook=sparse.from_json)
    assert again["row"]["steps"] == one and isinstance(again["row"]["steps"], Sparse)


# ---------- memory and time ----------

SCRIPT = """
import sys, torch
from fedtailor import Ditto, Federation, RunSpec
from fedtailor.driver import Driver
from fedtailor.runners.stacked import Stacked

n, rounds = int(sys.argv[1]), int(sys.argv[2])
none = torch.empty(0, dtype=torch.int64)
x = torch.randn(2 * n, 1, 28, 28, generator=torch.Generator().manual_seed(0))
federation = Federation(
    name="many", x=x, y=torch.arange(2 * n) % 10, train=torch.arange(2 * n).split(2), validation=(none,) * n,
    test=(none,) * n, clients=tuple(map(str, range(n))), groups=(0,) * n, group_names=("all",),
    classes=tuple("0123456789"),
)
spec = RunSpec(Ditto(), model="dnn", cohort=50, rounds=10**6, eval_every=10**6, steps=1, batch=2)
driver = Driver(spec, federation, Stacked(1))
for _ in range(rounds):
    driver.step()
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024, len(driver.kept.replaced()))
"""


def peak(clients: int, rounds: int) -> tuple[int, int]:
    """Most memory that a process had, in megabytes, and the clients that have a state of their own."""
    source = str(Path(fedtailor.__file__).parents[1])
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(clients), str(rounds)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    most, touched = told.stdout.split()
    return int(most), int(touched)


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")


@needs_proc
def test_memory_is_bounded_by_the_clients_that_train() -> None:
    """Each client that trained keeps 318 kB: 230 MB in all, which must not be in memory."""
    few, _ = peak(100, 20)
    many, touched = peak(1500, 20)
    states = touched * 0.318
    assert touched > 650 and states > 200
    assert many - few < 0.4 * states, f"{few} MB with 100 clients, {many} MB with 1500"


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_is_bounded_by_the_clients_that_train_ten_thousand() -> None:
    few, _ = peak(100, 250)
    many, touched = peak(10_000, 250)
    data = 2 * 10_000 * 784 * 4 / 1e6
    assert touched > 7000  # more than 2 GB
    assert many - few - data < 250, f"{few} MB with 100 clients, {many} MB with 10,000"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["FedAvg", "Ditto"])
def test_ten_thousand_clients_are_as_fast_as_a_hundred_and_are_resumed(name: str, tmp_path: Path) -> None:
    """With a checkpoint after every round; processor time of rounds taken in turns, 1.3 times at most."""
    method = registry.parse("method", name)
    drivers, folders, spent = {}, {}, dict[int, list[float]]()
    for n in (100, 10_000):
        federation = load(f"synthetic(clients={n}, sizes=(50, 500))")
        spec = RunSpec.of(federation, method, cohort=50, rounds=30, eval_every=30, checkpoint_every=1, runner="stacked")
        drivers[n], spent[n] = Driver(spec, federation, fedtailor.runners.stacked.Stacked(1)), []
        folders[n] = RunFolder.create(tmp_path / str(n), drivers[n].info())
    for _ in range(20):
        for n, driver in drivers.items():
            began = time.process_time()
            folders[n].append(driver.step())
            driver.save(folders[n])
            spent[n].append(time.process_time() - began)
    ratio = statistics.median(b / a for a, b in zip(spent[100], spent[10_000], strict=True))
    assert ratio < 1.3, f"a round takes {ratio:.2f} times as long"
    whole = drivers[10_000]
    again = Driver(whole.spec, whole.federation, fedtailor.runners.stacked.Stacked(1))
    round, state, _ = RunFolder(tmp_path / "10000").load()
    again.restore(round, state, RunFolder(tmp_path / "10000").rows())
    assert again.round == 20 and again.rows == whole.rows
    for driver in (whole, again):
        driver.step()
    for i in whole.kept.replaced(after=20):
        left, right = tree.flatten(whole.kept[i]), tree.flatten(again.kept[i])
        assert left.keys() == right.keys() and all(torch.equal(left[path], right[path]) for path in left)
    assert all(torch.equal(whole.server["model"][p], again.server["model"][p]) for p in ("head.weight", "head.bias"))


def test_fed_avg_keeps_nothing_and_writes_no_shard(many: None, tmp_path: Path) -> None:
    federate(small_spec(FedAvg(), rounds=2, buffers="with_layer"), small_federation(), out=tmp_path / "run")
    assert shards_in(tmp_path / "run") == []
