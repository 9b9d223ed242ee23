"""MNIST and Fashion-MNIST, in the IDX format in which both are published."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.data import compact
from fedtailor.data.download import ORIGINS, Origin, Remote, originate, place
from fedtailor.data.federation import Dataset
from fedtailor.data.files import Array, check_labels, first_of, home
from fedtailor.registry import WrongInput, register

Scale = Literal["range", "pixel"]

BYTES = 0x08  # IDX's number for unsigned bytes
FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
         "t10k-labels-idx1-ubyte.gz")  # fmt: skip
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def _remotes(address: str, sizes: tuple[int, ...], checksums: tuple[str, ...]) -> tuple[Remote, ...]:
    parts = zip(FILES, sizes, checksums, strict=True)
    return tuple(Remote(file, f"{address}/{file}", size, f"sha256:{digest}") for file, size, digest in parts)


# sizes and checksums of this module: the catalogue of TensorFlow Datasets
originate("mnist", Origin(
    "CC BY-SA 3.0 (LeCun, Cortes and Burges)",
    _remotes("https://storage.googleapis.com/cvdf-datasets/mnist", (9_912_422, 28_881, 1_648_877, 4_542), (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    )),
    compact="mnist.npz",
))  # fmt: skip
originate("fashion_mnist", Origin(
    "MIT (Zalando)",
    _remotes("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", (26_421_880, 29_515, 4_422_102, 5_148), (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    )),
    compact="fashion_mnist.npz",
))  # fmt: skip


def read_idx(path: Path) -> Array:
    """An array of bytes: two zeros, the type, the number of dimensions, the sizes (big-endian), the values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise WrongInput(f"{path} cannot be unpacked ({error}); delete it and fetch it again") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != BYTES:
        raise WrongInput(f"{path} is no IDX file of bytes; delete it and fetch it again")
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    if len(shape) != content[3] or len(content) != start + math.prod(shape):
        raise WrongInput(
            f"{path} holds {max(0, len(content) - start):,} values and should hold {math.prod(shape):,}; "
            "delete it and fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_four(files: tuple[Path, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures [n, height, width] and labels, those to train on first."""
    arrays = [read_idx(file) for file in files]
    for number in (0, 2):
        check_labels("pictures", files[number + 1], arrays[number + 1], len(arrays[number]), 10)
    return np.concatenate(arrays[0::2]), np.concatenate(arrays[1::2]).astype(np.int64)


def load(name: str, *choices: tuple[Path, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures and labels from the published files, a compact copy or one of the other choices."""
    copy = home() / ORIGINS[name].compact
    files = tuple(first_of(name, tuple(place(name, file) for file in FILES), (copy,), *choices))
    if files != (copy,):
        return read_four(files)
    x, labels = compact.plain(copy) if name == "mnist" else compact.sheets(copy)
    return x.reshape(-1, 28, 28), labels


def of_idx(name: str, scale: Scale, classes: tuple[str, ...], about: str, *choices: tuple[Path, ...]) -> Dataset:
    x, labels = load(name, *choices)
    return Dataset(
        name=name,
        x=scaled(torch.from_numpy(x).unsqueeze(1), scale),
        y=torch.from_numpy(labels),
        classes=classes,
        model="cnn4",
        partition="pathological(classes=2, clients=20, validation=0.0, test=0.25)",
        settings={"rounds": 100, "epochs": 1, "batch": 10, "lr": 0.1},
        licence=ORIGINS[name].licence,
        about=f"{about}; settings and partition of FedALA's experiments, with fewer rounds",
    )


def scaled(x: Tensor, scale: Scale) -> Tensor:
    """Bytes as they are, or with mean 0 and deviation 1 over all rows, pixel by pixel, as FedMCSA has it."""
    if scale == "range":
        return x
    numbers = x.float()
    numbers.sub_(numbers.mean(0))
    return numbers.div_(numbers.square().mean(0).sqrt() + 0.001)


@register("data", "mnist")
def mnist(scale: Scale = "range") -> Dataset:
    """MNIST: 70,000 handwritten digits, 28 x 28 in grey, training and test pictures together."""
    return of_idx("mnist", scale, tuple("0123456789"), "handwritten digits")


@register("data", "fashion_mnist")
def fashion_mnist(scale: Scale = "range") -> Dataset:
    """Fashion-MNIST: 70,000 pieces of clothing, 28 x 28 in grey, training and test pictures together."""
    debian = tuple(DEBIAN / file for file in FILES)
    return of_idx("fashion_mnist", scale, CLOTHES, "pieces of clothing", debian)
