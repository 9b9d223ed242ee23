"""pFedMe: a personal model theta_i on a spring around w_i, and w_i drawn after it; the server averages the w_i.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020.

    client i: w_i <- w;  for each of R batches B:                                 Alg. 1
                  theta_i ~ argmin_t f_i(t; B) + lambda/2 ||t - w_i||^2           by K steps of SGD
                  w_i <- w_i - eta lambda (w_i - theta_i)
    w <- (1 - beta) w + beta * mean_i w_i

Deviations: (1) only the cohort trains; in Alg. 1 all clients train and the cohort is averaged. As w_i restarts from w,
this differs only in how often theta_i of an absent client moves. (2) theta_i continues from its last value, across
batches and rounds; the paper leaves the solver's start open. (3) Names that stay private (under a plug-in) are in
theta_i only: trained in the K steps, without the spring and without mu. (4) Only theta_i passes through the network, so
its buffers (running statistics) are what is uploaded and averaged, whatever beta. (5) mu, the weight decay of the
authors' code (0.001 there), is 0 by default as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import Client, Penalty, descend
from fedtailor.method import Fed, Fitted, Method, Received, require, worth_trying
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "pFedMe")
@dataclass(frozen=True, repr=False)
class pFedMe(Method):
    """A personal model theta_i within a Moreau envelope of strength lam around the client's copy of the global one."""

    lam: float = 15.0  # $\\lambda$; 15 to 30 in the paper
    K: int = 5  # $K$: steps on each batch, at the run's rate
    beta: float = 1.0  # $\\beta$: how far the server goes towards the mean; 1 or 2 in the paper
    eta: float = 0.005  # $\\eta$: the rate of w_i
    mu: float = 0.0

    grid = worth_trying(lam=(5.0, 15.0, 30.0), eta=(0.005, 0.02, 0.05))
    point = "adapted"
    weighting = "uniform"
    paper = "Dinh et al., NeurIPS 2020"
    citation = """@inproceedings{dinh2020personalized,
  title     = {Personalized Federated Learning with {Moreau} Envelopes},
  author    = {Dinh, Canh T. and Tran, Nguyen H. and Nguyen, Tuan Dung},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year      = {2020}
}"""

    def __post_init__(self) -> None:
        for name in ("lam", "beta", "eta", "mu"):
            value = getattr(self, name)
            require(0 <= value < math.inf, "pFedMe", f"{name}={value} must be finite, and 0 or more")
        require(self.K >= 1, "pFedMe", f"K={self.K} must be 1 or more, such as 5")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        for name in ("lam", "eta"):
            if getattr(self, name) == 0:
                yield f"pFedMe: with {name}=0 the global model never moves, and every theta_i is trained alone"
        if self.beta == 0:
            yield "pFedMe: with beta=0 the server keeps its first model for ever"

    def init_client(self, fed: Fed, model: Tree) -> State:
        return {"theta": model}

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        w, theta, memory = model, state["theta"], State()
        for view in client.each_batch():
            inner = descend(view, theta, steps=self.K, penalty=self.spring(w, client), opt_state=memory)
            theta, memory = inner.theta, inner.opt_state
            w = {n: x - self.eta * self.lam * (x - theta[n]) if n in client.shared else theta[n] for n, x in w.items()}
        return Fitted(w, {**state, "theta": theta})

    def spring(self, w: Tree, client: Client) -> Penalty:
        """lambda/2 ||theta - w||^2 + mu/2 ||theta||^2, over what is shared."""

        def penalty(theta: Tree) -> Tensor:
            pull = self.lam / 2 * tree.sqdist(theta, w, client.shared)
            return pull + self.mu / 2 * tree.sqdist(theta, tree.zeros(w), client.shared) if self.mu else pull

        return penalty

    def personalised(self, client: Client, state: State, got: Received) -> Tree:
        theta: Tree = state["theta"]
        return theta

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        mean = tree.mean(uploads["model"], weights)
        moved = tree.lerp(server["model"], mean, self.beta)
        return {**server, "model": {n: moved[n] if n in fed.arch.trainable else mean[n] for n in mean}}
