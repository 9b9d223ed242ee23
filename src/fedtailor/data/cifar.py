"""CIFAR-10 and CIFAR-100, in their binary form: the other published form could run anything when it is read."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedtailor.data import compact
from fedtailor.data.decoding import Pixels
from fedtailor.data.download import Origin, Remote, originate, place
from fedtailor.data.federation import Dataset
from fedtailor.data.files import check_labels, first_of, home, read_npz
from fedtailor.registry import WrongInput, register

Scale = Literal["range", "channel"]

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # those that FedMCSA's experiments take off
PIXELS = 3 * 32 * 32  # bytes of a picture: its red, green and blue planes, row by row
ADDRESS = "https://www.cs.toronto.edu/~kriz"
LICENCE = "none stated by the authors (Krizhevsky, 2009); free for research by custom"

# sizes and checksums: the catalogue of TensorFlow Datasets
CIFAR10 = originate("cifar10", Origin(
    LICENCE,
    (Remote("cifar-10-binary.tar.gz", f"{ADDRESS}/cifar-10-binary.tar.gz", 170_052_171,
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
    compact="cifar10_20k4k.npz",
))  # fmt: skip
CIFAR100 = originate("cifar100", Origin(
    LICENCE,
    (Remote("cifar-100-binary.tar.gz", f"{ADDRESS}/cifar-100-binary.tar.gz", 168_513_733,
            "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),),
    compact="cifar100_10k2k.npz",
))  # fmt: skip


def read_binary(path: Path, labels: int, names: str) -> tuple[Pixels, NDArray[np.int64], tuple[str, ...]]:
    """Pictures, labels and class names of an archive: `labels` bytes and the picture, record after record.

    Of two labels, coarse and fine, the last counts. Batches to train on come before the test batch.
    """
    batches: dict[str, bytes] = {}
    classes: tuple[str, ...] = ()
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                name = member.name.rpartition("/")[2]
                if file is not None and name.endswith(".bin"):
                    batches[name] = file.read()
                elif file is not None and name == names:
                    classes = tuple(file.read().decode().split())
    except (OSError, EOFError, tarfile.TarError, zlib.error, UnicodeDecodeError) as error:
        raise WrongInput(f"{path} cannot be unpacked ({error}); delete it and fetch it again") from None
    order = sorted(batches, key=lambda name: (name.startswith("test"), name))
    if not order or not classes:
        raise WrongInput(f"{path} holds no .bin batches or no {names}; fetch the binary version")
    for name in order:
        if len(batches[name]) % (labels + PIXELS):
            raise WrongInput(f"{path}: {name} is cut off within a picture; delete it and fetch it again")
    records = np.frombuffer(b"".join(batches[name] for name in order), np.uint8).reshape(-1, labels + PIXELS)
    found = records[:, labels - 1].astype(np.int64)
    check_labels("pictures", path, found, len(records), len(classes))
    return records[:, labels:].reshape(-1, 3, 32, 32), found, classes


def load(name: str, origin: Origin, labels: int, names: str) -> tuple[Pixels, NDArray[np.int64], tuple[str, ...], str]:
    """Pictures, labels, class names, and what there is of the set."""
    copy, archive = home() / origin.compact, place(name, origin.files[0].name)
    [file] = first_of(name, [archive], [copy])
    if file == archive:
        return *read_binary(archive, labels, names), "the whole set"
    x, found = compact.sheets(copy)
    classes = tuple(str(word) for word in read_npz(copy, ["classes"])["classes"])
    return x, found, classes, f"a part of the set, {len(x):,} of 60,000 pictures"


def of_cifar(name: str, origin: Origin, scale: Scale, labels: int, names: str, about: str) -> Dataset:
    x, found, classes, extent = load(name, origin, labels, names)
    pixels = torch.from_numpy(np.ascontiguousarray(x))
    if scale == "channel":
        mean, deviation = (255 * torch.tensor(values).view(3, 1, 1) for values in (MEAN, DEVIATION))
        pixels = pixels.float().sub_(mean).div_(deviation)
    return Dataset(
        name=name,
        x=pixels,
        y=torch.from_numpy(found),
        classes=classes,
        model="cnn4",
        partition="dirichlet(alpha=0.1, clients=20, validation=0.0, test=0.25)",
        settings={"rounds": 100, "epochs": 1, "batch": 10, "lr": 0.005},
        licence=origin.licence,
        about=f"{about}; {extent}; settings and partition of FedALA's experiments, with fewer rounds",
    )


@register("data", "cifar10")
def cifar10(scale: Scale = "range") -> Dataset:
    """CIFAR-10: 60,000 pictures of 10 kinds of things, 32 x 32 in colour, training and test pictures together."""
    return of_cifar("cifar10", CIFAR10, scale, 1, "batches.meta.txt", "things in ten classes")


@register("data", "cifar100")
def cifar100(scale: Scale = "range") -> Dataset:
    """CIFAR-100: 60,000 pictures of 100 kinds of things, with its fine labels, otherwise as CIFAR-10."""
    return of_cifar("cifar100", CIFAR100, scale, 2, "fine_label_names.txt", "things in a hundred classes")
