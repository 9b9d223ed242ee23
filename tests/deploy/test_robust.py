"""Robust centres against NumPy, and where they are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedtailor import Ditto, FedAvg, FedMCSA, WrongInput
from fedtailor.deploy import robust

SENT = {"w": torch.tensor([1.0, 1.0])}


def uploads(*values: tuple[float, float], extra: Any = None) -> dict[int, Any]:
    return {
        i: {"model": {"w": torch.tensor(value).float(), "n": torch.tensor(i)}, "extra": extra[i] if extra else {}}
        for i, value in enumerate(values)
    }


def combined(written: str, given: dict[int, Any]) -> dict[int, Any]:
    return robust.read(written)(given, SENT)


def test_median_by_hand() -> None:
    """Of 1, 2 and 1000 it is 2; of four values the mean of the middle two; a counter takes the largest."""
    odd = combined("median", uploads((1, 5), (2, -9), (1000, 6)))
    assert all(one["model"]["w"].tolist() == [2.0, 5.0] for one in odd.values())
    even = combined("median", uploads((1, 0), (2, 0), (4, 0), (-900, 0)))
    assert even[3]["model"]["w"].tolist() == [1.5, 0.0] and int(even[0]["model"]["n"]) == 3


@pytest.mark.parametrize(("share", "n"), [(0.0, 5), (0.2, 5), (0.25, 7), (0.4, 3), (0.49, 2)])
def test_trimmed_mean_is_numpy_s(share: float, n: int) -> None:
    values = np.random.Generator(np.random.Philox(3)).normal(size=(n, 2)).astype(np.float32)
    found = combined(f"trimmed_mean({share})", uploads(*map(tuple, values.tolist())))
    cut = min(int(np.floor(share * n)), (n - 1) // 2)
    expected = np.sort(values.astype(np.float64), axis=0)[cut : n - cut].mean(0)
    np.testing.assert_allclose(found[0]["model"]["w"].numpy(), expected, rtol=1e-6)


def test_norm_bound_by_hand() -> None:
    """From (1, 1), a step of (3, 4) has length 5 and is cut to 2.5; one of (0.3, 0.4) stays; and so with extras."""
    extra = [{"dc": torch.tensor([30.0, 40.0])}, {"dc": torch.tensor([0.3, 0.4])}]
    found = combined("norm_bound(2.5)", uploads((4, 5), (1.3, 1.4), extra=extra))
    torch.testing.assert_close(found[0]["model"]["w"], torch.tensor([2.5, 3.0]))
    torch.testing.assert_close(found[1]["model"]["w"], torch.tensor([1.3, 1.4]))
    torch.testing.assert_close(found[0]["extra"]["dc"], torch.tensor([1.5, 2.0]))
    torch.testing.assert_close(found[1]["extra"]["dc"], torch.tensor([0.3, 0.4]))


def test_a_mean_changes_nothing() -> None:
    given = uploads((1, 2), (3, 4))
    assert combined("mean", given) == given


ODD = ("", "average", "median(1)", "trimmed_mean", "trimmed_mean(0.5)", "norm_bound(0)", "norm_bound(x)", "mean()")


@pytest.mark.parametrize("written", ODD)
def test_other_words_are_refused(written: str) -> None:
    with pytest.raises(WrongInput, match="write mean, median"):
        robust.read(written)


def test_methods_that_look_at_single_uploads_are_refused() -> None:
    for method in (FedAvg(), Ditto()):
        robust.check("median", method)
    robust.check("mean", FedMCSA())
    with pytest.raises(WrongInput, match="looks at them"):
        robust.check("median", FedMCSA())


def test_the_length_of_a_state_by_hand() -> None:
    """3, 4 and 12 make 13; whole numbers do not count."""
    state = {"a": {"w": torch.tensor([3.0, 4.0]).bfloat16()}, "b": torch.tensor(12.0), "n": torch.tensor([99])}
    assert robust.length(state) == 13.0 and robust.length({}) == 0.0
