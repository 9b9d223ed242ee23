"""Folding over clients, rounds and seeds: closed forms and independent references."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.metrics import Summary, across_seeds, paired_bootstrap, per_client, select, summarise, worse_off
from fedtailor.registry import WrongInput

NAN = math.nan
maybe = st.none() | st.floats(0, 1, width=32)


# over clients


def test_the_summary_by_hand() -> None:
    values = [0.5, None, 1.0, 0.0]
    std = pytest.approx(math.sqrt(1 / 6))
    expected = Summary(macro=0.5, micro=(5 + 30 + 0) / 50, worst=0.0, bottom_tenth=0.0, std=std, clients=3)
    assert summarise(values, [10, 7, 30, 10]) == expected


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=30))
def test_micro_accuracy_is_correct_over_total(counts: list[tuple[int, int]]) -> None:
    correct, total = [min(c, n) for c, n in counts], [n for _, n in counts]
    found = summarise([c / n for c, n in zip(correct, total, strict=True)], total)
    assert found.micro == pytest.approx(sum(correct) / sum(total))


@given(st.lists(maybe, min_size=1, max_size=45).filter(lambda v: any(x is not None for x in v)), st.booleans())
def test_the_summary_agrees_with_an_independent_one(values: list[float | None], higher: bool) -> None:
    found = summarise(values, [3] * len(values), higher)
    present = sorted((v for v in values if v is not None), reverse=not higher)
    assert found.clients == len(present)
    assert found.macro == found.micro == pytest.approx(statistics.fmean(present))
    assert found.std == pytest.approx(statistics.pstdev(present), abs=1e-7)
    assert found.worst == present[0]
    tenth = present[: (len(present) + 9) // 10]
    assert found.bottom_tenth == pytest.approx(statistics.fmean(tenth))


@pytest.mark.parametrize(("clients", "tenth"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_the_bottom_tenth_is_rounded_up(clients: int, tenth: int) -> None:
    values = [float(v) for v in range(clients)]
    assert summarise(values, [1] * clients).bottom_tenth == pytest.approx(sum(range(tenth)) / tenth)


def test_for_a_loss_the_worst_is_the_largest() -> None:
    assert summarise([1.0, 3.0, 2.0], [1, 1, 1], higher_is_better=False).worst == 3


def test_a_diverged_client_is_the_worst_and_is_not_hidden() -> None:
    found = summarise([0.9, NAN, 0.1], [1, 1, 1])
    assert math.isnan(found.worst) and math.isnan(found.macro) and math.isnan(found.micro)
    assert found.clients == 3
    assert math.isnan(summarise([0.1, NAN], [1, 1], higher_is_better=False).worst)
    infinite = summarise([1.0, math.inf], [1, 1], higher_is_better=False)
    assert infinite.macro == math.inf and math.isnan(infinite.std)


def test_nothing_to_summarise_is_refused() -> None:
    with pytest.raises(WrongInput, match="no client has a value"):
        summarise([None, None], [1, 1])
    with pytest.raises(WrongInput, match="no rows"):
        summarise([0.5], [0])
    with pytest.raises(ValueError):
        summarise([0.5], [1, 1])


# against training alone


def test_worse_off_counts_strict_losses_among_clients_with_both_numbers() -> None:
    values, alone = [0.5, 0.6, 0.7, None, 0.1], [0.5, 0.7, 0.6, 0.9, None]
    assert worse_off(values, alone) == 1
    assert worse_off([2.0, 1.0, 1.0], [1.0, 2.0, 1.0], higher_is_better=False) == 1


def test_worse_off_is_unknown_without_a_run_alone() -> None:
    assert worse_off([0.5], None) is None
    assert worse_off([0.5, None], [None, 0.5]) is None


@pytest.mark.parametrize("higher", [True, False])
def test_a_diverged_client_is_worse_off_than_any_that_did_not(higher: bool) -> None:
    assert worse_off([NAN, 0.0, NAN], [0.0, NAN, NAN], higher) == 1


@given(st.lists(st.tuples(maybe, maybe), max_size=20))
def test_worse_better_and_tied_clients_are_all_there_are(
    pairs: list[tuple[float | None, float | None]],
) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    both = [(x, y) for x, y in pairs if x is not None and y is not None]
    worse, better = worse_off(a, b), worse_off(b, a)
    assert worse == worse_off(b, a, higher_is_better=False)
    assert (worse is None) == (not both)
    assert (worse or 0) + (better or 0) + sum(x == y for x, y in both) == len(both)


# rounds


def row(number: int, test: list[float | None] | None, validation: list[float | None] | None = None, **more):
    def part(values):
        if values is None:
            return None
        return {"accuracy": values, "count": [0 if value is None else 5 for value in values]}

    return {"round": number, "test": part(test), "validation": part(validation), **more}


RUN = [
    row(1, [0.2, 0.4], [0.1, 0.1]),
    row(2, None, None),
    row(3, [0.8, None], [0.3, None]),
    row(4, [0.9, 0.7], [0.2, 0.4]),
    row(5, [0.5, 0.5], [0.5, 0.7]),
    row(6, None, None),
]
FINISH = row(6, [1.0, 1.0], [1.0, 1.0], finish=True)


@pytest.mark.parametrize(("how", "number"), [("last", 5), ("best", 3), ("best_on_validation", 5)])
def test_each_selection_takes_its_round(how, number: int) -> None:
    assert select(RUN, how, "accuracy")["round"] == number


def test_the_finish_row_is_the_last_and_is_no_round() -> None:
    run = [*RUN, FINISH]
    assert select(run, "last", "accuracy") is FINISH
    assert select(run, "best", "accuracy")["round"] == 3
    assert select(run, "best_on_validation", "accuracy")["round"] == 5


def test_where_only_the_finish_was_tested_there_is_a_last_and_no_best() -> None:
    run = [row(1, None), FINISH]
    assert select(run, "last", "accuracy") is FINISH
    with pytest.raises(WrongInput, match="no round was evaluated on test data"):
        select(run, "best", "accuracy")


def test_a_finish_that_was_not_tested_does_not_hide_the_last_round() -> None:
    assert select([*RUN, row(6, None, finish=True)], "last", "accuracy")["round"] == 5


def test_selection_may_seek_the_lowest() -> None:
    assert select(RUN, "best", "accuracy", higher=False)["round"] == 1


def test_ties_go_to_the_earliest_round() -> None:
    run = [row(1, [0.1]), row(2, [0.4]), row(3, [0.4])]
    assert select(run, "best", "accuracy")["round"] == 2
    assert select(run[1:], "best", "accuracy", higher=False)["round"] == 2


@pytest.mark.parametrize("higher", [True, False])
def test_a_diverged_round_is_never_the_best(higher: bool) -> None:
    run = [row(1, [NAN, 0.9]), row(2, [0.5, 0.5]), row(3, [NAN, NAN])]
    assert select(run, "best", "accuracy", higher)["round"] == 2


def test_a_number_that_json_could_not_hold_is_not_an_absent_one() -> None:
    part = {"rmse": [2.0, None, None], "count": [5, 5, 0]}
    assert per_client({"test": part}, "test", "rmse") == [2.0, pytest.approx(NAN, nan_ok=True), None]
    assert per_client({"test": None}, "test", "rmse") == []
    later = {"round": 2, "test": {"rmse": [3.0, 3.0, None], "count": [5, 5, 0]}}
    assert select([{"round": 1, "test": part}, later], "best", "rmse", higher=False) is later


def test_validation_selects_without_looking_at_the_test_data() -> None:
    other_test = [row(r["round"], [0.0], r["validation"] and r["validation"]["accuracy"]) for r in RUN]
    chosen = select(other_test, "best_on_validation", "accuracy")["round"]
    assert chosen == select(RUN, "best_on_validation", "accuracy")["round"]


def test_what_cannot_be_selected_is_refused() -> None:
    with pytest.raises(WrongInput, match="'first'; choose last, best or best_on_validation"):
        select(RUN, "first", "accuracy")  # type: ignore[arg-type]
    with pytest.raises(WrongInput, match="no metric 'auc'; it recorded accuracy"):
        select(RUN, "best", "auc")
    with pytest.raises(WrongInput, match="cut the data with a validation part"):
        select([row(1, [0.5])], "best_on_validation", "accuracy")
    for rows in ([], [row(1, None)], [row(1, [None, None])]):
        with pytest.raises(WrongInput, match="no round was evaluated on test data"):
            select(rows, "last", "accuracy")


# seeds and intervals


def test_over_seeds_the_deviation_is_that_of_a_sample() -> None:
    assert across_seeds([1.0, 2.0, 6.0]) == (3.0, pytest.approx(statistics.stdev([1, 2, 6])))
    assert across_seeds([0.7]) == (0.7, None)
    with pytest.raises(WrongInput, match="at least one seed"):
        across_seeds([])


def test_a_constant_difference_has_an_interval_of_no_width() -> None:
    a, b = [0.75, None, 0.5, 1.0], [0.5, 0.1, 0.25, 0.75]
    assert paired_bootstrap(a, b, seed=0, draws=50) == (0.25, 0.25, 0.25)


def test_the_interval_is_that_of_the_paired_differences() -> None:
    """Clients differ widely, their differences do not: only a paired interval is narrow."""
    b = list(np.linspace(0, 1, 30))
    a = [x + 0.1 + 0.01 * (-1) ** i for i, x in enumerate(b)]
    mean, low, high = paired_bootstrap(a, b, seed=0, draws=500)
    assert mean == pytest.approx(0.1)
    assert 0.09 < low < mean < high < 0.11


def test_the_interval_agrees_with_every_resample_of_two_clients() -> None:
    """Differences 0 and 1: the mean of a resample is 0, 1/2, 1 with 1/4, 1/2, 1/4."""
    assert paired_bootstrap([0.0, 1.0], [0.0, 0.0], seed=3, draws=2000) == (0.5, 0.0, 1.0)


def test_the_interval_of_many_clients_is_that_of_the_central_limit() -> None:
    difference = np.random.default_rng(0).normal(size=400)
    mean, low, high = paired_bootstrap(list(difference), [0.0] * 400, seed=1, draws=4000)
    error = difference.std() / math.sqrt(400)
    assert mean == pytest.approx(difference.mean())
    assert (low - mean) / error == pytest.approx(-1.96, abs=0.1)
    assert (high - mean) / error == pytest.approx(1.96, abs=0.1)


def test_the_interval_is_a_function_of_the_seed_and_turns_with_the_sides() -> None:
    a, b = list(np.linspace(0, 1, 9) ** 2), [0.3] * 9
    first = paired_bootstrap(a, b, seed=0, draws=200)
    assert first == paired_bootstrap(a, b, seed=0, draws=200)
    assert first != paired_bootstrap(a, b, seed=1, draws=200)
    mean, low, high = paired_bootstrap(b, a, seed=0, draws=200)
    assert (mean, low, high) == pytest.approx((-first[0], -first[2], -first[1]))


def test_infinite_and_missing_numbers_give_no_interval_and_no_warning() -> None:
    assert all(math.isnan(v) for v in paired_bootstrap([math.inf, 1.0], [math.inf, 0.0], seed=0, draws=20))
    with pytest.raises(WrongInput, match="no client has both numbers"):
        paired_bootstrap([None, 1.0], [1.0, None], seed=0)
    with pytest.raises(ValueError):
        paired_bootstrap([1.0], [1.0, 2.0], seed=0)
