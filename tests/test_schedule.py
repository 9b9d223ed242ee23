"""Draws are pure functions of what they are for, and unlike any other; batches are counted by hand."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from fedtailor import schedule
from fedtailor.schedule import batch_lengths, draw_cohort, epoch_order, rng, steps_of, torch_rng, torch_seed

# ---------- pure ----------


def fifty(seed: int, *purpose: int | str) -> tuple[int, ...]:
    return tuple(rng(seed, *purpose).permutation(50).tolist())


def test_a_draw_depends_on_its_arguments_alone() -> None:
    def draws() -> list[object]:
        return [
            fifty(3, "batches", 1, 2), draw_cohort(3, 4, 20, 7), torch.rand(5, generator=torch_rng(3, "x")).tolist(),
            epoch_order(3, 1, 2, 0, 1, torch.arange(9)).tolist(),
        ]  # fmt: skip

    before = draws()
    np.random.seed(0)
    random.seed(0)
    torch.manual_seed(0)
    rng(3, "something else").random(100)
    assert draws() == before


def test_global_random_states_are_left_alone() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    rng(1, "a").random()
    torch.rand(3, generator=torch_rng(1, "a"))
    draw_cohort(1, 2, 9, 3)
    epoch_order(1, 2, 3, 4, 5, torch.arange(9))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states[1:]


def test_another_process_draws_the_same() -> None:
    """Text is not hashed with Python's hash, which differs from process to process."""
    asked = "from fedtailor.schedule import *; print(torch_seed(5, 'noise', 3), rng(5, 'noise', 3).integers(10**9))"
    env = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", asked], env=env, capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(torch_seed(5, "noise", 3)), str(rng(5, "noise", 3).integers(10**9))]


def test_numbers_of_any_kind_are_one_number() -> None:
    assert fifty(3, "a", 1) == fifty(np.int64(3), "a", torch.tensor(1)) == fifty(3, "a", np.int32(1))  # type: ignore


# ---------- no two alike ----------


def test_no_two_purposes_give_the_same() -> None:
    """Fifty rows have 3e64 orders: two alike would be one stream under two names."""
    purposes = list(itertools.product([0, 1], ["batches", "cohort", "init"], range(1, 4), range(4), range(3)))
    assert len({fifty(*purpose) for purpose in purposes}) == len(purposes)
    assert len({torch_seed(*purpose) for purpose in purposes}) == len(purposes)


def test_clients_rounds_epochs_and_streams_have_orders_of_their_own() -> None:
    rows = torch.arange(100, 150)
    places = list(itertools.product([0, 1], [1, 2], [0, 1, 12], [0, 1, 2], [0, 1]))
    orders = {tuple(epoch_order(*place, rows).tolist()) for place in places}
    assert len(orders) == len(places)
    assert all(sorted(order) == rows.tolist() for order in orders)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 12, 3), (1, 1, 23)),
        ((1, "a", "b"), (1, "ab")),
        ((1, "a, b"), (1, "a", "b")),
        ((1, "a', 'b"), (1, "a", "b")),
        ((1, "2"), (1, 2)),
        ((1, 2, 3), (1, 3, 2)),
        ((1, "a"), (-1, "a")),
        ((0,), (0, "")),
        ((2**70, "a"), (2**71, "a")),
    ],
)
def test_purposes_that_look_alike_are_apart(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert fifty(*one) != fifty(*other)
    assert torch_seed(*one) != torch_seed(*other)


def test_seeds_are_what_torch_takes() -> None:
    seeds = [torch_seed(seed, "x") for seed in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert any(seed >= 2**62 for seed in seeds), "all 63 bits are used"


def test_every_order_is_as_likely() -> None:
    """Three rows over 3000 rounds: each of six orders about 500 times; a standard deviation is 20."""
    found = Counter(tuple(epoch_order(0, round, 0, 0, 0, torch.arange(3)).tolist()) for round in range(3000))
    assert len(found) == 6 and all(abs(count - 500) < 80 for count in found.values())


# ---------- cohorts ----------


@given(st.integers(0, 9), st.integers(1, 99), st.integers(1, 30), st.integers(1, 40))
def test_a_cohort_is_a_set_of_clients(seed: int, round: int, n: int, size: int) -> None:
    cohort = draw_cohort(seed, round, n, size)
    assert cohort == sorted(set(cohort)) and len(cohort) == min(size, n)
    assert all(type(client) is int and 0 <= client < n for client in cohort)


def test_every_client_is_drawn_as_often() -> None:
    """3 of 10 in 2000 rounds: 600 times each; a standard deviation is 20."""
    drawn = Counter(client for round in range(2000) for client in draw_cohort(0, round, 10, 3))
    assert all(abs(drawn[client] - 600) < 80 for client in range(10))
    assert len({tuple(draw_cohort(0, round, 10, 3)) for round in range(2000)}) == 120, "all cohorts occur"


def test_the_runs_seed_draws_other_cohorts() -> None:
    assert [draw_cohort(0, r, 20, 5) for r in range(5)] != [draw_cohort(1, r, 20, 5) for r in range(5)]


# ---------- batches ----------


@pytest.mark.parametrize(
    ("rows", "batch", "smallest", "lengths"),
    [
        (10, 3, 1, [3, 3, 3, 1]),  # the rest is used
        (10, 3, 2, [3, 3, 3]),  # but not by batch norm, if it is a single row
        (11, 3, 2, [3, 3, 3, 2]),
        (9, 3, 2, [3, 3, 3]),
        (4, 5, 1, [4]),  # a client smaller than a batch
        (1, 5, 1, [1]),
        (1, 5, 2, []),  # and one that cannot train at all
        (7, 0, 1, [7]),  # 0: the whole set
        (1, 0, 1, [1]),
        (1, 0, 2, []),
        (3, 1, 1, [1, 1, 1]),
        (0, 5, 1, []),
        (0, 0, 1, []),
    ],
)
def test_lengths_of_batches(rows: int, batch: int, smallest: int, lengths: list[int]) -> None:
    assert batch_lengths(rows, batch, smallest) == lengths


@given(st.integers(0, 50), st.integers(0, 12), st.integers(1, 2))
def test_batches_share_out_the_rows(rows: int, batch: int, smallest: int) -> None:
    lengths = batch_lengths(rows, batch, smallest)
    assert all(smallest <= length <= (batch or rows) for length in lengths)
    assert len(set(lengths[:-1])) <= 1, "all are full but the last"
    if batch != 1:
        assert 0 <= rows - sum(lengths) < smallest


@pytest.mark.parametrize(
    ("rows", "batch", "epochs", "steps", "smallest", "count"),
    [
        (10, 3, None, None, 1, 4),  # one epoch where nothing is said
        (10, 3, 2, None, 1, 8),
        (10, 3, 2, None, 2, 6),
        (10, 3, None, 5, 1, 5),
        (10, 3, None, 50, 1, 50),  # steps go on into the next epoch
        (4, 5, 3, None, 1, 3),
        (4, 5, None, 2, 1, 2),
        (7, 0, 2, None, 1, 2),
        (10, 3, 0, None, 1, 0),
        (10, 3, None, 0, 1, 0),
        (1, 5, None, 9, 2, 0),  # who has no batch takes no step
    ],
)
def test_steps(rows: int, batch: int, epochs: int | None, steps: int | None, smallest: int, count: int) -> None:
    assert steps_of(rows, batch, epochs, steps, smallest) == count


def test_the_default_is_to_use_every_row() -> None:
    assert schedule.batch_lengths(10, 3) == [3, 3, 3, 1]
