"""fastText: a mean of vectors under two affine maps; and texts as input of everything around a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtailor import Arch, Dataset, RunSpec, federate, load
from fedtailor.nn import fasttext, make
from fedtailor.registry import WrongInput


def test_it_is_two_affine_maps_of_the_mean_vector_padding_included() -> None:
    net = fasttext(classes=3, shape=(5,), vocabulary=9).double()
    w = {name: p.detach().numpy() for name, p in net.named_parameters()}
    texts = np.array([[1, 2, 8, 0, 0], [3, 3, 3, 3, 3], [0, 0, 0, 0, 0]])
    for text, out in zip(texts, net(torch.from_numpy(texts)).detach().numpy(), strict=True):
        mean = sum(w["embedding.weight"][word] for word in text) / 5
        expected = w["head.weight"] @ (w["fc1.weight"] @ mean + w["fc1.bias"]) + w["head.bias"]
        np.testing.assert_allclose(out, expected, rtol=1e-9)


def test_the_vector_of_padding_is_zero_and_stays_so() -> None:
    net = fasttext(classes=3, shape=(4,), vocabulary=9)
    assert bool((net.embedding.weight[0] == 0).all()) and bool((net.embedding.weight[1:] != 0).any())
    net(torch.tensor([[1, 0, 0, 2]])).square().sum().backward()
    slope = net.embedding.weight.grad
    assert slope is not None
    assert bool((slope[0] == 0).all()) and bool((slope[1] != 0).any())


def test_layers_and_head() -> None:
    arch = Arch(make("fasttext(vocabulary=9)", classes=4, shape=(5,), seed=0, words=8))
    assert list(arch.layers) == ["embedding", "fc1", "head"]
    assert arch.head == {"head.weight", "head.bias"}


def test_measurements_and_texts_with_other_words_are_refused() -> None:
    with pytest.raises(WrongInput, match="the samples are measurements; use mlr, dnn or gru"):
        make("fasttext(vocabulary=9)", classes=4, shape=(5,), seed=0)
    with pytest.raises(WrongInput, match=r"words numbered up to 9: IndexError.*such texts, as fasttext\(vocabulary=10"):
        make("fasttext(vocabulary=9)", classes=4, shape=(5,), seed=0, words=9)
    with pytest.raises(WrongInput, match=r"dnn fails on one sample of shape \(5,\) with words numbered up to 9"):
        make("dnn", classes=4, shape=(5,), seed=0, words=9)
    with pytest.raises(WrongInput, match=r"texts of shape \(words,\)"):
        fasttext(classes=4, shape=(5, 2))
    with pytest.raises(WrongInput, match="vocabulary=1"):
        fasttext(classes=4, shape=(5,), vocabulary=1)


def texts(rows: int = 120) -> Dataset:
    """Two kinds of texts, told by one word each among others that say nothing."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(3, 30, (rows, 6)), np.arange(rows) % 2
    x[np.arange(rows), draw.integers(0, 6, rows)] = 1 + y
    words, labels = torch.from_numpy(x), torch.from_numpy(y)
    return Dataset("texts", words, labels, ("a", "b"), model="fasttext(vocabulary=30)", partition="iid(clients=4)")


@pytest.mark.parametrize("method", ["FedAvg", "FedALA", "FedRep", "Ditto"])
def test_texts_go_all_the_way_through_a_run(method: str) -> None:
    from fedtailor import registry

    federation = load(texts())
    spec = RunSpec.of(federation, registry.parse("method", method), rounds=12, epochs=2, batch=5, lr=1.0)
    run = federate(spec, federation)
    accuracy = run.driver.rows[-1]["test"]["accuracy"]
    assert sum(accuracy) / 4 > 0.85
    rows = federation.test[1]
    out = run.model(1)(federation.inputs(rows))
    assert float((out.argmax(1) == federation.y[rows]).double().mean()) > 0.7


def test_what_numbers_of_words_may_be() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(WrongInput, match=r"torch.int32; give float32 for.*, uint8 for pictures.*int64 for texts"):
        Dataset("t", torch.zeros(2, 3, dtype=torch.int32), labels, ("a", "b"))
    with pytest.raises(WrongInput, match=r"x holds -1.*run from 0"):
        Dataset("t", torch.tensor([[-1], [0]]), labels, ("a", "b"))
    assert load(texts(), clients=3).words == 29
    floats = Dataset("t", torch.zeros(8, 3), torch.arange(8) % 2, ("a", "b"))
    assert load(floats, clients=2).words is None
