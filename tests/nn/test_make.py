"""`make`: from what a user names a model to a network with seeded initial values."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from fedtailor import registry
from fedtailor.nn import make
from fedtailor.registry import WrongInput

SHAPE = (1, 28, 28)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


class Own(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def without_arguments() -> nn.Module:
    return nn.Linear(4, 3)


def of_both(*, classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Linear(shape[0], classes)


class Picky(nn.Linear):
    def __init__(self, width: int) -> None:
        super().__init__(4, width)


class Pair(nn.Linear):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x), x


@pytest.mark.parametrize("model", ["cnn4", "dnn(hidden=32)", "mlr", "lenet_bn()", "LeNet_BN"])
def test_a_text_gives_a_network_of_the_right_size_ready_to_train(model: str) -> None:
    net = make(model, classes=7, shape=SHAPE, seed=0)
    assert net.training and all(module.training for module in net.modules())
    assert net.eval()(torch.zeros(2, *SHAPE)).shape == (2, 7)


def test_options_in_a_text_are_used() -> None:
    assert make("dnn(hidden=32)", classes=7, shape=SHAPE, seed=0).hidden.out_features == 32


@pytest.mark.parametrize("model", ["dnn", "lenet_bn", of_both, without_arguments, Own])
def test_initial_values_are_a_function_of_the_seed_alone(model) -> None:
    classes, shape = (3, SHAPE) if isinstance(model, str) else (3, (4,))
    torch.manual_seed(5)
    first = make(model, classes=classes, shape=shape, seed=1)
    torch.manual_seed(6)
    torch.randn(3)
    assert same(first, make(model, classes=classes, shape=shape, seed=1))
    assert not same(first, make(model, classes=classes, shape=shape, seed=2))


@pytest.mark.parametrize("model", ["dnn", of_both, nn.Linear(28, 3)])
def test_the_global_generator_is_not_touched(model) -> None:
    before = torch.get_rng_state()
    make(model, classes=3, shape=(28,), seed=0)
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(WrongInput):
        make("cnn4", classes=3, shape=(28,), seed=0)
    assert torch.equal(before, torch.get_rng_state())


def test_a_function_or_class_is_given_the_classes_and_shape_it_asks_for() -> None:
    assert make(of_both, classes=5, shape=(9,), seed=0).weight.shape == (5, 9)
    assert make(Own, classes=5, shape=(4,), seed=0).head.out_features == 5
    assert make(without_arguments, classes=3, shape=(4,), seed=0).out_features == 3
    assert make(functools.partial(Picky, width=6), classes=6, shape=(4,), seed=0).out_features == 6


@pytest.mark.usefixtures("fresh")
def test_a_registered_model_of_ones_own_is_found_by_its_name() -> None:
    registry.register("model", "own")(Own)
    assert make("own", classes=5, shape=(4,), seed=0).head.out_features == 5


def test_an_instance_is_copied_with_the_values_it_has() -> None:
    given = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with torch.no_grad():
        given[0].weight.fill_(2.0)
    given[1].running_mean.fill_(3.0)
    first, second = (make(given, classes=3, shape=(4,), seed=seed) for seed in (1, 2))
    assert same(first, given) and same(second, given)
    with torch.no_grad():
        first[0].weight.zero_()
    assert (given[0].weight == 2).all() and (second[0].weight == 2).all()


def test_the_check_of_the_outputs_leaves_batch_norm_as_it_was() -> None:
    net = make("lenet_bn", classes=10, shape=SHAPE, seed=0)
    assert net.bn1.num_batches_tracked == 0
    assert (net.bn1.running_mean == 0).all() and (net.bn1.running_var == 1).all()


def test_lazy_layers_get_their_size_and_seeded_values() -> None:
    def lazy(classes: int) -> nn.Module:
        return nn.LazyLinear(classes)

    first = make(lazy, classes=3, shape=(4,), seed=1)
    assert first.weight.shape == (3, 4)
    assert same(first, make(lazy, classes=3, shape=(4,), seed=1))


def test_a_network_in_float64_is_checked_in_float64() -> None:
    assert make(nn.Linear(4, 3).double(), classes=3, shape=(4,), seed=0).weight.dtype is torch.float64


@pytest.mark.parametrize(
    ("model", "classes", "shape", "message"),
    [
        (nn.Linear(4, 10), 7, (4,), r"Linear has 10 outputs, but the data need 7"),
        (without_arguments, 5, (4,), r"without_arguments has 3 outputs, but the data need 5"),
        ("mlr(classes=3)", 3, (4,), r"sets classes, which is taken from the data"),
        ("mlr(shape=(4,))", 3, (4,), r"sets shape, which is taken from the data"),
        (Picky, 3, (4,), r"Picky cannot be made: missing a required argument: 'width'"),
        (nn.Linear(4, 3), 3, (5,), r"Linear fails on one sample of shape \(5,\)"),
        (nn.Conv2d(1, 3, 3), 3, SHAPE, r"Conv2d gives shape \(1, 3, 26, 26\).*must give shape \(1, 3\)"),
        (Pair(4, 3), 3, (4,), r"Pair gives a tuple.*must give shape \(1, 3\)"),
        (lambda: 3, 3, (4,), r"returns a value of type int; it must return a torch.nn.Module"),
        (3, 3, (4,), r"3 is not a model; give a name \(.*cnn4.*\)"),
        ("cnm4", 3, SHAPE, r"no model 'cnm4'; did you mean cnn4"),
        ("dnn(hidden=1.5)", 3, SHAPE, r"hidden=1.5 is not a whole number or None"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_one_sentence(model, classes, shape, message: str) -> None:
    with pytest.raises(WrongInput, match=message):
        make(model, classes=classes, shape=shape, seed=0)


def test_an_instance_made_for_other_samples_names_both_shapes() -> None:
    net = make("mlr", classes=3, shape=(4,), seed=0)
    with pytest.raises(WrongInput, match=r"shape \(5,\) were given to a model for samples of shape \(4,\)"):
        make(net, classes=3, shape=(5,), seed=0)


def test_an_error_inside_the_users_own_factory_is_shown_as_it_is() -> None:
    def broken() -> nn.Module:
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        make(broken, classes=3, shape=(4,), seed=0)
