"""Proximal: keep the local model near the one received. On FedAvg it is FedProx.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    client i: w_i ~ argmin_v  f_i(v) + mu/2 * ||v - w||^2,   w as received       Alg. 2, with SGD as local solver
    w <- sum_i n_i / n * w_i

Deviations: (1) every client does the same amount of local work; the paper's partial work (gamma-inexact solutions) is
not imitated. (2) Clients are weighted by size in the mean, as in FedAvg, rather than drawn by size. (3) Names that
stay private have no received counterpart and are outside the penalty.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor import tree
from fedtailor.local import Client
from fedtailor.method import Fitted, Method, Received, Wrapper, require
from fedtailor.methods.fedavg import FedAvg
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "Proximal")
@dataclass(frozen=True, repr=False)
class Proximal(Wrapper):
    """Adds mu/2 ||model - received model||^2 to the local objective of `inner`."""

    inner: Method
    mu: float = 0.01  # $\\mu$

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

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        anchor, shared = got.model, client.shared
        return super().fit(
            client.with_penalty(lambda v: self.mu / 2 * tree.sqdist(v, anchor, shared)), state, model, got
        )


@register("method", "FedProx")
def FedProx(mu: float = 0.01) -> Proximal:
    """FedAvg with a proximal term: Proximal(FedAvg(), mu)."""
    return Proximal(FedAvg(), mu=mu)
