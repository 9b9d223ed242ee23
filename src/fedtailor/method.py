"""The contract of a personalised method: a frozen dataclass of pure hooks, whose defaults spell FedAvg.

The fields of the dataclass are the paper's hyper-parameters. Only the driver calls hooks, always on the outermost
method; no hook calls another one. Personal names are the driver's business: a method says which they are, and never
filters a name itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedtailor import schedule, tree
from fedtailor.arch import Arch
from fedtailor.local import Client, descend
from fedtailor.registry import WrongInput
from fedtailor.tree import State, Tree

Point = Literal["received", "trained", "adapted"]


class MethodNote(UserWarning):
    """What a method has to say of its settings: a null point, a plug-in without effect."""


@dataclass(frozen=True)
class Fed:
    """What a server hook may know of the federation."""

    arch: Arch
    n: int
    sizes: Tensor  # training rows of each client
    groups: tuple[int, ...]
    round: int  # from 1; 0 before the first
    rounds: int
    seed: int
    public: Client | None = None  # a client of the public rows, where there are any: the server may train on them

    def random(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Uniform numbers in [0, 1), a function of seed, round and purpose."""
        return torch.rand(shape, generator=schedule.torch_rng(self.seed, "server", purpose, self.round))


@dataclass(frozen=True)
class Payload:
    """Server to the k clients of an exchange."""

    common: State = field(default_factory=dict)  # the same for all, sent once; "model" is the model
    own: State = field(default_factory=dict)  # leading dimension k: row i for client i of the exchange
    peers: Tree = field(default_factory=dict)  # other clients' models, stacked
    peer_ids: Tensor | None = None  # [k, m]: rows of `peers` that client i may see, padded with -1
    static: Mapping[str, int] = field(default_factory=dict)  # equal for all; may be branched on


@dataclass(frozen=True)
class Received:
    """What one client holds after the driver unpacked its message."""

    model: Tree
    extra: State = field(default_factory=dict)
    peers: Tree = field(default_factory=dict)  # only those this client may see
    peer_ids: Tensor | None = None
    me: int = 0
    static: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Fitted:
    """What `fit` gives: the trained model and `extra` go to the server, less what is personal; `state` stays."""

    model: Tree
    state: State
    extra: State = field(default_factory=dict)


def worth_trying(**values: tuple[Any, ...]) -> Mapping[str, tuple[Any, ...]]:
    """Values of a method's parameters, three or more each, that `fedtailor tune` tries beside the one given."""
    return MappingProxyType(values)


class Method:
    """FedAvg, spelled as hooks. Override what your method does differently."""

    point: ClassVar[Point] = "received"  # what is tested by default
    weighting: ClassVar[Literal["size", "uniform"]] = "size"  # of the mean over clients
    trains: ClassVar[Literal["cohort", "all"]] = "cohort"
    sees: ClassVar[Literal["sums", "models"]] = "sums"  # what the server must see to do its part
    public_share: ClassVar[float] = 0.0  # of every client's training rows, made public where the data have none
    finish_epochs: ClassVar[int] = 0  # of local tuning after the last round, where the run does not say
    learns_start: ClassVar[bool] = False  # mixes models on the client by what it learned: no plug-in may do so as well
    init_all: ClassVar[bool] = False  # clients outside the cohort are tested with a `start` of their own
    pools: ClassVar[bool] = False  # trains one client on everybody's rows: a bound, not a federation
    grid: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType({})  # by `worth_trying`
    paper: ClassVar[str] = ""  # who proposed it, in a line
    citation: ClassVar[str] = ""  # BibTeX

    def build(self, net: nn.Module) -> nn.Module:
        """Model surgery; the network is the method's own copy."""
        return net

    def personal(self, arch: Arch) -> frozenset[str]:
        """Names that never leave the client."""
        return frozenset()

    def own_init(self, arch: Arch) -> frozenset[str]:
        """Names whose initial values each client draws for itself."""
        return frozenset()

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        """What a user should know of these settings: a null point, a plug-in without effect."""
        yield from ()

    def init_client(self, fed: Fed, model: Tree) -> State:
        """A client's state before the first round."""
        return {}

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        """The model that local training starts from."""
        return got.model, state

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        """Local training."""
        return Fitted(descend(client, model).theta, state)

    def personalised(self, client: Client, state: State, got: Received) -> Tree | None:
        """The adapted model for testing, where the method has one; `got.model` is what `start` made of the message."""
        return None

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        """Small named tensors, of constant shape, that show what the client learned.

        docs/reference/run-folder.md has the names by which they are drawn. They are the client's: a simulation records
        them, a real site hands them on only where it has agreed to.
        """
        return {}

    def init_server(self, fed: Fed, model: Tree) -> State:
        """The server's state before the first round; `model` holds shared names only."""
        return {"model": model}

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        """What the server sends to the clients of an exchange."""
        return Payload(common={"model": server["model"]})

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        """The new server state from the stacked uploads `{"model": ..., "extra": ...}`."""
        return {**server, "model": tree.mean(uploads["model"], weights)}

    def explain_server(self, fed: Fed, server: State) -> dict[str, Tensor]:
        """Small named tensors, of constant shape, that show what the server learned from what it was sent."""
        return {}

    def __repr__(self) -> str:
        """As the command line reads it: `Proximal(FedAvg(), mu=0.1)`."""
        own = {f.name: getattr(self, f.name) for f in fields(self)} if is_dataclass(self) else dict[str, object]()
        parts = [repr(v) if isinstance(v, Method) else f"{name}={written(v)}" for name, v in own.items()]
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, repr=False)
class Wrapper(Method):
    """A plug-in around another method: forwards every hook; keeps the inner state under "inner"."""

    inner: Method

    @property
    def point(self) -> Point:  # type: ignore[override]
        return self.inner.point

    @property
    def weighting(self) -> Literal["size", "uniform"]:  # type: ignore[override]
        return self.inner.weighting

    @property
    def trains(self) -> Literal["cohort", "all"]:  # type: ignore[override]
        return self.inner.trains

    @property
    def sees(self) -> Literal["sums", "models"]:  # type: ignore[override]
        return self.inner.sees

    @property
    def learns_start(self) -> bool:  # type: ignore[override]
        return self.inner.learns_start

    @property
    def init_all(self) -> bool:  # type: ignore[override]
        return self.inner.init_all

    @property
    def pools(self) -> bool:  # type: ignore[override]
        return self.inner.pools

    @property
    def public_share(self) -> float:  # type: ignore[override]
        return self.inner.public_share

    @property
    def finish_epochs(self) -> int:  # type: ignore[override]
        return self.inner.finish_epochs

    def build(self, net: nn.Module) -> nn.Module:
        return self.inner.build(net)

    def personal(self, arch: Arch) -> frozenset[str]:
        return self.inner.personal(arch)

    def own_init(self, arch: Arch) -> frozenset[str]:
        return self.inner.own_init(arch)

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        yield from self.inner.notes(arch, n)

    def init_client(self, fed: Fed, model: Tree) -> State:
        return {"inner": self.inner.init_client(fed, model)}

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        model, inner = self.inner.start(client, state["inner"], got)
        return model, {**state, "inner": inner}

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        fitted = self.inner.fit(client, state["inner"], model, got)
        return Fitted(fitted.model, {**state, "inner": fitted.state}, fitted.extra)

    def personalised(self, client: Client, state: State, got: Received) -> Tree | None:
        return self.inner.personalised(client, state["inner"], got)

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        return self.inner.explain(client, state["inner"], got)

    def init_server(self, fed: Fed, model: Tree) -> State:
        return {"inner": self.inner.init_server(fed, model)}

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        return self.inner.send(fed, server["inner"], cohort)

    def aggregate(self, fed: Fed, server: State, uploads: State, weights: Tensor, cohort: Tensor) -> State:
        return {**server, "inner": self.inner.aggregate(fed, server["inner"], uploads, weights, cohort)}

    def explain_server(self, fed: Fed, server: State) -> dict[str, Tensor]:
        return self.inner.explain_server(fed, server["inner"])


def written(value: object) -> str:
    """A field's value as it is printed: a function of one's own by its name, in brackets that no text has."""
    if callable(value):
        return f"<your own {getattr(value, '__name__', type(value).__name__)}>"
    return repr(value)


def short(method: Method) -> str:
    """`LocalAttention(FedBN, kind='se')`: the text of a method less what is as by default."""
    parts: list[str] = []
    if is_dataclass(method):
        for field in fields(method):
            value = getattr(method, field.name)
            if value != field.default:
                parts.append(short(value) if isinstance(value, Method) else f"{field.name}={written(value)}")
    return f"{type(method).__name__}({', '.join(parts)})".removesuffix("()")


def overrides(method: Method, hook: str) -> bool:
    """Whether a method, or one that it wraps, has its own version of a hook."""
    while isinstance(method, Wrapper):
        if getattr(type(method), hook) is not getattr(Wrapper, hook):
            return True
        method = method.inner
    return getattr(type(method), hook) is not getattr(Method, hook)


def require(holds: bool, method: str, what: str) -> None:
    """Check a hyper-parameter: `require(mu >= 0, "Proximal", "mu must be 0 or more")`."""
    if not holds:
        raise WrongInput(f"{method}: {what}")
