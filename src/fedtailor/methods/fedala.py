"""ALA: start local training from an element-wise mix of the model received and one's own, learned on one's own data.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023.

    client i, W_i ones at first, clip to [0, 1]:                                  Alg. 1 line 2
        hat_i = Theta_i + (Theta - Theta_i) * [1; W_i]                            Eq. 4, W_i for the top p layers
        W_i <- clip(W_i - eta grad_W L(hat_i; s % of D_i))                        Eq. 5, lines 7 to 14
            until it converges the first time that Theta_i and Theta differ there, for one epoch in later rounds
        Theta_i <- E epochs of SGD from hat_i;  upload
    Theta <- sum_i n_i / n * Theta_i                                              of the inner method: FedAvg in FedALA

Theta is what the inner method would start from, Theta_i what it trained last and the first model before that.

Deviations: (1) p counts the layers that hold a shared parameter; private names are outside. With `level="stage"` it
counts what the paper calls the blocks of ResNet-18: stem, four stages, fc. (2) Only parameters have
weights; running statistics are mixed by the mean weight of their layer, counters are taken as received. (3) Converged
means, as in the authors' code, that the last batch's loss has a standard deviation below a threshold over the last ten
of more than ten epochs; the cap is ours. (4) The initial stage is each client's own, at its first round with a model
that differs; under full participation this is t = 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import get_args

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import SGD, Client, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, Wrapper, overrides, require, worth_trying
from fedtailor.methods.fedamp import MessagePassing
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.groups import Level, groups
from fedtailor.methods.partialfed import PartialFedFix
from fedtailor.methods.proximal import innermost
from fedtailor.registry import register
from fedtailor.tree import State, Tree

WINDOW = 10  # epochs whose losses tell whether the weights have converged
LEVELS = get_args(Level)
STREAM = 1000  # batches of weight learning have orders of their own, beside those of training
BINS = 10  # of the histograms shown

Layers = dict[str, tuple[str, ...]]


@register("method", "AdaptiveLocalAggregation", "ALA")
@dataclass(frozen=True, repr=False)
class AdaptiveLocalAggregation(Wrapper):
    """ALA: `inner` starts from an element-wise mix, learned by each client, of the model received and its own."""

    inner: Method
    p: int = 1  # $p$: layers with weights, from the top; the others are taken as received
    s: float = 80.0  # $s$: percent of the local rows that weights are learned on, drawn anew each round
    eta: float = 1.0  # $\\eta$: rate of the weights
    threshold: float = 0.01  # of the standard deviation of the losses: below it the initial stage is over
    cap: int = 100  # epochs of the initial stage at most
    later_epochs: int = 1  # epochs in every later round; 0 freezes the weights after the initial stage
    init_all: bool = False  # type: ignore[misc]  # test absent clients with a mix too, not with what they last held
    level: Level = "layer"  # what p counts: layers, residual blocks, or stages of blocks with the stem as one more
    after: int = 0  # rounds in which clients start as with the inner method; figure 4 of the paper has 155

    grid = worth_trying(eta=(0.1, 1.0, 10.0), p=(1, 2, 3))
    learns_start = True
    paper = "Zhang et al., AAAI 2023"
    citation = """@inproceedings{zhang2023fedala,
  title     = {{FedALA}: Adaptive Local Aggregation for Personalized Federated Learning},
  author    = {Zhang, Jianqing and Hua, Yang and Wang, Hao and Song, Tao and Xue, Zhengui and Ma, Ruhui
               and Guan, Haibing},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year      = {2023}
}"""

    def __post_init__(self) -> None:
        def check(holds: bool, what: str) -> None:
            require(holds, "AdaptiveLocalAggregation", what)

        check(self.level in LEVELS, f"level={self.level!r} must be one of {', '.join(LEVELS)}")
        check(self.p >= 0, f"p={self.p} must be 0 or more layers; 0 is the inner method itself")
        check(0 < self.s <= 100, f"s={self.s} must be a percentage above 0 and up to 100, such as 80")
        check(0 <= self.eta < inf, f"eta={self.eta} must be 0 or more, and finite; at 0 the weights stay one")
        check(self.threshold >= 0, f"threshold={self.threshold} must be 0 or more, such as 0.01")
        check(self.cap >= 1, f"cap={self.cap} must be 1 epoch or more, such as 100")
        check(self.later_epochs >= 0, f"later_epochs={self.later_epochs} must be 0 or more")
        check(self.after >= 0, f"after={self.after} must be 0 or more rounds")
        check(
            not self.inner.learns_start,
            f"{type(self.inner).__name__} itself mixes models on each client by what it learned; there is no one model "
            "received that would overwrite the client's own; use ALA around another method, such as FedAvg()",
        )
        base = innermost(self.inner)
        check(
            not isinstance(base, MessagePassing) or base.start_at == "u",
            f"with start_at='own' a client of {type(base).__name__} goes on from its own model, so nothing received "
            "would overwrite it; choose start_at='u'",
        )

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        yield from self.inner.notes(arch, n)
        shared = self.top(arch, len(arch.layers))
        base, weighted = innermost(self.inner), {name for names in self.top(arch, self.p).values() for name in names}
        who = "AdaptiveLocalAggregation"
        if not shared:
            yield f"{who}: {type(self.inner).__name__} shares no layer of this model, so there is nothing to mix"
        elif self.p == 0 or self.eta == 0:
            value = "p=0 no layer has weights" if self.p == 0 else "eta=0 all weights stay one"
            yield f"{who}: with {value}, so this is {self.inner!r}"
        elif isinstance(base, PartialFedFix) and not base.loaded(arch) & weighted & arch.trainable:
            yield f"{who}: with p={self.p} only {self.level}s that {base!r} does not load have weights: nothing to mix"
        elif self.p > len(shared):
            yield f"{who}: p={self.p}, but only {len(shared)} {self.level}s are shared: all of them have weights"
        if n == 1:
            yield f"{who}: a single client receives its own model, so there is nothing to mix"

    def top(self, arch: Arch, p: int) -> Layers:
        """The last p layers (or blocks, or stages) that hold a shared parameter, with their shared names."""
        private, found = self.inner.personal(arch), arch.layers
        if self.level != "layer":
            parts = groups(arch, self.level, stem_apart=True)
            found = {part: tuple(n for n in arch.names if n in names) for part, names in parts}
        layers = {layer: tuple(n for n in names if n not in private) for layer, names in found.items()}
        layers = {layer: names for layer, names in layers.items() if arch.trainable & set(names)}
        return {layer: layers[layer] for layer in list(layers)[max(0, len(layers) - p) :]}

    def init_client(self, fed: Fed, model: Tree) -> State:
        mixed = frozenset(name for names in self.top(fed.arch, self.p).values() for name in names)
        device = next(iter(model.values())).device
        return {
            **super().init_client(fed, model),
            "local": tree.pick(model, mixed),
            "w": tree.join(torch.ones_like, tree.pick(model, mixed & fed.arch.trainable)),
            "started": torch.zeros((), dtype=torch.bool, device=device),
            "losses": torch.full((max(self.cap, self.later_epochs),), torch.inf, device=device),
        }

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        """What `inner` sends, which tells whether there is a model that would overwrite the client's own."""
        payload = super().send(fed, server, cohort)
        base, who = innermost(self.inner), "AdaptiveLocalAggregation"
        name, instead = type(base).__name__, "use ALA around another method, such as FedAvg()"
        one = "model" in payload.common or "model" in payload.own
        require(one, who, f"a client of {name} receives no one model that would overwrite its own; {instead}")
        phases = bool(payload.static) and overrides(base, "start")
        require(not phases, who, f"{name} has phases in which a client goes on from its own model; {instead}")
        return payload

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        received, state = super().start(client, state, got)
        if client.round <= self.after:
            return received, state
        local, losses = state["local"], list[Tensor]()
        w = tree.pick(state["w"], client.shared)
        differ = torch.zeros_like(state["started"])
        for name in w:
            differ = differ | (local[name] != received[name]).any()
        first = ~state["started"]
        limit = torch.where(first, self.cap, self.later_epochs)
        live = differ & (limit > 0)  # in the first iteration, nothing differs
        few = client.sample(self.s / 100)
        while client.any(live):
            learned = descend(
                few, w, build=lambda w, batch: mix(received, local, w), project=clip, opt=SGD(), lr=self.eta,
                epochs=1, stream=STREAM + len(losses),
            )  # fmt: skip
            if not learned.losses:  # too few rows for a step
                break
            w = tree.where(live, learned.theta, w)
            losses.append(torch.where(live, learned.losses[-1], torch.inf))
            live = live & (len(losses) < limit) & ~(first & converged(losses, self.threshold))
        seen = torch.full_like(state["losses"], torch.inf)
        for epoch, loss in enumerate(losses):
            seen[epoch] = loss
        hat = mix_statistics(client, mix(received, local, w), local, w)
        return hat, {**state, "w": {**state["w"], **w}, "started": state["started"] | differ, "losses": seen}

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        fitted = super().fit(client, state, model, got)
        local = tree.pick(fitted.model, state["local"].keys())
        return Fitted(fitted.model, {**fitted.state, "local": local}, fitted.extra)

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        shown = {"ALA loss[epoch]": state["losses"]}
        for layer, names in self.top(client.arch, self.p).items():
            weights = torch.cat([state["w"][name].flatten() for name in names if name in state["w"]])
            shown[f"ALA weights[0..1]/{layer}"] = torch.histc(weights, BINS, 0, 1) / weights.numel()
        return {**super().explain(client, state, got), **shown}


def mix(received: Tree, local: Tree, w: Tree) -> Tree:
    """Eq. 4, written so that a weight of one gives the received value to the last bit."""
    return {**received, **{n: received[n] + (1 - x) * (local[n] - received[n]) for n, x in w.items()}}


def mix_statistics(client: Client, hat: Tree, local: Tree, w: Tree) -> Tree:
    """Running statistics follow the mean weight of their layer."""
    usual: Tree = {}
    follow = client.arch.buffers - client.arch.counters - client.private
    for names in client.arch.layers.values():
        of_layer = [w[name].flatten() for name in names if name in w]
        if of_layer:
            usual |= {name: torch.cat(of_layer).mean() for name in names if name in follow}
    return mix(hat, local, usual)


def clip(w: Tree) -> Tree:
    return tree.join(lambda x: x.clamp(0, 1), w)


def converged(losses: list[Tensor], threshold: float) -> Tensor:
    """Whether the last losses of more than ten hardly differ."""
    recent = torch.stack(losses[-WINDOW:])
    return (recent.std(0, unbiased=False) < threshold) & (len(losses) > WINDOW)


@register("method", "FedALA")
def FedALA(
    p: int = 1, s: float = 80.0, eta: float = 1.0, threshold: float = 0.01, cap: int = 100, later_epochs: int = 1,
    init_all: bool = False, level: Level = "layer", after: int = 0,
) -> AdaptiveLocalAggregation:  # fmt: skip
    """FedAvg with adaptive local aggregation: AdaptiveLocalAggregation(FedAvg(), ...)."""
    return AdaptiveLocalAggregation(FedAvg(), p, s, eta, threshold, cap, later_epochs, init_all, level, after)
