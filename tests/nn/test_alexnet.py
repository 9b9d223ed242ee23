"""AlexNet with batch norm: the counts that pFedLA prints, the sizes it takes, and convolutions trained elsewhere.

It has 57 million parameters, so its tests run on PyTorch's meta device, which computes shapes and no values.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from fedtailor.nn import alexnet_bn, alexnet_small
from fedtailor.nn.alexnet import TORCHVISION
from fedtailor.nn.pretrained import WeightsNote, load_weights
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


def filled(file: Path, strict: bool = True) -> nn.Sequential:
    """AlexNet without its 57 million linear weights, started from a file."""
    net = nn.Sequential()
    for name, module in alexnet().named_children():
        if name.startswith(("conv", "bn")) and name not in ("bn6", "bn7"):
            net.add_module(name, module.to_empty(device="cpu"))
            module.reset_parameters()
    load_weights(net, "alexnet_bn", str(file), head="classifier", modules=TORCHVISION, strict=strict)
    return net


def tensors() -> dict[str, torch.Tensor]:
    """A file's content, with torchvision's names and in half precision; the first linear layer is there as well."""
    draw = torch.Generator().manual_seed(0)
    sizes = {0: (64, 3, 11), 3: (192, 64, 5), 6: (384, 192, 3), 8: (256, 384, 3), 10: (256, 256, 3)}
    found = {"classifier.1.bias": torch.zeros(4096)}
    for number, (out, inside, side) in sizes.items():
        found[f"features.{number}.weight"] = torch.randn(out, inside, side, side, generator=draw).half()
        found[f"features.{number}.bias"] = torch.randn(out, generator=draw).half()
    return found


def test_the_convolutions_start_from_a_file_and_the_rest_as_ever(tmp_path: Path) -> None:
    saved = tensors()
    save_file(saved, tmp_path / "alexnet.safetensors")
    with pytest.warns(WeightsNote) as told:
        net = filled(tmp_path / "alexnet.safetensors")
    assert str(told[0].message) == (
        "alexnet_bn: 10 tensors start from alexnet.safetensors; bn1.bias, bn1.running_mean, bn1.running_var and 17 "
        "more start as drawn; of the file, classifier.1.bias is not used"
    )
    assert torch.equal(net.conv3.weight, saved["features.6.weight"].float())
    assert torch.equal(net.conv5.bias, saved["features.10.bias"].float())
    assert all(p.dtype is torch.float32 for p in net.parameters())


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    with pytest.raises(WrongInput, match=r"cannot read pretrained=.*torchvision's alexnet"):
        filled(file)
    saved = tensors()
    save_file({name: t for name, t in saved.items() if name != "features.8.bias"}, file)
    with pytest.raises(WrongInput, match=r"lacks conv4.bias, which alexnet_bn has"):
        filled(file)
    save_file({**saved, "features.0.weight": saved["features.0.weight"][:, :1].contiguous()}, file)
    with pytest.raises(WrongInput, match=r"conv1.weight of shape \(64, 1, 11, 11\).*needs \(64, 3, 11, 11\)"):
        filled(file)
    file.write_bytes(b"no safetensors")
    with pytest.raises(WrongInput, match="cannot read"):
        filled(file)


def test_the_convolutions_trained_on_imagenet_fit(data_folder: Path) -> None:
    file = data_folder / "alexnet_features_imagenet.safetensors"
    if not file.is_file():
        pytest.skip("needs the convolutions trained on ImageNet")
    with pytest.warns(WeightsNote, match="10 tensors start from alexnet_features"):
        net = filled(file)
    assert torch.equal(net.conv1.weight, load_file(file)["features.0.weight"].float())


# ---------- for small pictures ----------


def test_the_small_one_is_what_its_weights_say() -> None:
    net = alexnet_small(classes=3, shape=(2, 17, 24)).double().eval()
    w = dict(net.named_parameters())
    x = torch.randn(2, 2, 17, 24, generator=torch.Generator().manual_seed(0)).double()
    h = x
    for number in range(1, 6):
        h = F.conv2d(h, w[f"conv{number}.weight"], w[f"conv{number}.bias"], padding=1).clamp(min=0)
        h = F.max_pool2d(h, 2) if number in (1, 2, 5) else h
    h = h.reshape(2, -1)
    for name in ("fc1", "fc2"):
        h = (h @ w[f"{name}.weight"].T + w[f"{name}.bias"]).clamp(min=0)
    torch.testing.assert_close(net(x), h @ w["head.weight"].T + w["head.bias"])


def test_the_small_one_drops_half_of_the_inputs_of_two_layers() -> None:
    net, inputs = alexnet_small(classes=3, shape=(1, 28, 28)), {}
    for name in ("fc1", "fc2", "head"):
        net.get_submodule(name).register_forward_pre_hook(lambda _, x, name=name: inputs.update({name: x[0]}))
    x = torch.rand(64, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    live = {}
    for mode in (True, False):
        torch.default_generator.manual_seed(0)
        net.train(mode)(x)
        live[mode] = {name: float((h != 0).double().mean()) for name, h in inputs.items()}
    for name in ("fc1", "fc2"):
        assert live[True][name] == pytest.approx(live[False][name] / 2, rel=0.1)
    assert live[True]["head"] > 0.8 * live[False]["head"]
