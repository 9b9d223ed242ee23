"""fluke (`pip install fluke-fl`), by its public classes: the body of `CentralizedFL.run` without its progress bars."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import torch
import torchmetrics  # noqa: F401 - before the stand-ins, since it asks what is installed

from peers.bundle import Bundle
from peers.line import Line
from peers.stand_in import stand_in

stand_in("matplotlib", "seaborn", "cerberus")  # what fluke imports to draw, and to check what is typed

from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402

TEST_BATCH = 128  # of its own DataSplitter


def loader(bundle: Bundle, rows: torch.Tensor, batch: int, shuffle: bool) -> FastDataLoader:
    """One client's rows. Batches of one row are left out where there is batch norm, as this package leaves them out."""
    normed = any("running_mean" in name for name in bundle.values)
    return FastDataLoader(
        bundle.x[rows], bundle.y[rows], num_labels=bundle.settings.classes, batch_size=batch, shuffle=shuffle,
        skip_singleton=normed,
    )  # fmt: skip


def federation(bundle: Bundle) -> FedAVG:
    asked, n = bundle.settings, len(bundle.train)
    clients = [loader(bundle, rows, asked.batch, not asked.ordered) for rows in bundle.train]
    server = loader(bundle, torch.cat(bundle.test), TEST_BATCH, shuffle=False)
    container = DummyDataContainer(clients, [None] * n, server, asked.classes)
    hyper_parameters = {
        "model": bundle.net(),
        "client": {
            "batch_size": asked.batch, "local_epochs": 1, "loss": "CrossEntropyLoss",
            "optimizer": {"name": "SGD", "lr": asked.lr}, "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
        },
        "server": {"weighted": True},
    }  # fmt: skip
    return FedAVG(n, DataSplitter(dataset=container, distribution="iid"), hyper_parameters)


def one_round(run: FedAVG, number: int, share: float, evaluator: ClassificationEval | None) -> None:
    server = run.server
    eligible = server.get_eligible_clients(share)
    server.broadcast_model(eligible)
    for client in eligible:
        client.local_update(number)
    server.aggregate(eligible, server.receive_client_models(eligible, state_dict=False))
    if evaluator is not None:
        server.evaluate(evaluator, server.test_set, number)


def main() -> None:
    line = Line()
    facts = {
        "software": f"fluke-fl {version('fluke-fl')}, torch {torch.__version__}", "threads": torch.get_num_threads(),
    }  # fmt: skip
    for path, options in line.bundles():
        bundle = Bundle.load(path, **options)
        np.random.seed(0)  # fluke draws cohorts from the global generators
        torch.manual_seed(0)
        run = federation(bundle)
        share = bundle.settings.cohort / len(bundle.train)
        evaluator = ClassificationEval(1, bundle.settings.classes) if bundle.settings.evaluate else None
        asked = line.rounds(run.server.model.state_dict, lambda: facts)
        for number, _ in enumerate(asked, 1):
            one_round(run, number, share, evaluator)


if __name__ == "__main__":
    main()
