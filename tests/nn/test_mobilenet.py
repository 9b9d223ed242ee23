"""MobileNetV2: torchvision's names, the forward pass in plain steps, and attention in 17 places."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor import FedAvg, WrongInput
from fedtailor.methods import LocalAttention
from fedtailor.nn import mobilenet_v2
from fedtailor.nn.attention import Slot

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def bottlenecks() -> Iterator[tuple[int, int, int, int, int]]:
    """number, channels in and out, expansion, stride: table 2 of the MobileNetV2 paper."""
    number, inside = 1, 32
    for t, c, n, s in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
                       (6, 320, 1, 1)):  # fmt: skip
        for repeat in range(n):
            yield number, inside, c, t, s if repeat == 0 else 1
            number, inside = number + 1, c


def steps(number: int, expansion: int) -> list[tuple[str, str]]:
    """Names of each convolution and its norm inside a bottleneck."""
    path = f"features.{number}.conv"
    count = 1 if expansion == 1 else 2
    inner = [(f"{path}.{i}.0", f"{path}.{i}.1") for i in range(count)]
    return [*inner, (f"{path}.{count}", f"{path}.{count + 1}")]


def names() -> set[str]:
    pairs = [("features.0.0", "features.0.1"), ("features.18.0", "features.18.1")]
    for number, _, _, expansion, _ in bottlenecks():
        pairs += steps(number, expansion)
    state = {f"{conv}.weight" for conv, _ in pairs} | {f"{norm}.{leaf}" for _, norm in pairs for leaf in NORM}
    return state | {"classifier.1.weight", "classifier.1.bias"}


def test_the_names_are_torchvisions() -> None:
    assert set(mobilenet_v2(classes=10, shape=(3, 64, 64)).state_dict()) == names()
    assert len(names()) == 52 * 6 + 2


def conv_norm(w: dict[str, Tensor], names: tuple[str, str], x: Tensor, stride: int, groups: int) -> Tensor:
    conv, norm = names
    kernel = w[f"{conv}.weight"].shape[-1]
    x = F.conv2d(x, w[f"{conv}.weight"], None, stride, kernel // 2, 1, groups)
    mean, variance = (w[f"{norm}.running_{what}"].view(-1, 1, 1) for what in ("mean", "var"))
    weight, bias = (w[f"{norm}.{what}"].view(-1, 1, 1) for what in ("weight", "bias"))
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def test_it_is_what_its_weights_say() -> None:
    net = mobilenet_v2(classes=4, shape=(3, 40, 36)).double().eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in net.state_dict().values():
            if value.dim() == 1 and value.is_floating_point():
                value.add_(0.2 * torch.rand(value.shape, generator=draw, dtype=value.dtype))
    w = net.state_dict()
    x = torch.randn(2, 3, 40, 36, generator=draw, dtype=torch.float64)
    h = conv_norm(w, ("features.0.0", "features.0.1"), x, 2, 1).clamp(0, 6)
    for number, inside, outside, expansion, stride in bottlenecks():
        before, (*expand, deep, last) = h, steps(number, expansion)
        for pair in expand:
            h = conv_norm(w, pair, h, 1, 1).clamp(0, 6)
        h = conv_norm(w, deep, h, stride, inside * expansion).clamp(0, 6)
        h = conv_norm(w, last, h, 1, 1)
        h = before + h if stride == 1 and inside == outside else h
    h = conv_norm(w, ("features.18.0", "features.18.1"), h, 1, 1).clamp(0, 6).mean((2, 3))
    torch.testing.assert_close(net(x), h @ w["classifier.1.weight"].T + w["classifier.1.bias"])


def test_attention_stands_in_each_bottleneck_after_the_deep_convolution() -> None:
    net = mobilenet_v2(classes=4, shape=(3, 32, 32))
    slots = {path: m.channels for path, m in net.named_modules() if isinstance(m, Slot)}
    assert slots == {f"features.{number}.conv.attention": inside * t for number, inside, _, t, _ in bottlenecks()}
    assert len(slots) == 17
    for number, _, _, expansion, _ in bottlenecks():
        order = [path for path, _ in net.get_submodule(f"features.{number}.conv").named_children()]
        last = 1 if expansion == 1 else 2
        assert order == [*map(str, range(last)), "attention", str(last), str(last + 1)]


@pytest.mark.parametrize("kind", ["se", "eca", "ca", "hybrid"])
def test_attention_goes_in_and_the_other_names_stay(kind: str) -> None:
    net = LocalAttention(FedAvg(), kind=kind).build(mobilenet_v2(classes=4, shape=(3, 32, 32)))
    added = set(net.state_dict()) - names()
    assert names() <= set(net.state_dict())
    assert added and all(".conv.attention." in name for name in added)
    assert net.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 4)


def test_smaller_pictures_are_refused() -> None:
    with pytest.raises(WrongInput, match="32 x 32 pixels or more"):
        mobilenet_v2(classes=4, shape=(3, 32, 31))
