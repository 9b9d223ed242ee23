"""Tiny-ImageNet from an archive with the published folders, lists and JPEG pictures, grey ones among them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtailor.data import tiny_imagenet
from fedtailor.registry import WrongInput

WORDS = "n01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\nn09428293\tseashore, coast\nn03\tseashore\n"


def jpeg(grey: int, mode: str = "RGB") -> bytes:
    held = io.BytesIO()
    Image.new(mode, (64, 64), grey if mode == "L" else (grey, grey, grey)).save(held, "JPEG", quality=95)
    return held.getvalue()


def archive(path: Path, without: str = "-") -> None:
    members = {"wnids.txt": b"n02124075\nn01443537\nn09428293\nn03\n", "words.txt": WORDS.encode()}
    for number, kind in enumerate(("n01443537", "n02124075", "n09428293", "n03")):
        for i in range(2):
            grey = 40 * number + 100 * i
            members[f"train/{kind}/images/{kind}_{i}.JPEG"] = jpeg(grey, "L" if i else "RGB")
        members[f"train/{kind}/{kind}_boxes.txt"] = f"{kind}_0.JPEG\t0\t0\t63\t63\n".encode()
    members["val/images/val_0.JPEG"] = jpeg(250)
    members["val/val_annotations.txt"] = b"val_0.JPEG\tn03\t0\t0\t63\t63\n"
    members["test/images/test_0.JPEG"] = jpeg(250)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as held:
        for name, content in members.items():
            if without not in name:
                held.writestr(f"tiny-imagenet-200/{name}", content)


def test_the_training_pictures_in_the_order_of_their_classes(home: Path) -> None:
    archive(home / "tiny_imagenet" / "tiny-imagenet-200.zip")
    found = tiny_imagenet()
    assert found.x.shape == (8, 3, 64, 64)
    assert found.classes == ("goldfish", "Egyptian cat", "seashore (n03)", "seashore (n09428293)")
    assert found.y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    greys = found.x[:, 1, 30, 30].numpy().astype(int)
    assert np.abs(greys - [0, 100, 40, 140, 120, 220, 80, 180]).max() <= 2  # JPEG is lossy
    assert (found.x[:, 0] == found.x[:, 2]).all()


def test_what_it_lacks_is_named(home: Path) -> None:
    path = home / "tiny_imagenet" / "tiny-imagenet-200.zip"
    with pytest.raises(WrongInput, match="tiny_imagenet is not at hand"):
        tiny_imagenet()
    archive(path, without="words.txt")
    with pytest.raises(WrongInput, match=r"holds no words.txt"):
        tiny_imagenet()
    archive(path, without="train/")
    with pytest.raises(WrongInput, match=r"no train/\*/images"):
        tiny_imagenet()
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(WrongInput, match="cannot be opened"):
        tiny_imagenet()
