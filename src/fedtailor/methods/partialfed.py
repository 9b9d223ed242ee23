"""PartialFed: each client loads only a part of the global model and keeps its own last values for the rest.

Sun et al., "PartialFed: Cross-Domain Personalized Federated Learning via Partial Initialization", NeurIPS 2021.

    client c: W_init[i] <- W_t[i] where A[i] = 1, its own last W_{t-1}^c[i] where A[i] = 0     Eq. 2
              E epochs of SGD from W_init; keeps and uploads W_t^c, all of it                  Alg. 1
    server:   W_{t+1} <- sum_c n_c / n * W_t^c                                                 Eq. 1

Fix: A is stated, by one of the paper's names or a predicate of one's own. Adaptive: A is learned,

    u[i, j] = softmax_j((log alpha[i, j] + g_ij) / tau),  g = -log(-log U)                     Eq. 5
    each batch: group i from L (own last) or G (global), as the larger of u[i] says            Eq. 6, Alg. 2
                f_m batches: a step on the branch that was selected; then f_s batches: a step on alpha
    end of the round: W_t^c[i] <- alpha[i, 0] L[i] + alpha[i, 1] G[i], fine-tuned              section 4.1, soft

Deviations: (1) Eq. 3 prints A = 1 for what its text keeps local; A = 1 is global here, as in Eq. 2 and the tables.
(2) A client's first round loads everything, for it has no values of its own. (3) alpha is held as logits and learned
with Adam: at the model's own rate plain SGD leaves it where it starts. (4) The batch index of Alg. 2 runs on from round
to round; begun anew in each, it would never let a client of few batches learn its strategy. (5) What a plug-in keeps
private has no global value: it is always the client's own.
Not in the text: rates, f_m, f_s and how tau is annealed (our defaults); running statistics, which go to the branch that
was selected and are merged as the weights are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Literal, get_type_hints

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import SGD, Adam, Client, Optimiser, descend
from fedtailor.method import Fed, Fitted, Method, Received, require, worth_trying
from fedtailor.methods.groups import Level, groups, loaded_by
from fedtailor.registry import fits, register, spell
from fedtailor.tree import State, Tree

LOCAL, GLOBAL = "L/", "G/"  # the two branches of every tensor
TINY = 1e-6  # noise and alpha are held so far from 0 and 1, where their logarithm ends

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

    strategy: str | Callable[[str], bool] = "w/o BN"  # $A$, what is loaded: "s1-s2", "w/o BN&fc", "conv1.*"

    point = "trained"
    finish_epochs = 5
    paper, citation = PAPER, CITATION

    def __post_init__(self) -> None:
        what = f"strategy={self.strategy!r} must be a text such as 'w/o BN', or a function of a tensor's name"
        require(isinstance(self.strategy, str) or callable(self.strategy), "PartialFedFix", what)

    def loaded(self, arch: Arch) -> frozenset[str]:
        """Names taken from the global model."""
        if isinstance(self.strategy, str):
            return loaded_by(self.strategy, arch)
        return frozenset(name for name in arch.names if self.strategy(name))

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        loaded = self.loaded(arch)
        if not isinstance(self.strategy, str):
            yield f"{self!r}: no record can hold a function, so this run cannot be resumed; with 'conv1.*' it can"
        if not loaded:
            yield f"{self!r} loads nothing, which is training alone"
        if len(loaded) == len(arch.names):
            yield f"{self!r} loads everything, which is FedAvg tested after training"

    def init_client(self, fed: Fed, model: Tree) -> State:
        return first_state(model)

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        own, loaded = own_last(state, got.model), self.loaded(client.arch)
        return {n: g if n in loaded else own[n] for n, g in got.model.items()}, state

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

    grid = worth_trying(alpha_lr=(0.003, 0.01, 0.1), level=("stage", "block", "layer"))
    point = "trained"
    finish_epochs = 5
    paper, citation = PAPER, CITATION

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name, value in ((field.name, getattr(self, field.name)) for field in fields(self)):
            require(fits(value, hints[name]), "PartialFedAdaptive", f"{name}={value!r} must be {spell(hints[name])}")
        for holds, what in (
            (self.f_m >= 1, f"f_m={self.f_m} must be 1 or more"),
            (self.f_s >= 0, f"f_s={self.f_s} must be 0 or more"),
            (0 <= self.alpha_lr < inf, f"alpha_lr={self.alpha_lr} must be 0 or more, and finite"),
            (0 < self.tau_min <= self.tau, f"tau_min={self.tau_min} must be above 0 and at most tau={self.tau}"),
            (self.tau < inf, f"tau={self.tau} must be finite"),
            (0 < self.tau_decay <= 1, f"tau_decay={self.tau_decay} must be above 0 and up to 1"),
            (self.finetune_epochs >= 0, f"finetune_epochs={self.finetune_epochs} must be 0 or more"),
        ):
            require(holds, "PartialFedAdaptive", what)

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.alpha_lr == 0 or (self.f_s == 0 and not self.shared_batches):
            yield "PartialFedAdaptive: the strategy is never learned with alpha_lr=0 or f_s=0; it stays a fair coin"
        inert = {"f_m": self.shared_batches, "f_s": self.shared_batches, "finetune_epochs": self.merge == "hard"}
        for option in inert:
            if inert[option] and getattr(self, option) != getattr(PartialFedAdaptive, option):
                yield f"PartialFedAdaptive: {option}={getattr(self, option)} has no effect in {self!r}"

    def init_client(self, fed: Fed, model: Tree) -> State:
        like = next(iter(model.values()))
        none = like.new_zeros(len(groups(fed.arch, self.level)), 2)
        return {
            **first_state(model), "alpha": none + 0.5 if self.projection else none,
            "index": like.new_zeros((), dtype=torch.int64),
            "adam": {"m": {"alpha": none}, "v": {"alpha": none}, "t": {"alpha": like.new_zeros(())}},
        }  # fmt: skip

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        places = self.places(client)
        theta = {**branch(LOCAL, own_last(state, model)), **branch(GLOBAL, model), "alpha": state["alpha"]}
        now: State = {"theta": theta, "opt": {"weights": {}, "alpha": state["adam"]}}
        index = state["index"]
        for step, view in enumerate(client.each_batch()):
            noise = client.random(f"gumbel {step}", tuple(state["alpha"].shape)).to(state["alpha"])
            now, index = self.one_batch(view, now, places, noise, index), index + 1
        share = self.probability(now["theta"]["alpha"])
        taken = larger(share) if self.merge == "hard" else share
        model = blend(now["theta"], by_name(with_none(taken), places))
        if self.merge == "soft":
            model = descend(client, model, epochs=self.finetune_epochs, stream=1).theta
        after = {"local": model, "seen": torch.ones_like(state["seen"]), "alpha": now["theta"]["alpha"]}
        return Fitted(model, {**after, "index": index, "adam": now["opt"]["alpha"]})

    def one_batch(self, view: Client, now: State, places: Mapping[str, int], noise: Tensor, index: Tensor) -> State:
        """Alg. 2: the composite's loss, and a step on the weights it is made of or on alpha."""
        tau = max(self.tau_min, self.tau * self.tau_decay ** (view.round - 1))  # as AdaShare anneals it

        def gates(theta: Tree) -> Tensor:
            return self.gate(theta["alpha"], noise, tau)

        always = torch.ones_like(index, dtype=torch.bool)
        turn = index % (self.f_m + self.f_s) < self.f_m
        weights, alpha = (always, always) if self.shared_batches else (turn, ~turn)
        moves = {"alpha": alpha}
        share = with_none(gates(now["theta"]))
        for prefix, taken in ((LOCAL, share < 1), (GLOBAL, share > 0)):  # hard shares are 0 or 1: one branch moves
            free, tracked = by_name(weights & taken, places), by_name(taken, places)
            moves |= {prefix + n: free[n] if n in view.arch.trainable else tracked[n] for n in places}
        move = descend(
            view, now["theta"], only={b + n for b in (LOCAL, GLOBAL) for n in view.arch.trainable} | {"alpha"},
            build=lambda theta, _: blend(theta, by_name(with_none(gates(theta)), places)),
            absorb=lambda _, buffers: {**branch(LOCAL, buffers), **branch(GLOBAL, buffers)},
            opt=WeightsAndAlpha(view.opt, Adam() if self.alpha_optimizer == "adam" else SGD(), self.alpha_lr),
            opt_state=now["opt"], project=on_simplex if self.projection else None,
        )  # fmt: skip
        return where_moved(moves, {"theta": move.theta, "opt": move.opt_state}, now)

    def places(self, client: Client) -> dict[str, int]:
        """The group of every name, in the order of the model; -1 for what stays private."""
        found = {n: i for i, (_, names) in enumerate(groups(client.arch, self.level)) for n in names}
        return {n: -1 if n in client.private else found[n] for n in client.arch.names}

    def probability(self, alpha: Tensor) -> Tensor:
        """alpha[:, 1], that of loading globally."""
        return (alpha if self.projection else alpha.softmax(1))[:, 1]

    def gate(self, alpha: Tensor, noise: Tensor, tau: float) -> Tensor:
        """u[:, 1] of Eq. 5; 0 or 1 with the gradient of u (straight through), unless both branches are updated."""
        gumbel = -(-noise.clamp(TINY, 1 - TINY).log()).log()
        log_alpha = alpha.clamp(min=TINY).log() if self.projection else alpha.log_softmax(1)
        u = ((log_alpha + gumbel) / tau).softmax(1)[:, 1]
        return u if self.update == "both" else larger(u) + (u - u.detach())

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        """How probable each group that holds a shared parameter is to be loaded globally."""
        chance, what = self.probability(state["alpha"]), "probability of loading globally"
        found = enumerate(groups(client.arch, self.level))
        return {f"{what}/{group}": chance[i] for i, (group, names) in found if names & client.shared}


@dataclass(frozen=True)
class WeightsAndAlpha:
    """The client's optimiser for the weights of both branches, another one for alpha."""

    weights: Optimiser
    alpha: Optimiser
    alpha_lr: float

    def step(self, theta: Tree, grads: Tree, state: State, lr: float | Mapping[str, float]) -> State:
        weights, alpha = tree.drop(grads, ["alpha"]), tree.pick(grads, ["alpha"])
        return {
            "weights": self.weights.step(theta, weights, state["weights"], lr),
            "alpha": self.alpha.step(theta, alpha, state["alpha"], self.alpha_lr),
        }


def first_state(model: Tree) -> State:
    return {"local": model, "seen": next(iter(model.values())).new_zeros((), dtype=torch.bool)}


def own_last(state: State, model: Tree) -> Tree:
    """W_{t-1}^c; a client that never trained has no values of its own, and takes all that it received."""
    return tree.where(state["seen"], state["local"], model)


def branch(prefix: str, model: Tree) -> Tree:
    return {prefix + name: tensor for name, tensor in model.items()}


def with_none(shares: Tensor) -> Tensor:
    """The groups' shares and, in place -1, that of what has no group: 0, which is local."""
    return pad(shares, (0, 1))


def by_name(of_groups: Tensor, places: Mapping[str, int]) -> Tree:
    """What holds for its group, for each name."""
    rows = of_groups.unbind()
    return {name: rows[place] for name, place in places.items()}


def blend(theta: Tree, shares: Tree) -> Tree:
    """(1 - share) local + share global, exact at 0, at 1 and of equals; a counter is that of the larger share."""

    def of(local: Tensor, glob: Tensor, share: Tensor) -> Tensor:
        return local.lerp(glob, share.to(local)) if local.is_floating_point() else torch.where(share > 0.5, glob, local)

    return {name: of(theta[LOCAL + name], theta[GLOBAL + name], share) for name, share in shares.items()}


def where_moved(moves: Tree, new: State, old: State) -> State:
    """Of a nested state, the new values of the names that moved; of others the old ones, or zeros where none were."""
    kept: State = {}
    for key, value in new.items():
        if isinstance(value, Tensor):
            kept[key] = torch.where(moves[key], value, old[key] if key in old else torch.zeros_like(value))
        else:
            kept[key] = where_moved(moves, value, old.get(key, {}))
    return kept


def larger(share: Tensor) -> Tensor:
    """1 where the global share is the larger, 0 where the local one is; of equal ones, the local."""
    return (share > 0.5).to(share)


def on_simplex(theta: Tree) -> Tree:
    """The nearest point of each row on the simplex: of (a, b) it is ((a - b + 1) / 2, rest), cut at 0 and 1."""
    local = ((theta["alpha"][:, 0] - theta["alpha"][:, 1] + 1) / 2).clamp(0, 1)
    return {**theta, "alpha": torch.stack([local, 1 - local], 1)}
