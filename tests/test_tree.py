"""Operations on trees: against NumPy where they compute, against each other where they take apart and put together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from fedtailor import tree

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def model(seed: int = 0, dtype: torch.dtype = torch.float32) -> tree.Tree:
    drawn = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(3, 2, generator=drawn).to(dtype),
        "scalar": torch.randn((), generator=drawn).to(dtype),
        "none": torch.empty(0, 2, dtype=dtype),
        "counter": torch.tensor(seed + 3),
    }


def same(a: tree.State, b: tree.State) -> bool:
    """Bit for bit, types and the order of names included."""
    one, other = tree.flatten(a), tree.flatten(b)
    return list(one) == list(other) and all(
        one[n].dtype is other[n].dtype and torch.equal(one[n], other[n]) for n in one
    )


# ---------- names ----------


def test_pick_and_drop_share_out_the_names() -> None:
    whole = model()
    for names in (set(), {"w"}, {"w", "counter", "not there"}, set(whole)):
        kept, left = tree.pick(whole, names), tree.drop(whole, names)
        assert set(kept) == names & set(whole) and set(left) == set(whole) - names
        assert all(whole[name] is tensor for name, tensor in {**kept, **left}.items())
    assert list(tree.pick(whole, ["scalar", "w"])) == ["w", "scalar"], "in the order of the tree, not of the question"


PATHS = st.lists(st.text("abc.", min_size=1, max_size=2), min_size=1, max_size=3)


@given(st.lists(PATHS, max_size=6))
def test_flatten_and_unflatten_are_inverse(paths: list[list[str]]) -> None:
    state: dict[str, Any] = {}
    for number, path in enumerate(paths):
        inner = state
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
            if isinstance(inner, Tensor):
                break
        else:
            inner.setdefault(path[-1], torch.tensor(number))
    flat = tree.flatten(state)
    assert all(isinstance(tensor, Tensor) for tensor in flat.values())
    assert same(tree.unflatten(flat), state)
    assert tree.flatten({"model": {"a.b": torch.ones(1)}}).keys() == {"model/a.b"}


def test_what_is_no_tensor_is_named() -> None:
    with pytest.raises(TypeError, match="'ala/steps' is a int; make it a tensor"):
        tree.flatten({"ala": {"w": torch.ones(1), "steps": 3}})


# ---------- arithmetic ----------


@pytest.mark.parametrize("dtype", DTYPES)
def test_mean_is_the_weighted_mean(dtype: torch.dtype) -> None:
    """Against NumPy in float64; weights are shares of whatever they sum to."""
    clients = [model(seed, dtype) for seed in range(4)]
    weights = torch.tensor([1.0, 5.0, 0.5, 2.0])
    got = tree.mean(tree.stack(clients), weights)
    scaled = tree.mean(tree.stack(clients), weights.double() * 64)
    for name in ("w", "scalar"):
        expected = np.average([c[name].double().numpy() for c in clients], axis=0, weights=weights.numpy())
        assert got[name].dtype is dtype
        tolerance = {torch.float64: 1e-15, torch.float32: 1e-6}.get(dtype, 1e-2)
        assert np.allclose(got[name].double().numpy(), expected, rtol=0, atol=tolerance)
        assert torch.equal(got[name], scaled[name])
    assert got["none"].shape == (0, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_mean_is_rounded_once(dtype: torch.dtype) -> None:
    """The weights and sums are of higher precision: but for near ties, the result is the exact mean, rounded."""
    drawn = torch.Generator().manual_seed(0)
    stacked = torch.randn(7, 1000, generator=drawn).to(dtype)
    weights = torch.rand(7, generator=drawn)
    exact = np.average(stacked.double().numpy(), axis=0, weights=weights.double().numpy())
    got = tree.mean({"w": stacked}, weights)["w"]
    assert int((got == torch.from_numpy(exact).to(dtype)).sum()) > 990


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clients", [1, 2, 3, 10, 33])
def test_a_large_tensor_is_averaged_in_blocks_to_the_same_bits(
    dtype: torch.dtype, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = torch.Generator().manual_seed(clients)
    stacked = {"w": torch.randn(clients, 37, 1001, generator=drawn).to(dtype), "b": torch.ones(clients, 3)}
    weights = torch.rand(clients, generator=drawn)
    whole = tree.mean(stacked, weights)
    monkeypatch.setattr(tree, "BLOCK", 5000)
    found = tree.mean(stacked, weights)
    assert list(found) == ["w", "b"] and torch.equal(found["w"], whole["w"]) and found["w"].dtype is dtype


def test_counters_are_never_averaged() -> None:
    stacked = {"counter": torch.tensor([4, 9, 7]), "flag": torch.tensor([False, True, False])}
    for weights in ([1.0, 1.0, 1.0], [0.9, 0.0, 0.1]):
        got = tree.mean(stacked, torch.tensor(weights))
        assert got["counter"].dtype is torch.int64 and int(got["counter"]) == 9 and bool(got["flag"])
    assert int(tree.lerp({"c": torch.tensor(4)}, {"c": torch.tensor(9)}, 0.25)["c"]) == 9


def test_a_weight_of_one_is_that_client() -> None:
    clients = [model(seed) for seed in range(3)]
    for chosen, client in enumerate(clients):
        weights = torch.zeros(3)
        weights[chosen] = 0.25
        got = tree.mean(tree.stack(clients), weights)
        assert torch.equal(got["w"], client["w"]) and torch.equal(got["scalar"], client["scalar"])


def test_lerp() -> None:
    a, b = model(0), model(1)
    assert same(tree.lerp(a, b, 0.0), {**a, "counter": b["counter"]})
    quarter = tree.lerp(a, b, torch.tensor(0.25))
    assert np.allclose(quarter["w"].numpy(), 0.75 * a["w"].numpy() + 0.25 * b["w"].numpy(), atol=1e-6)
    assert torch.allclose(tree.lerp(a, b, 1.0)["w"], b["w"], atol=1e-6)


def test_distance() -> None:
    a, b = model(0), model(1)
    by_hand = {n: float(((a[n].double() - b[n].double()) ** 2).sum()) for n in ("w", "scalar")}
    assert math.isclose(tree.sqdist(a, b).item(), sum(by_hand.values()), rel_tol=1e-6)
    assert math.isclose(tree.sqdist(a, b, {"w", "not there"}).item(), by_hand["w"], rel_tol=1e-6)
    assert tree.sqdist(a, b, set()).item() == 0
    assert tree.sqdist(model(0, torch.float64), model(1, torch.float64)).dtype is torch.float64


def test_the_slope_of_a_distance() -> None:
    """Penalties are made of it: d/da |a - b|^2 = 2 (a - b)."""
    a, b = model(0), model(1)
    a["w"].requires_grad_()
    (slope,) = torch.autograd.grad(tree.sqdist(a, b), [a["w"]])
    assert torch.allclose(slope, 2 * (a["w"] - b["w"]).detach())


def test_sub_zeros_where() -> None:
    a, b = model(0), model(1)
    assert same(tree.sub(a, a), tree.zeros(a))
    assert torch.equal(tree.sub(a, b)["w"], a["w"] - b["w"])
    assert same(tree.where(torch.tensor(True), a, b), a) and same(tree.where(torch.tensor(False), a, b), b)


# ---------- stacks ----------


def test_a_stack_has_its_states_as_rows() -> None:
    states = [{"model": model(seed), "extra": {"dc": {"w": torch.tensor([float(seed)])}}} for seed in range(4)]
    stacked = tree.stack(states)
    assert stacked["model"]["w"].shape == (4, 3, 2)
    for number, state in enumerate(states):
        assert same(tree.transform(lambda t, n=number: t[n], stacked), state)
    some = tree.rows(stacked, torch.tensor([3, 1]))
    assert same(some, tree.stack([states[3], states[1]]))


def test_put_is_the_counterpart_of_rows() -> None:
    stacked, index = tree.stack([model(seed) for seed in range(4)]), torch.tensor([2, 0])
    new = tree.stack([model(8), model(9)])
    after = tree.put(stacked, index, new)
    assert same(tree.rows(after, index), new)
    rest = torch.tensor([1, 3])
    assert same(tree.rows(after, rest), tree.rows(stacked, rest))


def test_expand_gives_copies_of_their_own() -> None:
    many = tree.expand(model(), 3)
    many["w"][0] += 1
    assert torch.equal(many["w"][1], model()["w"]) and torch.equal(many["w"][2], model()["w"])


def test_detach_cuts_the_gradient() -> None:
    state = {"inner": {"w": torch.ones(2, requires_grad=True) * 2}}
    assert not tree.detach(state)["inner"]["w"].requires_grad
    assert torch.equal(tree.detach(state)["inner"]["w"], torch.full((2,), 2.0))


OPERATIONS: dict[str, Callable[[tree.Tree, tree.Tree], Any]] = {
    "mean": lambda a, b: tree.mean(tree.stack([a, b]), torch.ones(2)),
    "lerp": lambda a, b: tree.lerp(a, b, 0.5),
    "put": lambda a, b: tree.put(tree.stack([a, b]), torch.tensor([0]), tree.stack([b])),
    "where": lambda a, b: tree.where(torch.tensor(True), a, b),
    "zeros": lambda a, b: tree.zeros(a),
    "sub": tree.sub,
    "expand": lambda a, b: tree.expand(a, 2),
    "sqdist": tree.sqdist,
    "encode": lambda a, b: tree.encode(a),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_changes_its_arguments(name: str) -> None:
    a, b = model(0), model(1)
    OPERATIONS[name](a, b)
    assert same(a, model(0)) and same(b, model(1))


def test_a_decoded_message_is_no_view_of_the_buffer() -> None:
    buffer, schema = tree.encode(model())
    tree.decode(buffer, schema)["w"].fill_(7)
    assert same(tree.decode(buffer, schema), model())


# ---------- messages (states of every kind: test_record.py) ----------


def test_bytes_are_counted_as_they_are_encoded() -> None:
    state = {"model": model(), "extra": {"c": {"w": torch.ones(5, dtype=torch.bfloat16)}, "empty": {}}}
    buffer, schema = tree.encode(state)
    assert len(buffer) == tree.nbytes(state) == 6 * 4 + 4 + 0 + 8 + 5 * 2
    assert [path for path, _, _ in schema] == list(tree.flatten(state))


def test_a_message_of_another_length_is_refused() -> None:
    buffer, schema = tree.encode({"w": torch.ones(3)})
    for wrong in (buffer + b"\0", buffer[:-1]):
        with pytest.raises(ValueError, match=r"12|bytes|buffer"):
            tree.decode(wrong, schema)


def test_raw_is_little_endian_row_by_row() -> None:
    assert tree.raw(torch.tensor([[1, 2], [3, 4]], dtype=torch.int16).T) == bytes([1, 0, 3, 0, 2, 0, 4, 0])
    assert tree.raw(torch.tensor(1.0, dtype=torch.bfloat16)) == bytes([0x80, 0x3F])
    assert tree.raw(torch.ones(4)[::4]) == bytes([0, 0, 0x80, 0x3F]), "a single value with a stride"
    assert tree.raw(torch.empty(0, 3)) == b""
