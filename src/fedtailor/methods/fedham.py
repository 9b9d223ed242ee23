"""FedHAM: each client learns a two-layer attention over other clients' models, and starts from what it attends to.

"Configure Your Federation: Hierarchical Attention-enhanced Meta-Learning Network for Personalized Federated Learning",
ACM Transactions on Intelligent Systems and Technology, 2023.

    first layer   x_i^a = sum_j alpha_j x_j over the other clients of the cluster,
                  alpha = softmax_j <Wq1 phi(x_i), Wk1 phi(x_j)> / sqrt(d_att)             Eq. 3 to 6
    second layer  x_i^hyb = sum_r beta_r v_r,  v = (x_i, x_i^a, x^g),
                  beta = softmax_r <Wq2 phi(x_i), Wk2 phi(v_r)> / sqrt(d_att)              Eq. 7 to 9
    rounds 1..p   warm-up, FedAvg                                                          Alg. 2
    later         Theta_i <- E epochs on F_i(H_Theta(x^g, X)), all models constant         Eq. 10, 13
                  x_i <- H_Theta(x^g, X)                                                   Eq. 14
                  E epochs of SGD on F_i(x_i); uploads x_i                                 Eq. 11, 15
    server        x^g <- sum_i n_i / n * x_i; clusters the x_i

Deviations: (1) phi and the shape of the W are not given; a common count-sketch of the parameters keeps Theta small
(`projection`). (2) The scores are multiplied with the raw models, which Eq. 4 to 6 leave out and the text requires.
(3) One rate is printed for both parts of Theta; with it the second layer turns to x_i before the first has moved, so
the first layer is learned with Adam (`ham_optimizer`). (4) Algorithm 2 resets x_i inside the loop over epochs; here all
epochs on Theta come first (`alternate`). (5) A client alone in its cluster has x_i^a = x^g, and one that was never
drawn before has x_i = x^g. (6) The server is told two numbers beside the model, the training loss, for p="auto", and
the weight beta on x_i, to warn of a federation that has turned into training alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedtailor import schedule, tree
from fedtailor.arch import Arch
from fedtailor.local import SGD, Adam, Batch, Client, Descent, Optimiser, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, require
from fedtailor.methods import clusters, mixing
from fedtailor.registry import register
from fedtailor.tree import State, Tree

LAYERS = {"first": ("q1", "k1", "t1"), "second": ("q2", "k2", "t2")}
STALE = 5  # rounds over which "auto" looks for an improvement of 1 %
CHUNK = 1 << 20  # entries sketched at a time
PRIME = 2_147_483_647
OWN = 0.95  # a mean weight on x_i that is warned of


@register("method", "FedHAM", "HAM")
@dataclass(frozen=True, repr=False)
class FedHAM(Method):
    """Learns a two-layer attention over the other clients' models and the global one."""

    p: int | Literal["auto"] = 10  # $p$, rounds of warm-up; auto: until the mean training loss stops falling
    k: int = 1  # $k$, clusters
    grouping: Literal["kmeans", "meanshift", "nearest"] = "kmeans"
    layers: Literal["both", "first", "second"] = "both"  # ablations: AML1 has the first only, AML2 the second
    projection: Literal["sketch", "diag", "dense"] = "sketch"
    q: int = 1024  # length of the sketch
    h: int = 64  # rows of W, for sketch and dense
    phi_center: bool = False  # attend to x - x^g
    score: Literal["dot", "cosine"] = "dot"  # cosine: normalised, with a learned temperature
    tied: bool = False  # Wk starts equal to Wq
    ham_optimizer: Literal["split", "sgd", "adam"] | None = None  # None: split, or adam where the projection is diag
    ham_lr: float = 0.001  # of Adam; plain SGD goes at the model's rate
    lam: float = 1.0  # $\\lambda$; rescales the SGD steps on Theta
    exact_objective: bool = False  # add lambda F_i(H(x_i)) to the steps on x_i, as Eq. 15 prints
    alternate: Literal["round", "epoch"] = "round"

    point = "trained"
    sees = "models"
    paper = "FedHAM, ACM TIST 2023"
    citation = """@article{fedham2023configure,
  title   = {Configure Your Federation: Hierarchical Attention-enhanced Meta-Learning Network for Personalized
             Federated Learning},
  journal = {ACM Transactions on Intelligent Systems and Technology},
  year    = {2023}
}"""

    def __post_init__(self) -> None:
        require(self.p == "auto" or int(self.p) >= 0, "FedHAM", f"p={self.p} must be 0 or more, or 'auto'")
        for name in ("k", "q", "h"):
            require(getattr(self, name) >= 1, "FedHAM", f"{name}={getattr(self, name)} must be 1 or more")
        require(self.ham_lr >= 0 and self.lam >= 0, "FedHAM", "ham_lr and lam must be 0 or more")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.k > n:
            yield f"FedHAM: k={self.k} clusters are asked for and there are {n} clients; some will be alone"
        rates = [self.rate(part, 1.0) for layer in self.learned for part in LAYERS[layer]]
        if not all(rates):
            zero = "lam=0" if self.lam == 0 else "ham_lr=0"
            yield f"FedHAM: {zero} takes no step on attention that is to be learned; it stays as it was drawn"

    @property
    def learned(self) -> tuple[str, ...]:
        return tuple(LAYERS) if self.layers == "both" else (self.layers,)

    @property
    def by_adam(self) -> tuple[str, ...]:
        """The parts of Theta that Adam learns; plain SGD learns the others."""
        rule = self.ham_optimizer or ("adam" if self.projection == "diag" else "split")
        return {"split": LAYERS["first"], "sgd": (), "adam": (*LAYERS["first"], *LAYERS["second"])}[rule]

    def rate(self, part: str, lr: float) -> float:
        # Adam does not see the scale lambda gives a gradient, but at 0 there is none
        return self.ham_lr * (self.lam > 0) if part in self.by_adam else lr * self.lam

    # the client

    def init_client(self, fed: Fed, model: Tree) -> State:
        width = self.q
        if self.projection != "sketch":  # names that a plug-in keeps private leave the last columns unused
            width = sum(model[name].numel() for name in fed.arch.trainable)
        draw = schedule.torch_rng(fed.seed, "ham")  # the same for all: what differs is what they learn
        theta: Tree = {}
        for layer in ("1", "2"):
            for part in ("q", "k"):
                theta[part + layer] = self.drawn(width, draw)
            if self.tied:
                theta["k" + layer] = theta["q" + layer].clone()
            if self.score == "cosine":
                theta["t" + layer] = torch.full((), 5.0)
        moments = {"m": tree.zeros(theta), "v": tree.zeros(theta), "t": {name: torch.zeros(()) for name in theta}}
        return {
            "x": model, "seen": torch.zeros(()), "theta": theta, "adam": moments,
            "alpha": torch.zeros(fed.n), "beta": torch.zeros(3), "slopes": torch.zeros(2),
        }  # fmt: skip

    def drawn(self, width: int, draw: torch.Generator) -> Tensor:
        """Xavier-uniform, so that the scores start almost equal."""
        if self.projection == "diag":
            return (2 * torch.rand(width, generator=draw) - 1) * math.sqrt(3)
        bound = math.sqrt(6 / (width + self.h))
        return (2 * torch.rand(self.h, width, generator=draw) - 1) * bound

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        if got.static["warm"]:
            return got.model, state
        return {n: torch.where(state["seen"] == 0, g, state["x"][n]) for n, g in got.model.items()}, state

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        x, losses, turns, epochs = model, list[Tensor](), 1, None
        if got.static["warm"]:
            done = descend(client, x)
            x, losses = done.theta, done.losses
        else:
            ham = Ham(self, client, got)
            if self.alternate == "epoch" and client.epochs:  # work counted in steps has no epochs to alternate
                turns, epochs = client.epochs, 1
            for turn in range(turns):
                state = self.learn(client, state, x, ham, epochs, stream=2 * turn + 1)
                x = ham(x, state["theta"])  # Eq. 14
                done = self.train(client, state["theta"], x, ham, epochs, stream=2 * turn)
                x, losses = done.theta, losses + done.losses
        loss = torch.stack(losses).mean().float() if losses else torch.zeros(())
        after = {**state, "x": x, "seen": torch.ones_like(state["seen"])}
        return Fitted(x, after, {"loss": loss, "own": state["beta"][0]})

    def learn(self, client: Client, state: State, x: Tree, ham: Ham, epochs: int | None, stream: int) -> State:
        """Eq. 10 and 13: the steps on Theta, and what the attention has become."""
        x = tree.detach(x)
        at_x = ham.phi(x)
        done = descend(
            client, state["theta"], lr={part: self.rate(part, client.lr) for part in state["theta"]},
            build=lambda theta, batch: ham.mix(x, *ham.weights(at_x, theta)),
            opt=HamOptimiser(self.by_adam), opt_state={**state["adam"], "slopes": torch.zeros(2)},
            epochs=epochs, stream=stream,
        )  # fmt: skip
        alpha, beta = ham.weights(at_x, done.theta)
        row = torch.zeros_like(state["alpha"])
        memory = {slot: done.opt_state[slot] for slot in state["adam"]}
        return {
            **state, "theta": done.theta, "adam": memory,
            "alpha": row if ham.peer_ids is None else row.index_copy(0, ham.peer_ids, alpha.to(row)),
            "beta": beta.float(), "slopes": done.opt_state["slopes"] / max(1, len(done.losses)),
        }  # fmt: skip

    def train(self, client: Client, theta: Tree, x: Tree, ham: Ham, epochs: int | None, stream: int) -> Descent:
        """Eq. 11, or Eq. 15 as printed: the steps on x_i."""

        def both(model: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            loss, buffers = client.loss(model, batch)
            return loss + self.lam * client.loss(ham(model, theta), batch)[0], buffers

        return descend(client, x, loss=both if self.exact_objective else None, epochs=epochs, stream=stream)

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        alpha: Tensor = state["alpha"]
        entropy = -(alpha * alpha.clamp(min=1e-12).log()).sum()
        return {
            "alpha": alpha, "beta": state["beta"], "alpha entropy": entropy, "alpha largest": alpha.max(),
            "gradient norms": state["slopes"],
        }  # fmt: skip

    # the server

    def init_server(self, fed: Fed, model: Tree) -> State:
        losses = torch.full((STALE + 1,), torch.inf)
        return {"model": model, **mixing.keep(model, fed.n), "losses": losses, "warm": torch.ones(())}

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        common = {"model": server["model"]}
        warm = fed.round <= self.p if self.p != "auto" else bool(server["warm"] > 0)
        if warm or self.layers == "second":  # which attends to no peers, so none are sent
            return Payload(common=common, static={"warm": int(warm)})
        visible = clusters.visible(server, fed, self.k, self.grouping)
        return Payload(
            common=common, peers=server["models"], peer_ids=clusters.padded(visible, cohort), static={"warm": 0}
        )

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        loss = (uploads["extra"]["loss"].double() * weights).sum().float()
        losses = torch.cat([server["losses"][1:], loss[None]])
        stale = losses[-1] > 0.99 * losses[0]  # less than 1 % better than STALE rounds ago
        if uploads["extra"]["own"].mean() > OWN:
            warnings.warn(
                f"FedHAM: the attention has turned to the clients' own models (mean beta above {OWN}), which is training "
                "alone; learn the second layer more slowly (lam), or the first one only (layers='first')",
                UserWarning,
                stacklevel=2,
            )
        return {
            "model": tree.mean(uploads["model"], weights),
            **mixing.remember(server, uploads["model"], cohort, fed.round),
            "losses": losses, "warm": server["warm"] * (~stale).float(),
        }  # fmt: skip


class Ham:
    """H for one client in one round: the models it may attend to, and their sketches, made once."""

    def __init__(self, method: FedHAM, client: Client, got: Received):
        self.method, self.seed, self.private = method, client.seed, client.private
        self.glob, self.peers, self.peer_ids = got.model, got.peers, got.peer_ids
        self.names = [name for name in got.model if name in client.shared]
        self.at_glob = self.phi(got.model)
        alone = got.peer_ids is None or not len(got.peer_ids)
        self.at_peers = None if alone else self.phi(got.peers, stacked=True)

    def __call__(self, x: Tree, theta: Tree) -> Tree:
        return self.mix(x, *self.weights(self.phi(x), theta))

    def phi(self, x: Tree, stacked: bool = False) -> Tensor:
        if self.method.projection == "sketch":
            return sketch([x[name] for name in self.names], self.method.q, self.seed, stacked)
        return vectors(x, self.names, stacked)

    def weights(self, at_x: Tensor, theta: Tree) -> tuple[Tensor, Tensor]:
        """alpha over the peers (Eq. 5) and beta over (x_i, x_i^a, x^g) (Eq. 8)."""
        alpha, at_mix = at_x.new_zeros(0), self.at_glob
        if self.at_peers is not None:
            alpha = self.softmax("1", at_x, self.at_peers, theta)
            at_mix = alpha @ self.at_peers  # phi is linear
        if self.method.layers == "first":
            return alpha, at_x.new_tensor([0.0, 1.0, 0.0])
        if self.method.layers == "second":
            own, glob = self.softmax("2", at_x, torch.stack([at_x, self.at_glob]), theta)
            return alpha, torch.stack([own, torch.zeros_like(own), glob])
        return alpha, self.softmax("2", at_x, torch.stack([at_x, at_mix, self.at_glob]), theta)

    def softmax(self, layer: str, at_x: Tensor, keys: Tensor, theta: Tree) -> Tensor:
        if self.method.phi_center:
            at_x, keys = at_x - self.at_glob, keys - self.at_glob
        wq, wk = (theta[part + layer][..., : len(at_x)].to(at_x) for part in "qk")
        query, keys = (wq * at_x, wk * keys) if self.method.projection == "diag" else (wq @ at_x, keys @ wk.T)
        if self.method.score == "cosine":
            query, keys = torch.nn.functional.normalize(query, dim=0), torch.nn.functional.normalize(keys, dim=1)
            return (theta["t" + layer].to(at_x) * (keys @ query)).softmax(0)
        return (keys @ query / math.sqrt(len(query))).softmax(0)

    def mix(self, x: Tree, alpha: Tensor, beta: Tensor) -> Tree:
        """x_i^hyb, float buffers like weights; alone, x^g stands for x_i^a. What is private stays x_i's."""

        def mixed(name: str, own: Tensor) -> Tensor:
            if name in self.private or not own.is_floating_point():
                return own
            b, glob = beta.to(own.dtype), self.glob[name]
            others: Tensor = glob
            if self.at_peers is not None:
                others = torch.tensordot(alpha.to(own.dtype), self.peers[name], dims=1)
            return b[0] * own + b[1] * others + b[2] * glob

        return {name: mixed(name, own) for name, own in x.items()}


@dataclass(frozen=True)
class HamOptimiser:
    """Adam for some parts of Theta and plain SGD for the others; sums the gradient norms of the two layers."""

    by_adam: Collection[str]

    def step(self, theta: Tree, grads: Tree, state: State, lr: Any) -> State:
        moments = {slot: state[slot] for slot in ("m", "v", "t")}
        parts: list[tuple[Optimiser, Tree]] = [
            (Adam(), tree.pick(grads, self.by_adam)),
            (SGD(), tree.drop(grads, self.by_adam)),
        ]
        for opt, slopes in parts:
            if slopes:
                moments = opt.step(theta, slopes, moments, lr)
        squares = [
            sum((grads[n].square().sum() for n in layer if n in grads), torch.zeros(())) for layer in LAYERS.values()
        ]
        return {**moments, "slopes": state["slopes"] + torch.stack(squares).sqrt()}


def vectors(x: Tree, names: list[str], stacked: bool = False) -> Tensor:
    """Models as vectors over `names`; stacked ones as rows."""
    return torch.cat([x[name].flatten(1 if stacked else 0) for name in names], dim=-1)


def sketch(values: list[Tensor], q: int, seed: int, stacked: bool) -> Tensor:
    """Count-sketch of all values: entry i goes to bucket h(i) with sign s(i), the same for everybody."""
    a, b, c, d = (int(v) for v in schedule.rng(seed, "sketch").integers(1, PRIME, 4))
    rows = len(values[0]) if stacked else 1
    total, offset = values[0].new_zeros(rows, q), 0
    for value in values:
        flat = value.reshape(rows, -1)
        for part in flat.split(CHUNK, dim=1):  # type: ignore[no-untyped-call]
            place = torch.arange(offset, offset + part.shape[1], device=part.device)
            bucket = (a * place + b) % PRIME % q
            sign = 1 - 2 * ((c * place + d) % PRIME % 2)
            total = total.index_add(1, bucket, part * sign.to(part.dtype))
            offset += part.shape[1]
    return total if stacked else total[0]
