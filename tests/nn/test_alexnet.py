"""AlexNet with batch norm: the counts that pFedLA prints, the sizes it takes, and convolutions trained elsewhere.

It has 57 million parameters, so its tests run on PyTorch's meta device, which computes shapes and no values.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedtailor.nn import alexnet_bn
from fedtailor.nn.alexnet import TORCHVISION, load_convolutions
from fedtailor.registry import WrongInput


def alexnet(classes: int = 10, shape: tuple[int, ...] = (3, 224, 224)) -> nn.Sequential:
    with torch.device("meta"):
        return alexnet_bn(classes=classes, shape=shape)


@pytest.mark.parametrize(("classes", "count"), [(10, 57_063_498), (31, 57_149_535), (65, 57_288_833)])
def test_the_parameter_counts_are_those_of_the_paper(classes: int, count: int) -> None:
    assert sum(p.numel() for p in alexnet(classes).parameters()) == count


@pytest.mark.parametrize("side", [63, 64, 224, 256])
def test_pictures_from_63_pixels_on(side: int) -> None:
    net = alexnet(31, (3, side, side))
    assert net.eval()(torch.zeros(2, 3, side, side, device="meta")).shape == (2, 31)


def test_the_features_are_those_of_the_table() -> None:
    net, sizes = alexnet(), {}
    for name, module in net.named_children():
        module.register_forward_hook(lambda _, __, out, name=name: sizes.update({name: tuple(out.shape[1:])}))
    net.eval()(torch.zeros(1, 3, 224, 224, device="meta"))
    maps = {name: sizes[name] for name in ("pool1", "pool2", "relu3", "relu4", "pool5", "flatten", "fc1", "fc2")}
    assert maps == {
        "pool1": (64, 27, 27), "pool2": (192, 13, 13), "relu3": (384, 13, 13), "relu4": (256, 13, 13),
        "pool5": (256, 6, 6), "flatten": (9216,), "fc1": (4096,), "fc2": (4096,),
    }  # fmt: skip


def test_smaller_pictures_are_refused() -> None:
    with pytest.raises(WrongInput, match="63 x 63 pixels or more"):
        alexnet_bn(classes=10, shape=(3, 62, 63))


# ---------- convolutions trained elsewhere ----------


def convolutions() -> nn.Sequential:
    """What `load_convolutions` fills, without the 57 million."""
    layers = {name: m for name, m in alexnet().named_children() if isinstance(m, nn.Conv2d)}
    net = nn.Sequential()
    for name, conv in layers.items():
        net.add_module(name, conv.to_empty(device="cpu"))
    return net


def tensors() -> dict[str, torch.Tensor]:
    """A file's content, with torchvision's names and in half precision."""
    draw, net = torch.Generator().manual_seed(0), convolutions()
    return {
        f"{theirs}.{leaf}": torch.randn(value.shape, generator=draw).half()
        for theirs, ours in TORCHVISION.items()
        for leaf, value in net.get_submodule(ours).named_parameters()
    }


def test_the_convolutions_start_from_a_file(tmp_path: Path) -> None:
    saved, net = tensors(), convolutions()
    save_file(saved, tmp_path / "alexnet.safetensors")
    load_convolutions(net, tmp_path / "alexnet.safetensors")
    assert torch.equal(net.conv3.weight, saved["features.6.weight"].float())
    assert torch.equal(net.conv5.bias, saved["features.10.bias"].float())
    assert all(p.dtype is torch.float32 for p in net.parameters())


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    with pytest.raises(WrongInput, match=r"cannot read pretrained=.*torchvision's AlexNet"):
        load_convolutions(convolutions(), file)
    saved = tensors()
    save_file({name: t for name, t in saved.items() if name != "features.8.bias"}, file)
    with pytest.raises(WrongInput, match=r"needs features.8.bias of shape \(256,\).*no such tensor"):
        load_convolutions(convolutions(), file)
    save_file({**saved, "features.0.weight": saved["features.0.weight"][:, :1].contiguous()}, file)
    with pytest.raises(WrongInput, match=r"shape \(64, 3, 11, 11\).*one of shape \(64, 1, 11, 11\)"):
        load_convolutions(convolutions(), file)
    file.write_bytes(b"no safetensors")
    with pytest.raises(WrongInput, match="cannot read"):
        load_convolutions(convolutions(), file)


def test_the_convolutions_trained_on_imagenet_fit(data_folder: Path) -> None:
    file = data_folder / "alexnet_features_imagenet.safetensors"
    if not file.is_file():
        pytest.skip("needs the convolutions trained on ImageNet")
    net = convolutions()
    load_convolutions(net, file)
    assert torch.equal(net.conv1.weight, load_file(file)["features.0.weight"].float())
