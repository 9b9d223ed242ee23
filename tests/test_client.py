"""A client's batches, counted row by row, and its other views of its data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from small import ROWS, X, Y, client_of, small_net

from fedtailor import Batch, Client


@pytest.fixture
def client() -> Client:
    return client_of(small_net())


def joined(batches: Iterable[Batch]) -> list[int]:
    return [row for rows in rows_of(batches) for row in rows]


def rows_of(batches: Iterable[Batch]) -> list[list[int]]:
    """Which rows a batch holds, read off its inputs."""
    return [[int((x == X).all(1).nonzero()) for x in batch.x] for batch in batches]


def test_every_epoch_goes_once_through_the_clients_rows(client: Client) -> None:
    """11 rows in batches of 4, twice over: 4, 4, 3."""
    batches = list(client.batches(epochs=2))
    assert [len(batch.y) for batch in batches] == [4, 4, 3, 4, 4, 3]
    assert [batch.step for batch in batches] == list(range(6))
    epochs = [joined(batches[:3]), joined(batches[3:])]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(ROWS.tolist()) and epochs[0] != epochs[1]
    for batch, rows in zip(batches, rows_of(batches), strict=True):
        assert torch.equal(batch.y, Y[rows])


def test_as_many_batches_as_steps(client: Client) -> None:
    for changes in ({}, {"epochs": None, "steps_asked": 8}, {"epochs": None}, {"batch": 0}, {"rows": ROWS[:9]},
                    {"rows": ROWS[:1]}, {"steps_per_batch": 3}):  # fmt: skip
        some = replace(client, **changes)
        assert len(list(some.batches())) == some.steps
    assert replace(client, rows=ROWS[:1]).steps == 0, "batch norm cannot train on one row"
    assert len(list(client.batches(steps=2))) == 2 and len(list(client.batches(steps=5))) == 5


def test_steps_go_on_where_epochs_would(client: Client) -> None:
    by_steps, by_epochs = list(client.batches(steps=7)), list(client.batches(epochs=3))
    assert rows_of(by_steps) == rows_of(by_epochs)[:7]


def test_streams_and_purposes_have_orders_of_their_own(client: Client) -> None:
    changes = [{}, {"number": 3}, {"round": 4}, {"seed": 8}]
    orders = [joined(replace(client, **change).batches(epochs=1)) for change in changes]
    orders += [joined(client.batches(epochs=1, stream=stream)) for stream in (1, 2)]
    assert len({tuple(order) for order in orders}) == 6


def test_streams_are_as_long_as_the_local_work(client: Client) -> None:
    triples = list(client.streams(3))
    assert len(triples) == client.steps == 9 and all(len(triple) == 3 for triple in triples)
    for stream in range(3):
        alone = rows_of(client.batches(stream=stream))
        assert rows_of(triple[stream] for triple in triples) == alone


def test_views_of_one_batch(client: Client) -> None:
    """Each view trains on its batch alone, as often as it is asked to."""
    batches = list(client.batches())
    views = list(client.each_batch())
    assert len(views) == len(batches)
    for view, batch in zip(views, batches, strict=True):
        again = list(view.batches(steps=3))
        assert all(torch.equal(one.x, batch.x) for one in again) and [one.step for one in again] == [0, 1, 2]
    assert len(list(views[0].batches())) == 1


def test_each_batch_may_be_given_several_times(client: Client) -> None:
    twice = list(replace(client, steps_per_batch=2).batches())
    assert rows_of(twice[0::2]) == rows_of(twice[1::2]) == rows_of(client.batches())
    assert [batch.step for batch in twice] == list(range(18))


def test_a_holdout_is_fixed_and_apart(client: Client) -> None:
    rest, held = client.holdout(0.2)
    assert len(held.rows) == 2 and sorted([*rest.rows.tolist(), *held.rows.tolist()]) == sorted(ROWS.tolist())
    later = replace(client, round=8).holdout(0.2)
    assert torch.equal(later[1].rows, held.rows), "the same rows in every round"
    others = [replace(client, number=number).holdout(0.5)[1].rows.tolist() for number in range(4)]
    assert len({tuple(rows) for rows in others}) == 4
    alone, none = replace(client, rows=ROWS[:1]).holdout(0.9)
    assert (len(alone.rows), len(none.rows)) == (1, 0)
    pair = replace(client, rows=ROWS[:2]).holdout(0.9)
    assert [len(one.rows) for one in pair] == [1, 1], "one row is left to train on"


def test_a_sample_is_drawn_anew_each_round(client: Client) -> None:
    some = [replace(client, round=round).sample(0.5).rows.tolist() for round in range(1, 6)]
    assert all(len(set(rows)) == 6 and set(rows) <= set(ROWS.tolist()) for rows in some)
    assert len({tuple(rows) for rows in some}) == 5
    assert len(client.sample(0.01).rows) == 1


def test_random_numbers_are_for_a_purpose(client: Client) -> None:
    numbers = client.random("mask", (1000,))
    assert torch.equal(numbers, client.random("mask", (1000,)))
    others = [
        client.random("noise", (1000,)),
        *(replace(client, **change).random("mask", (1000,)) for change in ({"number": 1}, {"round": 1}, {"seed": 1})),
    ]
    assert all(not torch.equal(numbers, other) for other in others)
    assert float(numbers.min()) >= 0 and float(numbers.max()) < 1 and abs(float(numbers.mean()) - 0.5) < 0.05
