"""Ditto: besides the global model, every client trains a personal one that is held near it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021.

    client i: w_i <- w, E epochs of SGD on f_i                                    the global branch, uploaded
              v_i <- v_i - eta (grad f_i(v_i) + lambda (v_i - w))                 Eq. 1, with w as received
    w <- sum_i n_i / n * w_i

Deviations: (1) v_i is trained for the run's local work, on the same batches as the global branch. (2) Names that stay
private (under a plug-in) have no global counterpart and are outside the penalty; v_i has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedtailor.arch import Arch
from fedtailor.local import Client, Pull, descend
from fedtailor.method import Fed, Fitted, Method, Received, require, worth_trying
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "Ditto")
@dataclass(frozen=True, repr=False)
class Ditto(Method):
    """A personal model v_i, pulled towards the global one with strength lam."""

    lam: float = 1.0  # $\\lambda$; the paper's values are 0.1, 1 and 2

    grid = worth_trying(lam=(0.1, 1.0, 2.0))
    point = "adapted"
    paper = "Li et al., ICML 2021"
    citation = """@inproceedings{li2021ditto,
  title     = {Ditto: Fair and Robust Federated Learning Through Personalization},
  author    = {Li, Tian and Hu, Shengyuan and Beirami, Ahmad and Smith, Virginia},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2021}
}"""

    def __post_init__(self) -> None:
        require(self.lam >= 0, "Ditto", f"lam={self.lam} must be 0 or more; 0 is training alone")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.lam == 0:
            yield "Ditto: with lam=0 nothing holds v_i near the global model, and the models tested are trained alone"

    def init_client(self, fed: Fed, model: Tree) -> State:
        return {"v": model}

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        v = descend(client, state["v"], penalty=Pull(self.lam, got.model, client.shared)).theta
        return Fitted(descend(client, model).theta, {**state, "v": v})

    def personalised(self, client: Client, state: State, got: Received) -> Tree:
        v: Tree = state["v"]
        return v
