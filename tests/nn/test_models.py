"""The networks: their sizes as printed in the papers, the order of their layers, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from fedtailor import registry
from fedtailor.nn import alexnet_small, cnn4, dnn, fasttext, gru, lenet_bn, mlr, mobilenet_v2, resnet18
from fedtailor.registry import WrongInput

IMAGE = (1, 28, 28)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def kinds(net: nn.Sequential) -> list[str]:
    return [type(layer).__name__ for layer in net]


@pytest.mark.parametrize(
    ("factory", "shape", "classes", "expected"),
    [
        (mlr, (60,), 10, 610),
        (mlr, (1, 28, 28), 10, 7_850),
        (mlr, (3, 32, 32), 10, 30_730),
        (dnn, (60,), 10, 1_430),
        (dnn, (1, 28, 28), 10, 79_510),
        (dnn, (3, 32, 32), 10, 308_310),
        (cnn4, (1, 28, 28), 10, 582_026),
        (cnn4, (3, 32, 32), 10, 878_538),
        (cnn4, (3, 32, 32), 100, 924_708),
        (cnn4, (3, 64, 64), 200, 5_694_600),
        (lenet_bn, (3, 28, 28), 10, 45_178),
        (alexnet_small, (1, 28, 28), 10, 5_140_682),
        (gru, (48, 13), 5, 154_629),
        (resnet18, (3, 64, 64), 200, 11_279_112),
        (resnet18, (3, 224, 224), 65, 11_209_857),
        (resnet18, (3, 224, 224), 1000, 11_689_512),  # as for ImageNet
        (mobilenet_v2, (3, 224, 224), 1000, 3_504_872),
    ],
)
def test_parameter_counts_are_those_of_the_papers(factory, shape, classes, expected) -> None:
    with torch.device("meta"):  # shapes without values
        net = factory(classes=classes, shape=shape).eval()
        assert parameters(net) == expected
        assert net(torch.zeros(2, *shape)).shape == (2, classes)


def test_fasttext_counts_as_in_the_paper() -> None:
    with torch.device("meta"):
        net = fasttext(classes=4, shape=(200,)).eval()
        assert parameters(net) == 3_157_508 == 98_635 * 32 + (32 * 32 + 32) + (32 * 4 + 4)
        assert net(torch.zeros(2, 200, dtype=torch.int64)).shape == (2, 4)


@pytest.mark.parametrize(("features", "hidden"), [(59, 20), (60, 20), (61, 100), (784, 100)])
def test_dnn_chooses_its_width_by_the_number_of_features(features: int, hidden: int) -> None:
    assert dnn(classes=10, shape=(features,)).hidden.out_features == hidden
    assert dnn(classes=10, shape=(features,), hidden=7).hidden.out_features == 7


def test_the_layers_stand_in_the_order_of_the_papers() -> None:
    block = ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    fully = ["Linear", "BatchNorm1d", "ReLU"]
    lenet = ["Input", *block, "Slot", *block, "Slot", "Flatten", *fully, *fully, "Linear"]
    assert kinds(lenet_bn(classes=10, shape=IMAGE)) == lenet
    block.remove("BatchNorm2d")
    assert kinds(cnn4(classes=10, shape=IMAGE)) == [
        "Input", *block, *block, "Flatten", "Linear", "ReLU", "Linear",
    ]  # fmt: skip
    assert kinds(dnn(classes=10, shape=IMAGE)) == ["Input", "Flatten", "Linear", "ReLU", "Linear"]
    assert kinds(mlr(classes=10, shape=IMAGE)) == ["Input", "Flatten", "Linear"]


def test_mlr_is_one_affine_map_of_the_flattened_sample() -> None:
    net = mlr(classes=3, shape=(2, 4))
    x = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net(x), x.reshape(5, 8) @ net.head.weight.T + net.head.bias)


def test_cnn4_is_what_its_weights_say() -> None:
    net = cnn4(classes=10, shape=(3, 20, 24)).double()
    x = torch.randn(2, 3, 20, 24, generator=torch.Generator().manual_seed(0)).double()
    w = dict(net.named_parameters())
    h = F.max_pool2d(F.conv2d(x, w["conv1.weight"], w["conv1.bias"]).clamp(min=0), 2)
    h = F.max_pool2d(F.conv2d(h, w["conv2.weight"], w["conv2.bias"]).clamp(min=0), 2).reshape(2, -1)
    h = (h @ w["fc1.weight"].T + w["fc1.bias"]).clamp(min=0)
    torch.testing.assert_close(net(x), h @ w["head.weight"].T + w["head.bias"])


def test_lenet_in_training_gives_every_feature_of_a_layer_mean_zero_before_its_relu() -> None:
    net = lenet_bn(classes=10, shape=IMAGE)
    seen = {}
    for name in ("bn1", "bn2", "bn3", "bn4"):
        net.get_submodule(name).register_forward_hook(lambda _, __, out, name=name: seen.update({name: out}))
    net.train()(torch.randn(16, *IMAGE, generator=torch.Generator().manual_seed(0)))
    for out in seen.values():
        mean = out.transpose(0, 1).flatten(1).mean(1)
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-5, rtol=0)
    assert len(seen) == 4


@pytest.mark.parametrize("factory", [cnn4, lenet_bn])
def test_the_smallest_image_works_and_one_pixel_less_is_refused(factory) -> None:
    assert factory(classes=4, shape=(1, 16, 16)).eval()(torch.zeros(1, 1, 16, 16)).shape == (1, 4)
    for shape in ((1, 15, 16), (1, 16, 15), (784,), (28, 28), (1, 1, 28, 28)):
        with pytest.raises(WrongInput, match=r"\(channels, height, width\).*use mlr or dnn"):
            factory(classes=4, shape=shape)


@pytest.mark.parametrize("factory", [mlr, dnn, cnn4, lenet_bn])
def test_samples_of_another_shape_are_refused_with_both_shapes(factory) -> None:
    net = factory(classes=10, shape=(1, 28, 28)).eval()
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    for wrong in ((2, 28, 28, 1), (2, 784), (2, 28, 28), (1, 28, 28)):
        with pytest.raises(WrongInput, match=r"\(1, 28, 28\)"):
            net(torch.zeros(wrong))


@pytest.mark.parametrize("factory", [mlr, dnn, cnn4, lenet_bn])
def test_impossible_sizes_are_refused(factory) -> None:
    with pytest.raises(WrongInput, match="0 outputs"):
        factory(classes=0, shape=(1, 28, 28))
    for shape in ((), (0,), (1, 0, 28)):
        with pytest.raises(WrongInput, match="samples of shape"):
            factory(classes=10, shape=shape)
    with pytest.raises(WrongInput, match="hidden=0"):
        dnn(classes=10, shape=(4,), hidden=0)


def test_every_model_is_registered_and_says_what_it_is() -> None:
    offered = {"mlr", "dnn", "cnn4", "lenet_bn", "alexnet_bn", "alexnet_small", "gru", "resnet18", "mobilenet_v2"}
    assert offered | {"fasttext"} == {
        name for name in registry.names("model")
        if registry.entry("model", name).factory.__module__.startswith("fedtailor.nn")
    }  # fmt: skip
    for name in offered | {"fasttext"}:
        assert len(registry.entry("model", name).summary) > 20


@pytest.mark.parametrize("factory", [mlr, dnn, cnn4])
def test_gradients_of_stacked_clients_are_those_of_each_client(factory) -> None:
    shape = (1, 16, 16)
    nets = [factory(classes=3, shape=shape).double() for _ in range(3)]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 4, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (3, 4), generator=generator)

    def loss(model, x, y):
        return F.cross_entropy(functional_call(nets[0], model, (x,)), y)

    stacked = vmap(grad(loss))(stack_module_state(nets)[0], x, y)
    for i, net in enumerate(nets):
        one = grad(loss)(dict(net.named_parameters()), x[i], y[i])
        for name in one:
            torch.testing.assert_close(stacked[name][i], one[name].detach())


def test_every_model_is_on_the_reference_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
    for name in registry.names("model"):
        if registry.entry("model", name).factory.__module__.startswith("fedtailor.nn"):
            assert f"| `{name}` |" in page
