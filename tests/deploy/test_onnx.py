"""`export --onnx`: what a runtime without Python computes is what the network computes, for any number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedtailor.arch import Arch
from fedtailor.deploy import export

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch's exporter and what it stands on

MODELS = [
    ("mlr", (60,), "FedAvg()"),
    ("dnn", (60,), "FedAvg()"),
    ("cnn4", (1, 28, 28), "FedAvg()"),
    ("lenet_bn", (3, 28, 28), "FedBN()"),
    ("lenet_bn", (3, 28, 28), "LocalAttention(FedBN(), kind='se')"),
    ("gru", (24, 11), "FedHAM()"),
    ("resnet18", (3, 32, 32), "FedBN()"),
    ("fasttext(vocabulary=50)", (12,), "FedALA()"),
]


def computed(path: Path, x: NDArray[Any]) -> Any:
    """By ONNX Runtime where it is installed, else by ONNX's own reference."""
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(str(path)).run(None, {"x": x})[0]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize(("model", "shape", "method"), MODELS, ids=lambda value: str(value))
def test_the_file_computes_what_the_network_does(
    model: str, shape: tuple[int, ...], method: str, tmp_path: Path
) -> None:
    words = 49 if model.startswith("fasttext") else 0
    card = export.Card("north", method, model, 3, "classification", list("abcde"), list(shape), words, 1, "received")
    arch = Arch(card.net())
    drawn = torch.Generator().manual_seed(1)

    def moved(value: torch.Tensor) -> torch.Tensor:
        """As after some training: running statistics that are not 0 and 1."""
        return value + 0.1 * torch.rand(value.shape, generator=drawn) if value.is_floating_point() else value

    module = arch.module({name: moved(value) for name, value in arch.values().items()})
    path = tmp_path / "model.onnx"
    export.write_onnx(path, card, module)
    onnx.checker.check_model(str(path))
    assert not [file for file in tmp_path.iterdir() if file != path], "the values are in the file itself"
    for rows in (1, 2, 7):
        x = torch.randn(rows, *shape, generator=drawn)
        x = torch.randint(0, words, (rows, *shape), generator=drawn) if words else x
        with torch.no_grad():
            expected = module(x).numpy()
        assert np.allclose(computed(path, x.numpy()), expected, rtol=1e-4, atol=1e-4)
