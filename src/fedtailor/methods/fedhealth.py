"""FedHealth: federated averaging from a model trained on public rows; at each client, transfer of its last layers.

Chen et al., "FedHealth: A Federated Transfer Learning Framework for Wearable Healthcare", IEEE Intelligent
Systems 2020.

    server: w <- trained on the public labelled rows                              the cloud model
    rounds: FedAvg from there
    client i: convolution and recurrent layers frozen; the linear layers on
              CE(own rows) + eta_c * CORAL(public rows, own rows)                 Eq. 5
    CORAL = ||Cov_a - Cov_b||_F^2 / (4 h^2), of the h inputs of the last layer    Eq. 4

The public rows are a share of every client's training rows, taken out of them and sent to everybody once.
Deviations: (1) the transfer is done on copies whenever a model is tested; training goes on from the shared one. (2)
Norms that follow a linear layer are trained with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import Batch, Client, descend
from fedtailor.method import Fed, Method, Received, require, worth_trying
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "FedHealth")
@dataclass(frozen=True, repr=False)
class FedHealth(Method):
    """FedAvg from a model of public rows, then transfer of the last layers at each client."""

    eta_c: float = 0.01  # $\\eta$, weight of the alignment
    cloud_epochs: int = 5  # on the public rows, before the rounds
    ft_epochs: int = 5  # of the transfer
    align: Literal["coral", "none"] = "coral"
    share: float = 0.1  # of every client's training rows that become public

    grid = worth_trying(eta_c=(0.001, 0.01, 0.1), ft_epochs=(1, 5, 10))
    point = "adapted"
    paper = "Chen et al., IEEE Intelligent Systems 2020"
    citation = """@article{chen2020fedhealth,
  title   = {{FedHealth}: A Federated Transfer Learning Framework for Wearable Healthcare},
  author  = {Chen, Yiqiang and Qin, Xin and Wang, Jindong and Yu, Chaohui and Gao, Wen},
  journal = {IEEE Intelligent Systems},
  volume  = {35},
  number  = {4},
  year    = {2020}
}"""

    def __post_init__(self) -> None:
        require(self.eta_c >= 0, "FedHealth", f"eta_c={self.eta_c} must be 0 or more")
        require(
            min(self.cloud_epochs, self.ft_epochs) >= 0, "FedHealth", "cloud_epochs and ft_epochs must be 0 or more"
        )
        require(self.align in ("coral", "none"), "FedHealth", f"align={self.align!r} must be 'coral' or 'none'")
        require(0 < self.share < 1, "FedHealth", f"share={self.share} must be between 0 and 1")

    @property
    def public_share(self) -> float:  # type: ignore[override]
        return self.share

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        linear = linear_layers(arch)
        if self.cloud_epochs == 0:
            yield "FedHealth: with cloud_epochs=0 there is no cloud model; the rounds start from the first values"
        if self.ft_epochs == 0:
            yield "FedHealth: with ft_epochs=0 nothing is transferred; the model tested is the one for all"
        if self.align == "coral" and self.eta_c == 0:
            yield "FedHealth: eta_c=0 takes the alignment away; write align='none' if that is meant"
        if self.align == "coral" and linear and linear <= arch.head:
            yield "FedHealth: only the last layer is trained in the transfer; the alignment of its inputs has no effect"

    def init_server(self, fed: Fed, model: Tree) -> State:
        assert fed.public is not None, "public_share asks for public rows"
        require(
            bool(linear_layers(fed.arch)),
            "FedHealth",
            "the model has no linear layer that the transfer could train; use one that has, such as dnn",
        )
        statistics = tree.pick(fed.arch.values(), fed.arch.buffers)  # the server's own, where the clients keep theirs
        cloud = descend(fed.public, {**statistics, **model}, epochs=self.cloud_epochs).theta
        return {"model": {name: cloud[name] for name in model}}

    def personalised(self, client: Client, state: State, got: Received) -> Tree:
        only = linear_layers(client.arch)
        steps = sum(1 for _ in client.batches(epochs=self.ft_epochs))
        public = list(client.with_public_rows().batches(steps=steps))
        if self.align == "none" or self.eta_c == 0 or not public:
            return descend(client, got.model, only=only, epochs=self.ft_epochs).theta

        def loss(model: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            own_loss, buffers = client.loss(model, batch)
            theirs, ours = (client.arch.features(model, x) for x in (public[batch.step].x, batch.x))
            return own_loss + self.eta_c * coral(theirs, ours), buffers

        return descend(client, got.model, loss=loss, only=only, epochs=self.ft_epochs).theta


def linear_layers(arch: Arch) -> frozenset[str]:
    """Trained names of the linear layers, and of the norms that follow them."""
    linear = arch.of_type(nn.Linear)
    layers = [names for names in arch.layers.values() if names[0] in linear]
    return frozenset(name for names in layers for name in names) & arch.trainable


def coral(a: Tensor, b: Tensor) -> Tensor:
    """Squared distance of the two covariance matrices over 4 h^2; a single row has none, and is aligned to nothing."""
    if min(len(a), len(b)) < 2:
        return torch.zeros((), device=a.device)
    return (covariance(a) - covariance(b)).square().sum() / (4 * a.shape[1] ** 2)


def covariance(features: Tensor) -> Tensor:
    centred = features - features.mean(0)
    return centred.T @ centred / (len(features) - 1)
