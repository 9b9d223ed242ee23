from __future__ import annotations

import pytest

from fedtailor.report import words


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (1, "1 B"), (999, "999 B"), (999.6, "1 kB"), (1000, "1 kB"), (178_340, "178 kB"), (1.5e9, "1.5 GB")],
)
def test_bytes(count: float, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "0.5 s"), (9.96, "10 s"), (61, "61 s"), (125, "2 min 05 s"), (7800, "2 h 10 min"),
        (172_799, "47 h 59 min"), (172_800, "2 d 0 h"), (3042 * 3600, "126 d 18 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_numbers_carry_sign_and_unit() -> None:
    assert words.value(0.8734, "accuracy") == "87.3 %"
    assert words.difference(0.126, "accuracy") == "+12.6 points"
    assert words.difference(-0.0304, "rmse") == "\N{MINUS SIGN}0.0304 rmse"
    assert words.number(-0.0001, "accuracy", signed=True) == "0.0"
    assert words.number(float("nan"), "rmse") == words.number(float("inf"), "rmse") == "diverged"


def test_counts_and_lists() -> None:
    assert (words.count(2.0), words.count(2 + 1 / 3), words.count(1.99)) == ("2", "2.3", "2")
    assert (words.listing([]), words.listing(["a"]), words.listing(["a", "b", "c"])) == ("", "a", "a, b and c")
