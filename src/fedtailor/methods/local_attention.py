"""LocalAttention (pFedLA): attention blocks inside the shared network, which never leave their client.

Liang, Tian, Yang and Zhang, "Personalized Federated Learning with Local Attention", 2023.

    min (1/N) sum_i f_i(W_b, W_i,la)  over the base W_b and every client's attention W_i,la       Eq. 4
    client i: draws its own W_i,la once; each round W_i,b <- W_b                                  Alg. 1 lines 9, 15
              E epochs of SGD on (W_i,b, W_i,la) together; sends W_i,b                            lines 12-14
    W_b <- (1/N) sum_i W_i,b                                                                      line 6
    layer j:  h <- a_j * h                                                 pFedLA_s: one kind     Eq. 6
              h <- sum_k softmax(u_j)_k a_j^k * h                          pFedLA_h: all three    Eqs. 7, 8

Deviations: (1) as a plug-in it leaves the weighting to the method inside; `pFedLA`, the paper's method, takes the plain
mean of line 6. (2) Where the method inside has a penalty, a control variate or a distance, the attention is outside it:
it has no global counterpart. (3) Clients may be absent, and then keep their attention; the paper has all take part.

    >>> federate(RunSpec.of(federation, pFedLA(FedBN(), kind="eca")), federation)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import Client
from fedtailor.method import Fed, Fitted, Method, Received, Wrapper, require, worth_trying
from fedtailor.methods.fedavg import FedAvg
from fedtailor.nn.attention import CA, ECA, SE, AttentionBlock, Hybrid, Slot
from fedtailor.registry import register
from fedtailor.tree import State, Tree

Kind = Literal["se", "eca", "ca", "hybrid"]
Weighting = Literal["size", "uniform"]
OPTIONS = {"se_reduction": "se", "eca_kernel": "eca", "ca_reduction": "ca", "ca_hidden": "ca"}
SHOWN = 64  # training rows over which `explain` takes the mean of a mask


@register("method", "LocalAttention")
@dataclass(frozen=True, repr=False)
class LocalAttention(Wrapper):
    """Attention blocks in the slots of the network of `inner`, private to each client."""

    inner: Method
    kind: Kind = "hybrid"
    se_reduction: int | None = None  # r of SE; None: 4, and 16 from 64 channels on
    eca_kernel: int | None = None  # k of ECA; None: its adaptive rule, but at least 3
    ca_reduction: int = 32  # r of CA, whose width is at least 8
    ca_hidden: tuple[int, ...] | None = None  # or the widths of CA, slot by slot
    private: bool = True  # False: the attention is sent and averaged too, the paper's ablation
    grid = worth_trying(kind=("se", "eca", "ca", "hybrid"))
    weighting: Weighting | None = None  # type: ignore[assignment, misc]  # None: as `inner`

    paper = "Liang et al., 2023"
    citation = """@article{liang2023personalized,
  title   = {Personalized Federated Learning with Local Attention},
  author  = {Liang, Sicong and Tian, Junchao and Yang, Shujun and Zhang, Yu},
  journal = {arXiv preprint arXiv:2304.01783},
  year    = {2023}
}"""

    def __post_init__(self) -> None:
        name = "LocalAttention"
        require(self.kind in ("se", "eca", "ca", "hybrid"), name, f"kind={self.kind!r} must be se, eca, ca or hybrid")
        for option in ("se_reduction", "ca_reduction"):
            r = getattr(self, option)
            require(r is None or r >= 1, name, f"{option}={r} must be 1 or more, such as 4")
        k = self.eca_kernel
        require(k is None or (k >= 1 and k % 2 == 1), name, f"eca_kernel={k} must be odd and 1 or more, such as 3")
        require(
            self.weighting in (None, "size", "uniform"), name,
            f"weighting={self.weighting!r} must be 'size' or 'uniform', or None for that of the method inside",
        )  # fmt: skip
        widths = self.ca_hidden
        require(widths is None or all(m >= 1 for m in widths), name, f"ca_hidden={widths} must be widths of 1 or more")
        require(
            not (self.private and self.inner.public_share), name,
            f"the server of {self.inner!r} trains on public rows, and what is private to the clients it lacks; "
            "choose private=False, or an inner method such as FedAvg()",
        )  # fmt: skip
        object.__setattr__(self, "weighting", self.weighting or self.inner.weighting)

    def build(self, net: nn.Module) -> nn.Module:
        net = super().build(net)
        modules = net.named_modules(remove_duplicate=False)  # one Slot in two places is two slots
        places = [(path, module.channels) for path, module in modules if isinstance(module, Slot)]
        filled = any(isinstance(module, AttentionBlock) for module in net.modules())
        require(
            bool(places) or not filled, "LocalAttention",
            "the model has no place for attention left, as each holds a block already; use LocalAttention once, with "
            "kind='hybrid' for several kinds side by side",
        )  # fmt: skip
        require(
            bool(places), "LocalAttention",
            "the model has no place for attention; choose one that has, such as lenet_bn or alexnet_bn, or put a "
            "fedtailor.nn.Slot(channels) after a convolution of your own",
        )  # fmt: skip
        widths = (None,) * len(places) if self.ca_hidden is None else self.ca_hidden
        require(
            len(widths) == len(places), "LocalAttention",
            f"ca_hidden={self.ca_hidden} gives {len(widths)} widths, but the model has {len(places)} slots; "
            "give one for each",
        )  # fmt: skip
        like = next(net.parameters(), torch.zeros(()))
        with torch.random.fork_rng(devices=[]):  # what is drawn here is drawn again by name, from the run's seed
            for (path, channels), width in zip(places, widths, strict=True):
                parent, _, leaf = path.rpartition(".")
                setattr(net.get_submodule(parent), leaf, self.block(channels, width).to(like))
        return net

    def block(self, channels: int, width: int | None) -> AttentionBlock:
        kinds: dict[str, Callable[[], AttentionBlock]] = {
            "se": partial(SE, channels, self.se_reduction),
            "eca": partial(ECA, channels, self.eca_kernel),
            "ca": partial(CA, channels, self.ca_reduction, width),
        }
        return Hybrid({name: make() for name, make in kinds.items()}) if self.kind == "hybrid" else kinds[self.kind]()

    def personal(self, arch: Arch) -> frozenset[str]:
        inner, attention = super().personal(arch), arch.of_type(AttentionBlock)
        require(
            not inner or not inner <= attention, "LocalAttention",
            f"of what {self.inner!r} keeps private the model has nothing outside the attention blocks; "
            "choose one that has, such as lenet_bn",
        )  # fmt: skip
        return inner | attention if self.private else inner

    def own_init(self, arch: Arch) -> frozenset[str]:
        return super().own_init(arch) | (arch.of_type(AttentionBlock) if self.private else frozenset())

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        yield from super().notes(arch, n)
        for option, kind in OPTIONS.items():
            value = getattr(self, option)
            if self.kind not in (kind, "hybrid") and value != getattr(type(self), option):
                yield f"LocalAttention: {option}={value} has no effect with kind={self.kind!r}, which has no {kind}"
        if self.ca_hidden is not None and self.ca_reduction != type(self).ca_reduction:
            yield f"LocalAttention: ca_reduction={self.ca_reduction} has no effect beside ca_hidden={self.ca_hidden}"

    # The attention as last trained is kept for `explain`, which is given the model as it was received.

    def init_client(self, fed: Fed, model: Tree) -> State:
        attention = tree.pick(model, fed.arch.of_type(AttentionBlock))
        return {**super().init_client(fed, model), "attention": attention}

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        fitted = super().fit(client, state, model, got)
        attention = tree.pick(fitted.model, state["attention"])
        return Fitted(fitted.model, {**fitted.state, "attention": attention}, fitted.extra)

    def explain(self, client: Client, state: State, got: Received) -> dict[str, Tensor]:
        """The mixture of every layer, or the mean of its mask; also of the models that the inner method keeps."""
        shown = super().explain(client, state, got)
        attention, names = state["attention"], frozenset(client.arch.names)
        own = {"inner": {**got.model, **attention}}  # whole, unless the inner method sends no one model
        for path, model in [*holders(own, names, attention), *holders(state["inner"], names, attention)]:
            if self.kind == "hybrid":
                shown |= {f"mixture[SE,ECA,CA]/{path}{place}": u for place, u in mixtures(client.arch, model).items()}
            else:
                shown |= {f"mean mask/{path}{place}": a for place, a in means(client, model).items()}
        return shown


def holders(
    state: Mapping[str, Any], names: frozenset[str], attention: Tree, path: str = ""
) -> Iterator[tuple[str, Tree]]:
    """The whole models in a state, and where they are: Ditto's `v/`, pFedMe's `theta/`; no stacks of several."""
    for key, value in state.items():
        if isinstance(value, Mapping):
            where = path if key == "inner" else f"{path}{key}/"
            if names <= value.keys() and all(value[name].shape == a.shape for name, a in attention.items()):
                yield where, dict(value)
            else:
                yield from holders(value, names, attention, where)


def mixtures(arch: Arch, model: Tree) -> Tree:
    """Shares of SE, ECA and CA in each layer (Eq. 7)."""
    blocks = [path for path, module in arch.net.named_modules() if isinstance(module, Hybrid)]
    return {path: model[f"{path}.u"].softmax(0) for path in blocks}


def means(client: Client, model: Tree) -> Tree:
    """The mean of each layer's mask over the client's first training rows."""
    seen: Tree = {}

    def look(path: str, block: AttentionBlock, inputs: tuple[Tensor, ...]) -> None:
        seen[path] = block.mask(inputs[0]).mean()

    blocks = {path: block for path, block in client.arch.net.named_modules() if isinstance(block, AttentionBlock)}
    hooks = [block.register_forward_pre_hook(partial(look, path)) for path, block in blocks.items()]
    try:
        with torch.no_grad():
            client.arch.apply(model, client.x[client.rows[:SHOWN]], train=False)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@register("method", "pFedLA")
def pFedLA(
    inner: Method | None = None,
    kind: Kind = "hybrid",
    se_reduction: int | None = None,
    eca_kernel: int | None = None,
    ca_reduction: int = 32,
    ca_hidden: tuple[int, ...] | None = None,
    private: bool = True,
    weighting: Weighting = "uniform",
) -> LocalAttention:
    """LocalAttention as the paper prints it, with the plain mean over clients, on FedAvg where nothing is said."""
    sizes = (se_reduction, eca_kernel, ca_reduction, ca_hidden)
    return LocalAttention(inner or FedAvg(), kind, *sizes, private=private, weighting=weighting)
