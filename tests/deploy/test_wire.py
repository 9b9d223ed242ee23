"""States as bytes: what goes in comes out, and what was not packed is refused, whatever it is."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtailor import tree
from fedtailor.deploy import wire
from fedtailor.deploy.wire import BadMessage

NAMES = st.text(st.characters(blacklist_characters="/", codec="utf-8"), min_size=1, max_size=8)


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    kind = draw(st.sampled_from(list(wire.KINDS.values())))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    raw = draw(st.binary(min_size=math.prod(shape) * kind.itemsize, max_size=math.prod(shape) * kind.itemsize))
    values = bytes(byte % 2 for byte in raw) if kind is torch.bool else raw
    return wire.unpack([["x", str(kind).removeprefix("torch."), shape]], values)["x"]


STATES = st.recursive(
    st.dictionaries(NAMES, tensors(), max_size=3),
    lambda inner: st.dictionaries(NAMES, st.one_of(tensors(), inner), max_size=3),
    max_leaves=6,
)


def through(packed: wire.Packed) -> Any:
    return wire.unpack(json.loads(json.dumps(packed.schema)), packed.body)


def assert_same(one: Any, other: Any) -> None:
    one, other = list(tree.leaves(one)), list(tree.leaves(other))
    assert [(path, wire.outline(tensor)) for path, tensor in one] == [(p, wire.outline(t)) for p, t in other]
    for (_, a), (_, b) in zip(one, other, strict=True):
        assert a is None or b is None or tree.raw(a) == tree.raw(b)


@given(STATES)
def test_what_goes_in_comes_out(state: Any) -> None:
    assert_same(through(wire.pack(state)), state)


def test_by_hand() -> None:
    """Two numbers of bfloat16: 1 is 0x3f80 and -2 is 0xc000, the lower byte first."""
    state = {"a": {"b": torch.tensor([1.0, -2.0], dtype=torch.bfloat16), "none": {}}, "c": torch.tensor(True)}
    packed = wire.pack(state)
    assert packed.body == bytes([0x80, 0x3F, 0x00, 0xC0, 0x01])
    assert packed.schema == (("a/b", "bfloat16", (2,)), ("a/none", "state", ()), ("c", "bool", ()))
    assert wire.size_of(packed.schema) == 5
    assert_same(through(packed), state)


@pytest.mark.parametrize("kind", wire.KINDS.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (2, 0, 3)], ids=str)
def test_every_type_and_shape(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    state = {"x": torch.ones(shape, dtype=kind)}
    assert_same(through(wire.pack(state)), state)


def test_views_and_strides_do_not_show() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    assert_same(
        through(wire.pack({"x": base.T, "y": base[1:2, ::2]})), {"x": base.T.clone(), "y": base[1:2, ::2].clone()}
    )


def test_what_comes_out_is_a_value() -> None:
    body = bytearray(wire.pack({"x": torch.zeros(4)}).body)
    out = wire.unpack([["x", "float32", [4]]], body)["x"]  # type: ignore[arg-type]
    body[:] = b"\xff" * len(body)
    assert out.tolist() == [0.0] * 4


@given(STATES, st.data())
def test_a_body_of_another_length_is_refused(state: Any, data: Any) -> None:
    packed = wire.pack(state)
    cut = data.draw(st.integers(0, len(packed.body)))
    body = packed.body[:cut] if cut < len(packed.body) else packed.body + b"?"
    with pytest.raises(BadMessage, match="bytes"):
        wire.unpack(json.loads(json.dumps(packed.schema)), body)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["float32", "state"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(ANYTHING | st.lists(st.tuples(ANYTHING, ANYTHING, ANYTHING).map(list), max_size=4), st.binary(max_size=64))
def test_any_schema_is_read_or_refused(schema: Any, body: bytes) -> None:
    try:
        state = wire.unpack(schema, body)
    except BadMessage:
        return
    assert_same(through(wire.pack(state)), state)


@pytest.mark.parametrize(
    ("schema", "body", "why"),
    [
        ([["a", "float32", [1]], ["a", "float32", [1]]], 8, "twice"),
        ([["a", "float32", [1]], ["a/b", "float32", [1]]], 8, "inside"),
        ([["a/b", "float32", [1]], ["a", "float32", [1]]], 8, "inside"),
        ([["a", "state", []], ["a/b", "float32", [1]]], 4, "inside"),
        ([["a//b", "float32", [1]]], 4, "path"),
        ([["", "float32", [1]]], 4, "path"),
        ([["a", "object", [1]]], 8, "type"),
        ([["a", "float32", [-1]]], 0, "shape"),
        ([["a", "float32", [True]]], 4, "shape"),
        ([["a", "float32", [2**40, 2**40, 0]]], 4, "bytes"),
        ([["a", "float32", [2**40, 2**40]]], 4, "bytes"),
        ([["a", "float32", [1] * 17]], 4, "shape"),
        ([["a", "bool", [1]]], 1, "neither"),
        ([["a", "float32"]], 4, "entry"),
        ({"a": 1}, 4, "list"),
    ],
)
def test_bad_schemas(schema: Any, body: int, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        wire.unpack(schema, b"\x02" * body)


def test_a_state_is_measured_against_an_example() -> None:
    example = {"w": torch.zeros(2, 3), "b": torch.zeros(2, dtype=torch.int64)}
    wire.check_like({"b": torch.ones(2, dtype=torch.int64), "w": torch.ones(2, 3)}, example, "upload")
    for wrong, why in (
        ({"w": example["w"]}, "lacks 'b'"),
        ({**example, "x": example["w"]}, "unknown 'x'"),
        ({**example, "w": torch.zeros(3, 2)}, r"float32 \(3, 2\)"),
        ({**example, "w": torch.zeros(2, 3).double()}, "float64"),
        ({**example, "w": {}}, "lacks 'w'|empty"),
        ({**example, "w": {"w": example["w"]}}, "'w/w'|lacks"),
    ):
        with pytest.raises(BadMessage, match=why):
            wire.check_like(wrong, example, "upload")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.complex64])
def test_values_that_are_no_numbers(value: float, kind: torch.dtype) -> None:
    wire.check_finite({"x": torch.ones(3, dtype=kind), "n": torch.ones(1, dtype=torch.int64)}, "upload")
    with pytest.raises(BadMessage, match="'a/x' holds"):
        wire.check_finite({"a": {"x": torch.tensor([1.0, value], dtype=kind)}}, "upload")
