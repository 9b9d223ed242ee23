"""SCAFFOLD: control variates take the drift of local training out of the average.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.

    server sends (x, c)                                                           Alg. 1 line 3
    client i: y <- y - eta (g_i(y) - c_i + c), K steps                            line 10
              c_i+ <- c_i - c + (x - y) / (K eta)                                 line 12, option II
              sends y and dc_i = c_i+ - c_i                                       line 13
    server:   x <- x + eta_g * mean_i (y_i - x);  c <- c + |S|/N * mean_i dc_i    line 16, 17

Deviations: (1) buffers are averaged with their layer; they have no gradient and no control variate. (2) The identity
behind c_i+ holds for plain SGD; with momentum or weight decay it is the mean step rather than the mean gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedtailor import tree
from fedtailor.local import Client, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, require
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "SCAFFOLD")
@dataclass(frozen=True, repr=False)
class SCAFFOLD(Method):
    """FedAvg with control variates: the global one minus the client's own corrects each local step."""

    lr_global: float = 1.0  # $\\eta_g$

    weighting = "uniform"
    paper = "Karimireddy et al., ICML 2020"
    citation = """@inproceedings{karimireddy2020scaffold,
  title     = {{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning},
  author    = {Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank
               and Stich, Sebastian and Suresh, Ananda Theertha},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2020}
}"""

    def __post_init__(self) -> None:
        require(
            self.lr_global > 0,
            "SCAFFOLD",
            f"lr_global={self.lr_global} must be above 0; at 0 the global model never moves",
        )

    def init_client(self, fed: Fed, model: Tree) -> State:
        return {"c": tree.zeros(tree.pick(model, fed.arch.trainable))}

    def init_server(self, fed: Fed, model: Tree) -> State:
        return {"model": model, "c": tree.zeros(tree.pick(model, fed.arch.trainable))}

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        return Payload(common={"model": server["model"], "c": server["c"]})

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        c, c_i = got.extra["c"], tree.pick(state["c"], client.shared)
        y = descend(client, model, correct=tree.sub(c, c_i)).theta
        scale = 1 / (max(client.steps, 1) * client.lr)  # without a step y = x, and c_i stays
        after = {n: c_i[n] - c[n] + (model[n] - y[n]) * scale for n in c} if client.steps else c_i
        return Fitted(y, {**state, "c": {**state["c"], **after}}, {"dc": tree.sub(after, c_i)})

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        mean_dc = tree.mean(uploads["extra"]["dc"], weights)
        share = len(cohort) / fed.n
        return {
            "model": tree.lerp(server["model"], tree.mean(uploads["model"], weights), self.lr_global),
            "c": tree.join(lambda c, dc: c + share * dc, server["c"], mean_dc),
        }
