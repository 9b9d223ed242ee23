"""Uploads lie where their stack needs them: the same values as a stack that is copied, in the same memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import memory_link as memory
import pytest
import torch
from small import SmallNet, method_named, small_federation, small_spec

from fedtailor import registry, tree
from fedtailor.deploy import slots, wire
from fedtailor.tree import State

EXAMPLE = {"w": torch.zeros(3, 5), "b": torch.zeros(()), "seen": torch.zeros(2, dtype=torch.int64)}


def upload(number: int, **more: torch.Tensor) -> State:
    values = torch.arange(15.0).reshape(3, 5) * (number + 1)
    model = {"w": values, "b": torch.tensor(float(number)), "seen": torch.tensor([number, 7])}
    return {"model": {**model, **more}, "extra": {"c": torch.full((2,), float(number))}}


def arrived(room: slots.Slots, number: int, state: State) -> State:
    """What comes out of a site's answer."""
    packed = wire.pack({"upload": state})
    schema = [[path, kind, list(shape)] for path, kind, shape in packed.schema]
    found: State = wire.unpack(schema, packed.body, room.of(number))["upload"]
    return found


def equal(one: State, other: State) -> bool:
    a, b = tree.flatten(one), tree.flatten(other)
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) and a[name].dtype is b[name].dtype for name in a)


def of(numbers: Sequence[int]) -> slots.Slots:
    return slots.Slots(numbers, slots.outlines_of(EXAMPLE))


@pytest.mark.parametrize("order", list(itertools.permutations([2, 5, 9])))
def test_the_stack_is_there_whatever_the_order_in_which_they_come(order: tuple[int, ...]) -> None:
    room = of([9, 2, 5])
    came = {number: arrived(room, number, upload(number)) for number in order}
    in_order = [came[number] for number in sorted(came)]
    stacked = slots.stack(in_order)
    assert equal(stacked, tree.stack([upload(number) for number in sorted(came)]))
    for name in EXAMPLE:
        assert stacked["model"][name].data_ptr() == in_order[0]["model"][name].data_ptr(), "it was copied"
    assert stacked["extra"]["c"].data_ptr() != in_order[0]["extra"]["c"].data_ptr()


@pytest.mark.parametrize("gone", [2, 5, 9])
def test_of_those_who_answered_the_stack_is_right_too(gone: int) -> None:
    room = of([2, 5, 9])
    came = {number: arrived(room, number, upload(number)) for number in (9, 5, 2)}
    del came[gone]
    left = sorted(came)
    assert equal(slots.stack([came[n] for n in left]), tree.stack([upload(n) for n in left]))


def test_what_is_no_part_of_the_model_gets_no_slot() -> None:
    """A site cannot have room made for as many as there are by sending names, shapes or types of its own."""
    room = of([2, 5])
    odd = upload(2, w=torch.ones(4, 5), b=torch.ones((), dtype=torch.float64), huge=torch.ones(100))
    came = arrived(room, 2, odd)
    assert equal(came, odd) and set(room.whole) == {"seen"}
    assert equal(arrived(room, 3, upload(3)), upload(3)) and set(room.whole) == {"seen"}  # was not asked


def test_a_site_writes_into_its_own_slot_only() -> None:
    room = of([2, 5])
    first = arrived(room, 2, upload(2))
    arrived(room, 5, upload(5))
    assert equal(first, upload(2))


def test_uploads_of_equal_memory_are_not_taken_for_neighbours() -> None:
    """One tensor twice, and rows in the wrong order: copied, as they must be."""
    room = of([2, 5])
    a, b = arrived(room, 2, upload(2)), arrived(room, 5, upload(5))
    assert equal(slots.stack([a, a]), tree.stack([upload(2), upload(2)]))
    assert equal(slots.stack([b, a]), tree.stack([upload(5), upload(2)]))


@pytest.mark.parametrize(("method", "there"), [("FedAvg", [True, True, True]), ("FedMCSA", [False, True, True])])
def test_the_server_copies_no_upload(
    method: str, there: list[bool], fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all sites train, the first uploads are asked for, and copied; the rest come with answers."""
    registry.register("model", "SmallNet")(SmallNet)
    spec = small_spec(method_named(method), rounds=3, model="SmallNet", cohort=1.0)
    server, _ = memory.coordinate(spec, small_federation(), tmp_path)
    seen: list[bool] = []

    def stack(uploads: Sequence[State]) -> State:
        stacked = slots.stack(uploads)
        first = uploads[0]["model"]
        seen.append(all(tensor.data_ptr() == first[name].data_ptr() for name, tensor in stacked["model"].items()))
        return stacked

    monkeypatch.setattr(server, "stacked", stack)
    for _ in there:
        server.step()
    assert seen == there
