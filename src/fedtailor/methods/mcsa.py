"""FedMCSA: the server gives each client a mixture of its own of the drawn clients' models, by attention over layers.

Guo et al., "FedMCSA: Personalized Federated Learning via Model Components Self-Attention", Neurocomputing 2023.

    server: the drawn clients S send Theta_i                                      Alg. 1 line 2
            psi_ij = softmax over j in S of sigma cos(theta_il, theta_jl)         Eq. 7, for each component l
            w_il = sum_j psi_ij theta_jl;  W_i = [w_i1, ..., w_iL]                Eq. 6, line 3
    client i in S: Theta_i <- W_i, anchor <- W_i                                  lines 6-8
    every client, R batches: Theta_i ~ argmin f_i(Theta) + lambda/2 ||Theta - anchor||^2      Eq. 9, lines 10-13

`ComponentAttention` is the server's part, around any method whose server keeps one model for all; `Proximal` is the
client's; `FedMCSA` is both, on FedAvg.

Deviations: (1) Eq. 7 prints a denominator over cos(theta_k, theta_h), whose weights do not sum to 1 as Eq. 6 demands;
it is taken over cos(theta_i, theta_h). (2) A layer is a component together with the norm that follows it. Cosines are
over trained tensors; float buffers are mixed with the weights of their layer, of counters the largest is taken, frozen
parameters are not mixed. (3) The cosine of two zero vectors is 1, that of a zero vector and another 0. (4) The argmin
is `inner_steps` steps of SGD, one by default. (5) Names that stay private are in no component.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.method import Fed, Method, Payload, Point, Wrapper, require, worth_trying
from fedtailor.methods import mixing
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.pfedme import pFedMe
from fedtailor.methods.proximal import Proximal, innermost
from fedtailor.registry import WrongInput, register
from fedtailor.tree import State, Tree


class Component(NamedTuple):
    """What attends as one: the names it is compared by, and the names that are mixed."""

    name: str
    compared: list[str]
    mixed: list[str]


@register("method", "ComponentAttention", "MCSA")
@dataclass(frozen=True, repr=False)
class ComponentAttention(Wrapper):
    """Replaces the server's mean by attention over the drawn clients' models, for each component of its own."""

    inner: Method
    sigma: float = 50.0  # $\\sigma$; it must fit the task: the cosines of a large layer lie close together
    component: Literal["layer", "tensor"] = "layer"
    size_weighting: bool = False  # psi_ij times n_j, normalised again
    train: Literal["all", "sampled"] = "all"  # who trains in a round; "sampled" costs S/N of the time

    grid = worth_trying(sigma=(10.0, 50.0, 250.0, 1000.0))
    sees = "models"
    paper = "Guo et al., Neurocomputing 2023"
    citation = """@article{guo2023fedmcsa,
  title   = {{FedMCSA}: Personalized federated learning via model components self-attention},
  author  = {Guo, Qi and Qi, Yong and Qi, Saiyu and Wu, Di and Li, Qian},
  journal = {Neurocomputing},
  volume  = {560},
  year    = {2023}
}"""

    def __post_init__(self) -> None:
        for holds, what in (
            (0 <= self.sigma < inf, f"sigma={self.sigma} must be 0 or more, and finite"),
            (self.component in ("layer", "tensor"), f"component={self.component!r} must be 'layer' or 'tensor'"),
            (self.train in ("all", "sampled"), f"train={self.train!r} must be 'all' or 'sampled'"),
        ):
            require(holds, "ComponentAttention", what)

    @property
    def point(self) -> Point:  # type: ignore[override]
        """Theta_i after local training; the inner method's own adapted model (theta_i of pFedMe) where it has one."""
        return "adapted" if self.inner.point == "adapted" else "trained"

    @property
    def trains(self) -> Literal["cohort", "all"]:  # type: ignore[override]
        return "all" if self.train == "all" else "cohort"

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if not arch.trainable - self.inner.personal(arch):
            yield "ComponentAttention: nothing that is trained is shared, so that there is nothing to attend to"
        elif n == 1:
            yield "ComponentAttention: with one client there is nobody else to attend to"
        elif self.sigma == 0:
            yield "ComponentAttention: with sigma=0 attention is uniform, and every drawn client gets the same mean"
        base = innermost(self.inner)
        if isinstance(base, pFedMe) and base.beta != 1:
            yield f"ComponentAttention: it replaces the server's mean, so that beta={base.beta} of pFedMe has no effect"
        yield from super().notes(arch, n)

    def init_server(self, fed: Fed, model: Tree) -> State:
        return {**super().init_server(fed, model), **mixing.keep(model, fed.n)}

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        payload = super().send(fed, server, cohort)
        if payload.common.keys() != {"model"} or payload.own or payload.peers or payload.static:
            raise WrongInput(
                f"ComponentAttention: the server of {self.inner!r} sends more than one model for all, and attention "
                "can replace no more than a mean; choose an inner method such as FedAvg() or pFedMe()"
            )
        models = tree.rows(server["models"], cohort)
        own = dict(models)
        for component in self.components(fed.arch, models):
            own |= mixing.mix(tree.pick(models, component.mixed), self.attention(fed, models, component, cohort))
        return replace(payload, common={}, own={"model": own})

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        server = super().aggregate(fed, server, uploads, weights, cohort)
        return {**server, **mixing.remember(server, uploads["model"], cohort, fed.round)}

    def explain_server(self, fed: Fed, server: State) -> dict[str, Tensor]:
        """Attention [k, k] of each component, over the clients that sent last: row i is what client i takes of each."""
        clients = mixing.newest(server)
        models = tree.rows(server["models"], clients)
        maps = {
            f"attention/{component.name}": self.attention(fed, models, component, clients)
            for component in self.components(fed.arch, models)
        }
        return {**super().explain_server(fed, server), "clients": clients, **maps}

    def attention(self, fed: Fed, models: Tree, component: Component, clients: Tensor) -> Tensor:
        """psi of Eq. 7; torch subtracts the maximum in its softmax, so that no sigma overflows."""
        scores = self.sigma * mixing.cosines(models, component.compared)
        psi = torch.softmax(scores, dim=1)
        if self.size_weighting:
            psi = psi * fed.sizes[clients].to(psi)
            psi = psi / psi.sum(1, keepdim=True)
        return psi

    def components(self, arch: Arch, models: Tree) -> Iterator[Component]:
        """Layers, or single tensors and beside them the buffers of each layer, which follow the layer as a whole."""
        for layer, names in arch.layers.items():
            learned = [name for name in names if name in models and name in arch.trainable]
            buffers = [name for name in names if name in models and name in arch.buffers]
            if self.component == "layer":
                mixed = learned + buffers
            else:
                yield from (Component(name, [name], [name]) for name in learned)
                mixed = buffers
            if mixed:
                yield Component(layer, learned, mixed)


@register("method", "FedMCSA")
def FedMCSA(
    sigma: float = 50.0,
    lam: float = 5.0,
    anchor: Literal["fixed", "moving"] = "fixed",
    component: Literal["layer", "tensor"] = "layer",
    size_weighting: bool = False,
    train: Literal["all", "sampled"] = "all",
    inner_steps: int = 1,
) -> Proximal:
    """A model for each client by attention over layers, and a pull towards it: Proximal(ComponentAttention(...))."""
    require(0 <= lam < inf, "FedMCSA", f"lam={lam} must be 0 or more, and finite")
    attentive = ComponentAttention(FedAvg(), sigma, component, size_weighting, train)
    return Proximal(attentive, mu=lam, anchor=anchor, inner_steps=inner_steps)


@register("method", "FedMCSAWithoutAttention", "FedMCSA-MCSA")
def FedMCSAWithoutAttention(
    lam: float = 5.0, anchor: Literal["fixed", "moving"] = "fixed", inner_steps: int = 1
) -> Proximal:
    """The ablation FedMCSA^-MCSA: the mean for everybody, tested before local training; Proximal(FedAvg(), mu=lam).

    As every client restarts from the mean, only those drawn next matter: they alone train here, with the same result.
    """
    require(0 <= lam < inf, "FedMCSAWithoutAttention", f"lam={lam} must be 0 or more, and finite")
    return Proximal(FedAvg(), mu=lam, anchor=anchor, inner_steps=inner_steps)
