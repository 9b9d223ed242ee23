"""Proximal: keep the local model near the one received. On FedAvg it is FedProx.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    client i: w_i ~ argmin_v  f_i(v) + mu/2 * ||v - w||^2,   w as received       Alg. 2, with SGD as local solver
    w <- sum_i n_i / n * w_i

Deviations: (1) every client does the same amount of local work; the paper's partial work (gamma-inexact solutions) is
not imitated. (2) Clients are weighted by size in the mean, as in FedAvg, rather than drawn by size. (3) Names that
stay private have no received counterpart and are outside the penalty.

`anchor="moving"` takes w <- v after every step, as the code of FedMCSA's authors does. The gradient of the penalty,
mu (v - w), is then zero at every step, and mu is without effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from fedtailor.arch import Arch
from fedtailor.local import Client, Pull
from fedtailor.method import Fed, Fitted, Method, Payload, Received, Wrapper, require, worth_trying
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedsgd import FedSGD
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "Proximal")
@dataclass(frozen=True, repr=False)
class Proximal(Wrapper):
    """Adds mu/2 ||model - received model||^2 to the local objective of `inner`."""

    inner: Method
    mu: float = 0.01  # $\\mu$
    anchor: Literal["fixed", "moving"] = "fixed"  # the received model, or the model after each step
    inner_steps: int = 1  # steps of SGD on each batch towards the argmin

    grid = worth_trying(mu=(0.001, 0.01, 0.1, 1.0))
    paper = "Li et al., MLSys 2020"
    citation = """@inproceedings{li2020federated,
  title     = {Federated Optimization in Heterogeneous Networks},
  author    = {Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet
               and Smith, Virginia},
  booktitle = {Conference on Machine Learning and Systems (MLSys)},
  year      = {2020}
}"""

    def __post_init__(self) -> None:
        require(self.mu >= 0, "Proximal", f"mu={self.mu} must be 0 or more; 0 is the inner method itself")
        require(self.anchor in ("fixed", "moving"), "Proximal", f"anchor={self.anchor!r} must be 'fixed' or 'moving'")
        require(self.inner_steps >= 1, "Proximal", f"inner_steps={self.inner_steps} must be 1 or more")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        once = self.inner_steps == 1
        if self.mu == 0:
            yield f"Proximal: with mu=0 there is no pull{', and this is the inner method' if once else ''}"
        elif self.anchor == "moving":
            yield (
                f"Proximal: anchor='moving' makes mu={self.mu} (the lambda of FedMCSA) inert: the anchor is the model "
                "itself after every step, so that the pull is always zero; choose anchor='fixed' for a pull"
            )
        elif not arch.trainable - self.inner.personal(arch):
            yield "Proximal: nothing that is trained is shared, so that there is nothing to pull"
        elif once and isinstance(innermost(self.inner), FedSGD):
            yield "Proximal: FedSGD takes one step a round, from the model received, where the pull is zero"
        yield from super().notes(arch, n)

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        """What `inner` sends; where that is no one model, there is nothing to be near to."""
        payload = super().send(fed, server, cohort)
        require(
            "model" in payload.common or "model" in payload.own, "Proximal",
            f"a client of {self.inner!r} receives no one model that it could be held near; "
            "choose an inner method such as FedAvg() or FedAMP()",
        )  # fmt: skip
        return payload

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        client = replace(client, steps_per_batch=client.steps_per_batch * self.inner_steps)
        if self.anchor == "fixed":
            client = client.with_penalty(Pull(self.mu, got.model, client.shared))
        return super().fit(client, state, model, got)


def innermost(method: Method) -> Method:
    """The method inside all plug-ins."""
    while isinstance(method, Wrapper):
        method = method.inner
    return method


@register("method", "FedProx")
def FedProx(mu: float = 0.01) -> Proximal:
    """FedAvg with a proximal term: Proximal(FedAvg(), mu)."""
    return Proximal(FedAvg(), mu=mu)
