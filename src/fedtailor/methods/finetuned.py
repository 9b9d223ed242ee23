"""One global model and plain fine-tuning: after the rounds, at the start of every round, or as the model tested.

None of these is a method of one paper. FedAvg+FT and FTL are the usual ways to make a global model one's own; FedAvg-C
and FedProx-C are baselines of Zhang et al., "FedALA", AAAI 2023: tested is a model fine-tuned on the client.

    FedAvgFT:    FedAvg; after the last round each client tunes its copy for ft_epochs
    FTL:         FedAvg, tested with the client's model after its local training
    TunedStart:  in each round, tune the model received for ft_epochs; then the inner method's local training from
                 there. Tested before that training. FedAvgC is TunedStart(FedAvg()), FedProxC is TunedStart(FedProx())

Deviations: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedtailor.arch import Arch
from fedtailor.local import Client, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, Wrapper, require, worth_trying
from fedtailor.methods.fedala import AdaptiveLocalAggregation
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.proximal import FedProx
from fedtailor.registry import register
from fedtailor.tree import State, Tree

FEDHAM = """@article{gao2023configure,
  title   = {Configure Your Federation: Hierarchical Attention-enhanced Meta-Learning Network for Personalized
             Federated Learning},
  author  = {Gao, Yujia and Wang, Pengfei and Liu, Liang and Zhang, Chi and Ma, Huadong},
  journal = {ACM Transactions on Intelligent Systems and Technology},
  volume  = {14},
  number  = {4},
  year    = {2023}
}"""


@register("method", "FedAvgFT")
@dataclass(frozen=True, repr=False)
class FedAvgFT(Method):
    """FedAvg, and after the last round some epochs of fine-tuning on each client."""

    ft_epochs: int = 5

    grid = worth_trying(ft_epochs=(1, 5, 10))
    paper = FedAvg.paper
    citation = FedAvg.citation

    def __post_init__(self) -> None:
        require(self.ft_epochs >= 0, "FedAvgFT", f"ft_epochs={self.ft_epochs} must be 0 or more")

    @property
    def finish_epochs(self) -> int:  # type: ignore[override]
        return self.ft_epochs

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.ft_epochs == 0:
            yield "FedAvgFT: with ft_epochs=0 nothing is fine-tuned, and this is FedAvg"


@register("method", "FTL")
@dataclass(frozen=True, repr=False)
class FTL(Method):
    """FedAvg, tested with each client's model after its local training."""

    trainable: Literal["all", "head"] = "all"

    point = "trained"
    paper = "baseline of Gao et al., TIST 2023"
    citation = FEDHAM

    def __post_init__(self) -> None:
        allowed = self.trainable in ("all", "head")
        require(allowed, "FTL", f"trainable={self.trainable!r} must be 'all' or 'head'")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.trainable == "head" and arch.trainable == arch.head:
            yield "FTL: the model is a single layer, so that trainable='head' is 'all'"
        elif self.trainable == "head" and arch.head:
            yield "FTL: with trainable='head' every layer but the last keeps its first values; give it a trained model"

    def init_server(self, fed: Fed, model: Tree) -> State:
        require(
            self.trainable == "all" or bool(fed.arch.head), "FTL",
            "the model's last layer has no trained tensor of its own (it is frozen, or tied to another layer), so with "
            "trainable='head' nothing would be trained; choose a model that has one, such as dnn",
        )  # fmt: skip
        return {"model": model}

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        only = client.arch.head if self.trainable == "head" else None
        return Fitted(descend(client, model, only=only).theta, state)


@register("method", "TunedStart")
@dataclass(frozen=True, repr=False)
class TunedStart(Wrapper):
    """Local training of `inner` starts from a fine-tuned copy of the received model, which is what is tested."""

    inner: Method
    ft_epochs: int = 10

    grid = worth_trying(ft_epochs=(1, 5, 10))
    point = "received"
    paper = "baseline of Zhang et al., AAAI 2023"
    citation = AdaptiveLocalAggregation.citation

    def __post_init__(self) -> None:
        require(self.ft_epochs >= 0, "TunedStart", f"ft_epochs={self.ft_epochs} must be 0 or more")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        yield from self.inner.notes(arch, n)
        if self.ft_epochs == 0:
            yield f"TunedStart: with ft_epochs=0 nothing is fine-tuned, and this is {self.inner!r}"

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        """What `inner` sends; where that is no one model, there is nothing to tune."""
        payload = super().send(fed, server, cohort)
        require(
            "model" in payload.common or "model" in payload.own, "TunedStart",
            f"a client of {self.inner!r} receives no one model that it could fine-tune; "
            "choose an inner method such as FedAvg() or FedAMP()",
        )  # fmt: skip
        return payload

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        model, state = super().start(client, state, got)
        return descend(client, model, epochs=self.ft_epochs, stream=1).theta, state


@register("method", "FedAvgC")
def FedAvgC(ft_epochs: int = 10) -> TunedStart:
    """FedAvg from a fine-tuned start: TunedStart(FedAvg(), ft_epochs)."""
    return TunedStart(FedAvg(), ft_epochs)


@register("method", "FedProxC")
def FedProxC(mu: float = 0.01, ft_epochs: int = 10) -> TunedStart:
    """FedProx from a fine-tuned start: TunedStart(FedProx(mu), ft_epochs)."""
    return TunedStart(FedProx(mu), ft_epochs)
