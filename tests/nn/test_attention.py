"""The attention blocks against their formulas in NumPy, and the slots they stand in."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from fedtailor.arch import Arch
from fedtailor.nn import Slot, alexnet_bn, lenet_bn, make
from fedtailor.nn.attention import CA, ECA, SE, AttentionBlock, Hybrid, adaptive_kernel
from fedtailor.registry import WrongInput

LOG3 = math.log(3)  # sigmoid(log 3) = 3/4, sigmoid(2 log 3) = 9/10


def hybrid(channels: int) -> Hybrid:
    return Hybrid({"se": SE(channels), "eca": ECA(channels), "ca": CA(channels)})


KINDS = {"se": SE, "eca": ECA, "ca": CA, "hybrid": hybrid}


def drawn(block: nn.Module, seed: int = 0) -> nn.Module:
    """In float64, every parameter with values of some size, the mixture's too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in block.double().parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return block


def fill(**values: tuple[torch.Tensor, list[float]]) -> None:
    with torch.no_grad():
        for tensor, numbers in values.values():
            tensor.copy_(torch.tensor(numbers, dtype=tensor.dtype).reshape(tensor.shape))


def maps(rows: int = 3, channels: int = 5, height: int = 4, width: int = 3) -> torch.Tensor:
    return torch.randn(rows, channels, height, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# ---------- by hand ----------


def test_se_by_hand() -> None:
    # z = (1, 3); hidden: relu(1 + 3) = 4; a = (sigmoid(0), sigmoid(4 log3 / 4)) = (1/2, 3/4)
    block = SE(2, reduction=2)
    fill(down=(block.squeeze.weight, [1, 1]), up=(block.excite.weight, [0, LOG3 / 4]))
    h = torch.tensor([[[[0.0, 2.0]], [[3.0, 3.0]]]])
    torch.testing.assert_close(block(h), torch.tensor([[[[0.0, 1.0]], [[2.25, 2.25]]]]))
    fill(down=(block.squeeze.weight, [2, -1]))  # 2 - 3 < 0: nothing passes, so a = 1/2
    torch.testing.assert_close(block(h), h / 2)


def test_eca_by_hand() -> None:
    # only the first of three taps: a channel sees the one before it, and the first sees nothing
    block = ECA(3, kernel=3)
    fill(taps=(block.filter.weight, [LOG3, 0, 0]))
    h = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
    torch.testing.assert_close(block.mask(h).flatten(), torch.tensor([0.5, 0.75, 0.9]))


def test_ca_by_hand() -> None:
    # means along x: 4 and 8, which h-swish leaves (it is x from 3 on); a_h = (3/4, 9/10), a_w = 1/2
    block = CA(1, hidden=1).eval()
    block.norm.eps = 0.0
    fill(
        reduce=(block.reduce.weight, [1]), at=(block.reduce.bias, [0]),
        rows=(block.to_rows.weight, [LOG3 / 4]), to=(block.to_rows.bias, [0]),
        columns=(block.to_columns.weight, [0]), by=(block.to_columns.bias, [0]),
    )  # fmt: skip
    h = torch.tensor([[[[3.0, 5.0], [7.0, 9.0]]]])
    torch.testing.assert_close(block(h), torch.tensor([[[[1.125, 1.875], [3.15, 4.05]]]]))


def test_hybrid_by_hand() -> None:
    # all weights zero: the masks are 1/2, 1/2 and 1/4; u = (0, log 2, 0) mixes them 1/4, 1/2, 1/4 to 7/16
    block = hybrid(4)
    with torch.no_grad():
        for parameter in block.blocks.parameters():
            parameter.zero_()
    fill(u=(block.u, [0, math.log(2), 0]))
    h = torch.ones(2, 4, 2, 2)
    torch.testing.assert_close(block(h), 7 / 16 * h)


# ---------- the formulas, in loops ----------


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def se_mask(block: SE, h: np.ndarray) -> np.ndarray:
    u1, u2 = (layer.weight.detach().numpy() for layer in (block.squeeze, block.excite))
    return np.stack([sigmoid(u2 @ np.maximum(u1 @ row.mean((1, 2)), 0)) for row in h])[:, :, None, None]


def eca_mask(block: ECA, h: np.ndarray) -> np.ndarray:
    taps = block.filter.weight.detach().numpy().ravel()
    reach, channels = len(taps) // 2, h.shape[1]
    a = np.zeros(h.shape[:2])
    for i, row in enumerate(h):
        z = row.mean((1, 2))
        for c in range(channels):
            a[i, c] = sum(w * z[c + k - reach] for k, w in enumerate(taps) if 0 <= c + k - reach < channels)
    return sigmoid(a)[:, :, None, None]


def ca_mask(block: CA, h: np.ndarray) -> np.ndarray:
    """As in training: the norm's mean and variance are those of all rows and all positions."""
    p = {name: value.detach().numpy() for name, value in block.named_parameters()}
    n, _, height, width = h.shape
    line = np.zeros((n, len(p["reduce.bias"]), height + width))
    for i in range(n):
        for y in range(height):
            line[i, :, y] = p["reduce.weight"][:, :, 0] @ h[i, :, y, :].mean(1) + p["reduce.bias"]
        for x in range(width):
            line[i, :, height + x] = p["reduce.weight"][:, :, 0] @ h[i, :, :, x].mean(1) + p["reduce.bias"]
    line = (line - line.mean((0, 2), keepdims=True)) / np.sqrt(line.var((0, 2), keepdims=True) + 1e-5)
    line = line * p["norm.weight"][:, None] + p["norm.bias"][:, None]
    line = line * np.clip(line + 3, 0, 6) / 6
    a = np.zeros(h.shape)
    for i in range(n):
        for y in range(height):
            for x in range(width):
                a_h = sigmoid(p["to_rows.weight"][:, :, 0] @ line[i, :, y] + p["to_rows.bias"])
                a_w = sigmoid(p["to_columns.weight"][:, :, 0] @ line[i, :, height + x] + p["to_columns.bias"])
                a[i, :, y, x] = a_h * a_w
    return a


def hybrid_mask(block: Hybrid, h: np.ndarray) -> np.ndarray:
    u = np.exp(block.u.detach().numpy())
    masks = [mask(block.blocks[kind], h) for kind, mask in (("se", se_mask), ("eca", eca_mask), ("ca", ca_mask))]
    return sum(share * a for share, a in zip(u / u.sum(), masks, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_product_of_mask_and_map_is_that_of_the_formulas(kind: str) -> None:
    mask = {"se": se_mask, "eca": eca_mask, "ca": ca_mask, "hybrid": hybrid_mask}[kind]
    block, h = drawn(KINDS[kind](5)), maps()
    expected = mask(block, h.numpy()) * h.numpy()
    assert np.ptp(mask(block, h.numpy())) > 0.05
    np.testing.assert_allclose(block.train()(h).detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("kernel", [1, 5, 7])
def test_eca_of_any_length_even_longer_than_the_channels(kernel: int) -> None:
    block, h = drawn(ECA(5, kernel)), maps()
    np.testing.assert_allclose(block.mask(h).detach().numpy(), eca_mask(block, h.numpy()), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_the_map_and_every_parameter(kind: str) -> None:
    block, h = drawn(KINDS[kind](5)).train(), maps().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: block(x), h)
    slopes = torch.autograd.grad((block(h) * maps()).sum(), list(block.parameters()))
    idle = {name for (name, _), slope in zip(block.named_parameters(), slopes, strict=True) if slope.abs().max() < 1e-9}
    assert {name.rsplit("reduce.", 1)[-1] for name in idle} <= {"bias"}  # a shift before a norm, which takes it out


# ---------- the mixture ----------


def test_the_mixture_starts_at_a_third_each() -> None:
    block = hybrid(6)
    assert torch.equal(block.u, torch.zeros(3))
    torch.testing.assert_close(block.u.softmax(0), torch.full((3,), 1 / 3))


@pytest.mark.parametrize(("place", "kind"), list(enumerate(["se", "eca", "ca"])))
def test_with_all_the_weight_on_one_kind_it_is_that_kind_bit_for_bit(place: int, kind: str) -> None:
    block, h = drawn(hybrid(5)), maps()
    fill(u=(block.u, [1e4 if k == place else 0 for k in range(3)]))
    single = block.blocks[kind]
    assert torch.equal(block(h), single(h))
    weights = list(single.parameters())
    ours, theirs = (torch.autograd.grad(net(h).sum(), weights) for net in (block, single))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


# ---------- widths ----------


@pytest.mark.parametrize(("channels", "hidden"), [(3, 1), (6, 1), (16, 4), (63, 15), (64, 4), (192, 12), (384, 24)])
def test_se_reduces_by_4_and_by_16_from_64_channels_on(channels: int, hidden: int) -> None:
    assert SE(channels).squeeze.out_features == hidden
    assert SE(channels, reduction=2).squeeze.out_features == max(1, channels // 2)


@pytest.mark.parametrize(
    ("channels", "length"), [(1, 1), (6, 1), (16, 3), (64, 3), (127, 3), (128, 5), (192, 5), (256, 5), (384, 5)]
)
def test_the_adaptive_kernel_and_its_least_of_3(channels: int, length: int) -> None:
    assert adaptive_kernel(channels) == length
    assert ECA(channels).filter.kernel_size == (max(3, length),)
    assert ECA(channels, kernel=1).filter.kernel_size == (1,)


def test_the_adaptive_rule_alone_gives_lenet_a_count_that_prints_the_same() -> None:
    filters = [ECA(channels, adaptive_kernel(channels)) for channels in (6, 16)]
    count = 45_178 + sum(p.numel() for block in filters for p in block.parameters())
    assert count == 45_182 and int(count / 10) / 100 == 45.18


@pytest.mark.parametrize(("channels", "width"), [(6, 8), (64, 8), (256, 8), (384, 12)])
def test_ca_is_at_least_8_wide_unless_a_width_is_given(channels: int, width: int) -> None:
    assert CA(channels).reduce.out_channels == width
    assert CA(channels, hidden=3).norm.num_features == 3


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_can_be_drawn_again_by_name(kind: str) -> None:
    arch = Arch(nn.Sequential(OrderedDict(block=KINDS[kind](6))))
    assert arch.of_type(AttentionBlock) == set(arch.names)
    one, two = (arch.draw(arch.trainable, 0, client) for client in (1, 2))
    assert one.keys() == arch.trainable
    constant = {name for name in one if torch.equal(one[name], two[name])}
    # what every module of PyTorch starts at a constant: the mixture, and the scale and shift of a norm
    assert {name.rsplit(".", 1)[-1] for name in constant if "norm" not in name} <= {"u"}
    assert len(constant) < len(one)


# ---------- slots ----------


def test_a_slot_changes_nothing_and_holds_nothing() -> None:
    slot, h = Slot(5), maps()
    assert slot(h) is h and not slot.state_dict() and repr(slot) == "Slot(5)"


@pytest.mark.parametrize("shape", [(2, 4, 3, 3), (2, 5), (2, 5, 3), (5, 3, 3)])
def test_a_slot_for_other_maps_is_refused_when_the_model_is_made(shape: tuple[int, ...]) -> None:
    with pytest.raises(WrongInput, match=r"Slot\(5\) was given a tensor of shape.*\(rows, 5, height, width\)"):
        Slot(5)(torch.zeros(shape))
    net = nn.Sequential(nn.Conv2d(1, 4, 1), Slot(5), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(WrongInput, match=r"Slot\(5\)"):
        make(net, classes=2, shape=(1, 1, 1), seed=0)


def plain(net: nn.Sequential) -> nn.Sequential:
    """The same modules without the slots."""
    return nn.Sequential(OrderedDict((k, m) for k, m in net.named_children() if not isinstance(m, Slot)))


def test_slots_do_not_change_the_base() -> None:
    net = make("lenet_bn", classes=10, shape=(3, 28, 28), seed=0)
    without = plain(net)
    assert list(net.state_dict()) == list(without.state_dict()) and len(without) == len(net) - 2
    x = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(net.eval()(x), without.eval()(x))


@pytest.mark.parametrize(
    ("factory", "shape", "expected"),
    [
        (lenet_bn, (3, 28, 28), {"block": [("relu1", 6), ("relu2", 16)], "conv": [("bn1", 6), ("bn2", 16)]}),
        (
            alexnet_bn, (3, 64, 64),
            {
                "block": [("relu1", 64), ("relu2", 192), ("relu3", 384), ("relu4", 256), ("relu5", 256)],
                "conv": [("bn1", 64), ("bn2", 192), ("bn3", 384), ("bn4", 256), ("bn5", 256)],
            },
        ),
    ],
    ids=["lenet", "alexnet"],
)  # fmt: skip
def test_slots_stand_after_the_block_or_after_the_convolution_and_its_norm(factory, shape, expected) -> None:
    bases = []
    for where, places in expected.items():
        with torch.device("meta"):
            net = factory(classes=10, shape=shape, attention_at=where)
        children = list(net.named_children())
        slots = [(children[i - 1][0], m.channels) for i, (_, m) in enumerate(children) if isinstance(m, Slot)]
        assert slots == places
        bases.append((list(net.state_dict()), [name for name, _ in plain(net).named_children()]))
    assert bases[0] == bases[1]
