"""Numbers that are counted off a network rather than reached by a run."""

from __future__ import annotations

from fedtailor import registry
from fedtailor.arch import Arch
from fedtailor.methods.fedala import AdaptiveLocalAggregation
from fedtailor.nn import make
from fedtailor.papers.preset import Count


def number_of(count: Count) -> int:
    """What is trained of the network that the method makes, or of it what ALA learns weights for."""
    method = registry.parse("method", count.method)
    arch = Arch(method.build(make(count.model, classes=count.classes, shape=count.shape, seed=0)))
    names = arch.trainable
    if count.what == "weights":
        assert isinstance(method, AdaptiveLocalAggregation)
        names = names & {name for layer in method.top(arch, method.p).values() for name in layer}
    values = arch.values()
    return sum(values[name].numel() for name in names)
