"""SVHN, USPS and MNIST-M in the containers in which they are published."""

from __future__ import annotations

import bz2
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedtailor.data import mnist_m, svhn, usps
from fedtailor.registry import WrongInput

# ---------- SVHN ----------


def mat(path: Path, x: np.ndarray, y: list[int]) -> None:
    """X [32, 32, 3, n] and y [n, 1] in a compressed MATLAB 5 file; the digit 0 is written 10."""
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": x.astype(np.uint8), "y": np.array(y, np.uint8)[:, None]}, do_compression=True)
    assert path.read_bytes().startswith(b"MATLAB 5.0 MAT-file")


def test_svhn_has_pictures_in_the_last_place_and_calls_0_ten(home: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 7))
    mat(home / "svhn" / "train_32x32.mat", x[..., :4], [10, 1, 9, 10])
    mat(home / "svhn" / "test_32x32.mat", x[..., 4:], [5, 2, 3])
    found = svhn()
    assert found.y.tolist() == [0, 1, 9, 0, 5, 2, 3]
    for number in range(7):
        assert np.array_equal(found.x[number].permute(1, 2, 0).numpy(), x[..., number])
    assert "whole set" in found.about and "non-commercial" in found.licence


def test_a_file_that_is_not_svhns_is_named(home: Path) -> None:
    mat(home / "svhn" / "test_32x32.mat", np.zeros((32, 32, 3, 1)), [1])
    train = home / "svhn" / "train_32x32.mat"
    train.write_bytes(b"<html>not found</html>")
    with pytest.raises(WrongInput, match=r"train_32x32.mat is no file of SVHN's digits"):
        svhn()
    savemat(train, {"X": np.zeros((32, 32, 3, 1), np.uint8)})
    with pytest.raises(WrongInput, match=r"train_32x32.mat is no file of SVHN's digits.*'y'"):
        svhn()
    mat(train, np.zeros((32, 32, 3, 2)), [1])
    with pytest.raises(WrongInput, match="1 labels for 2 rows"):
        svhn()
    mat(train, np.zeros((32, 32, 1, 1)), [1])
    with pytest.raises(WrongInput, match=r"bytes \[32, 32, 3, n\]"):
        svhn()


# ---------- USPS ----------


def libsvm(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bz2.compress(("\n".join(lines) + "\n").encode()))


def line(label: int, values: dict[int, float], rest: float = -1) -> str:
    return f"{label} " + " ".join(f"{place}:{values.get(place, rest)}" for place in range(1, 257)) + " "


def test_usps_has_labels_from_1_and_values_from_minus_1(home: Path) -> None:
    """By hand: -1 is black (0), 1 is white (255), 0.2 is 1.2 * 127.5 = 153; the digit of the label 7 is 6."""
    libsvm(home / "usps" / "usps.bz2", [line(7, {1: 1.0, 17: 0.2}), line(10, {})])
    libsvm(home / "usps" / "usps.t.bz2", ["1 1:-1 256:1"])
    found = usps()
    assert found.x.shape == (3, 1, 16, 16) and found.y.tolist() == [6, 9, 0]
    assert found.x[0, 0, 0, :2].tolist() == [255, 0] and found.x[0, 0, 1, 0] == 153
    assert (found.x[1] == 0).all()
    assert found.x[2, 0, 15, 15] == 255 and found.x[2, 0, 8, 8] == 128, "what is left out is 0, a middle grey"


@pytest.mark.parametrize(("lines", "words"), [
    (["1 1:-1", "2 1:x"], "line 2: could not convert"),
    (["1 1:-1", "2 257:0"], "line 2: .*write a label and pairs from 1:value to 256"),
    (["1 0:-1"], "line 1: place 0"),
    (["11 1:-1"], "line 1: labels run from 1 to 10"),
    (["0 1:-1"], "line 1: labels run from 1 to 10"),
    (["3 5:1.5"], "line 1: .*values from -1 to 1"),
    ([], "line 1: not enough values"),
])  # fmt: skip
def test_a_wrong_line_of_usps_is_named(lines: list[str], words: str, home: Path) -> None:
    libsvm(home / "usps" / "usps.bz2", lines)
    libsvm(home / "usps" / "usps.t.bz2", ["1 1:-1"])
    with pytest.raises(WrongInput, match=f"usps.bz2, {words}"):
        usps()


# ---------- MNIST-M ----------


def png(colour: tuple[int, int, int], side: int = 32) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(held, "PNG")
    return held.getvalue()


def blended(path: Path, lists: dict[str, str], pictures: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**{f"mnist_m/{n}": t.encode() for n, t in lists.items()}, **pictures}.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))


LISTS = {"mnist_m_train_labels.txt": "00000000.png 5\n00000001.png 0\n", "mnist_m_test_labels.txt": "00000000.png 7\n"}
PICTURES = {
    "mnist_m/mnist_m_train/00000001.png": png((0, 255, 0)), "mnist_m/mnist_m_train/00000000.png": png((255, 0, 0)),
    "mnist_m/mnist_m_test/00000000.png": png((0, 0, 255)),
}  # fmt: skip


def test_mnist_m_takes_labels_from_its_lists(home: Path) -> None:
    blended(home / "mnist_m" / "mnist_m.tar.gz", LISTS, PICTURES)
    found = mnist_m()
    assert found.y.tolist() == [5, 0, 7]
    assert found.x[:, :, 3, 4].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]


def test_what_mnist_m_lacks_is_named(home: Path) -> None:
    path = home / "mnist_m" / "mnist_m.tar.gz"
    blended(path, {**LISTS, "mnist_m_train_labels.txt": "00000000.png 5\n00000007.png 1\n"}, PICTURES)
    with pytest.raises(WrongInput, match=r"mnist_m_train_labels.txt in .*, line 2: '00000007.png 1' is no picture"):
        mnist_m()
    blended(path, {"mnist_m_train_labels.txt": "00000000.png 5\n"}, PICTURES)
    with pytest.raises(WrongInput, match=r"holds no mnist_m_test_labels.txt"):
        mnist_m()
    blended(path, LISTS, {**PICTURES, "mnist_m/mnist_m_test/00000000.png": b"GIF"})
    with pytest.raises(WrongInput, match=r"00000000.png in .*mnist_m.tar.gz cannot be read as a picture"):
        mnist_m()
