"""SCAFFOLD: control variates take the drift of local training out of the average.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.

    server sends (x, c)                                                           Alg. 1 line 3
    client i: y <- y - eta (g_i(y) - c_i + c), K steps                            line 10
              c_i+ <- c_i - c + (x - y) / (K eta)                                 line 12, option II
              sends y and dc_i = c_i+ - c_i                                       line 13
    server:   x <- x + eta_g * mean_i (y_i - x);  c <- c + |S|/N * mean_i dc_i    line 16, 17

Deviations: (1) buffers are averaged, whatever eta_g; they have no gradient and no control variate. (2) Line 12 is for
plain SGD. With momentum m, K equal gradients move y as far as sum_k (1 - m^k) / (1 - m) of them, which stands for K;
weight decay counts as a part of the gradient. (3) `weighting=size` weights the models; dc is a plain mean all the same,
for only so does c stay the mean of all c_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.local import Client, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, require, worth_trying
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "SCAFFOLD")
@dataclass(frozen=True, repr=False)
class SCAFFOLD(Method):
    """FedAvg with control variates: the global one minus the client's own corrects each local step."""

    lr_global: float = 1.0  # $\\eta_g$

    grid = worth_trying(lr_global=(0.5, 1.0, 1.5))
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
        scale = 1 / (max(gradients_of(client.steps, client.opt.momentum), 1) * client.lr)
        after = {n: c_i[n] - c[n] + (model[n] - y[n]) * scale for n in c} if client.steps else c_i  # else y = x
        return Fitted(y, {**state, "c": {**state["c"], **after}}, {"dc": tree.sub(after, c_i)})

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        mean = tree.mean(uploads["model"], weights)
        moved = tree.lerp(server["model"], mean, self.lr_global)
        mean_dc = tree.mean(uploads["extra"]["dc"], torch.ones_like(weights))
        share = len(cohort) / fed.n
        return {
            "model": {**moved, **tree.pick(mean, fed.arch.buffers)},
            "c": tree.join(lambda c, dc: c + share * dc, server["c"], mean_dc),
        }


def gradients_of(steps: int, momentum: float) -> float:
    """How many equal gradients `steps` steps of SGD move the model by."""
    return sum((1 - momentum**k) / (1 - momentum) for k in range(1, steps + 1))
