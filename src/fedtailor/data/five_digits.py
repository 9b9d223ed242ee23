"""Five sets of digits as five domains: the federation of FedBN's and pFedLA's experiments."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.data.federation import Dataset
from fedtailor.data.idx import mnist
from fedtailor.data.mnist_m import mnist_m
from fedtailor.data.svhn import svhn
from fedtailor.data.synth_digits import synth_digits
from fedtailor.data.usps import usps
from fedtailor.registry import WrongInput, register
from fedtailor.schedule import rng

SIDE = 28


def alike(x: Tensor) -> Tensor:
    """Pictures in three channels of 28 x 28 bytes."""
    if x.shape[-1] != SIDE:
        numbers = F.interpolate(x.float(), size=(SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
        x = numbers.round().to(torch.uint8)
    return x.expand(-1, 3, -1, -1)


@register("data", "five_digits")
def five_digits(rows: int = 9298) -> Dataset:
    """MNIST, SVHN, USPS, SynthDigits (ours) and MNIST-M as five domains, at most so many rows of each, 3 x 28 x 28."""
    if rows < 50:
        raise WrongInput(f"five_digits: rows={rows} is not possible; ask for 50 or more of each set")
    parts = [mnist(), svhn(), usps(), synth_digits(rows), mnist_m()]
    chosen = [
        torch.from_numpy(np.sort(rng(0, "five_digits", part.name).permutation(len(part.x))[:rows])) for part in parts
    ]
    return Dataset(
        name="five_digits",
        x=torch.cat([alike(part.x[index]) for part, index in zip(parts, chosen, strict=True)]),
        y=torch.cat([part.y[index] for part, index in zip(parts, chosen, strict=True)]),
        classes=tuple("0123456789"),
        domain=torch.repeat_interleave(torch.arange(5), torch.tensor([len(index) for index in chosen])),
        domain_names=("mnist", "svhn", "usps", "synth", "mnist_m"),
        model="lenet_bn",
        partition="domain(sites=1, train=743, validation=0, test=None)",
        settings={"rounds": 100, "epochs": 1, "batch": 32, "lr": 0.01},
        licence="; ".join(f"{part.name}: {part.licence}" for part in parts),
        about="digits of five kinds; settings of pFedLA's experiments",
    )
