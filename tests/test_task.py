"""Tasks: losses against their formulas, statistics that add up, metrics against scikit-learn."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference
from torch.func import grad, vmap

from fedtailor import task
from fedtailor.registry import WrongInput

NAMES = ["classification", "multilabel_margin", "regression"]
CLASSIFIERS = NAMES[:2]


def batch(name: str, rows: int, seed: int = 0, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outputs = task.of(name).outputs(classes)
    out = 2 * torch.randn(rows, outputs, generator=generator)
    if name == "regression":
        return out, 3 + torch.randn(rows, generator=generator)
    return out, torch.randint(classes, (rows,), generator=generator)


def measured(name: str, out: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    return task.of(name).metrics(task.of(name).statistics(out, y))


def test_an_unknown_task_names_those_there_are() -> None:
    with pytest.raises(WrongInput, match=r"'clustering'.*classification, multilabel_margin, regression"):
        task.of("clustering")


@pytest.mark.parametrize("name", NAMES)
def test_a_task_keeps_its_name_and_survives_pickling(name: str) -> None:
    assert task.of(name).name == name
    assert pickle.loads(pickle.dumps(task.of(name))) == task.of(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_primary_metric_is_measured_and_improves_in_the_stated_direction(name: str) -> None:
    out, y = batch(name, 50)
    exact = y.unsqueeze(1) if name == "regression" else 9.0 * (y.unsqueeze(1) == torch.arange(4))
    of, primary = task.of(name), task.of(name).primary
    poor, perfect = measured(name, out, y)[primary], measured(name, exact, y)[primary]
    assert (perfect > poor) == of.higher_is_better and perfect != poor


# losses


def test_classification_loss_is_the_mean_of_minus_log_softmax() -> None:
    out, y = batch("classification", 30)
    o = out.double().numpy()
    expected = np.mean(np.log(np.exp(o).sum(1)) - o[np.arange(30), y.numpy()])
    assert float(task.of("classification").loss(out, y)) == pytest.approx(expected, rel=1e-5)


def test_margin_loss_is_the_mean_over_rows_and_classes_of_a_logistic_loss() -> None:
    out, y = batch("multilabel_margin", 30)
    o = out.double().numpy()
    sign = np.where(np.eye(4)[y.numpy()] == 1, 1, -1)
    expected = np.mean(np.log1p(np.exp(-sign * o)))
    assert float(task.of("multilabel_margin").loss(out, y)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("column", [False, True])
def test_regression_loss_pairs_each_output_with_its_label(column: bool) -> None:
    out, y = batch("regression", 30)
    expected = np.mean((out.numpy()[:, 0].astype(float) - y.numpy()) ** 2)
    y = y.unsqueeze(1) if column else y
    assert float(task.of("regression").loss(out, y)) == pytest.approx(expected, rel=1e-5)
    assert measured("regression", out, y)["loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_metric_is_the_loss(name: str) -> None:
    out, y = batch(name, 30)
    assert measured(name, out, y)["loss"] == pytest.approx(float(task.of(name).loss(out, y)), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_statistics_can_be_stacked_over_clients(name: str) -> None:
    pairs = [batch(name, 6, seed) for seed in range(3)]
    out, y = (torch.stack(part) for part in zip(*pairs, strict=True))
    gradient = vmap(grad(task.of(name).loss))(out, y)
    statistics = vmap(task.of(name).statistics)(out, y)
    for i in range(3):
        torch.testing.assert_close(gradient[i], grad(task.of(name).loss)(out[i], y[i]))
        for key, value in task.of(name).statistics(out[i], y[i]).items():
            torch.testing.assert_close(statistics[key][i], value)


# statistics


@pytest.mark.parametrize("name", NAMES)
@given(first=st.integers(0, 12), second=st.integers(0, 12), seed=st.integers(0, 1000))
def test_statistics_of_two_batches_add_up_to_those_of_both(name: str, first: int, second: int, seed: int) -> None:
    out, y = batch(name, first + second, seed)
    statistics = task.of(name).statistics
    a, b, both = statistics(out[:first], y[:first]), statistics(out[first:], y[first:]), statistics(out, y)
    assert a.keys() == b.keys() == both.keys()
    for key in both:
        assert both[key].dtype is torch.float64
        torch.testing.assert_close(a[key] + b[key], both[key], rtol=1e-12, atol=1e-12)
    for key in {"count", "correct", "truth", "confusion"} & both.keys():
        assert torch.equal(a[key] + b[key], both[key])


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_counts_agree_with_scikit_learn(name: str) -> None:
    out, y = batch(name, 200)
    found = task.of(name).statistics(out, y)
    expected = reference.confusion_matrix(y.numpy(), out.argmax(1).numpy(), labels=range(4))
    assert np.array_equal(found["confusion"].numpy(), expected)
    assert float(found["correct"]) == expected.trace()
    assert np.array_equal(found["truth"].numpy(), expected.sum(1))
    assert float(found["count"]) == 200


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_statistics_of_many_are_those_of_each(name: str) -> None:
    """Rows of four owners, mixed; one has none, and one row is no number."""
    out, y = batch(name, 40)
    out[7, 2] = torch.nan
    owner = torch.tensor([0, 2, 3, 2])[torch.arange(40) % 4]
    of_each = task.of(name).of_each
    assert of_each is not None
    found = of_each(out, y, owner, 4)
    for i in range(4):
        for key, value in task.of(name).statistics(out[owner == i], y[owner == i]).items():
            assert found[key][i].dtype is torch.float64
            torch.testing.assert_close(found[key][i], value, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("spread", [0.3, 2.0, 10.0])
def test_the_area_agrees_with_scikit_learn(name: str, spread: float) -> None:
    """Of all (row, class) pairs by the probability; to a thousandth, for scores are counted in steps."""
    out, y = batch(name, 400)
    out = out * spread
    out[torch.arange(400), y] += 0.5 * spread
    right = np.eye(4)[y.numpy()]
    probability = out.double().softmax(1).numpy()
    expected = reference.roc_auc_score(right, probability, average="micro")
    assert measured(name, out, y)["auc"] == pytest.approx(expected, abs=1e-3)


def test_the_area_by_hand() -> None:
    """Right classes with odds e and 1/e, wrong ones with 1/e and e: one pair is won, one lost and two are even. And
    without a wrong class there is nothing to win."""
    out = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert measured("classification", out, torch.tensor([0, 1]))["auc"] == 0.5
    assert measured("classification", out, torch.tensor([0, 0]))["auc"] == 1
    assert measured("classification", out, torch.tensor([1, 1]))["auc"] == 0
    assert measured("classification", torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))["auc"] == 0.5
    assert measured("classification", torch.full((2, 2), torch.nan), torch.tensor([0, 1]))["auc"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_taken_in_float64(name: str) -> None:
    """So outputs in float32 give what the same outputs in float64 give."""
    out, y = batch(name, 1000)
    whole = task.of(name).statistics(out, y)["loss_sum"]
    exact = task.of(name).statistics(out.double(), y)["loss_sum"]
    torch.testing.assert_close(whole, exact, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_diverged_model_is_wrong_everywhere(name: str) -> None:
    """argmax of NaN is 0, which would make every label 0 correct."""
    out, y = torch.full((4, 3), torch.nan), torch.tensor([0, 0, 1, 2])
    found = task.of(name).statistics(out, y)
    assert float(found["correct"]) == 0 and float(found["confusion"].sum()) == 0
    metrics = measured(name, out, y)
    assert metrics["accuracy"] == 0 and metrics["precision"] == 0 and np.isnan(metrics["loss"])


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_row_of_nan_leaves_the_others_alone_and_its_class_in_the_mean(name: str) -> None:
    out = torch.eye(3)
    out[2, 1] = torch.nan
    metrics = measured(name, out, torch.arange(3))
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["precision"] == pytest.approx(2 / 3)


# metrics


@pytest.mark.parametrize("name", CLASSIFIERS)
@given(
    labels=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30),
)
def test_accuracy_and_precision_agree_with_scikit_learn(name: str, labels: list[tuple[int, int]]) -> None:
    y, predicted = (torch.tensor(part) for part in zip(*labels, strict=True))
    out = (predicted.unsqueeze(1) == torch.arange(5)).float()
    found = measured(name, out, y)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(y, predicted))
    occurring = np.unique(y.numpy())
    expected = reference.precision_score(
        y.numpy(), predicted.numpy(), labels=occurring, average="macro", zero_division=0
    )
    assert found["precision"] == pytest.approx(expected)


def test_precision_by_hand() -> None:
    """Labels 0 0 1 2, predictions 0 1 1 3: precisions 1/1, 1/2, 0 (never predicted); class 3 is no label."""
    out = torch.nn.functional.one_hot(torch.tensor([0, 1, 1, 3]), 4).float()
    found = measured("classification", out, torch.tensor([0, 0, 1, 2]))
    assert found["precision"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert found["accuracy"] == 0.5


@given(rows=st.lists(st.tuples(st.floats(-50, 50, width=32), st.floats(-50, 50, width=32)), min_size=2, max_size=20))
def test_regression_metrics_agree_with_scikit_learn(rows: list[tuple[float, float]]) -> None:
    y, out = (torch.tensor(part, dtype=torch.float64) for part in zip(*rows, strict=True))
    found = measured("regression", out.unsqueeze(1), y)
    assert found["rmse"] == pytest.approx(reference.mean_squared_error(y, out) ** 0.5)
    assert found["mae"] == pytest.approx(reference.mean_absolute_error(y, out))
    if float(y.var()) > 1e-6 * float(y.square().mean()):
        assert found["r2"] == pytest.approx(reference.r2_score(y, out), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("rows", range(3, 12))
def test_r2_of_equal_labels_is_one_if_exact_and_zero_if_not(rows: int) -> None:
    """For some of these numbers of rows, rounding leaves a variation of 1e-17 instead of 0."""
    y = torch.full((rows,), 0.1, dtype=torch.float64)
    assert measured("regression", y.unsqueeze(1), y)["r2"] == 1
    assert measured("regression", y.unsqueeze(1) + 1, y)["r2"] == 0


def test_r2_of_the_mean_as_prediction_is_zero() -> None:
    y = torch.tensor([1013.0, 1009.0, 1021.0])
    assert measured("regression", y.mean().expand(3, 1), y)["r2"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_metrics_of_several_are_those_of_each(name: str) -> None:
    """Of one with equal labels, one with a single row, and one that is no number."""
    several = [batch(name, rows, seed) for seed, rows in enumerate((30, 1, 8))]
    several[0][1][:] = 2
    several[2][0][3] = torch.nan
    statistics = [task.of(name).statistics(out, y) for out, y in several]
    found = task.of(name).metrics_of(statistics)
    assert found[0] != found[1]
    for together, alone in zip(found, statistics, strict=True):
        assert together == pytest.approx(task.of(name).metrics(alone), rel=1e-14, nan_ok=True)
    with pytest.raises(ValueError, match="no row was counted"):
        task.of(name).metrics_of([statistics[0], task.of(name).statistics(*batch(name, 0))])


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_have_no_metrics(name: str) -> None:
    out, y = batch(name, 0)
    with pytest.raises(ValueError, match="no row was counted"):
        measured(name, out, y)


@pytest.mark.parametrize(("name", "outputs"), [*((name, 7) for name in CLASSIFIERS), ("regression", 1)])
def test_the_number_of_outputs_follows_from_the_task(name: str, outputs: int) -> None:
    assert task.of(name).outputs(7) == outputs
