"""Networks, and `make`, which turns whatever a user names a model into one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor import registry, schedule
from fedtailor.nn.alexnet import alexnet_bn, alexnet_small
from fedtailor.nn.attention import AttentionBlock, Slot
from fedtailor.nn.convolutional import cnn4, lenet_bn
from fedtailor.nn.dense import dnn, mlr
from fedtailor.nn.mobilenet import mobilenet_v2
from fedtailor.nn.recurrent import gru
from fedtailor.nn.resnet import resnet18
from fedtailor.nn.text import fasttext
from fedtailor.registry import WrongInput

__all__ = [
    "AttentionBlock",
    "Model",
    "Slot",
    "alexnet_bn",
    "alexnet_small",
    "cnn4",
    "dnn",
    "fasttext",
    "gru",
    "lenet_bn",
    "make",
    "mlr",
    "mobilenet_v2",
    "resnet18",
]

Model = str | nn.Module | Callable[..., nn.Module]


def make(
    model: Model, *, classes: int, shape: tuple[int, ...], seed: int, words: int | None = None
) -> nn.Module:
    """The network that `model` names, with `classes` outputs for samples of `shape` (without the batch).

    Samples are measurements, or, where the largest number of a word is given as `words`, texts.

    A text (`"dnn(hidden=32)"`) and a callable or class of your own are built here: `classes` and `shape` are
    given to those that have parameters of that name, and the initial values are a function of `seed`. An
    `nn.Module` is copied with the values it has. The global random state is left as it was.
    """
    name = _name(model)
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed: it would also seed the accelerators, whose generators are not forked
        torch.default_generator.manual_seed(schedule.torch_seed(seed, "model"))
        net = _build(model, name, {"classes": classes, "shape": tuple(shape)})
        _check_outputs(net, name, classes, tuple(shape), words)
    return net.train()


def _name(model: Model) -> str:
    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module):
        return type(model).__name__
    if callable(model):
        return getattr(model, "__name__", None) or repr(model)
    raise WrongInput(
        f"{model!r} is not a model; give a name ({', '.join(registry.names('model'))}), "
        "a function or class that makes a torch.nn.Module, or such a module"
    )


def _build(model: Model, name: str, from_data: Mapping[str, Any]) -> nn.Module:
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    factory, options = registry.parse("model", model) if isinstance(model, str) else (model, {})
    twice = [key for key in from_data if key in options]
    if twice:
        raise WrongInput(f"the model {name} sets {twice[0]}, which is taken from the data; leave it out")
    signature = inspect.signature(factory)
    arguments = {**options, **{key: value for key, value in from_data.items() if key in signature.parameters}}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise WrongInput(
            f"the model {name} cannot be made: {error}; only classes and shape are filled in, "
            "so give every other parameter a default"
        ) from None
    net = factory(**arguments)
    if not isinstance(net, nn.Module):
        raise WrongInput(
            f"the model {name} returns a value of type {type(net).__name__}; it must return a torch.nn.Module"
        )
    return net


def _check_outputs(net: nn.Module, name: str, classes: int, shape: tuple[int, ...], words: int | None) -> None:
    """One forward pass of one sample, in evaluation mode: batch norm keeps its statistics."""
    values = next(net.parameters(), torch.zeros(()))
    sample = torch.zeros(1, *shape, dtype=values.dtype, device=values.device)
    if words is not None:
        sample = torch.full((1, *shape), words, device=values.device)
    try:
        with torch.no_grad():
            out = net.eval()(sample)
    except WrongInput:
        raise
    except Exception as error:
        of, fit = "", "samples of this shape"
        if words is not None:
            of, fit = f" with words numbered up to {words}", f"such texts, as fasttext(vocabulary={words + 1})"
        raise WrongInput(
            f"the model {name} fails on one sample of shape {shape}{of}: {type(error).__name__}: {error}; "
            f"choose a model for {fit}"
        ) from error
    if not isinstance(out, Tensor) or out.dim() != 2:
        got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise WrongInput(f"the model {name} gives {got} for one sample; it must give shape (1, {classes})")
    if out.shape[1] != classes:
        raise WrongInput(
            f"the model {name} has {out.shape[1]} outputs, but the data need {classes}; "
            f"give it a last layer with {classes} outputs"
        )
