"""Tiny-ImageNet, in its zip archive."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path, PurePosixPath

import torch

from fedtailor.data.decoding import once
from fedtailor.data.download import ORIGINS, Origin, Remote, originate, place
from fedtailor.data.federation import Dataset
from fedtailor.data.files import first_of, numbered
from fedtailor.registry import WrongInput, register

# size and checksum: recorded alike by many who fetched it
originate("tiny_imagenet", Origin(
    "for non-commercial research and education (ImageNet's terms)",
    (Remote("tiny-imagenet-200.zip", "http://cs231n.stanford.edu/tiny-imagenet-200.zip", 248_100_043,
            "sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"),),
))  # fmt: skip


def words_of(archive: zipfile.ZipFile, path: Path) -> dict[str, str]:
    """The first English word for each class, by its WordNet number."""
    name = next((name for name in archive.namelist() if name.endswith("words.txt")), None)
    if name is None:
        raise WrongInput(f"{path} holds no words.txt; delete it and fetch it again")
    lines = archive.read(name).decode().splitlines()
    pairs = (line.partition("\t") for line in lines)
    return {number: words.partition(",")[0].strip() for number, _, words in pairs}


@register("data", "tiny_imagenet")
def tiny_imagenet() -> Dataset:
    """Tiny-ImageNet: the 100,000 training pictures of 200 kinds of things, 64 x 64 in colour."""
    [path] = first_of("tiny_imagenet", [place("tiny_imagenet", ORIGINS["tiny_imagenet"].files[0].name)])
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise WrongInput(f"{path} cannot be opened ({error}); delete it and fetch it again") from None
    with archive:
        names = sorted(name for name in archive.namelist() if "/train/" in name and name.endswith(".JPEG"))
        if not names:
            raise WrongInput(f"{path} holds no train/*/images/*.JPEG; delete it and fetch it again")
        labels, numbers = numbered([PurePosixPath(name).parts[-3] for name in names])
        words = words_of(archive, path)
        sources = [partial(archive.read, name) for name in names]
        stamp = (path.stat().st_size, path.stat().st_mtime_ns)
        x = once("tiny_imagenet", [stamp], sources, [f"{name} in {path}" for name in names], 64)
    plain = [words.get(number, number) for number in numbers]
    return Dataset(
        name="tiny_imagenet",
        x=x,
        y=torch.from_numpy(labels),
        classes=tuple(w if plain.count(w) == 1 else f"{w} ({n})" for w, n in zip(plain, numbers, strict=True)),
        model="cnn4",
        partition="dirichlet(alpha=0.1, clients=20, validation=0.0, test=0.25)",
        settings={"rounds": 100, "epochs": 1, "batch": 10, "lr": 0.005},
        licence=ORIGINS["tiny_imagenet"].licence,
        about="things in 200 classes; settings and partition of FedALA's experiments, with fewer rounds",
    )
