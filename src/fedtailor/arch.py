"""A network as a pure function of a tree, with the roles and layers that methods speak of.

Roles are found by module type, never by a part of a name: batch norm called `downsample.1` is batch norm.
A *layer* is a linear, convolution, recurrent or embedding module (or any other module with parameters of its own)
together with the norm that follows it, in the order in which the network registers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from fedtailor import schedule
from fedtailor.pixels import unpacked
from fedtailor.registry import WrongInput
from fedtailor.tree import Tree

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)
OUTPUTS = (nn.Linear, nn.Bilinear, _ConvNd)

Role = Literal["trained", "frozen", "statistic", "counter"]


class Arch:
    """`apply(model, x)` for a network, and the names of its parts."""

    def __init__(self, net: nn.Module):
        self.net = net
        self._steps = pooled_first(net)
        self.layout = ""  # of pictures in memory; "channels_last" may be faster, to the same numbers but for rounding
        parameters = dict(net.named_parameters())
        buffers = {name: b for name, b in net.named_buffers() if name in net.state_dict()}
        self.names = tuple([*parameters, *buffers])
        slashed = next((name for name in self.names if "/" in name), None)
        if slashed is not None:
            raise WrongInput(f"the tensor {slashed!r} has a / in its name, which separates parts of paths; rename it")
        named = {id(tensor): name for name, tensor in [*parameters.items(), *buffers.items()]}
        # every module's own table of tensors, the entry in it, and the name of its value, which tied ones share
        self._places: list[tuple[Any, str, str, Any]] = [
            (table, leaf, named[id(tensor)], tensor)
            for module in net.modules()
            for table in (module._parameters, module._buffers)
            for leaf, tensor in table.items()
            if id(tensor) in named
        ]
        self.trainable = frozenset(name for name, p in parameters.items() if p.requires_grad)
        self.buffers = frozenset(buffers)
        self.counters = frozenset(name for name, b in buffers.items() if not b.is_floating_point())
        self.norm = self.of_type(*NORMS)
        self.statistics = frozenset(name for name in self.of_type(_NormBase) if name in self.buffers)
        self.layers = {layer: names for layer, names in self._layers()}
        self.head_layer = self._head_layer()
        prefix = f"{self.head_layer}." if self.head_layer else ""
        self.head = frozenset(name for name in self.trainable if name.startswith(prefix))
        for name, module in net.named_modules():
            if isinstance(module, _NormBase) and module.momentum is None and module.track_running_stats:
                raise WrongInput(
                    f"the norm {name!r} has momentum=None, whose running mean depends on a counter; give it a momentum"
                )

    def of_type(self, *types: type[nn.Module]) -> frozenset[str]:
        """Names of all tensors inside modules of these types."""
        found = set()
        for path, module in self.net.named_modules():
            if isinstance(module, types):
                prefix = f"{path}." if path else ""
                found |= {name for name in self.names if name.startswith(prefix)}
        return frozenset(found)

    def role(self, name: str) -> Role:
        if name in self.trainable:
            return "trained"
        if name not in self.buffers:
            return "frozen"
        return "counter" if name in self.counters else "statistic"

    def values(self) -> Tree:
        """The network's own values, copied."""
        own = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        return {name: own[name].detach().clone() for name in self.names}

    def draw(self, names: frozenset[str], seed: int, *who: int | str) -> Tree:
        """Initial values of `names`, drawn anew by (seed, module, who), as their modules draw them."""
        drawn: Tree = {}
        for path, module in self.net.named_modules():
            own = {f"{path}.{leaf}" if path else leaf: value for leaf, value in _own(module)}
            if not names & own.keys():
                continue
            before = {name: value.detach().clone() for name, value in own.items()}
            reset: Callable[[], None] | None = getattr(module, "reset_parameters", None)
            if reset is None:
                raise WrongInput(
                    f"the module {path!r} must draw its own start; give {type(module).__name__} a reset_parameters()"
                )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(schedule.torch_seed(seed, "init", path, *who))
                reset()
            drawn |= {name: value.detach().clone() for name, value in own.items() if name in names}
            with torch.no_grad():
                for name, value in own.items():
                    value.copy_(before[name])
        return drawn

    def apply(self, model: Tree, x: Tensor, train: bool = True) -> tuple[Tensor, Tree]:
        """The network's output with the values of `model`, and the buffers as the pass leaves them.

        Pictures may be bytes: the network is given numbers from -1 to 1.
        The values stand in the network's places for one pass, as in torch.func.functional_call, whose checks of names
        at each call take longer than a small network's step.
        """
        if self.net.training is not train:
            self.net.train(train)
        with torch.no_grad():  # a copy, for batch norm moves its statistics in place
            buffers = {name: model[name].clone() if train else model[name] for name in self.buffers}
        values = {**model, **buffers} if buffers else model
        if self.names:
            x = unpacked(x, model[self.names[0]].dtype)
        if self.layout and x.ndim == 4:
            x = channels_last(x)
        try:
            for place, leaf, name, _ in self._places:
                place[leaf] = values[name]
            out: Tensor = x
            for step in self._steps:
                out = step(out)
        finally:
            for place, leaf, _, own in self._places:
                place[leaf] = own
        return out, buffers

    def features(self, model: Tree, x: Tensor, train: bool = True) -> Tensor:
        """The input of the last layer, flat per sample."""
        seen: list[Tensor] = []
        last = self.net.get_submodule(self.head_layer)
        hook = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self.apply(model, x, train)
        finally:
            hook.remove()
        return seen[-1].flatten(1)

    def module(self, model: Tree, into: nn.Module | None = None) -> nn.Module:
        """An ordinary module with the values of `model`, counters included; `into` is filled, strictly."""
        net = self.net if into is None else into
        same = {id(tensor): name for name, tensor in self.net.state_dict(keep_vars=True).items() if name in model}
        state = {name: model[same[id(tensor)]] for name, tensor in self.net.state_dict(keep_vars=True).items()}
        net.load_state_dict(state, strict=True)
        return net.eval()

    def _layers(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        layer = ""
        names: list[str] = []
        for path, module in self.net.named_modules():
            own = [name for leaf, _ in _own(module) if (name := f"{path}.{leaf}" if path else leaf) in self.names]
            if not own:
                continue
            if isinstance(module, NORMS) and names:
                names += own
                continue
            if names:
                yield layer, tuple(names)
            layer, names = path or "net", own
        if names:
            yield layer, tuple(names)

    def _head_layer(self) -> str:
        """The path of the last linear (or convolution) layer."""
        paths = [path for path, module in self.net.named_modules() if isinstance(module, OUTPUTS)]
        return paths[-1] if paths else ""


def pooled_first(net: nn.Module) -> list[nn.Module]:
    """What a network does one after the other. Where the largest of some numbers follows a ReLU it is taken first: the
    same numbers and gradients, for both keep the order of values, and the ReLU has fewer of them to look at."""
    hooked = net._forward_pre_hooks or net._forward_hooks or net._backward_pre_hooks or net._backward_hooks
    if type(net) is not nn.Sequential or hooked:  # whoever listens to the whole network is told of it
        return [net]
    steps = list(net)
    for place, (one, after) in enumerate(pairwise(net)):
        if type(one) is nn.ReLU and type(after) is nn.MaxPool2d and not after.return_indices:
            steps[place : place + 2] = after, one
    return steps if steps != list(net) else [net]


def channels_last(x: Tensor) -> Tensor:
    """Pictures with the channels of a pixel beside each other. With one channel that is how they lie already, but only
    their strides say so: else the first convolution answers in the other layout, and all that follows is slow."""
    _, channels, height, width = x.shape
    if channels == 1 and x.is_contiguous():
        return x.as_strided(x.shape, (height * width, 1, width, 1))
    return x.contiguous(memory_format=torch.channels_last)


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)
