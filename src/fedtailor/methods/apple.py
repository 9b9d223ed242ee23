"""APPLE: each client owns a core model, and learns how much of everybody's cores its personal model is made of.

Luo and Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning", IJCAI 2022.

    server keeps one core c_j for each client; sends client i the others'
    client i: w_i = sum_j p_ij c_j
              each batch: c_i <- c_i - lr   * grad_{c_i} F = p_ii grad f_i(w_i)   other cores are constants
                          p_i <- p_i - lr_p * grad_{p_i} F                        of f_i: <grad f_i(w_i), c_j>
              F = f_i(w_i) + lambda(r) mu ||p_i - p_0||^2,  p_0j = n_j / n
    uploads c_i; p_i never leaves

Deviations: (1) With `M`, a client is sent M cores a round, first those never sent, in random order, then those it
weighs most; it keeps what it was sent, and the server learns p_i for that. Cores not sent yet are the first model. (2)
Only what is trained is mixed: running statistics are those of w_i, from the client's own passes, because weights that
may be negative and need not sum to one would give a negative variance. (3) Weight decay is for cores: it would pull p
to zero instead of p_0. (4) All cores start at the run's first model. (5) lr_p is constant where lr decays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import SGD, Batch, Client, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, require, worth_trying
from fedtailor.methods import mixing
from fedtailor.registry import register
from fedtailor.tree import State, Tree

RELATION = ".p"  # p among the names that are descended on; no parameter's name starts with a dot


@register("method", "APPLE")
@dataclass(frozen=True, repr=False)
class APPLE(Method):
    """Personal models that are learned mixtures of everybody's core models."""

    lr_p: float = 0.001  # rate of the relation vector
    mu: float = 0.1  # $\\mu$, pull of p towards the clients' shares of the data
    L: float = 0.1  # share of the rounds over which the pull fades
    scheduler: Literal["exponential", "cosine"] = "exponential"
    M: int | None = None  # cores sent each round; None: all

    grid = worth_trying(lr_p=(0.0001, 0.001, 0.01), mu=(0.0, 0.1, 1.0))
    point = "adapted"
    sees = "models"
    learns_start = True
    paper = "Luo and Wu, IJCAI 2022"
    citation = """@inproceedings{luo2022adapt,
  title     = {Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning},
  author    = {Luo, Jun and Wu, Shandong},
  booktitle = {International Joint Conference on Artificial Intelligence (IJCAI)},
  year      = {2022}
}"""

    def __post_init__(self) -> None:
        require(0 <= self.lr_p < math.inf, "APPLE", f"lr_p={self.lr_p} must be 0 or more")
        require(0 <= self.mu < math.inf, "APPLE", f"mu={self.mu} must be 0 or more")
        require(0 <= self.L <= 1, "APPLE", f"L={self.L} must be a share of the rounds, from 0 to 1")
        allowed = self.scheduler in ("exponential", "cosine")
        require(allowed, "APPLE", f"scheduler={self.scheduler!r} must be 'exponential' or 'cosine'")
        require(self.M is None or self.M >= 1, "APPLE", f"M={self.M} must be 1 or more, or None for all")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.lr_p == 0:
            yield "APPLE: lr_p=0 leaves the relation vector at the clients' shares of the data, and mu has no effect"
        elif 0 in (self.mu, self.L):
            yield f"APPLE: {'mu=0' if self.mu == 0 else 'L=0'}, so nothing pulls p to the clients' shares of the data"
        if n == 1:
            yield "APPLE: a single client has only its own core to make its model of"
        elif self.M is not None and n <= self.M:
            yield f"APPLE: M={self.M}, but only {n - 1} other clients: all are sent"

    def init_client(self, fed: Fed, model: Tree) -> State:
        p0 = (fed.sizes / fed.sizes.sum()).to(next(iter(model.values())))
        state: State = {"p": p0, "p0": p0, "core": model}
        return state if self.M is None else {**state, "cores": tree.expand(tree.pick(model, fed.arch.trainable), fed.n)}

    def init_server(self, fed: Fed, model: Tree) -> State:
        kept = mixing.keep(tree.pick(model, fed.arch.trainable), fed.n)  # what no other client mixes is not handed on
        return kept if self.M is None else {**kept, "sent": torch.eye(fed.n), "p": torch.zeros(fed.n, fed.n)}

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        if self.M is None:
            everybody = torch.arange(fed.n).expand(len(cohort), -1)
            ids = everybody[everybody != cohort[:, None]].reshape(len(cohort), fed.n - 1)
        else:
            ids = self.chosen(fed, server, self.M)[cohort]
        return Payload(peers=server["models"], peer_ids=ids)

    def chosen(self, fed: Fed, server: State, M: int) -> Tensor:
        """The M cores for every client: those never sent come first, then the largest |p|."""
        weight: Tensor = server["p"].abs().cpu()
        new = weight.max() + 1 + fed.random("order", (fed.n, fed.n))
        wish = torch.where(server["sent"].cpu() == 0, new, weight).fill_diagonal_(-torch.inf)
        return wish.topk(min(M, fed.n - 1), dim=1).indices.sort(dim=1).values

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        if self.M is not None and got.peer_ids is not None:
            news = tree.pick(got.peers, state["cores"])
            cores = {**state["cores"], **tree.put(tree.pick(state["cores"], news), got.peer_ids, news)}
            state = {**state, "cores": cores}
        return self.mixture(client, state, got, state["p"], state["core"]), state

    def mixture(self, client: Client, state: State, got: Received, p: Tensor, core: Tree) -> Tree:
        """w_i = p_ii c_i + sum_j p_ij c_j over what is trained and shared; the rest is the client's own."""
        assert got.peer_ids is not None, "send gives them"
        numbers = (got.peer_ids if self.M is None else torch.arange(len(p))).to(p.device)
        others: Tree = got.peers if self.M is None else state["cores"]
        share = torch.where(numbers == got.me, 0.0, p[numbers])  # one's own core is not among the constants

        def mixed(own: Tensor, constants: Tensor) -> Tensor:
            rest: Tensor = torch.tensordot(share.to(own.dtype), constants, dims=1)
            return p[got.me].to(own.dtype) * own + rest

        return {name: mixed(own, others[name]) if name in client.shared else own for name, own in core.items()}

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        core: Tree = state["core"]
        p0, pull = state["p0"], self.mu * self.fading(client)

        def build(theta: Tree, batch: Batch) -> Tree:
            return self.mixture(client, state, got, theta[RELATION], tree.drop(theta, {RELATION}))

        core = descend(
            client, {**core, RELATION: state["p"]}, build=build, opt=CoreAndRelation(client.opt),
            lr={**dict.fromkeys(core, client.lr), RELATION: self.lr_p},
            penalty=lambda theta: pull * (theta[RELATION] - p0).square().sum(),
        ).theta  # fmt: skip
        p = core.pop(RELATION)
        return Fitted(core, {**state, "core": core, "p": p}, {} if self.M is None else {"p": p})

    def personalised(self, client: Client, state: State, got: Received) -> Tree:
        return self.mixture(client, state, got, state["p"], state["core"])

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
        at, p = cohort.to(server["p"].device), server["p"]
        sent = server["sent"].clone()
        sent[at[:, None], self.chosen(fed, server, self.M)[cohort].to(at.device)] = 1
        return {**kept, "sent": sent, "p": p.index_copy(0, at, uploads["extra"]["p"].to(p))}

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        return {"p": state["p"]}


@dataclass(frozen=True)
class CoreAndRelation:
    """The run's optimiser for both, each clipped by itself, and no weight decay on p."""

    opt: SGD

    def step(self, theta: Tree, grads: Tree, state: State, lr: float | Mapping[str, float]) -> State:
        state = self.opt.step(theta, tree.drop(grads, {RELATION}), state, lr)
        return replace(self.opt, weight_decay=0.0).step(theta, tree.pick(grads, {RELATION}), state, lr)
