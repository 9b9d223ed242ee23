"""ResNet-18: torchvision's names, the forward pass in plain steps, and the weights that FedALA's table 1 counts."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor import Arch, FedAvg, WrongInput
from fedtailor.method import Fed
from fedtailor.methods import AdaptiveLocalAggregation, LocalAttention
from fedtailor.methods.groups import groups, loaded_by
from fedtailor.nn import resnet18
from fedtailor.nn.attention import SE, Slot

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def names() -> set[str]:
    """The state of torchvision's ResNet-18."""
    convolutions, norms = {"conv1"}, {"bn1"}
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            convolutions |= {f"layer{stage}.{block}.conv{i}" for i in (1, 2)}
            norms |= {f"layer{stage}.{block}.bn{i}" for i in (1, 2)}
        if stage > 1:
            convolutions.add(f"layer{stage}.0.downsample.0")
            norms.add(f"layer{stage}.0.downsample.1")
    return {f"{path}.weight" for path in convolutions} | {f"{path}.{leaf}" for path in norms for leaf in NORM} | {
        "fc.weight", "fc.bias",
    }  # fmt: skip


def test_the_names_are_torchvisions() -> None:
    net = resnet18(classes=10, shape=(3, 64, 64))
    assert set(net.state_dict()) == names()
    assert len(names()) == 122


def conv_norm(w: dict[str, Tensor], conv: str, norm: str, x: Tensor, stride: int, padding: int) -> Tensor:
    x = F.conv2d(x, w[f"{conv}.weight"], None, stride, padding)
    mean, variance = (w[f"{norm}.running_{what}"].view(-1, 1, 1) for what in ("mean", "var"))
    weight, bias = (w[f"{norm}.{what}"].view(-1, 1, 1) for what in ("weight", "bias"))
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def test_it_is_what_its_weights_say() -> None:
    net = resnet18(classes=4, shape=(3, 40, 36)).double().eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in net.state_dict().values():
            if value.dim() == 1 and value.is_floating_point():
                value.add_(0.2 * torch.rand(value.shape, generator=draw, dtype=value.dtype))
    w = net.state_dict()
    x = torch.randn(2, 3, 40, 36, generator=draw, dtype=torch.float64)
    h = F.max_pool2d(conv_norm(w, "conv1", "bn1", x, 2, 3).clamp(min=0), 3, 2, 1)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            path, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            short = h
            if stride == 2:
                short = conv_norm(w, f"{path}.downsample.0", f"{path}.downsample.1", h, 2, 0)
            h = conv_norm(w, f"{path}.conv1", f"{path}.bn1", h, stride, 1).clamp(min=0)
            h = (conv_norm(w, f"{path}.conv2", f"{path}.bn2", h, 1, 1) + short).clamp(min=0)
    torch.testing.assert_close(net(x), h.mean((2, 3)) @ w["fc.weight"].T + w["fc.bias"])


def test_convolutions_start_with_two_over_what_goes_out_of_a_channel() -> None:
    net = resnet18(classes=10, shape=(3, 64, 64))
    for path, kernel in (("conv1", 7), ("layer1.0.conv1", 3), ("layer4.0.downsample.0", 1)):
        conv = net.get_submodule(path)
        expected = (2 / (conv.out_channels * kernel**2)) ** 0.5
        assert float(conv.weight.detach().std()) == pytest.approx(expected, rel=0.05)


def test_pictures_from_32_pixels_on() -> None:
    for side in (32, 64):
        assert resnet18(classes=3, shape=(1, side, side)).eval()(torch.zeros(2, 1, side, side)).shape == (2, 3)
    with pytest.raises(WrongInput, match="32 x 32 pixels or more"):
        resnet18(classes=3, shape=(3, 31, 32))


# ---------- groups ----------

# FedALA, table 1: weights in millions for p = 1 to 6 of fc, four stages and the stem; of ten classes
TABLE_1 = {1: 5_130, 2: 8_398_858, 3: 10_498_570, 4: 11_024_138, 5: 11_172_106, 6: 11_181_642}
PRINTED = {1: "0.005", 2: "8.399", 3: "10.499", 4: "11.024", 5: "11.172", 6: "11.182"}


def weights(p: int, classes: int = 10, level: Literal["layer", "block", "stage"] = "stage") -> int:
    with torch.device("meta"):
        arch = Arch(resnet18(classes=classes, shape=(3, 64, 64)))
        fed = Fed(arch, 2, torch.ones(2), (0, 0), 0, 1, 0)
        state = AdaptiveLocalAggregation(FedAvg(), p=p, level=level).init_client(fed, arch.values())
    return sum(w.numel() for w in state["w"].values())


@pytest.mark.parametrize("p", TABLE_1)
def test_the_weights_of_ala_are_those_of_table_1(p: int) -> None:
    assert weights(p) == TABLE_1[p]
    assert f"{TABLE_1[p] / 1e6:.3f}" == PRINTED[p]


def test_weights_of_ala_with_the_papers_200_classes_and_at_the_finer_levels() -> None:
    assert weights(1, 200) == 512 * 200 + 200
    assert weights(6, 200) == 11_279_112
    assert weights(2, level="block") == 5_130 + 2 * (512 * 512 * 9 + 2 * 512)  # fc and layer4.1
    assert weights(2, level="layer") == 5_130 + 512 * 512 * 9 + 2 * 512  # fc, and layer4.1.conv2 with its norm


def test_stages_and_blocks_are_partialfeds() -> None:
    arch = Arch(resnet18(classes=65, shape=(3, 64, 64)))
    assert [label for label, _ in groups(arch, "stage")] == ["layer1", "layer2", "layer3", "layer4", "fc"]
    apart = groups(arch, "stage", stem_apart=True)
    assert [label for label, _ in apart] == ["stem", "layer1", "layer2", "layer3", "layer4", "fc"]
    assert apart[0][1] == {"conv1.weight", *(f"bn1.{leaf}" for leaf in NORM)}
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    assert [label for label, _ in groups(arch, "block")] == ["stem", *blocks, "fc"]
    assert len(groups(arch, "layer")) == 20 + 20 + 1
    trained = {name: p.numel() for name, p in arch.net.named_parameters()}
    assert sum(trained[n] for n in trained.keys() - loaded_by("w/o BN", arch)) == 9_600  # as the spec counts them
    assert sum(trained[n] for n in loaded_by("fc", arch)) == 33_345


def test_attention_stands_before_the_short_cut_and_changes_nothing_by_itself() -> None:
    plain = resnet18(classes=3, shape=(3, 32, 32))
    slots = {path: m.channels for path, m in plain.named_modules() if isinstance(m, Slot)}
    assert slots == {f"layer{s}.{b}.attention": 32 * 2**s for s in (1, 2, 3, 4) for b in (0, 1)}
    net = LocalAttention(FedAvg(), kind="se").build(resnet18(classes=3, shape=(3, 32, 32)))
    added = set(net.state_dict()) - names()
    assert added == {f"{path}.{part}.weight" for path in slots for part in ("squeeze", "excite")}
    # each block closed: SE masks of 1/2 halve what the block adds to its short cut, here h to 3/2 h
    block = net.layer1[0]
    with torch.no_grad():
        for module in block.modules():
            if isinstance(module, SE):
                module.excite.weight.zero_()
        nn.init.dirac_(block.conv1.weight)
        nn.init.dirac_(block.conv2.weight)
    h = torch.rand(1, 64, 5, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block.eval()(h), 1.5 * h, rtol=1e-4, atol=1e-4)
    assert loaded_by("w/o se", Arch(net)) == names()
