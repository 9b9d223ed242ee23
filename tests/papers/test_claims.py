"""When a number is met, and when a claim holds."""

from __future__ import annotations

import pytest

from fedtailor.papers.preset import Claim, chain
from fedtailor.papers.verdict import Judged, deviation, judge, mean, met


@pytest.mark.parametrize(
    ("ours", "printed", "comparable", "verdict"),
    [
        ({0: 93.7}, 94.06, True, "met"),
        ({0: 93.06}, 94.06, True, "met"),  # one point off, and the band is one point
        ({0: 93.0}, 94.06, True, "below"),
        ({0: 95.5}, 94.06, True, "above"),
        ({0: 92.0, 1: 96.0}, 94.06, True, "met"),  # the mean over seeds counts
        ({0: 94.06}, 94.06, False, "not compared"),
        ({0: 94.06}, None, True, "not printed"),
    ],
)
def test_a_number(ours: dict[int, float], printed: float | None, comparable: bool, verdict: str) -> None:
    assert met(ours, 1, printed, 1.0, comparable) == verdict


def test_a_number_that_is_not_there() -> None:
    assert met({}, 0, 94.0, 1.0, True) == "not run"
    assert met({}, 1, 94.0, 1.0, True) == "no number", "a run that diverged, or never reached its target"


def test_mean_and_deviation_over_seeds() -> None:
    """By hand: 1, 2 and 6 have the mean 3 and, with n - 1, the variance (4 + 1 + 9) / 2 = 7."""
    assert mean({0: 1.0, 1: 2.0, 2: 6.0}) == 3
    assert deviation({0: 1.0, 1: 2.0, 2: 6.0}) == pytest.approx(7**0.5)
    assert deviation({0: 1.0}) is None


def judged(numbers: dict[str, dict[int, float]], claim: Claim, margin: float = 0.3) -> Judged:
    return judge(claim, {(row, "x"): values for row, values in numbers.items()}, ["x"], margin)


CHAIN = Claim("a > b > c", chain("a", "b", "c"))


def test_a_chain() -> None:
    assert CHAIN.pairs == (("a", "b"), ("b", "c"))
    assert judged({"a": {0: 3}, "b": {0: 2}, "c": {0: 1}}, CHAIN).verdict == "holds in all 2 comparisons"
    assert judged({"a": {0: 1}, "b": {0: 2}, "c": {0: 3}}, CHAIN).verdict == "does not hold"
    assert judged({"a": {0: 3}, "b": {0: 2}, "c": {0: 3}}, CHAIN).verdict == "holds in part: in 1 of 2 comparisons"
    assert judged({"a": {0: 3}, "b": {0: 2}, "c": {0: 2.3}}, CHAIN).verdict == (
        "holds in part: in 1 of 2 comparisons, level in 1"
    )
    assert judged({"a": {0: 2.2}, "b": {0: 2}, "c": {0: 2}}, CHAIN).verdict == "undecided: level in all 2 comparisons"
    assert judged({"a": {0: 2}, "b": {0: 2}, "c": {0: 3}}, CHAIN).verdict == (
        "does not hold: level in 1 of 2, worse in the others"
    )
    found = judged({"a": {0: 3}, "b": {0: 2}}, CHAIN)
    assert found.verdict == "holds" and found.missing == 1
    assert judged({}, CHAIN).verdict == "not run"


def test_noise_over_seeds_widens_the_margin() -> None:
    """Differences of equal seeds: 4 and -2, mean 1, deviation sqrt(18), so two standard errors are 6."""
    pair = Claim("a > b", chain("a", "b"))
    noisy = judged({"a": {0: 14, 1: 8}, "b": {0: 10, 1: 10}}, pair)
    assert noisy.compared[0].difference == 1 and noisy.verdict == "undecided: level"
    # 4 and 1: mean 2.5, deviation sqrt(4.5), so one standard error is 1.5 and two are 3
    assert judged({"a": {0: 14, 1: 10}, "b": {0: 10, 1: 9}}, pair).verdict == "undecided: level"
    steady = judged({"a": {0: 11.1, 1: 10.9}, "b": {0: 10, 1: 10}}, pair)  # deviation 0.14, two errors 0.2
    assert steady.compared[0].difference == pytest.approx(1) and steady.verdict == "holds"


def test_only_seeds_of_both_are_compared() -> None:
    pair = Claim("a > b", chain("a", "b"))
    found = judged({"a": {0: 5, 1: 100}, "b": {0: 1, 2: 0}}, pair)
    assert found.compared[0].difference == 4
    assert judged({"a": {0: 5}, "b": {1: 1}}, pair).missing == 1


def test_smaller_is_better_and_level_is_claimed() -> None:
    numbers = {"a": {0: 10.0}, "b": {0: 20.0}}
    assert judged(numbers, Claim("a < b", chain("a", "b"), smaller=True)).verdict == "holds"
    assert judged(numbers, Claim("a > b", chain("a", "b"))).verdict == "does not hold"
    level = Claim("a = b", chain("a", "b"), expects="level")
    assert judged({"a": {0: 10.0}, "b": {0: 10.2}}, level).verdict == "holds"
    assert judged(numbers, level).verdict == "does not hold"
    assert judged({"a": {0: 30.0}, "b": {0: 20.0}}, level).verdict == "does not hold"


def test_along_columns_and_in_some_columns_only() -> None:
    numbers = {("r", "s1"): {0: 60.0}, ("r", "s2"): {0: 50.0}, ("q", "s1"): {0: 1.0}, ("q", "s2"): {0: 9.0}}
    along = Claim("s1 > s2", chain("s1", "s2"), ("r",), along="columns")
    assert judge(along, numbers, ["s1", "s2"], 0.3).verdict == "holds"
    everywhere = Claim("s1 > s2", chain("s1", "s2"), along="columns")
    assert [one.holds for one in judge(everywhere, numbers, ["s1", "s2"], 0.3).compared] == ["holds", "does not hold"]
    narrow = Claim("r > q", chain("r", "q"), ("s1",))
    assert len(judge(narrow, numbers, ["s1", "s2"], 0.3).compared) == 1
