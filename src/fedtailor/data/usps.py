"""USPS: digits from envelopes, in the text files of LIBSVM."""

from __future__ import annotations

import bz2
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedtailor.data import compact
from fedtailor.data.decoding import Pixels
from fedtailor.data.download import ORIGINS, Origin, Remote, originate, place
from fedtailor.data.federation import Dataset
from fedtailor.data.files import first_of, home
from fedtailor.registry import WrongInput, register

ADDRESS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"
PIXELS = 16 * 16

# checksums: torchvision's; nobody states the sizes
originate("usps", Origin(
    "none stated (Hull, 1994); free for research by custom",
    (
        Remote("usps.bz2", f"{ADDRESS}/usps.bz2", None, "md5:ec16c51db3855ca6c91edd34d0e9b197"),
        Remote("usps.t.bz2", f"{ADDRESS}/usps.t.bz2", None, "md5:8ea070ee2aca1ac39742fdd1ef5ed118"),
    ),
    compact="digits_usps.npz",
))  # fmt: skip


def read_libsvm(path: Path) -> tuple[Pixels, NDArray[np.int64]]:
    """Pictures and labels: lines `label 1:value ... 256:value`, labels 1 to 10, values -1 to 1, 0 if absent."""
    rows, labels = [], []
    try:
        text = bz2.decompress(path.read_bytes()).decode()
    except (OSError, ValueError) as error:
        raise WrongInput(f"{path} cannot be unpacked ({error}); delete it and fetch it again") from None
    for number, line in enumerate(text.splitlines(), 1):
        row = np.zeros(PIXELS)
        try:
            label, *pairs = line.split()
            labels.append(int(label) - 1)
            for pair in pairs:
                place, _, value = pair.partition(":")
                if int(place) < 1:
                    raise ValueError(f"place {place}")
                row[int(place) - 1] = float(value)
        except (ValueError, IndexError) as error:
            raise WrongInput(f"{path}, line {number}: {error}; write a label and pairs from 1:value to 256") from None
        if not 0 <= labels[-1] < 10 or np.abs(row).max() > 1:
            raise WrongInput(f"{path}, line {number}: labels run from 1 to 10 and values from -1 to 1")
        rows.append(row)
    if not rows:
        raise WrongInput(f"{path} holds no line; delete it and fetch it again")
    x = np.rint((np.stack(rows) + 1) * 127.5).astype(np.uint8)
    return x.reshape(-1, 16, 16), np.array(labels, np.int64)


@register("data", "usps")
def usps() -> Dataset:
    """USPS: 9,298 digits from envelopes, 16 x 16 in grey, training and test pictures together."""
    copy = home() / ORIGINS["usps"].compact
    files = first_of("usps", [place("usps", file.name) for file in ORIGINS["usps"].files], [copy])
    if files[0] == copy:
        x, labels = compact.plain(copy)
    else:
        x, labels = (np.concatenate(part) for part in zip(*map(read_libsvm, files), strict=True))
    return Dataset(
        name="usps",
        x=torch.from_numpy(x).unsqueeze(1),
        y=torch.from_numpy(labels),
        classes=tuple("0123456789"),
        model="lenet_bn",
        partition="dirichlet(alpha=0.1, clients=10)",
        settings={"rounds": 100, "epochs": 1, "batch": 32, "lr": 0.01},
        licence=ORIGINS["usps"].licence,
        about="digits from envelopes",
    )
