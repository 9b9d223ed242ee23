"""Each law is shown to catch a method that breaks it: a check that cannot fail proves nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedtailor import check_method, descend, tree
from fedtailor.contract import LAWS, BrokenLaw
from fedtailor.method import Fed, Fitted, Method, Payload, Received
from fedtailor.registry import WrongInput


class Loose(Method):
    """Not a dataclass, so that nothing says what it is."""


@dataclass(frozen=True, repr=False)
class Writes(Method):
    """Trains the received tensors themselves."""

    def fit(self, client, state, model, got):
        for tensor in model.values():
            if tensor.is_floating_point():
                tensor.mul_(0.9)
        return Fitted(model, state)


@dataclass(frozen=True, repr=False)
class Gambles(Method):
    """Draws from the global generator."""

    def fit(self, client, state, model, got):
        noisy = tree.join(lambda t: t + torch.randn_like(t) if t.is_floating_point() else t, model)
        return Fitted(noisy, state)


@dataclass(frozen=True, repr=False)
class Peeks(Method):
    """Branches on a value."""

    def start(self, client, state, got):
        return (got.model if sum(t.sum() for t in got.model.values()).item() > -1e9 else {}), state


@dataclass(frozen=True, repr=False)
class Leaks(Method):
    """Sends its personal head in `extra`, under another path that the driver does not know."""

    def personal(self, arch):
        return arch.head

    def init_server(self, fed: Fed, model):
        return {"model": model, "seen": {name: torch.zeros(1) for name in fed.arch.head}}


@dataclass(frozen=True, repr=False)
class FirstComes(Method):
    """Remembers who was called before: state outside the state."""

    calls: ClassVar[list] = []

    def fit(self, client, state, model, got):
        self.calls.append(client.number)
        scale = 1 + 0.01 * self.calls[-2:][0]
        return Fitted(tree.join(lambda t: t * scale if t.is_floating_point() else t, model), state)


@dataclass(frozen=True, repr=False)
class Drifts(Method):
    """A second run is not like the first."""

    calls: ClassVar[list] = []

    def fit(self, client, state, model, got):
        self.calls.append(client.number)
        return Fitted(descend(client, model, lr=0.1 / len(self.calls)).theta, state)


@dataclass(frozen=True, repr=False)
class Replaces(Method):
    """Puts another layer in place of the base's last one."""

    def build(self, net: nn.Module) -> nn.Module:
        return nn.Sequential(net[:-1], nn.Linear(18, 3))


@dataclass(frozen=True, repr=False)
class Counts(Method):
    """The server moves although nobody answered."""

    def init_server(self, fed, model):
        return {"model": model, "rounds": torch.zeros(())}

    def send(self, fed: Fed, server, cohort: Tensor) -> Payload:
        server["rounds"] += 1
        return Payload(common={"model": server["model"]})


@dataclass(frozen=True, repr=False)
class NeedsTwo(Method):
    """Breaks with a single client."""

    def aggregate(self, fed, server, uploads, weights, cohort):
        spread = tree.join(lambda t: t[0] - t[1] if t.is_floating_point() else t[0], uploads["model"])
        return {**server, "model": tree.join(torch.add, server["model"], tree.zeros(spread))}


@dataclass(frozen=True, repr=False)
class Curt(Method):
    """Refuses a model without saying which one would do."""

    def personal(self, arch):
        if not arch.norm:
            raise WrongInput("no")
        return arch.norm


@dataclass(frozen=True, repr=False)
class Narrows(Method):
    """Gives float32 whatever it gets."""

    def aggregate(self, fed, server, uploads, weights, cohort):
        return {"model": tree.join(lambda t: t.mean(0).float() if t.is_floating_point() else t[0], uploads["model"])}


@dataclass(frozen=True, repr=False)
class LearnsFromTests(Method):
    """Testing moves its state."""

    point = "adapted"

    def init_client(self, fed, model):
        return {"tests": torch.zeros(())}

    def fit(self, client, state, model, got):
        return Fitted(descend(client, model, lr=0.1 + 0.01 * float(state["tests"])).theta, state)

    def personalised(self, client, state, got):
        state["tests"].add_(1)
        return got.model


@dataclass(frozen=True, repr=False)
class Forgets(Method):
    """Keeps something that no checkpoint holds."""

    memory: ClassVar[dict] = {}

    def fit(self, client, state, model, got: Received) -> Fitted:
        key = (id(client.arch), client.number)
        seen = self.memory.get(key, 0)
        self.memory[key] = seen + 1
        return Fitted(descend(client, model, lr=0.1 / (1 + seen)).theta, state)


@dataclass(frozen=True, repr=False)
class Reuses(Method):
    """Writes the new mean into the old server model."""

    def aggregate(self, fed, server, uploads, weights, cohort):
        mean = tree.mean(uploads["model"], weights)
        for name, tensor in server["model"].items():
            tensor.copy_(mean[name])
        return server


@dataclass(frozen=True, repr=False)
class Tallies(Method):
    """Each call of its hook counts, however many clients it is for."""

    calls: ClassVar[list] = []

    def fit(self, client, state, model, got):
        self.calls.append(0)
        return Fitted(descend(client, model, lr=0.1 / len(self.calls)).theta, state)


BROKEN = {
    "is its own configuration": Loose,
    "has pure hooks": Writes,
    "looks at no data": Peeks,
    "keeps the private": Leaks,
    "forgets the order": FirstComes,
    "is repeatable": Drifts,
    "survives dropouts": Counts,
    "takes a cohort of one": NeedsTwo,
    "takes models with and without norm": Curt,
    "keeps types": Narrows,
    "is tested without trace": LearnsFromTests,
    "resumes": Forgets,
    "runs alike in every runner": Tallies,
    "leaves the base alone": Replaces,
    "gives values": Reuses,
}


def test_every_law_has_a_breaker() -> None:
    assert BROKEN.keys() == LAWS.keys()


@pytest.mark.parametrize("law", LAWS)
def test_the_law_catches_its_breaker(law: str) -> None:
    with pytest.raises(BrokenLaw, match=f"breaks the law '{law}'"):
        check_method(BROKEN[law](), laws=[law])


def test_global_random_numbers_are_found() -> None:
    with pytest.raises(BrokenLaw, match="global random numbers"):
        LAWS["has pure hooks"](Gambles())


@dataclass(frozen=True, repr=False)
class Grows(Method):
    """Shows one number more in each round."""

    def explain(self, client, state, got):
        return {"rounds": torch.zeros(client.round)}


@dataclass(frozen=True, repr=False)
class ShowsTallies(Method):
    """Counts the calls of its hook in what it shows."""

    calls: ClassVar[list] = []

    def explain(self, client, state, got):
        self.calls.append(0)
        return {"calls": torch.tensor(float(len(self.calls)))}


def test_what_is_explained_keeps_its_shape_and_is_the_same_in_every_runner() -> None:
    with pytest.raises(BrokenLaw, match="what is explained changes its shape: rounds"):
        LAWS["keeps types"](Grows())
    with pytest.raises(BrokenLaw, match=r"what is explained as \d/calls differs when clients are trained together"):
        LAWS["runs alike in every runner"](ShowsTallies())


def test_check_method_names_the_law_and_the_method() -> None:
    with pytest.raises(BrokenLaw, match=r"Narrows\(\) breaks the law 'keeps types'"):
        check_method(Narrows())


def test_a_sound_method_passes_all() -> None:
    @dataclass(frozen=True, repr=False)
    class HalfStep(Method):
        share: float = 0.5

        def aggregate(self, fed, server, uploads, weights, cohort):
            mean = tree.mean(uploads["model"], weights)
            return {**server, "model": tree.lerp(server["model"], mean, self.share)}

    assert check_method(replace(HalfStep(), share=0.3)) == list(LAWS)
