"""AlexNet with batch norm, for pictures of 224 x 224 pixels or so."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fedtailor.nn.convolutional import normed_block
from fedtailor.nn.shape import Input, check_image, check_sizes
from fedtailor.registry import WrongInput, register

SMALLEST = 63  # below, the last pooling has nothing to pool
# what torchvision calls the five convolutions, whose sizes are the same
TORCHVISION = {"features.0": "conv1", "features.3": "conv2", "features.6": "conv3", "features.8": "conv4",
               "features.10": "conv5"}  # fmt: skip


@register("model", "alexnet_bn", "alexnet")
def alexnet_bn(
    *,
    classes: int,
    shape: tuple[int, ...],
    attention_at: Literal["block", "conv"] = "block",
    pretrained: str | None = None,
) -> nn.Sequential:
    """AlexNet with batch norm after every layer but the last: the network of pFedLA and PartialFed for photographs."""
    check_sizes("alexnet_bn", classes, shape)
    check_image("alexnet_bn", shape, SMALLEST)

    # pFedLA, table 8: its third row (64 -> 128) does not chain with its neighbours, and its last convolution lacks the
    # attention that table 11 lists; the printed counts are those of five convolutions with attention after each
    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2)

    net = nn.Sequential(
        OrderedDict(
            input=Input(shape),
            **normed_block(1, nn.Conv2d(shape[0], 64, 11, stride=4, padding=2), pool(), attention_at),
            **normed_block(2, nn.Conv2d(64, 192, 5, padding=2), pool(), attention_at),
            **normed_block(3, nn.Conv2d(192, 384, 3, padding=1), None, attention_at),
            **normed_block(4, nn.Conv2d(384, 256, 3, padding=1), None, attention_at),
            **normed_block(5, nn.Conv2d(256, 256, 3, padding=1), pool(), attention_at),
            average=nn.AdaptiveAvgPool2d(6),
            flatten=nn.Flatten(),
            fc1=nn.Linear(256 * 6 * 6, 4096),
            bn6=nn.BatchNorm1d(4096),
            relu6=nn.ReLU(),
            fc2=nn.Linear(4096, 4096),
            bn7=nn.BatchNorm1d(4096),
            relu7=nn.ReLU(),
            head=nn.Linear(4096, classes),
        )
    )
    if pretrained is not None:
        load_convolutions(net, Path(pretrained))
    return net


def load_convolutions(net: nn.Sequential, file: Path) -> None:
    """Start the convolutions from a safetensors file with torchvision's names; the rest has no counterpart there."""
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise WrongInput(
            f"alexnet_bn cannot read pretrained={str(file)!r} ({error}); give a safetensors file with the tensors "
            "features.0.weight to features.10.bias of torchvision's AlexNet"
        ) from None
    for theirs, ours in TORCHVISION.items():
        conv = net.get_submodule(ours)
        wanted = {leaf: value.shape for leaf, value in conv.named_parameters()}
        found = {leaf: tensors.get(f"{theirs}.{leaf}") for leaf in wanted}
        for leaf, value in found.items():
            if value is None or value.shape != wanted[leaf]:
                has = "no such tensor" if value is None else f"one of shape {tuple(value.shape)}"
                raise WrongInput(
                    f"alexnet_bn needs {theirs}.{leaf} of shape {tuple(wanted[leaf])} and {file} has {has}; give "
                    "the convolutions of torchvision's AlexNet, for pictures of as many channels"
                )
        conv.load_state_dict(found)
