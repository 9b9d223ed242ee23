"""A network's parts are found by the type of its modules, and running it with other values leaves no trace."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor import Arch, WrongInput, tree


class Block(nn.Module):
    """A residual block as torchvision writes it: its second branch's norm is called `downsample.1`."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn1(self.conv1(x)) + self.downsample(x))


class LittleResNet(nn.Module):
    """No module's name gives its role away; one is called as if it were a norm, and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Block(4, 6), Block(6, 6))
        self.bn_like = nn.Linear(6, 5)
        self.norm_last = nn.LayerNorm(5)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(5, 3)
        self.fc.bias.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(F.relu(self.bn1(self.conv1(x)))).mean((2, 3))
        out: Tensor = self.fc(self.drop(self.norm_last(self.bn_like(x)))) * self.scale
        return out


class Tied(nn.Module):
    """The last layer has the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(x.long()).mean(1))
        return out


class Recurrent(nn.Module):
    """Torch's LSTM keeps a list of its weights beside the table of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x.flatten(1, 2))[0][:, -1])
        return out


@pytest.fixture
def arch() -> Arch:
    torch.manual_seed(0)
    return Arch(LittleResNet())


X = torch.randn(8, 1, 5, 5, generator=torch.Generator().manual_seed(1))


def other_values(arch: Arch) -> tree.Tree:
    """Values that are not the network's own."""
    drawn = torch.Generator().manual_seed(2)
    return {
        name: value + (torch.rand(value.shape, generator=drawn) if value.is_floating_point() else 3)
        for name, value in arch.values().items()
    }


def same(a: tree.Tree, b: tree.Tree) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype is b[n].dtype and torch.equal(a[n], b[n]) for n in a)


# ---------- roles ----------

NORMS = ("bn1", "layer1.0.bn1", "layer1.0.downsample.1", "layer1.1.bn1", "layer1.1.downsample.1")


def test_norms_are_found_by_type(arch: Arch) -> None:
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    batch_norms = {f"{norm}.{part}" for norm in NORMS for part in parts}
    assert arch.norm == batch_norms | {"norm_last.weight", "norm_last.bias"}
    assert arch.statistics == {f"{norm}.{part}" for norm in NORMS for part in parts[2:]}


def test_every_tensor_has_one_role(arch: Arch) -> None:
    parameters = {name for name, _ in arch.net.named_parameters()}
    assert arch.trainable == parameters - {"fc.bias"}
    assert arch.counters == {f"{norm}.num_batches_tracked" for norm in NORMS}
    assert arch.buffers == set(arch.net.state_dict()) - parameters
    roles = {name: arch.role(name) for name in arch.names}
    assert roles["fc.bias"] == "frozen" and roles["scale"] == "statistic"
    assert {name for name, role in roles.items() if role == "trained"} == arch.trainable
    assert {name for name, role in roles.items() if role == "counter"} == arch.counters
    assert set(arch.names) == set(arch.net.state_dict()), "what is not saved is no part of a model"


def test_layers_are_in_order_with_the_norm_that_follows(arch: Arch) -> None:
    conv, norm = ("weight",), ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {
        "net": [("", ("scale",))],  # a tensor of the network's own
        "conv1": [("conv1.", ("weight", "bias")), ("bn1.", norm)],
        "layer1.0.conv1": [("layer1.0.conv1.", conv), ("layer1.0.bn1.", norm)],
        "layer1.0.downsample.0": [("layer1.0.downsample.0.", conv), ("layer1.0.downsample.1.", norm)],
        "layer1.1.conv1": [("layer1.1.conv1.", conv), ("layer1.1.bn1.", norm)],
        "layer1.1.downsample.0": [("layer1.1.downsample.0.", conv), ("layer1.1.downsample.1.", norm)],
        "bn_like": [("bn_like.", ("weight", "bias")), ("norm_last.", ("weight", "bias"))],
        "fc": [("fc.", ("weight", "bias"))],
    }
    assert list(arch.layers) == list(expected)
    for layer, pieces in expected.items():
        assert arch.layers[layer] == tuple(prefix + leaf for prefix, leaves in pieces for leaf in leaves)
    assert sorted(name for names in arch.layers.values() for name in names) == sorted(arch.names)


@pytest.mark.parametrize(
    ("net", "layers"),
    [
        (nn.Linear(2, 3), ["net"]),
        (nn.Sequential(nn.Embedding(5, 4), nn.LSTM(4, 3), nn.Linear(3, 2)), ["0", "1", "2"]),
        (nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.ReLU(), nn.GroupNorm(1, 3)), ["0", "1"]),
        (nn.Sequential(nn.Conv1d(1, 2, 1), nn.InstanceNorm1d(2, affine=True), nn.LayerNorm(2)), ["0"]),
        (nn.Sequential(nn.GRU(2, 2), nn.LayerNorm(2), nn.GRU(2, 2)), ["0", "2"]),
        (nn.Sequential(nn.ReLU(), nn.Flatten()), []),
    ],
)  # fmt: skip
def test_layers_of_other_networks(net: nn.Module, layers: list[str]) -> None:
    assert list(Arch(net).layers) == layers


def test_the_head_is_the_last_linear_layer(arch: Arch) -> None:
    assert arch.head == {"fc.weight"}, "what is frozen is not trained as a head"
    assert Arch(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 4, 1), nn.Flatten())).head == {
        "2.weight", "2.bias",
    }  # fmt: skip
    assert Arch(nn.Linear(2, 3)).head == {"weight", "bias"}
    last_is_a_norm = Arch(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    assert last_is_a_norm.head == {"0.weight", "0.bias"}


def test_of_type_takes_what_is_inside(arch: Arch) -> None:
    assert arch.of_type(Block) == {name for name in arch.names if name.startswith("layer1.")}
    assert arch.of_type(nn.Dropout) == frozenset()


def test_a_running_mean_over_all_batches_is_refused() -> None:
    """It depends on a counter, which is never averaged."""
    with pytest.raises(WrongInput, match=r"'1'.*momentum"):
        Arch(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)))
    Arch(nn.BatchNorm1d(2, momentum=None, track_running_stats=False))


def test_a_slash_in_a_name_is_refused() -> None:
    """Paths in messages and checkpoints are made with it."""
    with pytest.raises(WrongInput, match="/"):
        Arch(nn.ModuleDict({"a/b": nn.Linear(2, 2)}))


# ---------- values ----------


def test_values_are_copies(arch: Arch) -> None:
    values = arch.values()
    for name, tensor in arch.net.state_dict().items():
        assert torch.equal(values[name], tensor) and values[name].data_ptr() != tensor.data_ptr()
        assert not values[name].requires_grad


def test_drawing_is_reproducible_and_per_client(arch: Arch) -> None:
    names = frozenset({"fc.weight", "layer1.0.conv1.weight", "bn1.weight"})
    first = arch.draw(names, 5)
    assert first.keys() == names
    assert same(first, arch.draw(names, 5))
    clients = [first, *(arch.draw(names, 5, client) for client in range(3)), arch.draw(names, 6)]
    for one in range(len(clients)):
        for other in range(one):
            assert not torch.equal(clients[one]["fc.weight"], clients[other]["fc.weight"])
    assert torch.equal(first["bn1.weight"], torch.ones(4)), "a norm starts where norms start"


def test_drawing_is_by_name_not_by_place(arch: Arch) -> None:
    """A network with a plug-in starts with the same base values."""
    longer = Arch(nn.Sequential(OrderedDict(first=nn.Linear(3, 3), plug=nn.Linear(3, 3), last=nn.Linear(3, 2))))
    shorter = Arch(nn.Sequential(OrderedDict(first=nn.Linear(3, 3), last=nn.Linear(3, 2))))
    names = frozenset(shorter.names)
    assert same(longer.draw(names, 1), shorter.draw(names, 1))
    assert same({**longer.draw(frozenset({"last.weight"}), 1)}, tree.pick(shorter.draw(names, 1), {"last.weight"}))


def test_draws_are_distributed_as_the_module_draws_them() -> None:
    """A linear layer of 100 inputs draws uniformly between -0.1 and 0.1."""
    values = Arch(nn.Linear(100, 200)).draw(frozenset({"weight"}), 0)["weight"]
    assert values.abs().max() <= 0.1
    assert abs(float(values.mean())) < 0.002 and abs(float(values.std()) - 0.2 / 12**0.5) < 0.001


def test_drawing_leaves_no_trace(arch: Arch) -> None:
    values, state = arch.values(), torch.get_rng_state()
    arch.draw(arch.norm | arch.head, 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert same(arch.values(), values), "running statistics included, which a norm's reset would clear"


def test_a_module_that_cannot_draw_is_named() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))

    with pytest.raises(WrongInput, match=r"'0' must draw its own start; give Scale a reset_parameters"):
        Arch(nn.Sequential(Scale())).draw(frozenset({"0.factor"}), 0)


# ---------- running ----------


def reference(arch: Arch, model: tree.Tree, train: bool) -> nn.Module:
    net = copy.deepcopy(arch.net).train(train)
    net.load_state_dict(model)
    return net


@pytest.mark.parametrize("train", [True, False])
def test_apply_is_the_network_with_those_values(arch: Arch, train: bool) -> None:
    model = other_values(arch)
    net = reference(arch, model, train)
    torch.manual_seed(3)
    expected = net(X)
    torch.manual_seed(3)  # for dropout
    out, buffers = arch.apply(model, X, train)
    assert torch.equal(out, expected)
    assert buffers.keys() == arch.buffers
    assert same(buffers, tree.pick(net.state_dict(), arch.buffers))
    assert torch.equal(buffers["bn1.running_mean"], model["bn1.running_mean"]) is not train
    assert int(buffers["bn1.num_batches_tracked"]) == 3 + train


@pytest.mark.parametrize("train", [True, False])
def test_apply_changes_nothing(arch: Arch, train: bool) -> None:
    model, x, own = other_values(arch), X.clone(), arch.values()
    before = {name: tensor.clone() for name, tensor in model.items()}
    tensors = {name: id(tensor) for name, tensor in arch.net.state_dict(keep_vars=True).items()}
    arch.apply(model, x, train)
    assert same(model, before) and torch.equal(x, X)
    assert same(arch.values(), own)
    assert {name: id(tensor) for name, tensor in arch.net.state_dict(keep_vars=True).items()} == tensors


def test_apply_leaves_the_network_whole_when_it_fails(arch: Arch) -> None:
    own = arch.values()
    with pytest.raises(RuntimeError):
        arch.apply(other_values(arch), X[:, :, :, :0])
    assert same(arch.values(), own)
    with pytest.raises(KeyError):
        arch.apply(tree.drop(other_values(arch), {"fc.weight"}), X)
    assert same(arch.values(), own)


def test_modes_do_not_depend_on_what_ran_before(arch: Arch) -> None:
    """Dropout and batch norm follow the argument, not the network's last mode."""
    model = arch.values()
    evaluated = arch.apply(model, X, train=False)[0]
    arch.apply(model, X, train=True)
    assert torch.equal(arch.apply(model, X, train=False)[0], evaluated)
    arch.net.eval()
    torch.manual_seed(0)
    one = arch.apply(model, X, train=True)[0]
    arch.net.train()
    torch.manual_seed(0)
    assert torch.equal(arch.apply(model, X, train=True)[0], one)


@pytest.mark.parametrize("make", [LittleResNet, Tied, Recurrent])
def test_outputs_and_gradients_are_those_of_the_network(make: type[nn.Module]) -> None:
    """Of a tied weight: through both of its uses. Twice, with other values: nothing stays from the first time."""
    torch.manual_seed(4)
    arch = Arch(make())
    x = torch.randint(0, 7, (6, 3)) if make is Tied else X
    for shift in (0.0, 0.5):
        values = {n: t + shift if t.is_floating_point() else t for n, t in other_values(arch).items()}
        net = reference(arch, net_names(arch, values), True)
        torch.manual_seed(5)
        expected = net(x)
        expected.square().sum().backward()
        model = {n: t.requires_grad_(n in arch.trainable) for n, t in values.items()}
        torch.manual_seed(5)
        out, _ = arch.apply(model, x)
        assert torch.allclose(out, expected, rtol=1e-6)
        slopes = torch.autograd.grad(out.square().sum(), [model[name] for name in sorted(arch.trainable)])
        own = dict(net.named_parameters())
        for name, slope in zip(sorted(arch.trainable), slopes, strict=True):
            assert torch.allclose(slope, own[name].grad, rtol=1e-5, atol=1e-6), name


def net_names(arch: Arch, model: tree.Tree) -> tree.Tree:
    """A model under all the names of the network's own state, of which tied tensors have several."""
    own = arch.net.state_dict(keep_vars=True)
    by_tensor = {id(own[name]): value.detach() for name, value in model.items()}
    return {name: by_tensor[id(tensor)] for name, tensor in own.items()}


def test_the_largest_is_taken_before_the_relu_to_the_same_bits() -> None:
    """Where all of a window are below zero, or two of it are equal, as well; and the ReLU sees a quarter."""
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU(),
                        nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(36, 5))  # fmt: skip
    x = torch.randn(6, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    x[0] = -1.0
    x[1] = 1.0
    arch, seen = Arch(net), []
    model = {name: value.requires_grad_() for name, value in arch.values().items()}
    alone = nn.Sequential(*net)
    hook = net[1].register_forward_hook(lambda _, inputs, out: seen.append(out.shape))
    found, _ = arch.apply(model, x)
    expected = torch.func.functional_call(alone, model, x)
    hook.remove()
    assert [shape[2] for shape in seen] == [7, 14]
    assert torch.equal(found, expected)
    slopes = [torch.autograd.grad((out**2).sum(), list(model.values())) for out in (found, expected)]
    for ours, theirs in zip(*slopes, strict=True):
        assert torch.equal(ours, theirs)


def test_whoever_listens_to_a_network_is_told_of_each_pass() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 2))
    told: list[str] = []
    net.register_forward_pre_hook(lambda *_: told.append("before"))
    net.register_forward_hook(lambda *_: told.append("after"))
    arch = Arch(net)
    arch.apply(arch.values(), torch.zeros(1, 1, 8, 8))
    assert told == ["before", "after"]


def test_features_are_the_input_of_the_last_layer(arch: Arch) -> None:
    model = other_values(arch)
    seen: list[Tensor] = []
    net = reference(arch, model, False)
    net.fc.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    net(X)
    assert torch.equal(arch.features(model, X, train=False), seen[0])
    assert not arch.net.fc._forward_pre_hooks


# ---------- an ordinary module again ----------


def test_module_loads_strictly_counters_included(arch: Arch) -> None:
    model = other_values(arch)
    net = arch.module(model, LittleResNet())
    assert not net.training
    assert same({name: net.state_dict()[name] for name in model}, model)
    assert torch.equal(net(X), arch.apply(model, X, train=False)[0])


def test_a_module_of_another_shape_is_refused(arch: Arch) -> None:
    with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
        arch.module(arch.values(), nn.Linear(2, 2))


def test_tied_tensors_are_one_and_stay_tied() -> None:
    arch = Arch(Tied())
    assert set(arch.names) == {"embed.weight", "head.bias"}
    model = other_values(arch)
    net = arch.module(model, Tied())
    assert torch.equal(net.head.weight, model["embed.weight"]) and net.head.weight is net.embed.weight
    x = torch.tensor([[1, 2], [6, 0]])
    assert torch.equal(net(x), arch.apply(model, x, train=False)[0])


def test_the_module_is_a_copy_of_the_values(arch: Arch) -> None:
    model = other_values(arch)
    net = arch.module(model, LittleResNet())
    with torch.no_grad():
        net.fc.weight.zero_()
    assert same(model, other_values(arch))
