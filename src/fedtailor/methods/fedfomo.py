"""FedFomo: each client mixes in those of the others' models that do better than its own on rows it holds out.

Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021.

    server sends client i the M models with the largest P_i, some of them drawn at random (epsilon-greedy)
    client i: q_j = max(0, (L_val(w_i) - L_val(w_j)) / ||w_j - w_i||)             on a held-out part
              w_i <- w_i + sum_j q_j / sum_h q_h * (w_j - w_i)                    all q zero: w_i stays
              E epochs of SGD on the other part; uploads w_i and the scores, which are q before the max
    server: P_ij <- P_ij + score_ij

Deviations: (1) the validation part is a fixed share of the *training* rows; the run's validation rows are for selection
and no method sees them. (2) A client keeps its own model, so that only others are sent. (3) Ties in P are broken at
random, or the first clients would always be sent. (4) A model that never was trained is not sent. (5) Two equal models
have no direction, and a model without a finite loss is no gain: their scores are zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import Client, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, require, worth_trying
from fedtailor.methods import mixing
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "FedFomo")
@dataclass(frozen=True, repr=False)
class FedFomo(Method):
    """Weights the models of others by how much better they do on held-out rows."""

    M: int = 5  # models sent to each client
    holdout: float = 0.2  # share of the training rows that the scores are taken on
    epsilon: float = 0.3  # chance that one of the M places goes to a client drawn at random, in the first round
    epsilon_decay: float = 0.05  # taken off it each round

    grid = worth_trying(M=(2, 5, 10))
    sees = "models"
    learns_start = True
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
        allowed = 0 <= self.epsilon_decay < inf
        require(allowed, "FedFomo", f"epsilon_decay={self.epsilon_decay} must be 0 or more, and finite")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if n == 1:
            yield "FedFomo: a single client has nobody's model to mix in; it trains alone, on the rows not held out"
        elif n <= self.M:
            yield f"FedFomo: M={self.M}, but only {n - 1} other clients: all are sent, and epsilon has no effect"

    def init_client(self, fed: Fed, model: Tree) -> State:
        none = next(iter(model.values())).new_zeros(fed.n)
        return {"own": model, "scores": none, "weights": none}

    def init_server(self, fed: Fed, model: Tree) -> State:
        return {**mixing.keep(model, fed.n), "P": torch.eye(fed.n, dtype=torch.float64)}

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        trained = (server["seen"] > 0).tolist()
        places = min(self.M, fed.n - 1)
        epsilon = max(0.0, self.epsilon - self.epsilon_decay * (fed.round - 1))
        at_random = (fed.random("explore", (fed.n, places)) < epsilon).sum(1).tolist()
        orders = fed.random("order", (fed.n, fed.n)).argsort(1).tolist()
        ids = torch.full((len(cohort), places), -1)
        for row, i in zip(ids, cohort.tolist(), strict=True):
            others = [j for j in orders[i] if j != i and trained[j]]
            affinity = server["P"][i].tolist()
            best = sorted(others, key=affinity.__getitem__, reverse=True)[: places - at_random[i]]
            sent = sorted([*best, *(j for j in others if j not in best)][:places])
            row[: len(sent)] = torch.tensor(sent, dtype=torch.int64)
        return Payload(peers=server["models"], peer_ids=ids)

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        own: Tree = {**state["own"], **got.model}
        assert got.peer_ids is not None, "send gives them"
        _, held = client.holdout(self.holdout)
        places = range(len(got.peer_ids) if held.size else 0)
        peers = [{**own, **tree.join(lambda t, place=place: t[place], got.peers)} for place in places]
        at_own = mean_loss(held, own) if peers else torch.zeros(())
        gains = [gain(at_own - mean_loss(held, peer), tree.sqdist(peer, own, client.shared).sqrt()) for peer in peers]
        scores = torch.zeros_like(state["scores"])
        ids = got.peer_ids.to(scores.device)
        if gains:
            scores = scores.index_copy(0, ids, torch.stack(gains).to(scores))
        weights = scores.clamp(min=0)
        total = weights.sum()
        weights = weights / torch.where(total > 0, total, 1.0)
        chosen = weights[ids]

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
            "P": affinity.index_add(0, cohort.to(affinity.device), uploads["extra"]["scores"].to(affinity)),
        }

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        return {"weights": state["weights"]}

    def explain_server(self, fed: Fed, server: State) -> dict[str, Tensor]:
        return {"affinity": server["P"]}


def gain(less: Tensor, distance: Tensor) -> Tensor:
    """How much less is lost, for each unit of the way; zero where there is no way or no finite loss."""
    slope = less / torch.where(distance > 0, distance, torch.inf)
    return torch.where(slope.isfinite(), slope, 0.0)


def mean_loss(client: Client, model: Tree) -> Tensor:
    """The loss over all rows of a client, as it is when a model is tested."""
    out, _ = client.arch.apply(model, client.x[client.rows], train=False)
    return client.task.loss(out.detach(), client.y[client.rows])
