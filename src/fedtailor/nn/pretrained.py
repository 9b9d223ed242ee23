"""Weights that were trained elsewhere: a safetensors file with the names of torchvision's networks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedtailor.registry import WrongInput

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's red, green and blue, from 0 to 1
NAMED = 3  # tensors that a message names


class WeightsNote(UserWarning):
    """What was loaded from a file of weights, and what was not."""


class ImageNetScale(nn.Module):
    """Brings pictures from -1 to 1 to the mean 0 and deviation 1 over ImageNet that its networks were trained on."""

    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, DEVIATION))
        self.register_buffer("scale", 0.5 / deviation, persistent=False)  # constants, and no part of the model
        self.register_buffer("shift", (0.5 - mean) / deviation, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


def load_weights(
    net: nn.Module, model: str, file: str, *, head: str, modules: Mapping[str, str] | None = None, strict: bool = True
) -> None:
    """Start `net` from a file, and say what started from it and what did not.

    `head` is the part whose size depends on the classes: it is loaded where it fits. Everything else has to be in the
    file, and nothing else may be, unless `strict` is off. `modules` are torchvision's modules by its names and the
    names they have here, where these differ; then the rest of `net` has no counterpart.
    """
    saved = renamed(read_weights(model, file), modules)
    own = {name: value for name, value in net.state_dict().items() if value.is_floating_point()}
    body = {name for name in own if not within(name, head)}
    if modules is not None:
        body = {name for name in body if name.rpartition(".")[0] in modules.values()}
    fits = {name for name, value in saved.items() if name in own and value.shape == own[name].shape}
    lacking = sorted(body - fits)
    foreign = sorted(n for n, t in saved.items() if t.is_floating_point() and n not in body and not within(n, head))
    if strict and (lacking or foreign):
        raise WrongInput(misfit(model, file, saved, own, lacking, foreign))
    with torch.no_grad():
        for name in sorted(fits):
            own[name].copy_(saved[name])
    left, unused = sorted(own.keys() - fits), sorted(saved.keys() - fits)
    told = [f"{model}: {len(fits)} tensors start from {Path(file).name}"]
    told += [f"{some(left)} {'starts' if len(left) == 1 else 'start'} as drawn"] if left else []
    told += [f"of the file, {some(unused)} {'is' if len(unused) == 1 else 'are'} not used"] if unused else []
    warnings.warn("; ".join(told), WeightsNote, stacklevel=3)


def read_weights(model: str, file: str) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise WrongInput(
            f"{model} cannot read pretrained={file!r} ({error}); give a safetensors file with the names of "
            f"torchvision's {model.removesuffix('_bn')}"
        ) from None


def renamed(saved: Mapping[str, Tensor], modules: Mapping[str, str] | None) -> dict[str, Tensor]:
    found = {}
    for name, value in saved.items():
        module, _, leaf = name.rpartition(".")
        found[name if modules is None or module not in modules else f"{modules[module]}.{leaf}"] = value
    return found


def within(name: str, part: str) -> bool:
    return name.startswith(f"{part}.")


def misfit(
    model: str, file: str, saved: Mapping[str, Tensor], own: Mapping[str, Tensor], lacking: Sequence[str],
    foreign: Sequence[str],
) -> str:  # fmt: skip
    if not lacking:
        what = f"has {some(foreign)} beside what {model} has"
    elif lacking[0] in saved:
        there, here = (tuple(tensors[lacking[0]].shape) for tensors in (saved, own))
        what = f"has {lacking[0]} of shape {there}, and {model} needs {here}"
    else:
        what = f"lacks {some(lacking)}, which {model} has"
    return f"{file} {what}; give the weights of this network, or strict=False for those that fit"


def some(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
