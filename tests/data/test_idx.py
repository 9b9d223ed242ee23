"""MNIST and Fashion-MNIST from files in the IDX format, written here byte by byte."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor.data import fashion_mnist, idx, load, mnist
from fedtailor.registry import WrongInput

FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
         "t10k-labels-idx1-ubyte.gz")  # fmt: skip


def idx_file(values: np.ndarray, kind: int = 8) -> bytes:
    """The format as its authors describe it: magic number, sizes with the highest byte first, values."""
    header = struct.pack(">HBB", 0, kind, values.ndim) + b"".join(struct.pack(">I", n) for n in values.shape)
    return gzip.compress(header + values.astype(np.uint8).tobytes(), mtime=0)


def four(folder: Path, train: int = 40, test: int = 10) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (train + test, 28, 28)), np.arange(train + test) % 10
    folder.mkdir(parents=True)
    for file, values in zip(FILES, (x[:train], y[:train], x[train:], y[train:]), strict=True):
        (folder / file).write_bytes(idx_file(values))
    return x, y


def test_the_four_files_become_one_tensor_training_pictures_first(home: Path) -> None:
    x, y = four(home / "mnist")
    found = mnist()
    assert found.x.dtype is torch.uint8 and found.x.shape == (50, 1, 28, 28)
    assert np.array_equal(found.x[:, 0].numpy(), x) and np.array_equal(found.y.numpy(), y)
    assert found.classes == tuple("0123456789")
    assert "CC BY-SA" in found.licence


def test_each_pixel_has_mean_0_and_deviation_1_where_that_is_asked_for(home: Path) -> None:
    x, _ = four(home / "mnist")
    expected = (x - x.mean(0)) / (x.std(0) + 0.001)
    torch.testing.assert_close(mnist(scale="pixel").x[:, 0].double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-4)


def test_fashion_mnist_is_found_where_debian_installs_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Path("/usr/share/datasets/fashion-mnist") == idx.DEBIAN
    monkeypatch.setattr(idx, "DEBIAN", tmp_path / "debian")
    with pytest.raises(WrongInput, match=r"fashion_mnist is not at hand \(looked for .*train-images.*npz or .*debian"):
        fashion_mnist()
    x, _ = four(tmp_path / "debian")
    found = fashion_mnist()
    assert np.array_equal(found.x[:, 0].numpy(), x) and found.classes[9] == "Ankle boot"
    other, _ = four(home / "fashion_mnist", train=30)
    assert np.array_equal(fashion_mnist().x[:, 0].numpy(), other), "one's own files come first"


def test_without_files_the_message_says_how_to_get_them(home: Path) -> None:
    with pytest.raises(WrongInput, match=r"mnist is not at hand.*`fedtailor data get mnist`.*FEDTAILOR_DATA"):
        load("mnist")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (0, b"no gzip", "cannot be unpacked"),
        (0, idx_file(np.zeros((40, 28, 28)))[:-30], "cannot be unpacked"),
        (0, idx_file(np.zeros((40, 28, 28)), kind=13), "is no IDX file of bytes"),
        (1, gzip.compress(b"<!DOCTYPE html>", mtime=0), "is no IDX file of bytes"),
        (1, gzip.compress(struct.pack(">HBBI", 0, 8, 1, 40) + bytes(39)), "holds 39 values and should hold 40"),
        (1, idx_file(np.zeros(39)), "39 labels for 40 rows"),
        (1, idx_file(np.full(40, 10)), "a label 10, but pictures has 10 classes"),
    ],
    ids=["no gzip", "cut off", "of floats", "a web page", "too short", "labels for others", "a label too many"],
)
def test_a_damaged_file_is_named(file: int, content: bytes, words: str, home: Path) -> None:
    four(home / "mnist")
    (home / "mnist" / FILES[file]).write_bytes(content)
    with pytest.raises(WrongInput, match=f"{FILES[file]}.*{words}|{words}.*{FILES[file]}"):
        mnist()
