"""PartialFed: each client loads only a part of the global model and keeps its own last values for the rest.

Sun et al., "PartialFed: Cross-Domain Personalized Federated Learning via Partial Initialization", NeurIPS 2021.

    client c: W_init[i] <- W_t[i] where A[i] = 1, its own last W_{t-1}^c[i] where A[i] = 0     Eq. 2
              E epochs of SGD from W_init; keeps and uploads W_t^c, all of it                  Alg. 1
    server:   W_{t+1} <- sum_c n_c / n * W_t^c

Fix: A is stated, by one of the paper's names or a predicate of one's own. Adaptive: A is learned,

    u[i, j] = softmax_j((log alpha[i, j] + g_ij) / tau),  g = -log(-log U)                     Eq. 5
    each batch: group i from L (own last) or G (global), as the hard u says                    Eq. 6, Alg. 2
                f_m batches: a step on the branch that was selected; then f_s batches: a step on alpha
    end of the round: W_t^c[i] <- alpha[i, 0] L[i] + alpha[i, 1] G[i], fine-tuned              soft

Deviations: (1) Eq. 3 prints A = 1 for what its text keeps local; A = 1 is global here, as in Eq. 2 and the tables.
(2) A client's first round loads everything, for it has no values of its own. (3) The appendix with rates, f_m, f_s and
the annealing of tau is not part of the text: ours are stated as defaults. (4) alpha is held as logits and learned with
Adam: at the model's own rate plain SGD leaves it where it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import SGD, Adam, Batch, Client, Optimiser, descend
from fedtailor.method import Fed, Fitted, Method, Received, require
from fedtailor.methods.groups import Level, groups, loaded_by
from fedtailor.registry import register
from fedtailor.tree import State, Tree

PAPER = "Sun et al., NeurIPS 2021"
CITATION = """@inproceedings{sun2021partialfed,
  title     = {{PartialFed}: Cross-Domain Personalized Federated Learning via Partial Initialization},
  author    = {Sun, Benyuan and Huo, Hongxing and Yang, Yi and Bai, Bo},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year      = {2021}
}"""


@register("method", "PartialFedFix", "PartialFed-Fix")
@dataclass(frozen=True, repr=False)
class PartialFedFix(Method):
    """Loads a stated part of the global model; the rest goes on from the client's own last values."""

    strategy: str | Callable[[str], bool] = "w/o BN"  # what is loaded: "s1-s2", "w/o BN&fc", "AaBb", or names -> bool

    point = "trained"
    finish_epochs = 5
    paper, citation = PAPER, CITATION

    def loaded(self, arch: Arch) -> frozenset[str]:
        """Names taken from the global model."""
        if isinstance(self.strategy, str):
            return loaded_by(self.strategy, arch)
        return frozenset(name for name in arch.names if self.strategy(name))

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        loaded = self.loaded(arch)
        if not loaded:
            yield f"PartialFedFix: strategy={self.strategy!r} loads nothing, which is training alone"
        if len(loaded) == len(arch.names):
            yield f"PartialFedFix: strategy={self.strategy!r} loads everything, which is FedAvg tested after training"

    def init_client(self, fed: Fed, model: Tree) -> State:
        return {"local": model, "seen": torch.zeros(())}

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        loaded, first = self.loaded(client.arch), state["seen"] == 0
        local: Tree = state["local"]
        model = {n: g if n in loaded else torch.where(first, g, local[n]) for n, g in got.model.items()}
        return model, state

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        trained = descend(client, model).theta
        return Fitted(trained, {"local": trained, "seen": torch.ones_like(state["seen"])})


@register("method", "PartialFedAdaptive", "PartialFed-Adaptive", "PartialFed")
@dataclass(frozen=True, repr=False)
class PartialFedAdaptive(Method):
    """Learns, for each group of layers, whether to load it from the global model or to keep the client's own."""

    level: Level = "layer"  # granularity of the groups
    f_m: int = 4  # $f_m$, batches in turn for the weights ...
    f_s: int = 1  # $f_s$, ... and for the strategy
    alpha_optimizer: Literal["adam", "sgd"] = "adam"
    alpha_lr: float = 0.01  # $\\eta$
    projection: bool = False  # hold alpha itself and project it on the simplex, rather than logits
    tau: float = 5.0  # $\\tau$ in the first round ...
    tau_decay: float = 0.965  # ... its factor from round to round ...
    tau_min: float = 0.1  # ... and its floor
    merge: Literal["soft", "hard"] = "soft"
    finetune_epochs: int = 1  # after a soft merge
    update: Literal["selected", "both"] = "selected"  # hard one-hot weights, or soft ones that train both branches
    shared_batches: bool = False  # every batch for the weights and for the strategy

    point = "trained"
    finish_epochs = 5
    paper, citation = PAPER, CITATION

    def __post_init__(self) -> None:
        for holds, what in (
            (self.f_m >= 1 and self.f_s >= 0, f"f_m={self.f_m} must be 1 or more, f_s={self.f_s} 0 or more"),
            (self.alpha_lr >= 0, f"alpha_lr={self.alpha_lr} must be 0 or more"),
            (0 < self.tau_min <= self.tau, f"tau_min={self.tau_min} must be above 0 and at most tau={self.tau}"),
            (0 < self.tau_decay <= 1, f"tau_decay={self.tau_decay} must be above 0 and up to 1"),
            (self.finetune_epochs >= 0, f"finetune_epochs={self.finetune_epochs} must be 0 or more"),
        ):
            require(holds, "PartialFedAdaptive", what)

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.alpha_lr == 0 or (self.f_s == 0 and not self.shared_batches):
            yield "PartialFedAdaptive: the strategy is never learned with alpha_lr=0 or f_s=0; it stays a fair coin"

    def init_client(self, fed: Fed, model: Tree) -> State:
        k = len(groups(fed.arch, self.level))
        alpha = torch.full((k, 2), 0.5) if self.projection else torch.zeros(k, 2)
        zero = torch.zeros(())
        adam = {"m": {"alpha": torch.zeros(k, 2)}, "v": {"alpha": torch.zeros(k, 2)}, "t": {"alpha": zero}}
        return {"local": model, "seen": zero, "alpha": alpha, "index": zero, "adam": adam}

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        first, local = state["seen"] == 0, state["local"]
        names = {name: i for i, (_, group) in enumerate(groups(client.arch, self.level)) for name in group}
        theta: Tree = {f"L/{n}": torch.where(first, g, local[n]) for n, g in model.items()}
        theta |= {f"G/{n}": g for n, g in model.items()} | {"alpha": state["alpha"]}
        tau = max(self.tau_min, self.tau * self.tau_decay ** (client.round - 1))  # as AdaShare anneals it
        rates = {name: self.alpha_lr if name == "alpha" else client.lr for name in theta}
        trained = [b + n for b in ("L/", "G/") for n in model if n in client.arch.trainable] + ["alpha"]
        opt = Branches(client.opt, Adam() if self.alpha_optimizer == "adam" else SGD())
        carried: State = {"weights": {}, "alpha": state["adam"]}
        index = state["index"]
        for step, view in enumerate(client.each_batch()):
            noise = client.random(f"gumbel {step}", (len(theta["alpha"]), 2)).clamp(1e-6, 1 - 1e-6)
            gate = self.gate(theta["alpha"], noise, tau)
            move = descend(
                view, theta, lr=rates, only=trained, opt=opt, opt_state=carried,
                build=partial(self.composite, noise, tau, names),
                absorb=partial(follow, gate, names),
                project=self.on_simplex if self.projection else None,
            )  # fmt: skip
            # Alg. 2 line 6: index mod (f_m + f_s) < f_m, with an index that runs on from round to round
            weights_turn = torch.remainder(index, self.f_m + self.f_s) < self.f_m
            moves = self.movers(theta, gate, names, client.arch, weights_turn)
            theta = {n: torch.where(moves[n], move.theta[n], theta[n]) for n in theta}
            carried = where_moved(moves, move.opt_state, carried)
            index = index + 1
        merged = self.merged(theta, names)
        if self.merge == "soft" and self.finetune_epochs:
            merged = descend(client, merged, epochs=self.finetune_epochs, stream=1).theta
        seen = torch.ones_like(state["seen"])
        alpha, adam = theta["alpha"], carried["alpha"]
        return Fitted(merged, {"local": merged, "seen": seen, "alpha": alpha, "index": index, "adam": adam})

    def probabilities(self, alpha: Tensor) -> Tensor:
        """alpha on the simplex: column 0 local, column 1 global."""
        return alpha if self.projection else alpha.softmax(1)

    def gate(self, alpha: Tensor, noise: Tensor, tau: float) -> Tensor:
        """Eq. 5; one-hot forward with the gradient of the soft weights (straight through), unless both are updated."""
        gumbel = -(-noise.log()).log()
        soft = ((self.probabilities(alpha).clamp(min=1e-6).log() + gumbel) / tau).softmax(1)
        return soft if self.update == "both" else larger(soft) + (soft - soft.detach())

    def composite(self, noise: Tensor, tau: float, names: dict[str, int], theta: Tree, batch: Batch) -> Tree:
        """Eq. 6: every group from its branch."""
        gate = self.gate(theta["alpha"], noise, tau)
        return {n: blend(theta[f"L/{n}"], theta[f"G/{n}"], gate[i]) for n, i in names.items()}

    def movers(
        self, theta: Tree, gate: Tensor, names: dict[str, int], arch: Arch, weights_turn: Tensor
    ) -> dict[str, Tensor]:
        """What the batch moves: buffers always, the selected branch in its turn, alpha in the other."""
        always = torch.ones_like(weights_turn)
        weights = always if self.shared_batches else weights_turn
        moves = {"alpha": always if self.shared_batches else ~weights_turn}
        for place, branch in enumerate(("L", "G")):
            for name, group in names.items():
                chosen = always if self.update == "both" else gate[group, place] > 0.5
                moves[f"{branch}/{name}"] = always if name in arch.buffers else weights & chosen
        return {name: moves[name] for name in theta}

    def merged(self, theta: Tree, names: dict[str, int]) -> Tree:
        share = self.probabilities(theta["alpha"])
        if self.merge == "hard":
            share = larger(share)
        return {n: blend(theta[f"L/{n}"], theta[f"G/{n}"], share[i]) for n, i in names.items()}

    @staticmethod
    def on_simplex(theta: Tree) -> Tree:
        """The nearest point of each row on the simplex: of (a, b) it is ((a - b + 1) / 2, rest), cut at 0 and 1."""
        local = ((theta["alpha"][:, 0] - theta["alpha"][:, 1] + 1) / 2).clamp(0, 1)
        return {**theta, "alpha": torch.stack([local, 1 - local], 1)}

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        return {"probability of loading globally": self.probabilities(state["alpha"])[:, 1]}


@dataclass(frozen=True)
class Branches:
    """The client's optimiser for the weights of both branches, another one for alpha."""

    weights: Optimiser
    alpha: Optimiser

    def step(self, theta: Tree, grads: Tree, state: State, lr: float | Mapping[str, float]) -> State:
        rules = {
            "weights": (self.weights, tree.drop(grads, ["alpha"])),
            "alpha": (self.alpha, tree.pick(grads, ["alpha"])),
        }
        return {
            part: opt.step(theta, slopes, state[part], lr) if slopes else state[part]
            for part, (opt, slopes) in rules.items()
        }


def where_moved(moves: Tree, new: State, old: State) -> State:
    """An optimiser's memory: the new one of what moved, and the old one (or nothing yet) of what did not."""
    return {
        key: where_moved(moves, value, old.get(key, {}))
        if isinstance(value, Mapping)
        else torch.where(moves[key], value, old.get(key, torch.zeros_like(value)))
        for key, value in new.items()
    }


def larger(share: Tensor) -> Tensor:
    """One-hot rows: 1 for the larger entry, and for the local one of two equal."""
    return (torch.arange(2, device=share.device) == share.argmax(1, keepdim=True)).to(share.dtype)


def blend(local: Tensor, glob: Tensor, share: Tensor) -> Tensor:
    """share[0] local + share[1] global; of a counter, the larger."""
    if not local.is_floating_point():
        return torch.maximum(local, glob)
    weight = share.to(local.dtype)
    return weight[0] * local + weight[1] * glob


def follow(gate: Tensor, names: dict[str, int], theta: Tree, buffers: Tree) -> Tree:
    """Running statistics of a forward pass go to the branch that was selected."""
    moved = {}
    for place, branch in enumerate(("L", "G")):
        for name, value in buffers.items():
            old = theta[f"{branch}/{name}"]
            moved[f"{branch}/{name}"] = torch.where(gate[names[name], place] > 0.5, value, old)
    return moved
