"""The GRU classifier against its equations in NumPy, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedtailor import Arch
from fedtailor.nn import gru, make
from fedtailor.registry import WrongInput

Numbers = NDArray[np.float64]


def sigmoid(z: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-z))


def unrolled(w: dict[str, Numbers], layer: str, x: Numbers) -> Numbers:
    """Cho et al., 2014, as PyTorch has it: the reset gate acts on the new state's recurrent part, bias included."""
    names = [f"{layer}.{part}_l0" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    w_x, w_h, b_x, b_h = (w[name] for name in names)
    units = w_h.shape[1]
    h, states = np.zeros(units), []
    for step in x:
        a, b = w_x @ step + b_x, w_h @ h + b_h
        reset = sigmoid(a[:units] + b[:units])
        keep = sigmoid(a[units : 2 * units] + b[units : 2 * units])
        new = np.tanh(a[2 * units :] + reset * b[2 * units :])
        h = (1 - keep) * new + keep * h
        states.append(h)
    return np.array(states)


def test_it_is_two_layers_and_a_linear_one_on_the_last_state() -> None:
    net = gru(classes=3, shape=(6, 4), hidden=5).double()
    w = {name: p.detach().numpy() for name, p in net.named_parameters()}
    x = np.random.default_rng(0).normal(size=(7, 6, 4))
    expected = []
    for sample in x:
        last = unrolled(w, "gru2", unrolled(w, "gru1", sample))[-1]
        expected.append(w["head.weight"] @ last + w["head.bias"])
    np.testing.assert_allclose(net(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_one_step_by_hand() -> None:
    """With all weights 0 but the bias of the new state at 1: z = 1/2, n = tanh 1, h = n / 2 twice over."""
    net = gru(classes=2, shape=(1, 1), hidden=1).double()
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net.gru1.bias_ih_l0[2] = 1.0
        net.gru2.weight_ih_l0[2] = 1.0
        net.head.weight[:, 0] = torch.tensor([1.0, -2.0])
    half = 0.5 * np.tanh(0.5 * np.tanh(1.0))  # 0.1817
    out = net(torch.zeros(1, 1, 1, dtype=torch.float64)).detach().numpy()
    np.testing.assert_allclose(out, [[half, -2 * half]])
    assert round(half, 4) == 0.1817


def test_each_recurrent_layer_is_a_layer() -> None:
    arch = Arch(make("gru", classes=5, shape=(48, 13), seed=0))
    assert list(arch.layers) == ["gru1", "gru2", "head"]
    assert arch.head == {"head.weight", "head.bias"}


def test_other_samples_are_refused() -> None:
    with pytest.raises(WrongInput, match=r"gru takes sequences of shape \(steps, features\).*\(3, 8, 8\)"):
        gru(classes=2, shape=(3, 8, 8))
    with pytest.raises(WrongInput, match="hidden=0"):
        gru(classes=2, shape=(48, 13), hidden=0)
    with pytest.raises(WrongInput, match=r"samples of shape \(47, 13\)"):
        gru(classes=2, shape=(48, 13))(torch.zeros(2, 47, 13))
