"""Compact copies of the picture sets, made here and, where they are at hand, as they are."""

from __future__ import annotations

import hashlib
import io
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedtailor.data import ag_news, cifar10, cifar100, fashion_mnist, load, mnist, mnist_m, pacs, svhn, usps


def sheet(tiles: np.ndarray) -> np.ndarray:
    """Tiles [n, h, w, 3], 64 a row, as the bytes of a lossless WebP picture, filled up with zeros."""
    n, height, width, _ = tiles.shape
    rows = -(-n // 64)
    page = np.zeros((rows * height, 64 * width, 3), np.uint8)
    for number, tile in enumerate(tiles):
        top, left = number // 64 * height, number % 64 * width
        page[top : top + height, left : left + width] = tile
    held = io.BytesIO()
    Image.fromarray(page).save(held, "WEBP", lossless=True, quality=0, method=0)
    return np.frombuffer(held.getvalue(), np.uint8)


def test_sheets_of_colour_pictures(home: Path) -> None:
    draw = np.random.default_rng(0)
    train, test = (draw.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8) for n in (150, 5))
    held = {"train_shape": train.shape, "train_labels": np.arange(150) % 10, "test_shape": test.shape,
            "test_labels": np.arange(5), "train_sheet_00": sheet(train[:128]), "train_sheet_01": sheet(train[128:]),
            "test_sheet_00": sheet(test), "classes": [f"c{i}" for i in range(10)]}  # fmt: skip
    np.savez(home / "cifar10_20k4k.npz", **held)
    found = cifar10()
    assert np.array_equal(found.x.permute(0, 2, 3, 1).numpy(), np.concatenate([train, test]))
    assert found.y.tolist() == [*(i % 10 for i in range(150)), 0, 1, 2, 3, 4]
    assert found.classes[3] == "c3" and "a part of the set, 155 of 60,000" in found.about


def test_sheets_of_grey_pictures(home: Path) -> None:
    x = np.random.default_rng(1).integers(0, 256, (70, 28, 28)).astype(np.uint8)
    grey = np.repeat(x[..., None], 3, 3)
    np.savez(home / "fashion_mnist.npz", train_shape=(66, 28, 28), train_labels=np.zeros(66, np.uint8),
             train_sheet_00=sheet(grey[:66]), test_shape=(4, 28, 28), test_labels=np.full(4, 9, np.uint8),
             test_sheet_00=sheet(grey[66:]))  # fmt: skip
    found = fashion_mnist()
    assert np.array_equal(found.x[:, 0].numpy(), x) and found.y.bincount().tolist() == [66, *[0] * 8, 4]


def test_picture_files_end_to_end(home: Path) -> None:
    blobs = []
    for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200)):
        held = io.BytesIO()
        Image.new("RGB", (96, 96), colour).save(held, "PNG")
        blobs.append(held.getvalue())
    np.savez(
        home / "pacs_96.npz", data=np.frombuffer(b"".join(blobs), np.uint8),
        offsets=np.cumsum([0, *map(len, blobs)]), labels=np.array([1, 0, 1], np.uint8),
        domains=np.array([0, 1, 1], np.uint8), classes=["dog", "elephant"], domain_names=["photo", "sketch"],
        files=["a.png", "b.png", "c.png"],
    )  # fmt: skip
    found = pacs(size=16)
    assert found.x[:, :, 0, 0].tolist() == [[200, 0, 0], [0, 200, 0], [0, 0, 200]] and found.x.shape[2:] == (16, 16)
    assert found.y.tolist() == [1, 0, 1] and found.domain is not None and found.domain.tolist() == [0, 1, 1]


# ---------- as they are ----------


@pytest.fixture
def at_hand(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return data_folder


def needs(folder: Path, *files: str) -> None:
    if not all((folder / file).is_file() for file in files):
        pytest.skip(f"needs {', '.join(files)}")


def test_mnist_is_mnist(at_hand: Path) -> None:
    """Its training pictures, as an IDX file, have the MD5 that is known of them."""
    needs(at_hand, "mnist.npz")
    found = mnist()
    header = struct.pack(">IIII", 2051, 60_000, 28, 28)
    digest = hashlib.md5(header + found.x[:60_000].numpy().tobytes(), usedforsecurity=False).hexdigest()
    assert digest == "6bbc9ace898e44ae57da46a324031adb"
    assert found.y[:60_000].bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    made = load("mnist(scale='pixel')", "class_pairs(validation=0.0)")
    assert made.sizes.max() == 3834, "FedMCSA prints 3,834 as the largest"


def test_cifar_10_has_the_means_that_are_known_of_it(at_hand: Path) -> None:
    needs(at_hand, "cifar10_20k4k.npz", "cifar100_10k2k.npz")
    found = cifar10()
    means = found.x.double().mean((0, 2, 3)) / 255
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.005)
    assert found.y.bincount().tolist() == [2400] * 10
    assert found.classes == (
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    )  # fmt: skip
    hundred = cifar100()
    assert hundred.x.shape == (12_000, 3, 32, 32) and hundred.y.bincount().tolist() == [120] * 100


def test_the_digit_sets_have_the_known_numbers(at_hand: Path) -> None:
    needs(at_hand, "digits_usps.npz", "digits_svhn.npz", "digits_mnistm.npz", "fashion_mnist.npz")
    assert usps().x.shape == (9298, 1, 16, 16)
    for found in (svhn(), mnist_m()):
        assert found.x.shape == (9298, 3, 32, 32) and int(found.y.bincount().min()) > 400
    clothes = fashion_mnist()
    assert clothes.y.bincount().tolist() == [7000] * 10
    trousers, bags = (float(clothes.x[clothes.y == kind].double().mean()) for kind in (1, 8))
    assert trousers < bags, "trousers are narrow"


def test_ag_news_has_the_official_test_rows_last(at_hand: Path) -> None:
    needs(at_hand, "ag_news.csv.gz")
    found = ag_news()
    assert found.x.shape == (31_609, 200) and found.y[-7600:].bincount().tolist() == [1900] * 4
    assert int(found.x.max()) + 1 == int(found.model.removeprefix("fasttext(vocabulary=").removesuffix(")"))
    assert (found.x[:, 0] > 0).all()


def test_pacs_has_its_counts(at_hand: Path) -> None:
    needs(at_hand, "pacs_96.npz")
    with pytest.warns(UserWarning, match="9,991 pictures are being decoded"):
        found = pacs(size=32)
    assert found.x.shape == (9991, 3, 32, 32) and found.domain is not None
    assert found.domain.bincount().tolist() == [1670, 2048, 2344, 3929]
    # sketches are thin lines on white paper
    light = torch.stack([found.x[found.domain == domain].double().mean() for domain in range(4)])
    assert light.argmax() == 3
