"""MNIST-M: MNIST's digits blended into patches of photographs, as picture files with lists of labels."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.data import compact
from fedtailor.data.decoding import once
from fedtailor.data.download import ORIGINS, Origin, originate, place
from fedtailor.data.federation import Dataset
from fedtailor.data.files import first_of, home
from fedtailor.registry import WrongInput, register

ARCHIVE = "mnist_m.tar.gz"

originate("mnist_m", Origin(
    "made of MNIST and BSDS500 (Ganin et al., 2016), for research",
    by_hand=f"{ARCHIVE} (59,001 and 9,001 pictures) is linked on http://yaroslav.ganin.net; save it in {{folder}}",
    compact="digits_mnistm.npz",
))  # fmt: skip


def read_tar(path: Path) -> tuple[Tensor, NDArray[np.int64]]:
    """Pictures and labels: a list `mnist_m_train_labels.txt` with lines `00000000.png 5`, and the folder it is of."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                opened = archive.extractfile(member) if member.isfile() else None
                if opened is not None:
                    files["/".join(Path(member.name).parts[-2:])] = opened.read()
    except (OSError, EOFError, tarfile.TarError) as error:
        raise WrongInput(f"{path} cannot be unpacked ({error}); fetch it again") from None
    pictures, names, labels = [], [], []
    for split in ("train", "test"):
        listed = next((name for name in files if name.endswith(f"mnist_m_{split}_labels.txt")), None)
        if listed is None:
            raise WrongInput(f"{path} holds no mnist_m_{split}_labels.txt; fetch mnist_m.tar.gz again")
        for number, line in enumerate(files[listed].decode().splitlines(), 1):
            file, _, label = line.partition(" ")
            source = files.get(f"mnist_m_{split}/{file}")
            if source is None or label.strip() not in tuple("0123456789"):
                raise WrongInput(f"{listed} in {path}, line {number}: {line!r} is no picture and digit; fetch it again")
            pictures.append(source)
            names.append(f"{file} in {path}")
            labels.append(int(label))
    stamp = (path.stat().st_size, path.stat().st_mtime_ns)
    return once("mnist_m", [stamp], pictures, names, 32), np.array(labels, np.int64)


@register("data", "mnist_m")
def mnist_m() -> Dataset:
    """MNIST-M: 68,002 digits on patches of photographs, 32 x 32 in colour, training and test pictures together."""
    copy, archive = home() / ORIGINS["mnist_m"].compact, place("mnist_m", ARCHIVE)
    [file] = first_of("mnist_m", [archive], [copy])
    if file == archive:
        x, labels = read_tar(archive)
    else:
        pixels, labels = compact.sheets(copy)
        x = torch.from_numpy(pixels)
    return Dataset(
        name="mnist_m",
        x=x,
        y=torch.from_numpy(labels),
        classes=tuple("0123456789"),
        model="lenet_bn",
        partition="dirichlet(alpha=0.1, clients=20)",
        settings={"rounds": 100, "epochs": 1, "batch": 32, "lr": 0.01},
        licence=ORIGINS["mnist_m"].licence,
        about=f"digits on patches of photographs; {len(x):,} of 68,002",
    )
