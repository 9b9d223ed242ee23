"""`descend` against torch.optim on an ordinary network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from small import ROWS, client_of, small_net
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor import SGD, Adam, Batch, Client, descend, tree


@pytest.fixture
def client() -> Client:
    return client_of(small_net())


def loop(
    client: Client,
    optimiser: Callable[[Any], torch.optim.Optimizer],
    *,
    clip: float = 0.0,
    steps: int | None = None,
    term: Callable[[nn.Module], Tensor] | None = None,
    before_step: Callable[[nn.Module], None] | None = None,
    after_step: Callable[[nn.Module], None] | None = None,
) -> tuple[tree.Tree, list[float]]:
    """Local training as one writes it by hand: an ordinary module and one of torch's optimisers."""
    net = copy.deepcopy(client.arch.net).train()
    opt = optimiser([parameter for parameter in net.parameters() if parameter.requires_grad])
    losses = []
    for batch in client.batches(steps=steps):
        opt.zero_grad()
        loss = F.cross_entropy(net(batch.x), batch.y)
        if term:
            loss = loss + term(net)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        if before_step:
            before_step(net)
        opt.step()
        if after_step:
            with torch.no_grad():
                after_step(net)
        losses.append(loss.item())
    return {name: value.detach() for name, value in net.state_dict().items()}, losses


def apart(a: tree.Tree, b: tree.Tree) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in b)


def same(a: tree.Tree, b: tree.Tree) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


ROUNDING = 1e-13


# ---------- optimisers ----------


@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9}, {"weight_decay": 0.3}, {"momentum": 0.7, "weight_decay": 0.1}],
    ids=["plain", "momentum", "decay", "both"],
)
def test_sgd_is_torchs(client: Client, settings: dict[str, float]) -> None:
    """Batch norm's statistics and counters included; what is frozen is not decayed."""
    start = client.arch.values()
    expected, losses = loop(client, lambda p: torch.optim.SGD(p, lr=0.2, **settings))
    got = descend(replace(client, opt=SGD(**settings)), start)
    assert apart(got.theta, expected) < ROUNDING
    assert len(losses) == 9 and torch.stack(got.losses).tolist() == pytest.approx(losses, abs=ROUNDING)
    assert apart(expected, start) > 0.1, "training moved something"
    assert torch.equal(got.theta["3.weight"], start["3.weight"])
    assert int(got.theta["1.num_batches_tracked"]) == 9


@pytest.mark.parametrize("limit", [0.05, 0.5, 100.0])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.1}], ids=["plain", "both"])
def test_clipping_is_torchs(client: Client, limit: float, settings: dict[str, float]) -> None:
    """The norm of the whole gradient, before decay and momentum; torch adds 1e-6 to the norm it divides by."""
    expected, _ = loop(client, lambda p: torch.optim.SGD(p, lr=0.2, **settings), clip=limit)
    got = descend(client, client.arch.values(), opt=SGD(clip=limit, **settings)).theta
    free = descend(client, client.arch.values(), opt=SGD(**settings)).theta
    assert apart(got, expected) < 1e-4 * max(apart(got, client.arch.values()), 1e-3)
    assert (apart(got, free) > 1e-3) is (limit < 100), "the limit takes effect"


def test_a_clipped_gradient_has_the_limit_for_its_norm() -> None:
    slopes = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    theta = tree.zeros(slopes)
    SGD(clip=2.5).step(theta, slopes, {}, 1.0)
    assert torch.allclose(theta["a"], torch.tensor([-1.5, 0.0])) and torch.allclose(theta["b"], torch.tensor([[-2.0]]))
    assert slopes["a"].tolist() == [3, 0], "a value, not changed"
    theta = tree.zeros(slopes)
    SGD(clip=2.5).step(theta, tree.zeros(slopes), {}, 1.0)
    assert same(theta, tree.zeros(slopes)), "a gradient of zero stays one"


@pytest.mark.parametrize("settings", [{}, {"beta1": 0.5, "beta2": 0.9, "eps": 1e-3}], ids=["usual", "other"])
def test_adam_is_torchs(client: Client, settings: dict[str, float]) -> None:
    betas = (settings.get("beta1", 0.9), settings.get("beta2", 0.999))
    expected, _ = loop(client, lambda p: torch.optim.Adam(p, lr=0.01, betas=betas, eps=settings.get("eps", 1e-8)))
    got = descend(client, client.arch.values(), opt=Adam(**settings), lr=0.01).theta
    assert apart(got, expected) < 1e-5 * apart(expected, client.arch.values())


def test_what_has_no_gradient_does_not_move() -> None:
    """torch.optim passes over a parameter that the loss does not use: no decay, no momentum."""

    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(x)
            return out

    torch.manual_seed(0)
    client = client_of(Spare().double())
    settings = {"momentum": 0.9, "weight_decay": 0.1}
    expected, _ = loop(client, lambda p: torch.optim.SGD(p, lr=0.2, **settings))
    got = descend(client, client.arch.values(), opt=SGD(**settings)).theta
    assert apart(got, expected) < ROUNDING
    assert torch.equal(got["spare.weight"], client.arch.values()["spare.weight"])


@pytest.mark.parametrize("opt", [SGD(momentum=0.9, weight_decay=0.1), Adam()], ids=["sgd", "adam"])
def test_a_state_carried_on_is_one_longer_descent(opt: SGD | Adam) -> None:
    """On a single row, so that both halves have the same batches."""
    torch.manual_seed(0)
    client = client_of(nn.Linear(4, 3).double(), rows=ROWS[:1], smallest=1, opt=opt)
    longer = descend(client, client.arch.values(), steps=7)
    first = descend(client, client.arch.values(), steps=3)
    second = descend(client, first.theta, steps=4, opt_state=first.opt_state)
    assert same(second.theta, longer.theta)
    assert same(tree.flatten(second.opt_state), tree.flatten(longer.opt_state))
    forgotten = descend(client, first.theta, steps=4)
    assert apart(forgotten.theta, longer.theta) > 1e-4, "the state matters"
    assert all(isinstance(t, Tensor) for t in tree.flatten(longer.opt_state).values()), "it can be kept"


# ---------- terms, corrections, constraints ----------


def test_a_penalty_is_a_term_of_the_objective(client: Client) -> None:
    """In its own argument or in the client's; both together count twice."""
    start, mu = client.arch.values(), 0.8
    anchor = {name: value + 0.3 if value.is_floating_point() else value for name, value in start.items()}

    def term(net: nn.Module, times: int = 1) -> Tensor:
        pairs = [(p, anchor[name]) for name, p in net.named_parameters() if p.requires_grad]
        return times * mu / 2 * torch.stack([(p - a).square().sum() for p, a in pairs]).sum()

    def penalty(theta: tree.Tree) -> Tensor:
        return mu / 2 * tree.sqdist(theta, anchor, client.arch.trainable)

    expected, losses = loop(client, lambda p: torch.optim.SGD(p, lr=0.2), term=term)
    own = descend(client, start, penalty=penalty)
    clients = descend(client.with_penalty(penalty), start)
    assert apart(own.theta, expected) < ROUNDING and apart(clients.theta, expected) < ROUNDING
    assert torch.stack(own.losses).tolist() == pytest.approx(losses), "losses are those of the whole objective"
    twice, _ = loop(client, lambda p: torch.optim.SGD(p, lr=0.2), term=lambda net: term(net, 2))
    assert apart(descend(client.with_penalty(penalty), start, penalty=penalty).theta, twice) < ROUNDING
    assert client.penalties == ()


def test_a_correction_is_added_to_the_gradient(client: Client) -> None:
    """As SCAFFOLD's; a name that is not in it is not corrected."""
    added = {"0.weight": torch.full((6, 4), 0.3, dtype=torch.float64), "5.bias": torch.arange(3.0).double()}

    def before_step(net: nn.Module) -> None:
        for name, parameter in net.named_parameters():
            if name in added:
                parameter.grad += added[name]  # type: ignore[misc]

    expected, _ = loop(client, lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.5), before_step=before_step)
    got = descend(client, client.arch.values(), correct=added, opt=SGD(momentum=0.5)).theta
    assert apart(got, expected) < ROUNDING


def test_a_projection_follows_every_step(client: Client) -> None:
    def after_step(net: nn.Module) -> None:
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.clamp_(-0.25, 0.25)

    expected, _ = loop(client, lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9), after_step=after_step)
    bounds = lambda theta: {n: t.clamp(-0.25, 0.25) for n, t in theta.items()}  # noqa: E731
    got = descend(client, client.arch.values(), project=bounds, opt=SGD(momentum=0.9)).theta
    assert apart(got, expected) < ROUNDING
    assert all(float(got[name].abs().max()) <= 0.25 for name in client.arch.trainable)


# ---------- what is trained, and how fast ----------


def test_only_some_names_move(client: Client) -> None:
    head, start = {"5.weight", "5.bias"}, client.arch.values()
    expected, _ = loop(client, lambda p: torch.optim.SGD(p[-2:], lr=0.2, momentum=0.9))
    got = descend(client, start, only=head, opt=SGD(momentum=0.9)).theta
    assert apart(got, expected) < ROUNDING
    still = client.arch.trainable - head
    assert same(tree.pick(got, still), tree.pick(start, still))


def test_what_moves_may_change_with_the_step(client: Client) -> None:
    """A step on the head, a step on the first layer, and so on: two of torch's optimisers in turn."""
    parts = [{"5.weight", "5.bias"}, {"0.weight", "0.bias"}]
    got = descend(client, client.arch.values(), only=lambda step: parts[step % 2]).theta
    net = copy.deepcopy(client.arch.net).train()
    opts = [torch.optim.SGD(net[5].parameters(), lr=0.2), torch.optim.SGD(net[0].parameters(), lr=0.2)]
    for batch in client.batches():
        net.zero_grad()
        F.cross_entropy(net(batch.x), batch.y).backward()
        opts[batch.step % 2].step()
    assert apart(got, net.state_dict()) < ROUNDING


def test_nothing_need_be_trained(client: Client) -> None:
    """Buffers follow the forward passes all the same."""
    got = descend(client, client.arch.values(), only=())
    assert same(tree.pick(got.theta, client.arch.trainable), tree.pick(client.arch.values(), client.arch.trainable))
    assert int(got.theta["1.num_batches_tracked"]) == len(got.losses) == 9


def test_a_rate_for_each_name(client: Client) -> None:
    rates = {name: 0.05 * (1 + number) for number, name in enumerate(sorted(client.arch.trainable))}
    named = [name for name, p in client.arch.net.named_parameters() if p.requires_grad]

    def optimiser(parameters: list[Tensor]) -> torch.optim.Optimizer:
        groups = [{"params": [p], "lr": rates[n]} for n, p in zip(named, parameters, strict=True)]
        return torch.optim.SGD(groups, lr=0.0, momentum=0.9, weight_decay=0.1)

    expected, _ = loop(client, optimiser)
    got = descend(client, client.arch.values(), lr=rates, opt=SGD(momentum=0.9, weight_decay=0.1)).theta
    assert apart(got, expected) < ROUNDING


def test_the_clients_rate_and_optimiser_are_the_default(client: Client) -> None:
    start, opt = client.arch.values(), SGD(momentum=0.3)
    assert same(descend(replace(client, opt=opt, lr=0.07), start).theta, descend(client, start, opt=opt, lr=0.07).theta)


def test_a_methods_own_unknowns(client: Client) -> None:
    """theta is two weights, the model a mixture of two: what is descended on need not be a model."""
    one = client.arch.values()
    other = {name: value * 0.5 + 0.1 if value.is_floating_point() else value for name, value in one.items()}
    start = {"mix": torch.tensor([0.6, 0.4], dtype=torch.float64)}

    def build(theta: tree.Tree, batch: Batch) -> tree.Tree:
        mixed = {n: theta["mix"][0] * one[n] + theta["mix"][1] * other[n] for n in client.arch.trainable}
        return {**one, **mixed}

    before = {name: value.clone() for name, value in one.items()}
    got = descend(client, start, build=build, project=lambda theta: {"mix": theta["mix"].clamp(0, 0.7)})
    assert same(one, before), "what is built from is not touched"
    mix = start["mix"].clone()
    for batch in client.batches():
        mix.requires_grad_()
        values = {n: t.clone() for n, t in build({"mix": mix}, batch).items()}
        loss = F.cross_entropy(torch.func.functional_call(client.arch.net.train(), values, (batch.x,)), batch.y)
        (slope,) = torch.autograd.grad(loss, [mix])
        mix = (mix.detach() - 0.2 * slope).clamp(0, 0.7)
    assert got.theta.keys() == {"mix"}
    assert float((got.theta["mix"] - mix).abs().max()) < ROUNDING
    assert float((mix - start["mix"]).abs().max()) > 0.01


# ---------- values ----------


def test_theta_is_not_touched(client: Client) -> None:
    theta = client.arch.values()
    before = {name: value.clone() for name, value in theta.items()}
    got = descend(client, theta, opt=SGD(momentum=0.9))
    assert same(theta, before) and not any(value.requires_grad for value in theta.values())
    places = {value.data_ptr() for value in theta.values()}
    assert not places & {value.data_ptr() for value in got.theta.values()}, "a copy, also of what was not trained"
    results = [*got.theta.values(), *tree.flatten(got.opt_state).values(), *got.losses]
    assert not any(value.requires_grad for value in results)
    assert list(got.theta) == list(theta) and same(client.arch.values(), before)


def test_descending_twice_gives_the_same(client: Client) -> None:
    assert same(descend(client, client.arch.values()).theta, descend(client, client.arch.values()).theta)


def test_no_steps_no_change(client: Client) -> None:
    got = descend(client, client.arch.values(), epochs=0)
    assert same(got.theta, client.arch.values()) and got.losses == []


def test_the_meter_counts_every_descent(client: Client) -> None:
    first = descend(client, client.arch.values(), steps=2)
    second = descend(client, client.arch.values(), epochs=1)
    assert client.meter.steps == 5
    assert torch.equal(torch.stack(client.meter.losses), torch.stack([*first.losses, *second.losses]))
