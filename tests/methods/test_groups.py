"""Groups of tensors at three levels, and what each name in PartialFed's tables loads from the global model."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from fedtailor import Arch, WrongInput
from fedtailor.methods.groups import blocks_of, groups, loaded_by
from fedtailor.nn import make
from fedtailor.nn.attention import CA, SE

Level = Literal["stage", "block", "layer"]


class BasicBlock(nn.Module):
    """Two convolutions with a short cut; the modules have torchvision's names and order."""

    def __init__(self, inside: int, outside: int, attention: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.se = SE(outside) if attention else None
        self.downsample = None
        if inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out = self.se(out) if self.se is not None else out
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """ResNet-18 in small: a stem, four stages of blocks, fc."""

    def __init__(self, *blocks: int, attention: bool = False, outputs: int = 1) -> None:
        super().__init__()
        torch.default_generator.manual_seed(6)
        self.conv1 = nn.Conv2d(1, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(2)
        self.relu = nn.ReLU(inplace=True)
        inside = 2
        for number, count in enumerate(blocks, 1):
            channels = [inside, *([number + 1] * count)]
            made = [BasicBlock(*pair, attention) for pair in pairwise(channels)]
            setattr(self, f"layer{number}", nn.Sequential(*made))
            inside = channels[-1]
        self.fc = nn.Linear(inside, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x.reshape(len(x), 1, 1, -1))))
        for name, stage in self.named_children():
            x = stage(x) if name.startswith("layer") else x
        return self.fc(x.mean((2, 3)))


PLAIN = Arch(ResNet(2, 2, 2, 2))
DEEP = Arch(ResNet(1, 2, 3, 4, attention=True))
LENET = Arch(make("lenet_bn", classes=10, shape=(1, 28, 28), seed=0))
DNN = Arch(make("dnn", classes=10, shape=(1, 28, 28), seed=0))
MLR = Arch(make("mlr", classes=10, shape=(1, 28, 28), seed=0))

STEM = ("conv1.", "bn1.")
LAYERS = ("layer1.", "layer2.", "layer3.", "layer4.")


def under(arch: Arch, *prefixes: str) -> set[str]:
    """The names that start with one of these; each of which has some."""
    names = set(arch.net.state_dict())
    assert all(any(name.startswith(prefix) for name in names) for prefix in prefixes)
    return {name for name in names if name.startswith(prefixes)}


def like(arch: Arch, pattern: str) -> set[str]:
    """The names in which a regular expression is found."""
    return {name for name in arch.net.state_dict() if re.search(pattern, name)}


NORMS = r"bn\d\.|downsample\.1\."


# ---------- levels ----------


def test_the_small_resnet_is_named_as_torchvisions() -> None:
    assert PLAIN.net(torch.randn(3, 2)).shape == (3, 1)
    assert len(under(PLAIN, "conv1.", "bn1.")) == 1 + 5
    assert len(under(PLAIN, "layer1.0.")) == 2 * 6 and len(under(PLAIN, "layer2.0.")) == 3 * 6
    assert "layer4.0.downsample.1.running_mean" in PLAIN.names


@pytest.mark.parametrize("arch", [PLAIN, DEEP, LENET, DNN, MLR], ids=["resnet", "se-resnet", "lenet", "dnn", "mlr"])
@pytest.mark.parametrize("level", ["stage", "block", "layer"])
def test_every_tensor_is_in_one_group(arch: Arch, level: Level) -> None:
    found = [name for _, names in groups(arch, level) for name in names]
    assert sorted(found) == sorted(arch.names)
    labels = [label for label, _ in groups(arch, level)]
    assert len(labels) == len(set(labels))


def test_stages_are_five_and_the_stem_belongs_to_the_first() -> None:
    assert groups(PLAIN, "stage") == [
        ("layer1", under(PLAIN, *STEM, "layer1.")), ("layer2", under(PLAIN, "layer2.")),
        ("layer3", under(PLAIN, "layer3.")), ("layer4", under(PLAIN, "layer4.")), ("fc", {"fc.weight", "fc.bias"}),
    ]  # fmt: skip
    assert [(label, names) for label, names in groups(DEEP, "stage")] == [
        ("layer1", under(DEEP, *STEM, "layer1.")), *((f"layer{i}", under(DEEP, f"layer{i}.")) for i in (2, 3, 4)),
        ("fc", {"fc.weight", "fc.bias"}),
    ]  # fmt: skip


def test_blocks_are_the_stem_the_residual_blocks_and_fc() -> None:
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    assert groups(PLAIN, "block") == [
        ("stem", under(PLAIN, *STEM)), *((block, under(PLAIN, block + ".")) for block in blocks),
        ("fc", {"fc.weight", "fc.bias"}),
    ]  # fmt: skip
    assert [label for label, _ in groups(DEEP, "block")] == [
        "stem", "layer1.0", *(f"layer2.{i}" for i in range(2)), *(f"layer3.{i}" for i in range(3)),
        *(f"layer4.{i}" for i in range(4)), "fc",
    ]  # fmt: skip


def test_layers_are_every_convolution_norm_and_linear_module() -> None:
    modules = [path for path, module in PLAIN.net.named_modules()
               if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.Linear)]  # fmt: skip
    assert len(modules) == 2 + 4 * 8 + 3 * 2 + 1
    assert groups(PLAIN, "layer") == [(path, under(PLAIN, path + ".")) for path in modules]
    assert dict(groups(PLAIN, "layer"))["bn1"] == {
        "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked",
    }  # fmt: skip
    assert dict(groups(DEEP, "layer"))["layer1.0.se.squeeze"] == {"layer1.0.se.squeeze.weight"}


@pytest.mark.parametrize("level", ["stage", "block"])
def test_a_network_without_blocks_has_its_layers_as_stages_and_as_blocks(level: Level) -> None:
    assert groups(LENET, level) == [
        ("conv1", under(LENET, "conv1.", "bn1.")), ("conv2", under(LENET, "conv2.", "bn2.")),
        ("fc1", under(LENET, "fc1.", "bn3.")), ("fc2", under(LENET, "fc2.", "bn4.")), ("head", under(LENET, "head.")),
    ]  # fmt: skip
    assert groups(DNN, level) == [("hidden", under(DNN, "hidden.")), ("head", under(DNN, "head."))]
    assert groups(MLR, level) == [("head", {"head.weight", "head.bias"})]


def test_layers_of_a_network_without_blocks() -> None:
    modules = ["conv1", "bn1", "conv2", "bn2", "fc1", "bn3", "fc2", "bn4", "head"]
    assert groups(LENET, "layer") == [(path, under(LENET, path + ".")) for path in modules]


def test_attention_after_a_layer_goes_with_it_and_is_no_block() -> None:
    # coordinate attention has several parts and stands in a container; it is neither a block nor a stage for that
    net = nn.Sequential(nn.Sequential(nn.Conv2d(1, 8, 1), CA(8), nn.BatchNorm2d(8)), nn.Flatten(), nn.Linear(8, 1))
    arch = Arch(net)
    for level in ("stage", "block"):
        assert groups(arch, level) == [("0.0", under(arch, "0.")), ("2", under(arch, "2."))]
    assert ("0.1.to_rows", {"0.1.to_rows.weight", "0.1.to_rows.bias"}) in groups(arch, "layer")


def test_a_norm_after_the_blocks_belongs_to_the_last_and_one_at_the_beginning_to_the_stem() -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    net = nn.Sequential()
    net.add_module("first", nn.BatchNorm1d(2))
    net.add_module("body", nn.Sequential(block))
    net.add_module("last", nn.LayerNorm(2))
    net.add_module("head", nn.Linear(2, 1))
    arch = Arch(net)
    assert groups(arch, "stage") == [("body", under(arch, "first.", "body.", "last.")), ("head", under(arch, "head."))]
    assert groups(arch, "block") == [("stem", under(arch, "first.")), ("body.0", under(arch, "body.0.", "last.")),
                                     ("head", under(arch, "head."))]  # fmt: skip


def test_of_containers_in_containers_the_outermost_counts() -> None:
    inner = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 2))
    arch = Arch(nn.Sequential(nn.Linear(2, 2), nn.ModuleList([inner, nn.Linear(2, 2)]), nn.Linear(2, 1)))
    assert blocks_of(arch.net) == ["1.0"]
    assert groups(arch, "block") == [("stem", under(arch, "0.")), ("1.0", under(arch, "1.0.")),
                                     ("1.1", under(arch, "1.1.")), ("2", under(arch, "2."))]  # fmt: skip


def test_tensors_of_the_network_itself_and_tied_ones_are_grouped_once() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.up, self.again = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.again.weight = self.up.weight
            self.head = nn.Linear(2, 1)

    for level in ("stage", "block", "layer"):
        assert groups(Arch(Odd()), level) == [("net", {"scale"}), ("up", {"up.weight"}),
                                              ("head", {"head.weight", "head.bias"})]  # fmt: skip


# ---------- the names in the paper's tables ----------


BOTTOM_UP = {"s1": 1, "s1-s2": 2, "s1-s3": 3, "s1-s4": 4}
TOP_DOWN = {"fc": 4, "s4-fc": 3, "s3-fc": 2, "s2-fc": 1, "s1-fc": 0}


@pytest.mark.parametrize("strategy", BOTTOM_UP)
def test_table_1_bottom_up(strategy: str) -> None:
    assert loaded_by(strategy, PLAIN) == under(PLAIN, *STEM, *LAYERS[: BOTTOM_UP[strategy]])


@pytest.mark.parametrize("strategy", TOP_DOWN)
def test_table_1_top_down(strategy: str) -> None:
    expected = under(PLAIN, *LAYERS[TOP_DOWN[strategy] :], "fc.") | (under(PLAIN, *STEM) if "s1" in strategy else set())
    assert loaded_by(strategy, PLAIN) == expected


def test_stages_between_others_and_one_by_itself() -> None:
    assert loaded_by("s2-s3", PLAIN) == under(PLAIN, "layer2.", "layer3.")
    assert loaded_by("s3", PLAIN) == loaded_by("s3-s3", PLAIN) == under(PLAIN, "layer3.")


def test_full_is_everything_and_so_are_all_stages() -> None:
    assert loaded_by("full", PLAIN) == loaded_by("s1-fc", PLAIN) == set(PLAIN.net.state_dict())


def test_table_2_the_norms_are_taken_by_type_with_their_statistics() -> None:
    everything, norms, fc = set(PLAIN.names), like(PLAIN, NORMS), {"fc.weight", "fc.bias"}
    assert len(norms) == 5 * (1 + 16 + 3)
    assert loaded_by("w/o BN", PLAIN) == everything - norms
    assert loaded_by("w/o BN&fc", PLAIN) == loaded_by("w/o fc&BN", PLAIN) == everything - norms - fc
    assert loaded_by("w/o fc", PLAIN) == loaded_by("s1-s4", PLAIN) == everything - fc


@pytest.mark.parametrize("strategy", ["AaBb", "AaCc", "BbCc", "BbDd", "CcDd", "ABCD", "abcd"])
def test_table_3_half_of_the_blocks_with_stem_and_fc(strategy: str) -> None:
    where = {"A": "layer1.0.", "a": "layer1.1.", "B": "layer2.0.", "b": "layer2.1.",
             "C": "layer3.0.", "c": "layer3.1.", "D": "layer4.0.", "d": "layer4.1."}  # fmt: skip
    chosen = [where[letter] for letter in strategy]
    assert len(chosen) == 4
    assert loaded_by(strategy, PLAIN) == under(PLAIN, *STEM, *chosen, "fc.")


def test_table_6_without_attention_and_without_first_and_third_blocks() -> None:
    everything, se, norms = set(DEEP.names), like(DEEP, r"\.se\."), like(DEEP, NORMS)
    assert len(se) == 2 * 10
    first, third = like(DEEP, r"layer\d\.0\."), like(DEEP, r"layer\d\.2\.")
    assert {name[:8] for name in first} == {"layer1.0", "layer2.0", "layer3.0", "layer4.0"}
    assert {name[:8] for name in third} == {"layer3.2", "layer4.2"}
    assert loaded_by("w/o se", DEEP) == everything - se
    assert loaded_by("w/o se&BN", DEEP) == everything - se - norms
    assert loaded_by("w/o fb", DEEP) == everything - first
    assert loaded_by("w/o fb+tb", DEEP) == everything - first - third
    assert under(DEEP, *STEM, "fc.") <= loaded_by("w/o fb+tb", DEEP)


def test_patterns_of_names() -> None:
    assert loaded_by("conv1.*", PLAIN) == {"conv1.weight"}
    assert loaded_by("layer1.0.*&fc.*", PLAIN) == under(PLAIN, "layer1.0.", "fc.")
    assert loaded_by("*.weight", DNN) == {"hidden.weight", "head.weight"}
    assert loaded_by("w/o layer3.*", PLAIN) == set(PLAIN.names) - under(PLAIN, "layer3.")
    assert loaded_by("w/o BN&layer1.*", PLAIN) == set(PLAIN.names) - like(PLAIN, NORMS) - under(PLAIN, "layer1.")


def test_the_projects_own_networks() -> None:
    assert loaded_by("s1-s4", LENET) == set(LENET.names) - under(LENET, "head.")
    assert loaded_by("s1-s2", LENET) == under(LENET, "conv1.", "bn1.", "conv2.", "bn2.")
    assert loaded_by("s4-fc", LENET) == under(LENET, "fc2.", "bn4.", "head.")
    assert loaded_by("w/o BN&fc", LENET) == under(LENET, "conv1.", "conv2.", "fc1.", "fc2.")
    assert loaded_by("s1", DNN) == loaded_by("w/o fc", DNN) == under(DNN, "hidden.")
    assert loaded_by("fc", MLR) == loaded_by("full", MLR) == {"head.weight", "head.bias"}
    assert loaded_by("w/o fc", MLR) == set()


# ---------- what is refused ----------


@pytest.mark.parametrize(("strategy", "arch", "words"), [
    ("s5", PLAIN, r"'s5' does not fit the model, whose stages are s1, s2, s3, s4, fc in this order"),
    ("s3-s1", PLAIN, r"'s3-s1' does not fit"),
    ("fc-s1", PLAIN, r"'fc-s1' does not fit"),
    ("s1", MLR, r"'s1' does not fit the model, whose stages are fc in this order"),
    ("", PLAIN, r"no strategy ''.*s1-s2, fc, full.*'w/o BN'.*patterns"),
    ("most", PLAIN, r"no strategy 'most'"),
    ("AaEe", PLAIN, r"no strategy 'AaEe'"),
    ("ABCD", LENET, r"no strategy 'ABCD' for this model.*for a model with blocks.*letters such as AaBb"),
    ("ABCD", DEEP, r"'ABCD' name the first two blocks of a stage.*'w/o layer1.2.\*'"),
    ("w/o bias", PLAIN, r"knows BN, fc, se, fb, tb and patterns such as 'layer1.\*', not 'bias'"),
    ("w/o ", PLAIN, r"not ''"),
    ("w/o BN", DNN, r"'w/o BN' leaves nothing out, for the model has no norms; choose.*lenet_bn"),
    ("w/o BN&fc", DNN, r"'w/o BN' leaves nothing out"),
    ("w/o fc", Arch(nn.Linear(2, 1).requires_grad_(False)), r"'w/o fc' leaves.*no trained head.*dnn"),
    ("w/o se", PLAIN, r"'w/o se' leaves.*no attention blocks.*LocalAttention\(\.\.\., private=False\)"),
    ("w/o fb", LENET, r"'w/o fb' leaves.*no blocks inside stages.*residual"),
    ("w/o fb+tb", PLAIN, r"'w/o tb' leaves.*no third block in any stage.*'w/o fb'"),
    ("conv9.*", PLAIN, r"'conv9.\*' matches no tensor of the model, such as 'conv1.weight'"),
    ("w/o conv9.*", PLAIN, r"'conv9.\*' matches no tensor"),
    ("conv1.*&conv9.*", PLAIN, r"'conv9.\*' matches no tensor"),
])  # fmt: skip
def test_a_strategy_that_does_not_fit_the_model_is_refused_with_what_does(
    strategy: str, arch: Arch, words: str
) -> None:
    with pytest.raises(WrongInput, match=words):
        loaded_by(strategy, arch)
