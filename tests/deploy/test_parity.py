"""A federation through sealed letters ends where the simulator ends, bit for bit: every method, all its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memory_link as memory
import pytest
from small import SmallNet, method_named, small_federation, small_spec

from fedtailor import Driver, registry, tree
from fedtailor.runners.sequential import Sequential
from fedtailor.tree import leaves


def same(one: Any, other: Any) -> None:
    """The same tensors under the same names in the same order, to the last bit."""
    one, other = list(leaves(one)), list(leaves(other))
    assert [path for path, _ in one] == [path for path, _ in other]
    for (path, a), (_, b) in zip(one, other, strict=True):
        assert (a is None) == (b is None), path
        if a is not None and b is not None:
            assert (a.dtype, a.shape) == (b.dtype, b.shape), path
            assert tree.raw(a) == tree.raw(b), path


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "seconds"}


@pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
@pytest.mark.parametrize("name", [*registry.names("method"), "Everything"])
def test_a_federation_is_the_simulation(name: str, fresh: None, tmp_path: Path) -> None:
    registry.register("model", "SmallNet")(SmallNet)
    method = method_named(name)
    if not memory.is_possible(method):
        pytest.skip("needs rows of several sites in one place")
    federation = small_federation()
    spec = small_spec(method, rounds=3, model="SmallNet", eval_every=2)
    simulated = Driver(spec, federation, Sequential(1))
    coordinator, link = memory.coordinate(spec, federation, tmp_path)
    for _ in range(spec.rounds):
        row, remote_row = simulated.step(), coordinator.step()
        assert without_times(row) == without_times(remote_row)
        same(simulated.server, coordinator.server)
    assert without_times(simulated.finish()) == without_times(coordinator.finish())
    delivery = simulated.last_delivery()
    for i, client in enumerate(federation.clients):
        member = link.members[client]
        assert member.place is not None
        same(simulated.kept[i], member.kept(coordinator.base(i)))
        same(simulated.final(i, delivery), member.store.load_final())
        assert member.finished
