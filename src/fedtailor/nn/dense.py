"""Networks of linear layers, which take samples of any shape and flatten them."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

from torch import nn

from fedtailor.nn.shape import Input, check_sizes
from fedtailor.registry import WrongInput, register


@register("model", "mlr", "logistic")
def mlr(*, classes: int, shape: tuple[int, ...]) -> nn.Sequential:
    """Multinomial logistic regression: one linear layer on the flattened sample."""
    check_sizes("mlr", classes, shape)
    return nn.Sequential(OrderedDict(input=Input(shape), flatten=nn.Flatten(), head=nn.Linear(prod(shape), classes)))


@register("model", "dnn", "mlp")
def dnn(*, classes: int, shape: tuple[int, ...], hidden: int | None = None) -> nn.Sequential:
    """One hidden ReLU layer of 100 units, 20 if a sample has at most 60 numbers: the DNN of FedMCSA."""
    check_sizes("dnn", classes, shape)
    features = prod(shape)
    units = hidden if hidden is not None else (20 if features <= 60 else 100)
    if units < 1:
        raise WrongInput(f"dnn cannot have hidden={hidden}; give at least one unit, such as hidden=100")
    return nn.Sequential(
        OrderedDict(
            input=Input(shape),
            flatten=nn.Flatten(),
            hidden=nn.Linear(features, units),
            relu=nn.ReLU(),
            head=nn.Linear(units, classes),
        )
    )
