"""CIFAR-10 and CIFAR-100 from archives in the binary form, written here byte by byte."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor.data import cifar10, cifar100
from fedtailor.registry import WrongInput

TEN = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n"  # an empty line ends it, as published


def pack(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))


def record(labels: list[int], picture: np.ndarray) -> bytes:
    """The labels, then 1,024 bytes of red, of green and of blue, row by row; `picture` is [32, 32, 3]."""
    return bytes(labels) + b"".join(picture[..., channel].astype(np.uint8).tobytes() for channel in range(3))


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, 32, 32, 3))


def ten(path: Path, x: np.ndarray, y: list[int], names: str = TEN) -> None:
    """Five batches and one to test on, in the order of the official archive, which is not theirs."""
    batches = {f"data_batch_{i + 1}.bin": b"".join(record([y[j]], x[j]) for j in (2 * i, 2 * i + 1)) for i in range(5)}
    batches["test_batch.bin"] = b"".join(record([y[j]], x[j]) for j in (10, 11))
    order = ["data_batch_1.bin", "readme.html", "batches.meta.txt", "test_batch.bin", *list(batches)[4:0:-1]]
    others = {"readme.html": b"<html>", "batches.meta.txt": names.encode()}
    pack(path, {f"cifar-10-batches-bin/{name}": {**batches, **others}[name] for name in order})


def test_ten_classes(home: Path) -> None:
    x, y = pictures(12), [7, 1, 0, 9, 4, 4, 2, 3, 5, 6, 8, 9]
    ten(home / "cifar10" / "cifar-10-binary.tar.gz", x, y)
    found = cifar10()
    assert found.x.dtype is torch.uint8 and found.x.shape == (12, 3, 32, 32) and found.x.is_contiguous()
    assert np.array_equal(found.x.permute(0, 2, 3, 1).numpy(), x)
    assert found.y.tolist() == y
    assert found.classes == tuple(TEN.split())


def test_a_hundred_classes_count_the_fine_label(home: Path) -> None:
    x, fine = pictures(5), [99, 3, 41, 0, 7]
    names = "".join(f"class{i:02d}\n" for i in range(100)).encode()
    records = [record([19 - i, label], picture) for i, (label, picture) in enumerate(zip(fine, x, strict=True))]
    pack(home / "cifar100" / "cifar-100-binary.tar.gz", {
        "cifar-100-binary/test.bin": b"".join(records[3:]), "cifar-100-binary/train.bin": b"".join(records[:3]),
        "cifar-100-binary/coarse_label_names.txt": b"a\nb\n", "cifar-100-binary/fine_label_names.txt": names,
    })  # fmt: skip
    found = cifar100()
    assert found.y.tolist() == fine, "those to train on come first"
    assert np.array_equal(found.x.permute(0, 2, 3, 1).numpy(), x)
    assert found.classes[41] == "class41"


def test_channels_are_scaled_as_in_fedmcsas_experiments(home: Path) -> None:
    """By hand: red of 51 is 0.2, hence (0.2 - 0.4914) / 0.2023 = -1.4404"""
    x = np.full((12, 32, 32, 3), 51)
    ten(home / "cifar10" / "cifar-10-binary.tar.gz", x, [0] * 12)
    values = cifar10(scale="channel").x[0, :, 0, 0].tolist()
    assert values == pytest.approx([-1.4404, (0.2 - 0.4822) / 0.1994, (0.2 - 0.4465) / 0.2010], abs=1e-4)


def test_what_is_damaged_is_named(home: Path) -> None:
    path = home / "cifar10" / "cifar-10-binary.tar.gz"
    x = pictures(12)
    ten(path, x, [0] * 11 + [10])
    with pytest.raises(WrongInput, match=r"cifar-10-binary.tar.gz: a label 10, but pictures has 10 classes"):
        cifar10()
    pack(path, {"a/data_batch_1.bin": record([0], x[0])[:-1], "a/batches.meta.txt": TEN.encode()})
    with pytest.raises(WrongInput, match=r"data_batch_1.bin is cut off within a picture"):
        cifar10()
    pack(path, {"a/data_batch_1": b"pickled"})
    with pytest.raises(WrongInput, match=r"no .bin batches or no batches.meta.txt; fetch the binary version"):
        cifar10()
    ten(path, x, [0] * 12)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(WrongInput, match="cannot be unpacked"):
        cifar10()
