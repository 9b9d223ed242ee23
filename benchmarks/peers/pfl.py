"""pfl (`pip install pfl`), through `FederatedAveraging.run`, told what to do by a callback."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from peers.bundle import Bundle
from peers.line import Line
from peers.stand_in import stand_in

stand_in("dp_accounting", "prv_accountant")  # what pfl imports to account for privacy

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.aggregate.weighting import WeightByDatapoints  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.callback.central_evaluation import CentralEvaluationCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402

ENDLESS = 10**6
TEST_BATCH = 1024


class Net(nn.Module):
    """The network with the loss and the metrics that pfl asks of it."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.net.train()
        return nn.functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        self.net.eval()
        out = self.net(x)
        loss = nn.functional.cross_entropy(out, y, reduction="sum").item()
        right = (out.argmax(1) == y).sum().item()
        return {"loss": Weighted(loss, len(y)), "accuracy": Weighted(right, len(y))}


class Told(TrainingProcessCallback):
    """Lets a run go on when a round is asked for, and ends it when none is."""

    def __init__(self, asked: Iterator[None]):
        self.asked = asked

    def on_train_begin(self, *, model: Any) -> Metrics:
        next(self.asked, None)
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        more = next(self.asked, "no more") is None
        return not more, Metrics()


def trained(net: nn.Module) -> dict[str, Tensor]:
    """pfl averages what is trained, and no running statistics."""
    return {name: value.detach() for name, value in net.named_parameters()}


def run(bundle: Bundle, line: Line) -> None:
    asked = bundle.settings
    users = [PyTorchTensorDataset((bundle.x[rows], bundle.y[rows])) for rows in bundle.train]
    tested = torch.cat(bundle.test)
    net = Net(bundle.net())
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    everybody = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(len(users)))))
    evaluation = NNEvalHyperParams(local_batch_size=TEST_BATCH)
    facts = {"software": f"pfl {version('pfl')}, torch {torch.__version__}", "threads": torch.get_num_threads()}
    callbacks: list[TrainingProcessCallback] = [Told(line.rounds(lambda: trained(net.net), lambda: facts))]
    if asked.evaluate:
        test = Dataset((bundle.x[tested], bundle.y[tested]))
        callbacks.insert(0, CentralEvaluationCallback(test, evaluation, frequency=1))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ENDLESS, evaluation_frequency=ENDLESS, train_cohort_size=asked.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(everybody, None, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_learning_rate=asked.lr, local_num_epochs=1, local_batch_size=asked.batch),
        evaluation,
        callbacks,
        send_metrics_to_platform=False,
    )  # fmt: skip


def main() -> None:
    line = Line()
    for path, options in line.bundles():
        np.random.seed(0)
        run(Bundle.load(path, **options), line)


if __name__ == "__main__":
    main()
