"""The reference: FedAvg as one writes it for a single experiment, in plain torch.

Tensors in memory, one network and one `torch.optim.SGD` a client, batches gathered by their row numbers: the loop
inside all the software that it is compared with, without a DataLoader.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from peers.bundle import Bundle
from peers.line import Line


class PlainLoop:
    def __init__(self, bundle: Bundle):
        self.bundle, self.net = bundle, bundle.net().train()
        self.model = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.random = torch.Generator().manual_seed(0)

    def train(self, rows: Tensor) -> dict[str, Tensor]:
        settings = self.bundle.settings
        self.net.load_state_dict(self.model)
        optimiser = torch.optim.SGD(self.net.parameters(), lr=settings.lr)
        order = rows if settings.ordered else rows[torch.randperm(len(rows), generator=self.random)]
        for batch in torch.split(order, settings.batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(self.net(self.bundle.x[batch]), self.bundle.y[batch]).backward()
            optimiser.step()
        return {name: value.detach().clone() for name, value in self.net.state_dict().items()}

    def round(self) -> None:
        train = self.bundle.train
        drawn = torch.randperm(len(train), generator=self.random)[: self.bundle.settings.cohort].sort().values.tolist()
        trained = [self.train(train[client]) for client in drawn]
        sizes = torch.tensor([len(train[client]) for client in drawn], dtype=torch.float64)
        weights = sizes / sizes.sum()
        self.model = {name: mean([one[name] for one in trained], weights) for name in self.model}


def mean(values: list[Tensor], weights: Tensor) -> Tensor:
    first = values[0]
    return torch.tensordot(weights.to(first), torch.stack(values), 1) if first.is_floating_point() else first


def main() -> None:
    line = Line()
    for path, options in line.bundles():
        loop = PlainLoop(Bundle.load(path, **options))
        facts = {"software": f"torch {torch.__version__}", "threads": torch.get_num_threads()}
        for _ in line.rounds(lambda loop=loop: loop.model, lambda facts=facts: facts):
            loop.round()


if __name__ == "__main__":
    main()
