"""FedAMP: the server sends every client its own mixture of all models, in which models nearby weigh more.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021.

    server: xi_ij = alpha_k A'(||w_i - w_j||^2) for j != i,  A'(s) = exp(-s / sigma) / sigma
            xi_ii = 1 - sum_{j != i} xi_ij;  u_i = sum_j xi_ij w_j                attentive message passing
    client i: w_i ~ argmin_w f_i(w) + lambda / (2 alpha_k) ||w - u_i||^2, from u_i
    HeurFedAMP: xi_ii is given;  xi_ij = (1 - xi_ii) softmax over j != i of sigma cos(w_i, w_j)
            client i: w_i ~ argmin_w f_i(w) + lambda / 2 ||w - u_i||^2, from u_i

Deviations: (1) sigma and alpha_k are the user's in the paper, and most values give self-weights xi_ii of 0 or 1. By
default sigma is the mean squared distance of two of the round's models, and alpha_k makes the mean self-weight 1/2.
(2) Such an alpha_k shrinks with the models' distances, so that SGD on lambda / alpha_k would diverge: with it, the
client's term is lambda / 2 ||w - u_i||^2. With an alpha_k of one's own it is as printed. (3) Where the xi_ij of a
client sum to more than 1 they are scaled to 1, so that u_i stays among the models. (4) The argmin is the run's local
work, by SGD. (5) A mixture is over the round's cohort, with everybody's last model. (6) Where all these are equal, as
in round 1, or there is only one, u_i = w_i.
(7) Distances and cosines are over shared trained tensors; float buffers are mixed with the same weights, of counters
the largest is taken, and frozen parameters are equal and stay so.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import Client, Pull, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, require, worth_trying
from fedtailor.methods import mixing
from fedtailor.registry import register
from fedtailor.tree import State, Tree

LEAST, MOST = 0.01, 0.99  # a self-weight beyond them throws the client's own model away, or leaves it alone


class MessagePassing(Method):
    """What the two have in common: a mixture of its own for each client, and a pull towards it."""

    lam: float
    start_at: Literal["u", "own"]

    point = "trained"
    sees = "models"
    paper = "Huang et al., AAAI 2021"
    citation = """@inproceedings{huang2021personalized,
  title     = {Personalized Cross-Silo Federated Learning on Non-{IID} Data},
  author    = {Huang, Yutao and Chu, Lingyang and Zhou, Zirui and Wang, Lanjun and Liu, Jiangchuan and Pei, Jian
               and Zhang, Yong},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year      = {2021}
}"""

    def weights(self, fed: Fed, models: Tree, clients: Tensor) -> Tensor:
        """xi [k, k] of the clients, whose models are given."""
        raise NotImplementedError

    def strength(self) -> float:
        """What multiplies 1/2 ||w - u_i||^2."""
        return self.lam

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        name = type(self).__name__
        if n == 1:
            yield f"{name}: with one client there is nobody to pass messages to"
        elif self.lam == 0 and self.start_at == "own":
            yield f"{name}: with lam=0 and start_at='own' every client trains alone"
        elif self.lam == 0:
            yield f"{name}: with lam=0 the mixture is where a client starts, and nothing holds it there"

    def init_client(self, fed: Fed, model: Tree) -> State:
        return {"own": model} if self.start_at == "own" else {}

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        return (state["own"] if self.start_at == "own" else got.model), state

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        w = descend(client, model, penalty=Pull(self.strength(), got.model, client.shared)).theta
        return Fitted(w, {"own": w} if self.start_at == "own" else {})

    def init_server(self, fed: Fed, model: Tree) -> State:
        return mixing.keep(model, fed.n)

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        models = tree.rows(server["models"], cohort)
        if all(bool((x == x[0]).all()) for x in models.values()):
            return Payload(own={"model": models})
        xi = self.weights(fed, models, cohort)
        self.watch(xi.diagonal())
        return Payload(own={"model": mixing.mix(models, xi)})

    def watch(self, own: Tensor) -> None:
        """Warn of self-weights that come out too small or too large; where they are given, that is said before."""

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        return mixing.remember(server, uploads["model"], cohort, fed.round)

    def explain_server(self, fed: Fed, server: State) -> dict[str, Tensor]:
        """xi [k, k] over the clients that sent last: what each would be sent now, were they drawn again."""
        clients = mixing.newest(server)
        return {"clients": clients, "attention": self.weights(fed, tree.rows(server["models"], clients), clients)}


@register("method", "FedAMP")
@dataclass(frozen=True, repr=False)
class FedAMP(MessagePassing):
    """A mixture of all models for each client, weighted by distance, and a pull towards it."""

    lam: float = 1.0  # $\\lambda$
    sigma: float | None = None  # $\\sigma$; None: the mean squared distance of the round's models
    alpha_k: float | None = None  # $\\alpha_k$; None: what makes the mean self-weight 1/2
    start_at: Literal["u", "own"] = "u"  # local training starts at the mixture, or at the client's last model

    grid = worth_trying(lam=(0.1, 1.0, 10.0))

    def __post_init__(self) -> None:
        for holds, what in (
            (0 <= self.lam < inf, f"lam={self.lam} must be 0 or more"),
            (self.sigma is None or 0 < self.sigma < inf, f"sigma={self.sigma} must be above 0, or None"),
            (self.alpha_k is None or 0 < self.alpha_k < inf, f"alpha_k={self.alpha_k} must be above 0, or None"),
            (self.start_at in ("u", "own"), f"start_at={self.start_at!r} must be 'u' or 'own'"),
        ):
            require(holds, "FedAMP", what)

    def strength(self) -> float:
        return self.lam if self.alpha_k is None else self.lam / self.alpha_k

    def watch(self, own: Tensor) -> None:
        if bool(((own < LEAST) | (own > MOST)).any()):
            warnings.warn(
                f"{self!r}: a client's self-weight is below {LEAST} (its own model is thrown away) or above {MOST} (it "
                "is trained alone); choose other values, or the defaults",
                UserWarning,
                stacklevel=3,
            )

    def weights(self, fed: Fed, models: Tree, clients: Tensor) -> Tensor:
        k = len(clients)
        distances = mixing.squared_distances(models, fed.arch.trainable)
        sigma = float(distances.sum()) / max(1, k * (k - 1)) if self.sigma is None else self.sigma
        if sigma == 0:  # all models are equal
            return torch.eye(k, dtype=torch.float64)
        xi = (torch.exp(-distances / sigma) / sigma).fill_diagonal_(0)
        total = float(xi.sum(1).mean())
        xi = xi * ((0.5 / total if total else 0.0) if self.alpha_k is None else self.alpha_k)
        xi = xi / xi.sum(1, keepdim=True).clamp(min=1)
        return xi + torch.diag((1 - xi.sum(1)).clamp(min=0))


@register("method", "HeurFedAMP")
@dataclass(frozen=True, repr=False)
class HeurFedAMP(MessagePassing):
    """A mixture with a given weight on the client's own model, the rest by cosine, and a pull towards it."""

    lam: float = 5.0  # $\\lambda$; as in the experiments of FedMCSA
    sigma: float = 50.0  # $\\sigma$
    xi_self: float | None = None  # $\\xi_{ii}$; None: 1 / (1 + other clients of the same group), 1/2 with one group
    start_at: Literal["u", "own"] = "u"  # local training starts at the mixture, or at the client's last model

    grid = worth_trying(lam=(0.5, 5.0, 50.0), sigma=(10.0, 50.0, 250.0))

    def __post_init__(self) -> None:
        for holds, what in (
            (0 <= self.lam < inf, f"lam={self.lam} must be 0 or more"),
            (0 <= self.sigma < inf, f"sigma={self.sigma} must be 0 or more, and finite"),
            (self.xi_self is None or 0 <= self.xi_self <= 1, f"xi_self={self.xi_self} must be from 0 to 1, or None"),
            (self.start_at in ("u", "own"), f"start_at={self.start_at!r} must be 'u' or 'own'"),
        ):
            require(holds, "HeurFedAMP", what)

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.sigma == 0:
            yield "HeurFedAMP: with sigma=0 all other clients weigh the same"
        yield from super().notes(arch, n)

    def init_server(self, fed: Fed, model: Tree) -> State:
        own = [self.own_weight(fed.groups, i) for i in range(fed.n)]
        beyond = sum(not LEAST <= weight <= MOST for weight in own)
        if beyond and fed.n > 1:
            why = "from the size of their groups" if self.xi_self is None else f"with xi_self={self.xi_self}"
            warnings.warn(
                f"HeurFedAMP: {why}, {beyond} of {fed.n} clients have a self-weight below {LEAST} (their own models "
                f"are thrown away) or above {MOST} (they are trained alone); give another xi_self, such as 0.5",
                UserWarning,
                stacklevel=2,
            )
        return super().init_server(fed, model)

    def weights(self, fed: Fed, models: Tree, clients: Tensor) -> Tensor:
        k = len(clients)
        scores = self.sigma * mixing.cosines(models, fed.arch.trainable)
        own = scores.new_tensor([self.own_weight(fed.groups, int(i)) for i in clients])
        if k == 1:
            return torch.ones(1, 1, dtype=torch.float64)
        others = torch.softmax(scores.fill_diagonal_(-inf), dim=1)
        return (1 - own)[:, None] * others + torch.diag(own)

    def own_weight(self, groups: tuple[int, ...], client: int) -> float:
        """xi_ii: the clients of a group are those known to have the same distribution."""
        if self.xi_self is not None:
            return self.xi_self
        return 1 / groups.count(groups[client]) if len(set(groups)) > 1 else 0.5
