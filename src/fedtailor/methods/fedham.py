"""FedHAM: each client learns a two-layer attention over other clients' models, and starts from what it attends to.

Gao, Wang, Liu, Zhang and Ma, "Configure Your Federation: Hierarchical Attention-enhanced Meta-Learning Network for
Personalized Federated Learning", ACM Transactions on Intelligent Systems and Technology 14(4), 2023.

    first layer   x_i^a = sum_j alpha_j x_j over the other clients of the cluster,
                  alpha = softmax_j <Wq1 phi(x_i), Wk1 phi(x_j)> / sqrt(d_att)             Eq. 3 to 6
    second layer  x_i^hyb = sum_r beta_r v_r,  v = (x_i, x_i^a, x^g),
                  beta = softmax_r <Wq2 phi(x_i), Wk2 phi(v_r)> / sqrt(d_att)              Eq. 7 to 9
    rounds 1..p   x_i <- x^g, then E epochs of SGD: FedAvg                                 Eq. 12
    later         Theta_i <- E epochs on F_i(H_Theta(x^g, X)), all models constant         Eq. 10, 13
                  x_i <- H_Theta(x^g, X)                                                   Eq. 14
                  E epochs of SGD on F_i(x_i); uploads x_i                                 Eq. 11, 15
    server        x^g <- sum_i n_i / n * x_i; clusters the x_i                             Alg. 1

Deviations: (1) phi and the shape of the W are not given; a common count-sketch of the parameters keeps Theta small
(`projection`). (2) The scores are multiplied with the raw models, which Eq. 4 to 6 leave out and the text requires.
(3) One rate is printed for both parts of Theta; with it the second layer turns to x_i before the first has moved, so
the first layer is learned with Adam (`ham_optimizer`). (4) Algorithm 2 resets x_i inside the loop over epochs; here all
epochs on Theta come first (`alternate`). (5) A client alone in its cluster has x_i^a = x^g, and one that was never
drawn before has x_i = x^g. (6) The server is told two numbers beside the model: the training loss, for p="auto", and
the weight beta on x_i, to warn of a federation that has turned into training alone.

    >>> federate(RunSpec.of(federation, FedHAM(p=10)), federation)
"""

from __future__ import annotations

import math
import typing
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedtailor import schedule, tree
from fedtailor.arch import Arch
from fedtailor.local import SGD, Adam, Batch, Client, Descent, descend
from fedtailor.method import Fed, Fitted, Method, MethodNote, Payload, Received, require, worth_trying
from fedtailor.methods import clusters, mixing
from fedtailor.registry import fits, register, spell
from fedtailor.tree import State, Tree

# the parts of Theta: Wq, Wk and, for cosines, a temperature; no parameter of a model has a name that starts with a dot
FIRST, SECOND = (".q1", ".k1", ".t1"), (".q2", ".k2", ".t2")
STALE = 5  # rounds over which "auto" looks for an improvement of 1 %
CHUNK = 1 << 20  # entries sketched at a time
OWN = 0.95  # a mean weight on x_i that is warned of


@register("method", "FedHAM", "HAM")
@dataclass(frozen=True, repr=False)
class FedHAM(Method):
    """Learns a two-layer attention over the other clients' models and the global one."""

    p: int | Literal["auto"] = 10  # $p$, rounds of warm-up; auto: until the mean training loss stops falling
    k: int = 1  # $k$, clusters
    grouping: clusters.Grouping = "kmeans"
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

    grid = worth_trying(ham_lr=(0.0003, 0.001, 0.003))
    point = "trained"
    sees = "models"
    learns_start = True
    paper = "Gao et al., TIST 2023"
    citation = """@article{gao2023configure,
  title   = {Configure Your Federation: Hierarchical Attention-enhanced Meta-Learning Network for Personalized
             Federated Learning},
  author  = {Gao, Yujia and Wang, Pengfei and Liu, Liang and Zhang, Chi and Ma, Huadong},
  journal = {ACM Transactions on Intelligent Systems and Technology},
  volume  = {14},
  number  = {4},
  year    = {2023}
}"""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for name, value in ((field.name, getattr(self, field.name)) for field in fields(self)):
            require(fits(value, hints[name]), "FedHAM", f"{name}={value!r} must be {spell(hints[name])}")
        for name, least in {"p": 0, "k": 1, "q": 1, "h": 1, "ham_lr": 0, "lam": 0}.items():
            value = getattr(self, name)
            require(value == "auto" or least <= value < math.inf, "FedHAM", f"{name}={value} must be {least} or more")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        no_peers, meanshift = self.layers == "second", self.grouping == "meanshift"
        if n == 1:
            yield "FedHAM: a single client has nobody to attend to"
        elif self.k >= n and self.grouping == "kmeans" and not no_peers:
            yield f"FedHAM: k={self.k} clusters of {n} clients leave every client alone"
        if not all(self.rate(part, 1.0) for part in self.learned):
            zero = "lam=0" if self.lam == 0 else "ham_lr=0"
            yield f"FedHAM: {zero} takes no step on attention that is to be learned; it stays as it was drawn"
        inert = {
            "k": no_peers or meanshift, "grouping": no_peers, "q": self.projection != "sketch",
            "h": self.projection == "diag", "ham_lr": not set(self.by_adam) & set(self.learned),
            "lam": self.lam > 0 and set(self.learned) <= set(self.by_adam) and not self.exact_objective,
        }  # fmt: skip
        for option, value in ((option, getattr(self, option)) for option in inert if inert[option]):
            if value != getattr(FedHAM, option):
                yield f"FedHAM: {option}={value!r} has no effect in {self!r}"

    @property
    def learned(self) -> tuple[str, ...]:
        return {"both": FIRST + SECOND, "first": FIRST, "second": SECOND}[self.layers]

    @property
    def by_adam(self) -> tuple[str, ...]:
        """The parts of Theta that Adam learns; plain SGD learns the others."""
        rule = self.ham_optimizer or ("adam" if self.projection == "diag" else "split")
        return {"split": FIRST, "sgd": (), "adam": FIRST + SECOND}[rule]

    def rate(self, part: str, lr: float) -> float:
        # Adam does not see the scale lambda gives a gradient, but at 0 there is none
        return self.ham_lr * (self.lam > 0) if part in self.by_adam else lr * self.lam

    # the client

    def init_client(self, fed: Fed, model: Tree) -> State:
        like, diag = next(iter(model.values())), self.projection == "diag"
        # names that a plug-in keeps private leave the last columns unused
        width = self.q if self.projection == "sketch" else sum(model[name].numel() for name in fed.arch.trainable)
        shape = (width,) if diag else (self.h, width)
        draw = schedule.torch_rng(fed.seed, "ham")  # the same for all: what differs is what they learn
        theta = {part: 2 * torch.rand(shape, generator=draw) - 1 for part in (".q1", ".k1", ".q2", ".k2")}
        bound = math.sqrt(3 if diag else 6 / sum(shape))  # Xavier's, or variance 1: the scores start almost equal
        theta = {part: bound * w.to(like) for part, w in theta.items()}
        if self.tied:
            theta |= {".k1": theta[".q1"].clone(), ".k2": theta[".q2"].clone()}
        if self.score == "cosine":
            theta |= {".t1": like.new_tensor(5.0), ".t2": like.new_tensor(5.0)}
        return {
            "x": model, "seen": like.new_zeros(()), "theta": theta,
            "adam": {"m": tree.zeros(theta), "v": tree.zeros(theta), "t": {part: like.new_zeros(()) for part in theta}},
            "alpha": like.new_zeros(fed.n), "beta": like.new_zeros(3), "slopes": like.new_zeros(2),
        }  # fmt: skip

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        fresh = state["seen"] == 0
        return (got.model if got.static["warm"] else tree.where(fresh, got.model, state["x"])), state

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        if got.static["warm"]:
            done = descend(client, model)
        else:
            ham = Ham(self, client, got)
            # work counted in steps has no epochs to alternate
            turns, epochs = (client.epochs, 1) if self.alternate == "epoch" and client.epochs else (1, None)
            for turn in range(turns):
                state = self.learn(client, state, model, ham, epochs, stream=2 * turn + 1)
                model = ham(model, state["theta"])  # Eq. 14
                done = self.train(client, state["theta"], model, ham, epochs, stream=2 * turn)
                model = done.theta
        loss = done.mean_loss.to(state["seen"])
        after = {**state, "x": done.theta, "seen": torch.ones_like(state["seen"])}
        return Fitted(done.theta, after, {"loss": loss, "own": state["beta"][0]})

    def learn(self, client: Client, state: State, x: Tree, ham: Ham, epochs: int | None, stream: int) -> State:
        """Eq. 10 and 13: the steps on Theta, and what the attention has become."""
        at_x = ham.at(x)
        done = descend(
            client, state["theta"], lr={part: self.rate(part, client.lr) for part in state["theta"]},
            build=lambda theta, batch: ham.mix(x, *ham.weights(at_x, theta)),
            only=self.learned, opt=HamOptimiser(self.by_adam), epochs=epochs, stream=stream,
            opt_state={**state["adam"], "slopes": torch.zeros_like(state["slopes"])},
        )  # fmt: skip
        alpha, beta = ham.weights(at_x, done.theta)
        shown = torch.zeros_like(state["alpha"]).index_copy(0, ham.peer_ids, alpha[: len(ham.peer_ids)])
        adam = {slot: done.opt_state[slot] for slot in state["adam"]}
        slopes = done.opt_state["slopes"] / max(1, len(done.losses))
        return {**state, "theta": done.theta, "adam": adam, "alpha": shown, "beta": beta, "slopes": slopes}

    def train(self, client: Client, theta: Tree, x: Tree, ham: Ham, epochs: int | None, stream: int) -> Descent:
        """Eq. 11, or Eq. 15 as printed: the steps on x_i."""

        def both(model: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            loss, buffers = client.loss(model, batch)
            return loss + self.lam * client.loss(ham(model, theta), batch)[0], buffers

        return descend(client, x, loss=both if self.exact_objective else None, epochs=epochs, stream=stream)

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        if got.static["warm"]:
            return {}
        alpha: Tensor = state["alpha"]
        return {
            "alpha": alpha, "alpha entropy": -torch.xlogy(alpha, alpha).sum(), "alpha largest": alpha.max(),
            "beta[own,attended,global]": state["beta"],
            "gradient norm/first layer": state["slopes"][0], "gradient norm/second layer": state["slopes"][1],
        }  # fmt: skip

    # the server

    def init_server(self, fed: Fed, model: Tree) -> State:
        if self.p != "auto" and fed.rounds <= self.p:
            says = f"FedHAM: p={self.p} rounds of warm-up leave no round of {fed.rounds} for attention, and this is "
            warnings.warn(says + "FedAvg tested after local training", MethodNote, stacklevel=2)
        losses = torch.full((STALE + 1,), torch.inf)
        flags = {"warm": torch.ones(()), "warned": torch.zeros(())}
        return {"model": model, **mixing.keep(model, fed.n), "losses": losses, **flags}

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        common = {"model": server["model"]}
        warm = bool(server["warm"] > 0) if self.p == "auto" else fed.round <= self.p
        if warm or self.layers == "second":  # which attends to no peers, so none are sent
            return Payload(common=common, static={"warm": int(warm)})
        seen = clusters.padded(clusters.visible(server, fed, self.k, self.grouping), cohort)
        return Payload(common=common, peers=server["models"], peer_ids=seen, static={"warm": 0})

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        losses = torch.cat([server["losses"][1:], uploads["extra"]["loss"].mean()[None].to(server["losses"])])
        stale = losses[-1] >= 0.99 * losses[0]  # not 1 % better than STALE rounds ago
        turned = bool(uploads["extra"]["own"].mean() > OWN)
        if turned and server["warned"] == 0:  # said once in a run
            rate = "ham_lr" if ".q2" in self.by_adam else "lam"
            says = f"FedHAM: attention has turned to the clients' own models (mean beta above {OWN}), which is "
            says += f"training alone; learn the second layer more slowly ({rate}), or the first one only "
            says += "(layers='first')"
            warnings.warn(says, UserWarning, stacklevel=2)
        return {
            "model": tree.mean(uploads["model"], weights),
            **mixing.remember(server, uploads["model"], cohort, fed.round),
            "losses": losses, "warm": server["warm"] * (~stale).float(),
            "warned": torch.ones_like(server["warned"]) if turned else server["warned"],
        }  # fmt: skip


class Ham:
    """H for one client in one round: the models it may attend to, and their sketches, made once."""

    def __init__(self, method: FedHAM, client: Client, got: Received):
        arch = client.arch
        self.method, self.seed, self.glob = method, client.seed, got.model
        self.names = [name for name in arch.names if name in client.shared]
        # frozen tensors and counters are x_i's own, and so is what a plug-in keeps private
        self.mixed = (arch.trainable | (arch.buffers - arch.counters)) - client.private
        self.at_glob = self.at(got.model)
        ids = torch.arange(0) if got.peer_ids is None else got.peer_ids
        self.peer_ids = ids.to(self.at_glob.device)
        if len(ids):
            self.peers, self.at_peers = got.peers, self.phi(got.peers)
        else:  # alone: x^g stands for the others, so that x_i^a = x^g
            self.peers, self.at_peers = one_row(got.model), self.at_glob[None]

    def __call__(self, x: Tree, theta: Tree) -> Tree:
        return self.mix(x, *self.weights(self.at(x), theta))

    def at(self, x: Tree) -> Tensor:
        row: Tensor = self.phi(one_row(x))[0]
        return row

    def phi(self, models: Tree) -> Tensor:
        """What attention sees of stacked models, a row for each."""
        rows = [models[name].reshape(len(models[name]), -1) for name in self.names]
        return sketch(rows, self.method.q, self.seed) if self.method.projection == "sketch" else torch.cat(rows, dim=1)

    def weights(self, at_x: Tensor, theta: Tree) -> tuple[Tensor, Tensor]:
        """alpha over the peers (Eq. 5) and beta over (x_i, x_i^a, x^g) (Eq. 8)."""
        alpha = self.softmax("1", at_x, self.at_peers, theta)
        if self.method.layers == "first":
            return alpha, at_x.new_tensor([0.0, 1.0, 0.0])
        if self.method.layers == "second":
            own, glob = self.softmax("2", at_x, torch.stack([at_x, self.at_glob]), theta)
            return alpha, torch.stack([own, torch.zeros_like(own), glob])
        at_mix = alpha @ self.at_peers  # phi is linear
        return alpha, self.softmax("2", at_x, torch.stack([at_x, at_mix, self.at_glob]), theta)

    def softmax(self, layer: str, at_x: Tensor, keys: Tensor, theta: Tree) -> Tensor:
        """Att(Wq phi(x_i), Wk keys) of Eq. 4."""
        if self.method.phi_center:
            at_x, keys = at_x - self.at_glob, keys - self.at_glob
        wq, wk = (theta[f".{part}{layer}"][..., : len(at_x)] for part in "qk")
        query, keys = (wq * at_x, wk * keys) if self.method.projection == "diag" else (wq @ at_x, keys @ wk.T)
        scale: Tensor | float = len(query) ** -0.5
        if self.method.score == "cosine":
            query, keys, scale = normalize(query, dim=0), normalize(keys, dim=1), theta[f".t{layer}"]
        scores: Tensor = scale * (keys @ query)
        return scores.softmax(0)

    def mix(self, x: Tree, alpha: Tensor, beta: Tensor) -> Tree:
        """x_i^hyb; beta_2 x_i^a = sum_j (beta_2 alpha_j) x_j, so that no gradient has to keep x_i^a."""

        def mixed(name: str, own: Tensor) -> Tensor:
            b, a = beta.to(own.dtype), (beta[1] * alpha).to(own.dtype)
            others: Tensor = torch.tensordot(a, self.peers[name], dims=1)
            return b[0] * own + others + b[2] * self.glob[name]

        return {name: mixed(name, own) if name in self.mixed else own for name, own in x.items()}


@dataclass(frozen=True)
class HamOptimiser:
    """Adam for some parts of Theta and plain SGD for the others; adds up the gradient norm of either layer."""

    by_adam: Collection[str]

    def step(self, theta: Tree, grads: Tree, state: State, lr: Any) -> State:
        zero = torch.zeros_like(state["slopes"][0])
        squares = [sum((grads[n].square().sum() for n in layer if n in grads), zero) for layer in (FIRST, SECOND)]
        state = {**state, "slopes": state["slopes"] + torch.stack(squares).sqrt()}
        adam, sgd = tree.pick(grads, self.by_adam), tree.drop(grads, self.by_adam)
        if sgd:
            SGD().step(theta, sgd, {}, lr)
        return {**state, **Adam().step(theta, adam, state, lr)} if adam else state


def one_row(x: Tree) -> Tree:
    return {name: value[None] for name, value in x.items()}


def sketch(rows: list[Tensor], q: int, seed: int) -> Tensor:
    """Count-sketch of the joined rows: every entry is added to or taken from one of q sums, the same for everybody."""
    draw = schedule.torch_rng(seed, "sketch")
    total = rows[0].new_zeros(len(rows[0]), 2 * q)
    for row in rows:
        for part in row.split(CHUNK, dim=1):  # type: ignore[no-untyped-call]
            # a formula in place of these draws would add up what repeats in a model, such as the ones of a norm
            places = torch.randint(2 * q, (part.shape[1],), generator=draw)
            total = total.index_add(1, places.to(part.device), part)
    plus, minus = total.chunk(2, dim=1)
    return plus - minus
