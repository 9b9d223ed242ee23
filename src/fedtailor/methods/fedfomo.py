"""FedFomo: each client mixes in those of the others' models that do better than its own on rows it holds out.

Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021.

    server sends client i the M models with the largest P_i                       Sec. 3.2
    client i: q_j = max(0, (L_val(w_i) - L_val(w_j)) / ||w_j - w_i||)             Eq. 3, on a held-out part
              w_i <- w_i + sum_j q_j / sum_h q_h * (w_j - w_i)                    Eq. 4, 5; all q zero: w_i stays
              E epochs of SGD on the other part; uploads w_i and the raw scores
    server: P_ij <- P_ij + score_ij

Deviations: (1) the validation part is a fixed share of the *training* rows; the run's validation rows are for selection
and no method sees them. (2) A client keeps its own model, so that only the M others are sent. (3) Ties in P are broken
at random, or the first clients would always be sent. (4) Two equal models have no direction: their weight is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.local import Client, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, require
from fedtailor.methods import mixing
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "FedFomo")
@dataclass(frozen=True, repr=False)
class FedFomo(Method):
    """Weights the models of others by how much better they do on held-out rows."""

    M: int = 5  # models sent to each client
    holdout: float = 0.2  # share of the training rows that the scores are taken on
    epsilon: float = 0.3  # chance that a place goes to a random client, in the first round
    epsilon_decay: float = 0.05  # taken off it each round

    sees = "models"
    paper = "Zhang et al., ICLR 2021"
    citation = """@inproceedings{zhang2021personalized,
  title     = {Personalized Federated Learning with First Order Model Optimization},
  author    = {Zhang, Michael and Sapra, Karan and Fidler, Sanja and Yeung, Serena and Alvarez, Jose M.},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2021}
}"""

    def __post_init__(self) -> None:
        require(self.M >= 1, "FedFomo", f"M={self.M} must be 1 or more; without any other's model this is Local")
        require(0 < self.holdout < 1, "FedFomo", f"holdout={self.holdout} must be between 0 and 1")
        require(0 <= self.epsilon <= 1, "FedFomo", f"epsilon={self.epsilon} must be from 0 to 1")
        require(self.epsilon_decay >= 0, "FedFomo", f"epsilon_decay={self.epsilon_decay} must be 0 or more")

    def init_client(self, fed: Fed, model: Tree) -> State:
        return {"own": model, "scores": torch.zeros(fed.n), "weights": torch.zeros(fed.n)}

    def init_server(self, fed: Fed, model: Tree) -> State:
        return {**mixing.keep(model, fed.n), "P": torch.eye(fed.n)}

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        wanted: Tensor = server["P"] + 1e-9 * fed.random("ties", (fed.n, fed.n))
        epsilon = max(0.0, self.epsilon - self.epsilon_decay * (fed.round - 1))
        lucky = fed.random("explore", (fed.n, fed.n)) < epsilon
        wanted = torch.where(lucky, wanted.max() + 1 + fed.random("order", (fed.n, fed.n)), wanted)
        wanted.fill_diagonal_(-torch.inf)
        count = min(self.M, fed.n - 1)
        ids = wanted[cohort].topk(count, dim=1).indices.sort(dim=1).values
        return Payload(peers=server["models"], peer_ids=ids)

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        own: Tree = {**state["own"], **got.model}
        assert got.peer_ids is not None, "send gives them"
        _, held = client.holdout(self.holdout)
        at_own = mean_loss(held, own)
        scores, weights = torch.zeros_like(state["scores"]), torch.zeros_like(state["weights"])
        places = range(len(got.peer_ids) if held.size else 0)
        for place in places:
            peer = {**own, **tree.join(lambda t, place=place: t[place], got.peers)}
            distance = tree.sqdist(peer, own, client.shared).sqrt()
            gain = (at_own - mean_loss(held, peer)) / torch.where(distance > 0, distance, torch.inf)
            scores = scores.index_fill(0, got.peer_ids[place], 0.0).index_add(
                0, got.peer_ids[place, None], gain.to(scores)[None]
            )
        weights = scores.clamp(min=0)
        total = weights.sum()
        weights = weights / torch.where(total > 0, total, 1.0)
        chosen = weights[got.peer_ids]

        def mixed(x: Tensor, others: Tensor) -> Tensor:
            if not x.is_floating_point():
                return x
            change: Tensor = torch.tensordot(chosen.to(x.dtype), others - x, dims=1)
            return x + change

        model = {name: mixed(x, got.peers[name]) if name in got.peers else x for name, x in own.items()}
        return model, {**state, "scores": scores, "weights": weights}

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        rest, _ = client.holdout(self.holdout)
        trained = descend(rest, model).theta
        return Fitted(trained, {**state, "own": trained}, {"scores": state["scores"]})

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        affinity: Tensor = server["P"]
        return {
            **mixing.remember(server, uploads["model"], cohort, fed.round),
            "P": affinity.index_add(0, cohort, uploads["extra"]["scores"]),
        }

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        return {"weights": state["weights"]}

    def explain_server(self, fed: Fed, server: State) -> dict[str, Tensor]:
        return {"affinity": server["P"]}


def mean_loss(client: Client, model: Tree) -> Tensor:
    """The loss over all rows of a client, as it is when a model is tested."""
    out, _ = client.arch.apply(model, client.x[client.rows], train=False)
    return client.task.loss(out.detach(), client.y[client.rows])
