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
epochs on Theta come first (`alternate`). (5) A client alone in its cluster has x_i^a = x^g. (6) The server is told one
number more than the model, the weight beta on x_i, to warn of a federation that has turned into training alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedtailor import schedule, tree
from fedtailor.arch import Arch
from fedtailor.local import SGD, Adam, Batch, Client, Optimiser, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, require
from fedtailor.methods import clusters, mixing
from fedtailor.registry import register
from fedtailor.tree import State, Tree

LAYERS = {"first": ("q1", "k1", "t1"), "second": ("q2", "k2", "t2")}
STALE = 5  # rounds over which "auto" looks for an improvement of 1 %


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
    ham_optimizer: Literal["split", "sgd", "adam"] = "split"
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
        if self.lam == 0 and self.ham_optimizer != "adam":
            yield "FedHAM: lam=0 takes no SGD step on Theta; the attention that it should learn stays as it was drawn"

    # the client

    def init_client(self, fed: Fed, model: Tree) -> State:
        width = self.q if self.projection == "sketch" else vectors(model, attended(model, fed.arch)).numel()
        draw = schedule.torch_rng(fed.seed, "ham")  # the same for all: what differs is what they learn
        theta: Tree = {}
        for layer in ("1", "2"):
            for part in ("q", "k"):
                theta[part + layer] = self.drawn(width, draw)
            if self.tied:
                theta["k" + layer] = theta["q" + layer].clone()
            if self.score == "cosine":
                theta["t" + layer] = torch.full((), 5.0)
        learned = {name: theta[name] for name in theta}
        moments = {"m": tree.zeros(learned), "v": tree.zeros(learned), "t": {n: torch.zeros(()) for n in learned}}
        return {
            "x": model, "theta": theta, "adam": moments,
            "alpha": torch.zeros(fed.n), "beta": torch.zeros(3), "slopes": torch.zeros(2),
        }  # fmt: skip

    def drawn(self, width: int, draw: torch.Generator) -> Tensor:
        """Xavier-uniform, so that the scores start almost equal."""
        if self.projection == "diag":
            return (2 * torch.rand(width, generator=draw) - 1) * math.sqrt(3)
        bound = math.sqrt(6 / (width + self.h))
        return (2 * torch.rand(self.h, width, generator=draw) - 1) * bound

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        own: Tree = state["x"]
        model: Tree = got.model if got.static["warm"] else {name: own[name] for name in got.model}
        return model, state

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        if got.static["warm"]:
            done = descend(client, model)
            return Fitted(done.theta, {**state, "x": done.theta}, self.told(done.losses, state["beta"]))
        alternations = (client.epochs or 1) if self.alternate == "epoch" else 1
        epochs = 1 if self.alternate == "epoch" else None
        x, losses = model, []
        for turn in range(alternations):
            state, ham = self.learn(client, state, x, got, epochs, stream=2 * turn + 1)
            x = ham(x, state["theta"])
            x, part = self.train(client, state, x, ham, epochs, stream=2 * turn)
            losses += part
        return Fitted(x, {**state, "x": x}, self.told(losses, state["beta"]))

    def told(self, losses: list[Tensor], beta: Tensor) -> State:
        loss = torch.stack(losses).mean() if losses else torch.zeros(())
        return {"loss": loss.float(), "own": beta[0]}

    def learn(
        self, client: Client, state: State, x: Tree, got: Received, epochs: int | None, stream: int
    ) -> tuple[State, Callable[[Tree, Tree], Tree]]:
        """The step on Theta, and H as a function of (x_i, Theta)."""
        ham = Ham(self, client, got)
        rates = {name: self.rate(name, client) for name in state["theta"]}
        constant = tree.detach(x)
        sketched = ham.phi(constant)
        done = descend(
            client, state["theta"], lr=rates,
            build=lambda theta, batch: ham.mix(constant, *ham.weights(sketched, theta)),
            opt=HamOptimiser(self.ham_optimizer), opt_state={**state["adam"], "slopes": torch.zeros(2)},
            epochs=epochs, stream=stream,
        )  # fmt: skip
        with torch.no_grad():
            alpha, beta = ham.weights(sketched, done.theta)
        row = torch.zeros_like(state["alpha"])
        row = row if got.peer_ids is None else row.index_copy(0, got.peer_ids, alpha.to(row))
        memory = {slot: done.opt_state[slot] for slot in ("m", "v", "t")}
        slopes = done.opt_state["slopes"] / max(1, len(done.losses))
        state = {**state, "theta": done.theta, "adam": memory, "alpha": row, "beta": beta.float(), "slopes": slopes}
        return state, ham

    def rate(self, name: str, client: Client) -> float:
        by_adam = self.ham_optimizer == "adam" or (self.ham_optimizer == "split" and name in LAYERS["first"])
        return self.ham_lr if by_adam else client.lr * self.lam

    def train(
        self, client: Client, state: State, x: Tree, ham: Callable[[Tree, Tree], Tree], epochs: int | None, stream: int
    ) -> tuple[Tree, list[Tensor]]:
        """The steps on x_i."""

        def both(model: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            loss, buffers = client.loss(model, batch)
            return loss + self.lam * client.loss(ham(model, state["theta"]), batch)[0], buffers

        done = descend(client, x, loss=both if self.exact_objective else None, epochs=epochs, stream=stream)
        return done.theta, done.losses

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
        if warm:
            return Payload(common=common, static={"warm": 1})
        visible = clusters.visible(server, fed, self.k, self.grouping)
        return Payload(
            common=common, peers=server["models"], peer_ids=clusters.padded(visible, cohort), static={"warm": 0}
        )

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        loss = (uploads["extra"]["loss"].double() * weights).sum().float()
        losses = torch.cat([server["losses"][1:], loss[None]])
        stale = losses[-1] > 0.99 * losses[0]  # less than 1 % better than STALE rounds ago
        own = uploads["extra"]["own"].mean()
        if own > 0.95:
            text = f"FedHAM: the attention has turned to the clients' own models (mean beta {own:.2f}): training alone"
            warnings.warn(text, stacklevel=2)
        return {
            "model": tree.mean(uploads["model"], weights),
            **mixing.remember(server, uploads["model"], cohort, fed.round),
            "losses": losses, "warm": server["warm"] * (~stale).float(),
        }  # fmt: skip


class Ham:
    """H for one client in one round: the models it may attend to, and their sketches, made once."""

    def __init__(self, method: FedHAM, client: Client, got: Received):
        self.method, self.arch, self.seed = method, client.arch, client.seed
        self.glob, self.peers = got.model, got.peers
        self.names = frozenset(name for name in got.model if name in client.shared)
        self.at_glob = self.phi(got.model)
        self.at_peers = self.phi(got.peers, stacked=True) if got.peers and len(next(iter(got.peers.values()))) else None

    def __call__(self, x: Tree, theta: Tree) -> Tree:
        return self.mix(x, *self.weights(self.phi(x), theta))

    def phi(self, x: Tree, stacked: bool = False) -> Tensor:
        names = [name for name in x if name in self.names]
        if self.method.projection == "sketch":
            return sketch({n: x[n] for n in names}, self.method.q, self.seed, stacked)
        return vectors(x, names, stacked)

    def weights(self, at_x: Tensor, theta: Tree) -> tuple[Tensor, Tensor]:
        """alpha over the peers (Eq. 5) and beta over (x_i, x_i^a, x^g) (Eq. 8)."""
        alone = self.at_peers is None
        alpha = at_x.new_zeros(0) if self.at_peers is None else self.softmax("1", at_x, self.at_peers, theta)
        at_mix = self.at_glob if self.at_peers is None else alpha.to(self.at_peers) @ self.at_peers
        if self.method.layers == "first":
            return alpha, at_x.new_tensor([0.0, 0.0, 1.0] if alone else [0.0, 1.0, 0.0])
        if self.method.layers == "second":
            two = self.softmax("2", at_x, torch.stack([at_x, self.at_glob]), theta)
            return alpha, torch.stack([two[0], torch.zeros_like(two[0]), two[1]])
        return alpha, self.softmax("2", at_x, torch.stack([at_x, at_mix, self.at_glob]), theta)

    def softmax(self, layer: str, at_x: Tensor, keys: Tensor, theta: Tree) -> Tensor:
        if self.method.phi_center:
            at_x, keys = at_x - self.at_glob, keys - self.at_glob
        wq, wk = theta["q" + layer].to(at_x), theta["k" + layer].to(at_x)
        query, keys = (wq * at_x, wk * keys) if self.method.projection == "diag" else (wq @ at_x, keys @ wk.T)
        if self.method.score == "cosine":
            query, keys = torch.nn.functional.normalize(query, dim=0), torch.nn.functional.normalize(keys, dim=1)
            return (theta["t" + layer].to(at_x) * (keys @ query)).softmax(0)
        return (keys @ query / math.sqrt(len(query))).softmax(0)

    def mix(self, x: Tree, alpha: Tensor, beta: Tensor) -> Tree:
        """x_i^hyb: one linear combination; alone, x^g stands for x_i^a."""

        def mixed(name: str, own: Tensor) -> Tensor:
            if name not in self.glob or not own.is_floating_point():
                return own
            b, glob = beta.to(own.dtype), self.glob[name]
            others: Tensor = glob
            if self.at_peers is not None:
                others = torch.tensordot(alpha.to(own.dtype), self.peers[name], dims=1)
            return b[0] * own + b[1] * others + b[2] * glob

        return {name: mixed(name, own) for name, own in x.items()}


@dataclass(frozen=True)
class HamOptimiser:
    """Adam for the first layer and plain SGD for the second (split), or one of them for both; sums gradient norms."""

    kind: Literal["split", "sgd", "adam"]

    def step(self, theta: Tree, grads: Tree, state: State, lr: Any) -> State:
        by_adam = {"split": LAYERS["first"], "sgd": (), "adam": (*LAYERS["first"], *LAYERS["second"])}[self.kind]
        state = dict(state)
        norms = [
            torch.stack([grads[n].float().square().sum() for n in names if n in grads]).sum().sqrt()
            if any(n in grads for n in names) else torch.zeros(())
            for names in LAYERS.values()
        ]  # fmt: skip
        state["slopes"] = state["slopes"] + torch.stack(norms).to(state["slopes"])
        parts: list[tuple[Optimiser, Tree]] = [
            (Adam(), {n: g for n, g in grads.items() if n in by_adam}),
            (SGD(), {n: g for n, g in grads.items() if n not in by_adam}),
        ]
        for opt, slopes in parts:
            if slopes:
                state.update(opt.step(theta, slopes, {slot: state[slot] for slot in ("m", "v", "t")}, lr))
        return state


def attended(model: Tree, arch: Arch) -> list[str]:
    return [name for name in model if name in arch.trainable]


def vectors(x: Tree, names: list[str], stacked: bool = False) -> Tensor:
    """Models as vectors over `names`; stacked ones as rows."""
    return torch.cat([x[name].flatten(1 if stacked else 0) for name in names], dim=-1)


CHUNK = 1 << 20
PRIME = 2_147_483_647


def sketch(x: Tree, q: int, seed: int, stacked: bool) -> Tensor:
    """Count-sketch of all values: entry i goes to bucket h(i) with sign s(i), the same for everybody."""
    a, b, c, d = (int(v) for v in schedule.rng(seed, "sketch").integers(1, PRIME, 4))
    rows = len(next(iter(x.values()))) if stacked else 1
    first = next(iter(x.values()))
    total, offset = first.new_zeros(rows, q), 0
    for value in x.values():
        flat = value.reshape(rows, -1)
        for part in flat.split(CHUNK, dim=1):  # type: ignore[no-untyped-call]
            place = torch.arange(offset, offset + part.shape[1], device=part.device)
            bucket = (a * place + b) % PRIME % q
            sign = 1 - 2 * ((c * place + d) % PRIME % 2)
            total = total.index_add(1, bucket, part * sign.to(part.dtype))
            offset += part.shape[1]
    return total if stacked else total[0]
