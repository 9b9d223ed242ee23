"""Time is charged to one phase only."""

from __future__ import annotations

from collections.abc import Iterator

import phases
import pytest
from phases import PHASES, REST, Clock


class Hand:
    """A clock that is moved by hand."""

    now = 0.0

    def process_time(self) -> float:
        return self.now


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    hand = Hand()
    monkeypatch.setattr(phases, "time", hand)
    return hand


def test_a_phase_is_less_what_other_phases_do_in_it(hand: Hand) -> None:
    """3 s before; evaluating takes 1 s, then a forward pass of 5 s, then 2 s more; 4 s after."""
    clock = Clock()

    def inner() -> str:
        hand.now += 5
        return "out"

    forward = clock.timed(inner, "forward")

    def outer() -> str:
        hand.now += 1
        out = forward()
        hand.now += 2
        return out

    hand.now += 3
    assert clock.timed(outer, "evaluate")() == "out"
    hand.now += 4
    clock.charge()
    assert {phase: spent for phase, spent in clock.spent.items() if spent} == {"evaluate": 3, "forward": 5, REST: 7}


def test_of_a_generator_only_what_makes_its_values_counts(hand: Hand) -> None:
    """Two batches of 1 s each and an end of 0.5 s; what is done with them takes 10 s each."""
    clock = Clock()

    def batches() -> Iterator[int]:
        for batch in (7, 8):
            hand.now += 1
            yield batch
        hand.now += 0.5

    seen = []
    for batch in clock.timed(batches, "draw and gather batches")():
        seen.append(batch)
        hand.now += 10
    clock.charge()
    assert seen == [7, 8]
    assert clock.spent["draw and gather batches"] == 2.5 and clock.spent[REST] == 20


def test_a_fault_leaves_its_phase(hand: Hand) -> None:
    clock = Clock()

    def fail() -> None:
        hand.now += 1
        raise KeyError

    with pytest.raises(KeyError):
        clock.timed(fail, "forward")()
    hand.now += 2
    clock.charge()
    assert clock.spent["forward"] == 1 and clock.spent[REST] == 2


def test_the_phases_name_functions_that_exist() -> None:
    for phase, functions in PHASES.items():
        for owner, name in functions:
            assert callable(getattr(owner, name)), f"{phase}: {name}"
