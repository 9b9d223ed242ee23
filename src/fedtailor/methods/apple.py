"""APPLE: each client owns a core model, and learns how much of everybody's cores its personal model is made of.

Luo and Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning", IJCAI 2022.

    server keeps one core c_j for each client; sends client i the others'         Alg. 1
    client i: w_i = sum_j p_ij c_j                                                Eq. 3
              each batch: c_i <- c_i - lr   * grad_{c_i} F,                       Eq. 4; other cores are constants
                          p_i <- p_i - lr_p * grad_{p_i} F                        Eq. 5
              F = f_i(w_i) + lambda(r) mu ||p_i - p_0||^2,  p_0j = n_j / n        Eq. 6
    uploads c_i; p_i never leaves

Deviations: (1) lambda(r) and its two forms are the paper's; its length is a share of the rounds (`L`). (2) With `M`, a
client is sent M cores a round, first those never sent, then those it weighs most, and keeps what it was sent; the
server learns |p_i| for that. (3) Buffers are mixed like weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import Batch, Client, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, require
from fedtailor.methods import mixing
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "APPLE")
@dataclass(frozen=True, repr=False)
class APPLE(Method):
    """Personal models that are learned mixtures of everybody's core models."""

    lr_p: float = 0.001  # rate of the relation vector
    mu: float = 0.1  # $\\mu$, pull of p towards the clients' shares of the data
    L: float = 0.1  # share of the rounds over which the pull fades
    scheduler: Literal["exponential", "cosine"] = "exponential"
    M: int | None = None  # cores sent each round; None: all

    point = "adapted"
    sees = "models"
    paper = "Luo and Wu, IJCAI 2022"
    citation = """@inproceedings{luo2022adapt,
  title     = {Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning},
  author    = {Luo, Jun and Wu, Shandong},
  booktitle = {International Joint Conference on Artificial Intelligence (IJCAI)},
  year      = {2022}
}"""

    def __post_init__(self) -> None:
        require(self.lr_p >= 0, "APPLE", f"lr_p={self.lr_p} must be 0 or more")
        require(self.mu >= 0, "APPLE", f"mu={self.mu} must be 0 or more")
        require(0 <= self.L <= 1, "APPLE", f"L={self.L} is a share of the rounds, from 0 to 1")
        require(self.M is None or self.M >= 1, "APPLE", f"M={self.M} must be 1 or more, or None for all")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.lr_p == 0:
            yield "APPLE: lr_p=0 leaves the relation vector at the clients' shares of the data for ever"

    def init_client(self, fed: Fed, model: Tree) -> State:
        state: State = {"p": (fed.sizes / fed.sizes.sum()).float(), "core": model}
        if self.M is not None:
            state["cores"] = tree.expand(model, fed.n)
        return {**state, "p0": state["p"]}

    def init_server(self, fed: Fed, model: Tree) -> State:
        kept = mixing.keep(model, fed.n)
        return {**kept, "sent": torch.eye(fed.n), "p": torch.zeros(fed.n, fed.n)} if self.M is not None else kept

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        if self.M is None:
            others = torch.arange(fed.n).expand(len(cohort), -1)
            ids = others[others != cohort[:, None]].reshape(len(cohort), fed.n - 1)
            return Payload(peers=server["models"], peer_ids=ids)
        ids = self.chosen(fed, server)[cohort]
        return Payload(peers=server["models"], peer_ids=ids)

    def chosen(self, fed: Fed, server: State) -> Tensor:
        """The M cores for every client: those never sent come first, then by |p|."""
        wish: Tensor = server["p"].abs() + (server["sent"] == 0) * (server["p"].abs().max() + 1)
        wish = wish.clone().fill_diagonal_(-torch.inf)
        return wish.topk(min(self.M or 1, fed.n - 1), dim=1).indices.sort(dim=1).values

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        state = self.with_sent(state, got)
        core = {**state["core"], **got.model}
        others = self.others(state, got)
        p0, pull = state["p0"], self.mu * self.fading(client)

        def build(theta: Tree, batch: Batch) -> Tree:
            return mixture(theta["p"], {name: theta[name] for name in core}, others, got)

        rates = {name: self.lr_p if name == "p" else client.lr for name in (*core, "p")}
        theta = descend(
            client, {**core, "p": state["p"]}, build=build, lr=rates,
            penalty=lambda theta: pull * (theta["p"] - p0).square().sum(),
        ).theta  # fmt: skip
        p = theta.pop("p")
        extra = {} if self.M is None else {"p": p}
        return Fitted(theta, {**state, "core": theta, "p": p}, extra)

    def personalised(self, client: Client, state: State, got: Received) -> Tree:
        state = self.with_sent(state, got)
        return mixture(
            state["p"], {**state["core"], **tree.pick(got.model, client.private)}, self.others(state, got), got
        )

    def with_sent(self, state: State, got: Received) -> State:
        """The state after the cores that came are put among those kept, where only some are sent."""
        if self.M is None or got.peer_ids is None:
            return state
        kept = {name: value for name, value in state["cores"].items() if name in got.peers}
        return {**state, "cores": {**state["cores"], **tree.put(kept, got.peer_ids, got.peers)}}

    def others(self, state: State, got: Received) -> Tree:
        cores: Tree = got.peers if self.M is None else state["cores"]
        return cores

    def fading(self, client: Client) -> float:
        """lambda(r): 1 in the first round, 0 after the share L of the rounds."""
        round, length = client.round - 1, self.L * client.rounds
        if round >= length:
            return 0.0
        return (math.cos(math.pi * round / length) + 1) / 2 if self.scheduler == "cosine" else 0.001 ** (round / length)

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        kept = mixing.remember(server, uploads["model"], cohort, fed.round)
        if self.M is None:
            return kept
        sent = server["sent"].clone()
        sent[cohort[:, None], self.chosen(fed, server)[cohort]] = 1
        return {**kept, "sent": sent, "p": server["p"].index_copy(0, cohort, uploads["extra"]["p"])}

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        return {"p": state["p"]}


def mixture(p: Tensor, core: Tree, others: Tree, got: Received) -> Tree:
    """w_i = p_ii c_i + sum_j p_ij c_j. `others` has a row for each of `got.peer_ids`, or one for every client."""
    everybody = len(p) == len(next(iter(others.values()), p))
    numbers = torch.arange(len(p), device=p.device) if everybody else got.peer_ids
    assert numbers is not None, "send gives them"
    share = torch.where(numbers == got.me, 0.0, p[numbers])  # one's own core is not among the constants

    def mixed(own: Tensor, constants: Tensor) -> Tensor:
        if not own.is_floating_point():
            return own
        rest: Tensor = torch.tensordot(share.to(own.dtype), constants, dims=1)
        return p[got.me].to(own.dtype) * own + rest

    return {name: mixed(own, others[name]) if name in others else own for name, own in core.items()}
