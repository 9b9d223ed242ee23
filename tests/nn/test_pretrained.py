"""Weights from a file in torchvision's format: what is loaded, what is left, what is refused, what is said."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from fedtailor import Arch
from fedtailor.nn import make, resnet18
from fedtailor.nn.pretrained import ImageNetScale, WeightsNote
from fedtailor.registry import WrongInput

SHAPE = (3, 32, 32)


@pytest.fixture(scope="module")
def saved() -> dict[str, Tensor]:
    """What a file of another ResNet-18, of seven classes, holds; convolutions in half precision, no counters."""
    torch.default_generator.manual_seed(7)
    state = resnet18(classes=7, shape=SHAPE).state_dict()
    floats = {name: value + 0.25 for name, value in state.items() if value.is_floating_point()}
    return {name: (value.half() if value.dim() == 4 else value).contiguous() for name, value in floats.items()}


@pytest.fixture
def file(saved: dict[str, Tensor], tmp_path: Path) -> str:
    save_file(saved, tmp_path / "weights.safetensors")
    return str(tmp_path / "weights.safetensors")


def made(file: str, classes: int = 5, options: str = "") -> nn.Module:
    return make(f"resnet18(pretrained={file!r}{options})", classes=classes, shape=SHAPE, seed=0)


def test_all_but_the_head_starts_from_the_file(file: str, saved: dict[str, Tensor]) -> None:
    with pytest.warns(WeightsNote) as told:
        net = made(file)
    assert [str(note.message) for note in told] == [
        "resnet18: 100 tensors start from weights.safetensors; fc.bias, fc.weight start as drawn; "
        "of the file, fc.bias, fc.weight are not used"
    ]
    state = net.state_dict()
    for name, value in saved.items():
        if not name.startswith("fc."):
            assert torch.equal(state[name], value.float()), name
    drawn = make("resnet18", classes=5, shape=SHAPE, seed=0).state_dict()
    assert torch.equal(state["fc.weight"], drawn["fc.weight"])
    assert state["bn1.num_batches_tracked"] == 0


def test_a_head_of_the_same_size_starts_from_it_too(file: str, saved: dict[str, Tensor]) -> None:
    with pytest.warns(WeightsNote, match="102 tensors start from weights.safetensors$"):
        net = made(file, classes=7)
    assert torch.equal(net.state_dict()["fc.weight"], saved["fc.weight"])


@pytest.mark.parametrize(("change", "words"), [
    ({"layer4.1.bn2.running_var": None}, "lacks layer4.1.bn2.running_var, which resnet18 has"),
    ({"layer3.0.conv1.weight": torch.zeros(2, 2, 3, 3)},
     r"layer3.0.conv1.weight of shape \(2, 2, 3, 3\), and resnet18 needs \(256, 128, 3, 3\)"),
    ({"layer1.2.conv1.weight": torch.zeros(2)}, "has layer1.2.conv1.weight beside what resnet18 has"),
])  # fmt: skip
def test_a_file_of_another_network_is_refused_or_loaded_as_far_as_it_fits(
    change: dict[str, Tensor | None], words: str, saved: dict[str, Tensor], tmp_path: Path
) -> None:
    other = {name: value for name, value in {**saved, **change}.items() if value is not None}
    file = str(tmp_path / "other.safetensors")
    save_file(other, file)
    with pytest.raises(WrongInput, match=f"{words}; give the weights of this network, or strict=False"):
        made(file)
    [name] = change
    fits = 100 if "layer1.2" in name else 99
    with pytest.warns(WeightsNote, match=f"{fits} tensors start from other.safetensors") as told:
        net = made(file, options=", strict=False")
    assert name in str(told[0].message)
    assert torch.equal(net.state_dict()["conv1.weight"], saved["conv1.weight"].float())


def test_what_is_no_such_file_or_no_picture_in_colours_is_refused(tmp_path: Path, file: str) -> None:
    with pytest.raises(WrongInput, match=r"resnet18 cannot read pretrained='none'.*names of torchvision's resnet18"):
        made("none")
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(WrongInput, match="cannot read"):
        made(str(tmp_path / "text"))
    for model in ("resnet18", "mobilenet_v2", "alexnet_bn"):
        with pytest.raises(WrongInput, match=r"three channels, red, green and blue.*\(1, 64, 64\); leave pretrained"):
            make(f"{model}(pretrained={file!r})", classes=5, shape=(1, 64, 64), seed=0)


def test_pictures_are_scaled_as_the_weights_were_trained(file: str) -> None:
    """By hand: red of 0.485 is the mean, white red (1 - 0.485) / 0.229 = 2.2489, black blue -0.406 / 0.225 = -1.8044"""
    x = torch.ones(1, 3, 1, 2)
    x[..., 1] = -1.0
    x[0, 0, 0, 0] = 2 * 0.485 - 1
    out = ImageNetScale()(x)[0, :, 0]
    white, black = [0.0, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225], [-0.485 / 0.229, -0.456 / 0.224, -1.8044]
    torch.testing.assert_close(out, torch.tensor([white, black]).T, atol=1e-4, rtol=0)
    with pytest.warns(WeightsNote):
        net = made(file)
    seen: list[Tensor] = []
    net.conv1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    net.eval()(torch.zeros(1, *SHAPE))
    torch.testing.assert_close(seen[0][0, 0, 0, 0].item(), (0.5 - 0.485) / 0.229)
    assert set(Arch(net).names) == set(make("resnet18", classes=5, shape=SHAPE, seed=0).state_dict())


def photos(folder: Path, each: int = 60) -> tuple[Tensor, Tensor]:
    """The first photographs of each of PACS's seven classes."""
    with np.load(folder / "pacs_96.npz", allow_pickle=False) as held:
        data, offsets, labels, domains = (held[key] for key in ("data", "offsets", "labels", "domains"))
    rows = [i for c in range(7) for i in np.flatnonzero((labels == c) & (domains == 0))[:each]]
    pictures = [Image.open(io.BytesIO(data[offsets[i] : offsets[i + 1]].tobytes())).convert("RGB") for i in rows]
    x = torch.from_numpy(np.stack([np.asarray(p) for p in pictures])).permute(0, 3, 1, 2)
    return x / 127.5 - 1, torch.from_numpy(labels[rows].astype(np.int64))


def test_what_was_trained_on_imagenet_tells_photographs_apart(data_folder: Path) -> None:
    """The nearest photograph by features is of the same class in 9 of 10 cases; without the weights in 4."""
    file = data_folder / "mobilenetv2_features_imagenet.safetensors"
    if not file.is_file() or not (data_folder / "pacs_96.npz").is_file():
        pytest.skip("needs MobileNetV2 trained on ImageNet, and PACS")
    x, y = photos(data_folder)
    right = {}
    with pytest.warns(WeightsNote, match=r"260 tensors start from .*; classifier.1.bias, classifier.1.weight start as"):
        trained = make(f"mobilenet_v2(pretrained={str(file)!r})", classes=7, shape=(3, 96, 96), seed=0)
    for name, net in (("trained", trained), ("drawn", make("mobilenet_v2", classes=7, shape=(3, 96, 96), seed=0))):
        arch = Arch(net)
        with torch.no_grad():
            features = torch.cat([arch.features(arch.values(), part, train=False) for part in x.split(70)])
        near = nn.functional.normalize(features) @ nn.functional.normalize(features).T
        right[name] = float((y[near.fill_diagonal_(-2).argmax(1)] == y).double().mean())
    assert right["trained"] > 0.88
    assert right["drawn"] < 0.6
