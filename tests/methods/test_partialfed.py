"""PartialFed: which part of the global model a client loads, stated (Fix) or learned (Adaptive)."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from nets import NORM_OF_NORMED, Frozen, normed
from quadratic import SIZES, Line, common, federation, play, regressions, same, squares
from reference import SETTINGS, options
from torch import Tensor, nn

from fedtailor import (
    AdaptiveLocalAggregation,
    Arch,
    Client,
    Driver,
    FedALA,
    FedAvg,
    FedBN,
    FedPer,
    Local,
    LocalAttention,
    Method,
    PartialFedAdaptive,
    PartialFedFix,
    Wrapper,
    WrongInput,
    check_method,
    registry,
    tree,
)  # fmt: skip
from fedtailor.method import MethodNote
from fedtailor.toy import run, toy_driver

ALA = AdaptiveLocalAggregation
Values = dict[str, Tensor]
Rows = list[tuple[np.ndarray, np.ndarray]]
quiet = pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
HALF = {"batch": 2, "epochs": 2, "momentum": 0.9, "weight_decay": 0.02, "cohort": 2}
ROWS32 = regressions(dtype=np.float32)


def blocky() -> nn.Module:
    """A stem, a stage of two blocks with batch norm, and fc; the same values each time."""
    torch.default_generator.manual_seed(8)
    block = [nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh()) for _ in range(2)]
    net = nn.Sequential(OrderedDict(stem=nn.Linear(2, 3), body=nn.Sequential(*block), fc=nn.Linear(3, 1)))
    return net.double()


GROUPS = {  # prefixes of names, group by group
    "stage": [("stem.", "body."), ("fc.",)],
    "block": [("stem.",), ("body.0.",), ("body.1.",), ("fc.",)],
    "layer": [("stem.",), ("body.0.0.",), ("body.0.1.",), ("body.1.0.",), ("body.1.1.",), ("fc.",)],
}
NORMS = {name for name in blocky().state_dict() if name.startswith(("body.0.1.", "body.1.1."))}
FC = {"fc.weight", "fc.bias"}
ALL = set(blocky().state_dict())


def own_state(driver: Driver, client: int) -> dict[str, Any]:
    """What PartialFed itself keeps at a client, under any plug-ins."""
    state = driver.kept[client]["method"]
    while "seen" not in state:
        state = state["inner"]
    return state


def given(driver: Driver, **changes: Any) -> Driver:
    """The driver with these entries in every client's state, for a method without plug-ins or with any."""

    def changed(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, **changes} if "seen" in state else {**state, "inner": changed(state["inner"])}

    driver.kept = [{**kept, "method": changed(kept["method"])} for kept in driver.kept]
    return driver


def number(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


# ---------- Fix: the reference, from Algorithm 1 ----------


def algorithm_1(
    net: nn.Module, rows: Rows, cohorts: Sequence[Sequence[int]], loaded: Collection[str], setting: dict[str, float]
) -> tuple[Values, list[Values | None]]:
    """Modules and torch's own optimiser, the whole local set as batch; the server's model and every client's last."""
    server, own = dict(net.state_dict()), list[Values | None]([None] * len(rows))
    for t, cohort in enumerate(cohorts, 1):
        work = options(setting, t)
        for i in cohort:
            client, last = copy.deepcopy(net), own[i]
            client.load_state_dict({n: v if last is None or n in loaded else last[n] for n, v in server.items()})
            opt = torch.optim.SGD(client.parameters(), **{k: v for k, v in work.items() if k != "epochs"})
            x, y = (torch.from_numpy(part) for part in rows[i])
            for _ in range(int(work["epochs"])):
                opt.zero_grad()
                (client(x)[:, 0] - y).square().mean().backward()
                opt.step()
            own[i] = client.state_dict()
        server = mean_of([own[i] for i in cohort], [len(rows[i][1]) for i in cohort])
    return server, own


def mean_of(models: Sequence[Values], sizes: Sequence[int]) -> Values:
    """Eq. 1 over those that took part; the largest of a counter."""
    return {
        name: sum(n / sum(sizes) * model[name] for n, model in zip(sizes, models, strict=True))
        if value.is_floating_point() else torch.stack([model[name] for model in models]).amax(0)
        for name, value in models[0].items()
    }  # fmt: skip


def is_fc(name: str) -> bool:
    return name.startswith("fc")


STRATEGIES = [
    ("w/o BN", ALL - NORMS), ("w/o BN&fc", ALL - NORMS - FC), ("fc", FC), ("s1", ALL - FC),
    ("w/o body.1.*", {n for n in ALL if not n.startswith("body.1.")}), ("A", {n for n in ALL if "body.1." not in n}),
    (is_fc, FC),
]  # fmt: skip


@quiet
@pytest.mark.parametrize("setting", SETTINGS, ids=["plain", "all options"])
@pytest.mark.parametrize(("strategy", "loaded"), STRATEGIES, ids=[str(s) for s, _ in STRATEGIES[:-1]] + ["own"])
def test_fix_reference_with_two_of_three_clients_a_round(strategy: Any, loaded: set[str], setting: Any) -> None:
    rows = regressions()
    driver = play(PartialFedFix(strategy), federation(rows), blocky(), 5, cohort=2, **setting)
    cohorts = [row["cohort"] for row in driver.rows]
    assert [cohort for cohort in cohorts if 0 not in cohort] and len({tuple(cohort) for cohort in cohorts}) > 1
    server, own = algorithm_1(blocky(), rows, cohorts, loaded, setting)
    torch.testing.assert_close(common(driver), server, rtol=1e-9, atol=1e-12)
    for kept, last in zip(driver.kept, own, strict=True):
        torch.testing.assert_close(kept["trained"], dict(last), rtol=1e-9, atol=1e-12)
        assert same(kept["trained"], kept["method"]["local"])


class Sum(nn.Module):
    """y = x (a + b)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(number(0.0)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.a + self.b)


def test_fix_two_rounds_by_hand() -> None:
    # a is loaded, b is the client's own. Slopes of both are a + b - c: round 1 gives a = b = 0.1 and 0.5, means 0.4.
    # Round 2: (0.4, 0.1) and (0.4, 0.5) have slopes -0.5 and -4.1
    driver = play(PartialFedFix("a*"), squares((1.0, 5.0), (1.0, 1.0), (1, 3)), Sum(), 2)
    for i, (a, b) in enumerate(((0.45, 0.15), (0.81, 0.91))):
        assert [float(driver.kept[i]["trained"][n]) for n in "ab"] == pytest.approx([a, b], rel=1e-12)
        # what is tested is what was trained, on a row x = sqrt(1/2)
        assert driver.rows[1]["test"]["rmse"][i] == pytest.approx(0.5**0.5 * abs((1.0, 5.0)[i] - a - b), rel=1e-12)
    assert driver.rows[1]["point"] == "trained"
    # the server averages all, b as well though nobody loads it
    assert [float(common(driver)[n]) for n in "ab"] == pytest.approx([(0.45 + 3 * 0.81) / 4, (0.15 + 3 * 0.91) / 4])


# ---------- Fix: limits ----------


@quiet
@pytest.mark.parametrize("strategy", ["full", "s1-fc", "*"])
def test_loading_everything_is_fedavg_bit_for_bit(strategy: str) -> None:
    data = federation(ROWS32)
    ours, fedavg = (play(m, data, normed(), 4, point="trained", **HALF) for m in (PartialFedFix(strategy), FedAvg()))
    assert same(common(ours), common(fedavg))
    assert all(same(a["trained"], b["trained"]) for a, b in zip(ours.kept, fedavg.kept, strict=True))
    assert [row["test"] for row in ours.rows] == [row["test"] for row in fedavg.rows]


@quiet
def test_loading_nothing_is_training_alone_bit_for_bit() -> None:
    nothing, setting = PartialFedFix(lambda name: False), {**HALF, "cohort": 1.0}
    ours, alone = (play(m, federation(ROWS32), normed(), 4, **setting) for m in (nothing, Local()))
    for a, b in zip(ours.kept, alone.kept, strict=True):
        assert same(a["trained"], b["trained"])
    assert "0.weight" in common(ours) and not common(alone)  # but its models are sent and averaged


@pytest.mark.parametrize(("strategy", "method"), [("w/o BN", FedBN()), ("w/o fc", FedPer()), ("s1", FedPer())])
def test_its_clients_are_those_of_fedbn_and_fedper_and_its_server_averages_all(strategy: str, method: Method) -> None:
    data, setting = federation(ROWS32), {**HALF, "cohort": 1.0, "point": "trained"}
    ours, theirs = (play(m, data, normed(), 4, **setting) for m in (PartialFedFix(strategy), method))
    for a, b in zip(ours.kept, theirs.kept, strict=True):
        assert same(a["trained"], b["trained"])
    own = NORM_OF_NORMED if strategy == "w/o BN" else {"3.weight", "3.bias"}
    assert same(tree.drop(common(ours), own), common(theirs))
    for name in own - {"1.num_batches_tracked"}:
        mean = sum(n / sum(SIZES) * kept["trained"][name] for n, kept in zip(SIZES, ours.kept, strict=True))
        torch.testing.assert_close(common(ours)[name], mean)
    # the whole model travels, less than which FedBN and FedPer send
    assert ours.rows[0]["up"][0] == tree.nbytes(common(ours)) > theirs.rows[0]["up"][0]


@pytest.mark.parametrize("strategy", ["w/o BN", "w/o fc", "fc", "0.*", "full"])
@quiet
def test_alone_every_strategy_is_plain_sgd(strategy: str) -> None:
    rows = regressions((5,))
    driver = play(PartialFedFix(strategy), federation(rows), normed().double(), 3, epochs=2, momentum=0.9)
    net, (x, y) = normed().double(), (torch.from_numpy(part) for part in rows[0])
    for _ in range(3):  # momentum starts afresh in every round
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            opt.zero_grad()
            (net(x)[:, 0] - y).square().mean().backward()
            opt.step()
    torch.testing.assert_close(common(driver), dict(net.state_dict()), rtol=1e-12, atol=1e-14)


# ---------- Fix: who has been here before ----------


def starts(driver: Driver, client: int) -> Values:
    """The model that the client's next round would begin with."""
    got = driver.last_delivery()[client]
    return driver.common.method.start(driver.sites[client].client(9), driver.kept[client]["method"], got)[0]


def test_in_its_first_round_a_client_loads_everything_whenever_that_is() -> None:
    driver = play(PartialFedFix("fc"), federation(regressions()), blocky(), 0, cohort=1)
    driver.step()
    (present,) = driver.rows[0]["cohort"]
    model = common(driver)
    assert not same(model, driver.initial)
    for i in range(3):
        begun = starts(driver, i)
        assert same(tree.pick(begun, FC), tree.pick(model, FC))
        assert same(begun, {**driver.kept[i]["trained"], **tree.pick(model, FC)} if i == present else model)
    # FedPer's newcomer has the head it was born with, ours has the average of the others'
    fedper = play(FedPer(), federation(ROWS32), normed(), 1, cohort=1)
    ours = play(PartialFedFix("w/o fc"), federation(ROWS32), normed(), 1, cohort=1)
    for i in set(range(3)) - set(ours.rows[0]["cohort"]):
        assert fedper.kept[i]["personal"]["3.weight"].equal(ours.initial["3.weight"])
        assert not starts(ours, i)["3.weight"].equal(ours.initial["3.weight"])


@pytest.mark.parametrize("method", [PartialFedFix("fc"), PartialFedAdaptive(f_m=1, alpha_lr=0.3)], ids=repr)
def test_an_absent_client_keeps_its_last_model_and_its_strategy(method: Method) -> None:
    driver = play(method, federation(regressions()), blocky(), 3, batch=2)
    before = driver.kept
    driver.cohort_size = 1
    driver.step()
    (moved,) = driver.rows[-1]["cohort"]
    for i in range(3):
        was, now = (tree.flatten(kept) for kept in (before[i], driver.kept[i]))
        assert same(was, now) is (i != moved)
        if i != moved:  # and is tested with it
            assert driver.rows[-1]["test"]["rmse"][i] == driver.rows[-2]["test"]["rmse"][i]


# ---------- Adaptive: the reference, from Algorithm 2 ----------


@dataclass
class Strategist:
    """What one client keeps from round to round."""

    own: Values | None
    alpha: list[list[float]]  # logits, or the probabilities themselves where they are projected
    index: int = 0
    t: int = 0

    def __post_init__(self) -> None:
        self.m = [[0.0, 0.0] for _ in self.alpha]
        self.v = [[0.0, 0.0] for _ in self.alpha]


def chances(a: list[float], projection: bool) -> list[float]:
    if projection:
        return [max(x, 1e-6) for x in a]
    return [math.exp(x) / sum(math.exp(z) for z in a) for x in a]


def step_of(it: Strategist, row: int, slopes: list[float], o: dict[str, Any]) -> None:
    """One step on alpha[row]: plain or Adam's, and the projection on the simplex."""
    for j, slope in enumerate(slopes):
        if o["alpha_optimizer"] == "adam":
            it.m[row][j] = 0.9 * it.m[row][j] + 0.1 * slope
            it.v[row][j] = 0.999 * it.v[row][j] + 0.001 * slope**2
            m, v = it.m[row][j] / (1 - 0.9**it.t), it.v[row][j] / (1 - 0.999**it.t)
            slope = m / (math.sqrt(v) + 1e-8)
        it.alpha[row][j] -= o["alpha_lr"] * slope
    if o["projection"]:
        a, b = it.alpha[row]
        excess = (a + b - 1) / 2
        a = min(max(a - excess, 0.0), 1.0)
        it.alpha[row] = [a, 1 - a]


def mixture(local: Values, glob: Values, share: dict[str, float]) -> Values:
    """Of a counter, the one of the larger share."""
    return {
        n: (1 - share[n]) * v + share[n] * glob[n] if v.is_floating_point() else (glob[n] if share[n] > 0.5 else v)
        for n, v in local.items()
    }


def iteration(
    net: nn.Module, it: Strategist, server: Values, batches: Sequence[tuple[Tensor, Tensor, list[list[float]]]],
    tuning: Sequence[tuple[Tensor, Tensor]], group: dict[str, int], tau: float, o: dict[str, Any],
) -> Values:  # fmt: skip
    """ClientIteration-Adaptive. The gradient of alpha is written out, and no autograd goes through the composite."""
    branches = [dict(it.own or server), dict(server)]  # 0: local, 1: global
    velocity: list[Values] = [{}, {}]
    for x, y, uniform in batches:
        u = []  # Eq. 5, of the global branch
        for a, row in zip(it.alpha, uniform, strict=True):
            pairs = zip(chances(a, o["projection"]), row, strict=True)
            z = [(math.log(p) - math.log(-math.log(r))) / tau for p, r in pairs]
            u.append(1 / (1 + math.exp(z[0] - z[1])))
        share = u if o["update"] == "both" else [float(one > 0.5) for one in u]
        net.load_state_dict(mixture(*branches, {n: share[group[n]] for n in group}))  # Eq. 6
        net.zero_grad()
        (net(x)[:, 0] - y).square().mean().backward()
        slopes = {n: p.grad.clone() for n, p in net.named_parameters()}
        along = [0.0] * len(it.alpha)  # dl / d share: <dl / dw, global - local>
        for n, g in slopes.items():
            along[group[n]] += float((g * (branches[1][n] - branches[0][n])).sum())
        weights_turn = it.index % (o["f_m"] + o["f_s"]) < o["f_m"]
        it.index += 1
        for k in (0, 1):
            for n in branches[k]:
                part = share[group[n]] if k else 1 - share[group[n]]
                if part == 0:
                    continue
                if n not in slopes:  # statistics of the pass
                    branches[k][n] = net.state_dict()[n].clone()
                elif weights_turn or o["shared_batches"]:
                    g = part * slopes[n] + HALF["weight_decay"] * branches[k][n]
                    velocity[k][n] = g + HALF["momentum"] * velocity[k].get(n, torch.zeros_like(g))
                    branches[k][n] = branches[k][n] - 0.1 * velocity[k][n]
        if not weights_turn or o["shared_batches"]:
            it.t += 1
            for row, one in enumerate(u):
                slope = along[row] * one * (1 - one) / tau  # dl / d log alpha[1] less the part of log alpha[0]
                p = [1.0, 1.0]
                if o["projection"]:  # d log alpha / d alpha, nothing below the floor
                    p = [a if a >= 1e-6 else math.inf for a in it.alpha[row]]
                step_of(it, row, [-slope / p[0], slope / p[1]], o)
    total = [chances(a, False)[1] if not o["projection"] else a[1] for a in it.alpha]
    if o["merge"] == "hard":
        total = [float(p > 0.5) for p in total]
    net.load_state_dict(mixture(*branches, {n: total[group[n]] for n in group}))
    if o["merge"] == "soft":
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=HALF["momentum"], weight_decay=HALF["weight_decay"])
        for x, y in tuning:
            opt.zero_grad()
            (net(x)[:, 0] - y).square().mean().backward()
            opt.step()
    it.own = copy.deepcopy(dict(net.state_dict()))
    return it.own


OFTEN = {"f_m": 2, "f_s": 1, "alpha_lr": 0.3, "tau": 2.0, "tau_decay": 0.5, "tau_min": 0.8}
CASES: dict[str, dict[str, Any]] = {
    "layer": {}, "block": {"level": "block"}, "stage": {"level": "stage"}, "hard": {"merge": "hard"},
    "sgd": {"alpha_optimizer": "sgd", "alpha_lr": 1.0}, "both": {"update": "both"}, "shared": {"shared_batches": True},
    "projection": {"projection": True, "alpha_lr": 0.1}, "not tuned": {"finetune_epochs": 0},
    "projection by sgd": {"projection": True, "alpha_optimizer": "sgd", "alpha_lr": 0.2, "level": "stage"},
    "tuned for long": {"finetune_epochs": 3}, "both and shared": {"update": "both", "shared_batches": True, "f_s": 0},
}  # fmt: skip


@quiet
@pytest.mark.parametrize("case", CASES)
def test_adaptive_reference_with_two_of_three_clients_a_round(case: str) -> None:
    method = PartialFedAdaptive(**{**OFTEN, **CASES[case]})
    o = {name: getattr(method, name) for name in method.__dataclass_fields__}
    rows = regressions((6, 9, 4))
    driver = play(method, federation(rows), blocky(), 5, **HALF)
    prefixes = GROUPS[method.level]
    group = {n: next(i for i, names in enumerate(prefixes) if n.startswith(names)) for n in ALL}
    begin = 0.5 if method.projection else 0.0
    clients = [Strategist(None, [[begin, begin] for _ in prefixes]) for _ in rows]
    server, net = dict(blocky().state_dict()), blocky()
    for row in driver.rows:
        t = row["round"]
        tau = max(0.8, 2.0 * 0.5 ** (t - 1))  # 2, 1 and from then on 0.8
        for i in row["cohort"]:
            client = driver.sites[i].client(t)  # for the draws
            noise = [client.random(f"gumbel {b}", (len(prefixes), 2)).tolist() for b in range(client.steps)]
            batches = [(b.x, b.y, drawn) for b, drawn in zip(client.batches(), noise, strict=True)]
            tuning = [(b.x, b.y) for b in client.batches(epochs=method.finetune_epochs, stream=1)]
            iteration(net, clients[i], server, batches, tuning, group, tau, o)
        server = mean_of([clients[i].own for i in row["cohort"]], [len(rows[i][1]) for i in row["cohort"]])
    # five rounds at this rate amplify the rounding, which differs between processors, from 1e-16 to 1e-8
    torch.testing.assert_close(common(driver), server, rtol=1e-6, atol=1e-8)
    for i, it in enumerate(clients):
        torch.testing.assert_close(driver.kept[i]["trained"], it.own, rtol=1e-6, atol=1e-8)
        kept = own_state(driver, i)
        torch.testing.assert_close(kept["alpha"], torch.tensor(it.alpha, dtype=torch.float64), rtol=1e-6, atol=1e-8)
        assert int(kept["index"]) == it.index and bool(kept["seen"])
        assert float((kept["alpha"] - begin).abs().max()) > 0.05  # it did learn
    assert len({tuple(row["cohort"]) for row in driver.rows}) > 1


# ---------- Adaptive: numbers by hand ----------


def with_noise(monkeypatch: pytest.MonkeyPatch, *chosen: float) -> None:
    """Gumbel noise 0 for the local branch, and for the global one what is given, batch by batch."""

    def drawn(client: Client, purpose: str, shape: tuple[int, ...]) -> Tensor:
        ours = chosen[int(purpose.removeprefix("gumbel ")) % len(chosen)]
        return torch.tensor([math.exp(-1.0), math.exp(-math.exp(-ours))], dtype=torch.float64).expand(shape).clone()

    monkeypatch.setattr(Client, "random", drawn)


def from_one_and_three(method: Method, index: int, **setting: Any) -> Driver:
    """One client that wants w = 5, has 1 of its own and receives 3, after a round."""
    driver = play(method, squares((5.0,), (1.0,), (1,)), Line(3.0), 0, **setting)
    given(driver, local={"w": number(1.0)}, seen=torch.tensor(True), index=torch.tensor(index))
    driver.step()
    return driver


BY_HAND = {"f_m": 1, "f_s": 1, "alpha_optimizer": "sgd", "alpha_lr": 0.1, "tau": 1.0, "finetune_epochs": 0}


@quiet
def test_a_strategy_batch_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # u = e^ln3 / (1 + e^ln3) = 3/4, so 3 is chosen whole; its slope is 3 - 5 = -2, along global - local = 2 that is -4.
    # Straight through: d u / d alpha_1 = u (1 - u) / tau = 3/16 for the logits, so -0.75 for alpha_1, 0.75 for alpha_0
    with_noise(monkeypatch, math.log(3))
    driver = from_one_and_three(PartialFedAdaptive(**BY_HAND), 1)
    state = own_state(driver, 0)
    assert state["alpha"].tolist() == [pytest.approx([-0.075, 0.075], rel=1e-12)]
    # neither branch has moved: the merge is (1 - p) 1 + p 3 with p = 1 / (1 + e^-0.15)
    assert float(state["local"]["w"]) == pytest.approx(1 + 2 / (1 + math.exp(-0.15)), rel=1e-12)
    assert int(state["index"]) == 2
    # with both branches in use the composite is 1 + 3/4 * 2 = 2.5, its slope -2.5
    both = own_state(from_one_and_three(PartialFedAdaptive(**BY_HAND, update="both"), 1), 0)
    assert both["alpha"].tolist() == [pytest.approx([-0.1 * 2.5 * 2 * 3 / 16, 0.1 * 2.5 * 2 * 3 / 16], rel=1e-12)]
    # half the temperature: u = 9/10, and 9/100 over 1/2
    cold = own_state(from_one_and_three(PartialFedAdaptive(**{**BY_HAND, "tau": 0.5}), 1), 0)
    assert cold["alpha"].tolist() == [pytest.approx([-0.1 * 4 * 0.18, 0.1 * 4 * 0.18], rel=1e-12)]


@quiet
def test_a_weights_batch_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for noise, local, glob in ((math.log(3), 1.0, 3.2), (-math.log(3), 1.4, 3.0)):
        with_noise(monkeypatch, noise)
        state = own_state(from_one_and_three(PartialFedAdaptive(**BY_HAND), 0), 0)
        assert state["alpha"].tolist() == [[0.0, 0.0]]
        assert float(state["local"]["w"]) == pytest.approx((local + glob) / 2, rel=1e-12)
    # both: a quarter of the composite's slope -2.5 for 1, three quarters for 3
    with_noise(monkeypatch, math.log(3))
    both = own_state(from_one_and_three(PartialFedAdaptive(**BY_HAND, update="both"), 0), 0)
    assert float(both["local"]["w"]) == pytest.approx((1 + 0.0625 + 3 + 0.1875) / 2, rel=1e-12)
    # every batch for both, the strategy by the slope before the step
    shared = own_state(from_one_and_three(PartialFedAdaptive(**BY_HAND, shared_batches=True), 0), 0)
    assert shared["alpha"].tolist() == [pytest.approx([-0.075, 0.075], rel=1e-12)]
    assert float(shared["local"]["w"]) == pytest.approx(1 + 2.2 / (1 + math.exp(-0.15)), rel=1e-12)


@quiet
def test_the_other_branchs_momentum_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    # global, local, strategy, global: 3 - 0.1 * 2 -> 3.2; 1 + 0.4 -> 1.4; nothing; v = 0.5 * -2 - 1.8 = -2.8 -> 3.48
    with_noise(monkeypatch, 1.0, -1.0, 1.0, 1.0)
    method = PartialFedAdaptive(**{**BY_HAND, "f_m": 2, "alpha_lr": 1e-30})
    state = own_state(from_one_and_three(method, 0, steps=4, momentum=0.5), 0)
    assert float(state["local"]["w"]) == pytest.approx((1.4 + 3.48) / 2, rel=1e-12)


@quiet
def test_of_equal_chances_the_hard_merge_keeps_the_clients_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with_noise(monkeypatch, 1.0)
    method = PartialFedAdaptive(**{**BY_HAND, "finetune_epochs": 1}, merge="hard")
    state = own_state(from_one_and_three(method, 0), 0)
    assert float(state["local"]["w"]) == 1.0
    driver = play(method, squares((5.0,), (1.0,), (1,)), Line(3.0), 0)
    given(driver, local={"w": number(1.0)}, seen=torch.tensor(True), alpha=torch.tensor([[0.0, 1e-9]]).double())
    driver.step()
    assert float(own_state(driver, 0)["local"]["w"]) == pytest.approx(3.2)


def test_the_chance_of_being_chosen_is_alpha_at_any_temperature() -> None:
    # the larger of log alpha_j + Gumbel noise is j with probability alpha_j, here 3/4
    noise = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits = torch.tensor([0.5, 0.5 + math.log(3)], dtype=torch.float64).expand(20_000, 2)
    on_the_simplex = torch.tensor([0.25, 0.75], dtype=torch.float64).expand(20_000, 2)
    for tau in (5.0, 0.1):
        for projection, alpha in ((False, logits), (True, on_the_simplex)):
            chosen = PartialFedAdaptive(projection=projection).gate(alpha, noise, tau)
            assert set(chosen.tolist()) == {0.0, 1.0}
            assert float(chosen.mean()) == pytest.approx(0.75, abs=0.01)
    soft = PartialFedAdaptive(update="both").gate(logits, noise, 5.0)
    assert 0 < float(soft.min()) < float(soft.max()) < 1


def test_the_temperature_falls_from_round_to_round_to_its_floor() -> None:
    asked: list[float] = []

    @dataclass(frozen=True, repr=False)
    class Watched(PartialFedAdaptive):
        def gate(self, alpha: Tensor, noise: Tensor, tau: float) -> Tensor:
            asked.append(tau)
            return super().gate(alpha, noise, tau)

    data = federation(regressions((2,)))
    play(Watched(), data, Line(0.4, -0.1), 3)
    assert sorted(set(asked), reverse=True) == pytest.approx([5.0, 5 * 0.965, 5 * 0.965**2])
    asked.clear()
    play(Watched(tau=1.0, tau_decay=0.5, tau_min=0.3), data, Line(0.4, -0.1), 4)
    assert sorted(set(asked), reverse=True) == pytest.approx([1.0, 0.5, 0.3])


# ---------- Adaptive: turns ----------


def test_the_turns_run_on_from_round_to_round() -> None:
    # two batches a round with f_m = 4 and f_s = 1: the fifth batch is in round 3; begun anew, it would never come
    driver = play(PartialFedAdaptive(), federation(regressions((4, 4))), Line(0.4, -0.1), 0, batch=2)
    learned = []
    for _ in range(6):
        before = own_state(driver, 0)["alpha"]
        driver.step()
        learned.append(not torch.equal(before, own_state(driver, 0)["alpha"]))
    # indices 4 and 9 are in rounds 3 and 5
    assert learned == [False, False, True, False, True, False]
    assert int(own_state(driver, 0)["index"]) == 12


def test_adams_memory_of_the_strategy_goes_on_and_the_momentum_of_weights_does_not() -> None:
    method = PartialFedAdaptive(f_m=1, f_s=1)
    driver = play(method, federation(regressions((8,))), Line(0.4, -0.1), 3, batch=2, momentum=0.9)
    state = own_state(driver, 0)
    assert float(state["adam"]["t"]["alpha"]) == 3 * 2
    assert "momentum" not in "".join(tree.flatten(state))


@quiet
@pytest.mark.parametrize(("method", "steps"), [
    (PartialFedAdaptive(), [2 + 1, 4 + 2]), (PartialFedAdaptive(finetune_epochs=3), [2 + 3, 4 + 6]),
    (PartialFedAdaptive(finetune_epochs=0), [2, 4]), (PartialFedAdaptive(merge="hard"), [2, 4]),
    (PartialFedFix("full"), [2, 4]),
], ids=repr)  # fmt: skip
def test_steps_are_those_of_the_batches_and_of_the_fine_tuning(method: Method, steps: list[int]) -> None:
    driver = play(method, federation(regressions((2, 4))), Line(0.4, -0.1), 1, batch=2, epochs=2)
    assert driver.rows[0]["steps"] == steps


# ---------- Adaptive: limits ----------


TO_LOCAL, TO_GLOBAL = torch.tensor([60.0, -60.0]), torch.tensor([-60.0, 60.0])


def certain(method: PartialFedAdaptive, towards: Tensor, rounds: int, **setting: Any) -> Driver:
    """A run in which every client's strategy is decided from the beginning."""
    driver = play(method, federation(ROWS32), normed(), 0, **setting)
    given(driver, alpha=towards.expand(len(GROUPS_OF_NORMED[method.level]), 2).clone())
    for _ in range(rounds):
        driver.step()
    return driver


GROUPS_OF_NORMED = {"layer": ["0", "1", "3"], "block": ["0", "3"], "stage": ["0", "3"]}
ONLY_WEIGHTS = [
    PartialFedAdaptive(f_s=0, finetune_epochs=0), PartialFedAdaptive(f_s=0, merge="hard", level="stage"),
    PartialFedAdaptive(alpha_lr=0.0, shared_batches=True, finetune_epochs=0),
    PartialFedAdaptive(f_s=0, finetune_epochs=0, level="block", update="both", tau=0.1),
]  # fmt: skip


@quiet
@pytest.mark.parametrize("method", ONLY_WEIGHTS, ids=repr)
def test_with_all_certain_to_be_global_it_is_fedavg_bit_for_bit(method: PartialFedAdaptive) -> None:
    ours = certain(method, TO_GLOBAL, 4, **HALF)
    fedavg = play(FedAvg(), federation(ROWS32), normed(), 4, point="trained", **HALF)
    assert same(common(ours), common(fedavg))
    assert all(same(a["trained"], b["trained"]) for a, b in zip(ours.kept, fedavg.kept, strict=True))


@quiet
@pytest.mark.parametrize("method", ONLY_WEIGHTS, ids=repr)
def test_with_all_certain_to_be_local_it_is_training_alone_bit_for_bit(method: PartialFedAdaptive) -> None:
    setting = {**HALF, "cohort": 1.0}
    ours, alone = certain(method, TO_LOCAL, 4, **setting), play(Local(), federation(ROWS32), normed(), 4, **setting)
    assert all(same(a["trained"], b["trained"]) for a, b in zip(ours.kept, alone.kept, strict=True))


@quiet
def test_with_a_certain_head_of_its_own_it_is_fix_without_fc_bit_for_bit() -> None:
    method, setting = ONLY_WEIGHTS[0], {**HALF, "cohort": 2}
    ours = play(method, federation(ROWS32), normed(), 0, **setting)
    given(ours, alpha=torch.stack([TO_GLOBAL, TO_GLOBAL, TO_LOCAL]))
    for _ in range(4):
        ours.step()
    fix = play(PartialFedFix("w/o fc"), federation(ROWS32), normed(), 4, **setting)
    assert same(common(ours), common(fix))
    assert all(same(a["trained"], b["trained"]) for a, b in zip(ours.kept, fix.kept, strict=True))


# ---------- Adaptive: what is each client's own ----------


def test_strategies_are_each_clients_own_and_never_sent() -> None:
    method = PartialFedAdaptive(f_m=1, alpha_lr=0.3)
    driver = play(method, federation(regressions()), blocky(), 3, batch=2, epochs=2)
    alphas = [own_state(driver, i)["alpha"] for i in range(3)]
    assert all(not torch.allclose(alphas[i], alphas[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert set(driver.server) == {"model"} and set(common(driver)) == ALL
    one = tree.nbytes(blocky().state_dict())
    assert all(row["up"] == row["down"] == [one] * 3 for row in driver.rows)
    assert (method.sees, method.point, driver.common.finish_epochs) == ("sums", "trained", 5)


def test_the_noise_is_drawn_anew_for_every_batch_round_and_client(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    drawn: list[Tensor] = []
    random = Client.random

    def noting(client: Client, purpose: str, shape: tuple[int, ...]) -> Tensor:
        seen.append((purpose, client.round, client.number))
        drawn.append(random(client, purpose, shape))
        return drawn[-1]

    monkeypatch.setattr(Client, "random", noting)
    play(PartialFedAdaptive(), federation(regressions((4, 4))), blocky(), 2, batch=2)
    assert sorted(seen) == sorted((f"gumbel {step}", t, i) for step in (0, 1) for t in (1, 2) for i in (0, 1))
    assert len({tuple(noise.flatten().tolist()) for noise in drawn}) == 8 and drawn[0].shape == (6, 2)


@pytest.mark.parametrize("projection", [False, True])
@pytest.mark.parametrize("level", ["stage", "block", "layer"])
def test_it_shows_how_probable_each_group_is_to_be_loaded(level: Any, projection: bool) -> None:
    method = PartialFedAdaptive(level=level, projection=projection, f_m=1, alpha_lr=0.1)
    driver = play(method, federation(regressions()), blocky(), 3, batch=2, epochs=2)
    labels = {"stage": ["body", "fc"], "block": ["stem", "body.0", "body.1", "fc"],
              "layer": ["stem", "body.0.0", "body.0.1", "body.1.0", "body.1.1", "fc"]}[level]  # fmt: skip
    for i in range(3):
        shown = driver.rows[-1]["explain"]["clients"][str(i)]
        assert list(shown) == [f"probability of loading globally/{label}" for label in labels]
        alpha = own_state(driver, i)["alpha"]
        expected = alpha[:, 1] if projection else 1 / (1 + torch.exp(alpha[:, 0] - alpha[:, 1]))
        assert list(shown.values()) == pytest.approx(expected.tolist(), rel=1e-6)
    rows = driver.rows[-1]["explain"]["clients"].values()
    assert any(abs(p - 0.5) > 0.01 for shown in rows for p in shown.values())


def test_a_projected_strategy_stays_on_the_simplex() -> None:
    method = PartialFedAdaptive(f_m=1, projection=True, alpha_optimizer="sgd", alpha_lr=5.0)
    driver = play(method, federation(regressions()), blocky(), 4, batch=2, epochs=3)
    alphas = torch.cat([own_state(driver, i)["alpha"] for i in range(3)])
    assert bool((alphas >= 0).all()) and alphas.sum(1).tolist() == pytest.approx([1.0] * len(alphas))
    assert float(alphas.min()) == 0 and float(alphas.max()) == 1
    assert all(bool(t.isfinite().all()) for t in tree.flatten(driver.state).values())


# ---------- what is private, frozen, or too small ----------


@dataclass(frozen=True, repr=False)
class HeadAtHome(Wrapper):
    def personal(self, arch: Arch) -> frozenset[str]:
        return self.inner.personal(arch) | arch.head


@quiet
def test_what_a_plug_in_keeps_private_is_always_the_clients_own() -> None:
    # certain to load all, with a private head: FedPer, whatever the strategy says of the head
    ours = play(HeadAtHome(ONLY_WEIGHTS[0]), federation(ROWS32), normed(), 0, **HALF)
    given(ours, alpha=TO_GLOBAL.expand(3, 2).clone())
    for _ in range(4):
        ours.step()
    fedper = play(FedPer(), federation(ROWS32), normed(), 4, point="trained", **HALF)
    assert same(common(ours), common(fedper))
    assert all(same(a["trained"], b["trained"]) for a, b in zip(ours.kept, fedper.kept, strict=True))
    shown = [set(client) for client in ours.rows[-1]["explain"]["clients"].values()]
    assert shown and all(labels == {f"probability of loading globally/{layer}" for layer in "01"} for labels in shown)


@pytest.mark.parametrize("method", [PartialFedFix("fc"), PartialFedAdaptive(f_m=1, alpha_lr=0.3)], ids=repr)
def test_statistics_that_stay_home_are_the_clients_own(method: Method) -> None:
    driver = play(method, federation(regressions()), blocky(), 3, batch=2, buffers="local")
    assert not driver.arch.statistics & set(common(driver))
    for kept in driver.kept:
        for name in driver.arch.statistics:
            assert torch.equal(kept["personal"][name], kept["trained"][name])
            assert torch.equal(kept["method"]["local"][name], kept["trained"][name])
    # all of a client's batches have gone through them
    assert [int(kept["trained"]["body.0.1.num_batches_tracked"]) for kept in driver.kept] == [
        sum(row["steps"][i] for row in driver.rows) for i in range(3)
    ]


@pytest.mark.parametrize("method", [PartialFedFix("fc"), PartialFedAdaptive(f_m=1, alpha_lr=0.3)], ids=repr)
def test_frozen_tensors_never_move(method: Method) -> None:
    driver = play(method, federation(ROWS32), Frozen(), 6, batch=2, momentum=0.9, weight_decay=0.1, lr=0.02)
    start = Frozen().state_dict()
    for place in (common(driver), *(kept["trained"] for kept in driver.kept)):
        for name in ("body.weight", "body.bias"):
            assert place[name].equal(start[name])
        assert not place["middle.weight"].equal(start["middle.weight"])


def test_a_client_that_can_take_no_step_sends_what_its_strategy_makes_of_both() -> None:
    # batch norm cannot train on one row
    driver = play(PartialFedAdaptive(), federation(regressions((1, 4))), blocky(), 2)
    assert driver.rows[1]["steps"][0] == 0 < driver.rows[1]["steps"][1]
    own, received = driver.kept[0]["trained"], common(driver)
    alpha = torch.tensor([0.0, math.log(3)], dtype=torch.float64).expand(6, 2).clone()
    given(driver, alpha=alpha).step()
    after = driver.kept[0]["trained"]
    for name in ALL - driver.arch.counters:
        torch.testing.assert_close(after[name], own[name] / 4 + 3 * received[name] / 4)
    for name in driver.arch.counters:
        assert int(own[name]) == 0 < int(received[name]) == int(after[name])
    assert own_state(driver, 0)["alpha"].equal(alpha) and int(own_state(driver, 0)["index"]) == 0
    fix = play(PartialFedFix("fc"), federation(regressions((1, 4))), blocky(), 2)
    expected = starts(fix, 0)
    fix.step()
    assert same(fix.kept[0]["trained"], expected)


# ---------- in company ----------


@quiet
@pytest.mark.parametrize("eta", [0.0, 0.5])
def test_ala_around_fix_is_fedala_where_everything_is_loaded(eta: float) -> None:
    data = federation(ROWS32)
    ours, fedala = (play(m, data, normed(), 4, point="received", **HALF)
                    for m in (ALA(PartialFedFix("full"), eta=eta, cap=3), FedALA(eta=eta, cap=3)))  # fmt: skip
    assert same(common(ours), common(fedala))
    assert [row["test"] for row in ours.rows] == [row["test"] for row in fedala.rows]


def test_ala_has_nothing_to_mix_in_what_is_not_loaded() -> None:
    for strategy, moved in (("w/o fc", {"0.weight", "1.weight"}), ("fc", {"3.weight"})):
        driver = play(ALA(PartialFedFix(strategy), p=2, eta=2.0, cap=3), federation(ROWS32), normed(), 4, epochs=2)
        w = driver.kept[2]["method"]["w"]
        assert {name for name, x in w.items() if (x != 1).any() and "weight" in name} == moved


@quiet
def test_ala_around_adaptive_gives_the_global_branch() -> None:
    # certain to be global, Adaptive trains what ALA mixed: FedALA
    ours = play(ALA(ONLY_WEIGHTS[0], eta=0.5, cap=3), federation(ROWS32), normed(), 0, **HALF)
    given(ours, alpha=TO_GLOBAL.expand(3, 2).clone())
    for _ in range(4):
        ours.step()
    fedala = play(FedALA(eta=0.5, cap=3), federation(ROWS32), normed(), 4, **HALF)
    assert same(common(ours), common(fedala)) and not same(
        common(ours), common(play(FedAvg(), federation(ROWS32), normed(), 4, **HALF))
    )


INSIDE = [PartialFedFix("w/o BN"), PartialFedAdaptive(f_m=1, alpha_lr=0.3)]


@quiet
@pytest.mark.parametrize("inner", INSIDE, ids=repr)
def test_private_attention_stays_home_and_the_base_is_shared_out_as_ever(inner: Method) -> None:
    driver = run(toy_driver(LocalAttention(inner, kind="se")))
    attention = driver.private
    assert attention and all("squeeze" in name or "excite" in name for name in attention)
    assert not attention & set(common(driver))
    for kept in driver.kept:
        assert same(kept["personal"], tree.pick(kept["method"]["inner"]["local"], attention))
    trained = [kept["personal"] for i, kept in enumerate(driver.kept) if i in driver.rows[-1]["cohort"]]
    assert not same(trained[0], trained[1])
    shown = {label for row in driver.rows for client in row["explain"]["clients"].values() for label in client}
    strategy = {label for label in shown if label.startswith("probability of loading globally/")}
    assert not any("squeeze" in label for label in strategy)
    assert bool(strategy) is isinstance(inner, PartialFedAdaptive)


def test_attention_that_is_shared_is_left_out_by_its_role() -> None:
    driver = toy_driver(LocalAttention(PartialFedFix("w/o se"), kind="se", private=False))
    method = driver.common.method.inner
    se = {name for name in driver.arch.names if "squeeze" in name or "excite" in name}
    assert len(se) == 2 and method.loaded(driver.arch) == set(driver.arch.names) - se


LAWS = ["has pure hooks", "keeps the private", "resumes"]
TOGETHER = {
    "LocalAttention(Fix)": LocalAttention(INSIDE[0], kind="se"),
    "ALA(LocalAttention(Adaptive))": ALA(LocalAttention(PartialFedAdaptive(level="block"), kind="se"), cap=2),
    "every option": PartialFedAdaptive(update="both", shared_batches=True, projection=True, alpha_optimizer="sgd"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOGETHER)
def test_pairs_keep_the_contract(name: str) -> None:
    assert check_method(TOGETHER[name], LAWS) == LAWS


# ---------- words ----------


@pytest.mark.parametrize(("changes", "words"), [
    ({"level": "model"}, r"level='model' must be one of 'stage', 'block', 'layer'"),
    ({"f_m": 0}, "f_m=0 must be 1 or more"), ({"f_m": 1.5}, "f_m=1.5 must be a whole number"),
    ({"f_s": -1}, "f_s=-1 must be 0 or more"),
    ({"alpha_optimizer": "rmsprop"}, "alpha_optimizer='rmsprop' must be one of 'adam', 'sgd'"),
    ({"alpha_lr": -0.1}, "alpha_lr=-0.1 must be 0 or more"), ({"alpha_lr": math.inf}, "alpha_lr=inf must be .*finite"),
    ({"alpha_lr": math.nan}, "alpha_lr=nan must be"), ({"projection": "yes"}, "projection='yes' must be True or False"),
    ({"tau": 0.05}, "tau_min=0.1 must be above 0 and at most tau=0.05"), ({"tau_min": 0.0}, "tau_min=0.0 must be"),
    ({"tau": math.inf}, "tau=inf must be finite"), ({"tau_decay": 0.0}, "tau_decay=0.0 must be above 0 and up to 1"),
    ({"tau_decay": 1.1}, "tau_decay=1.1 must be"), ({"merge": "none"}, "merge='none' must be one of 'soft', 'hard'"),
    ({"finetune_epochs": -1}, "finetune_epochs=-1 must be 0 or more"),
    ({"update": "none"}, "update='none' must be one of 'selected', 'both'"),
    ({"shared_batches": 1}, "shared_batches=1 must be True or False"),
])  # fmt: skip
def test_impossible_values_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongInput, match=f"PartialFedAdaptive: {words}"):
        PartialFedAdaptive(**changes)


def test_a_strategy_that_is_none_is_refused_at_once_and_one_that_does_not_fit_when_the_model_is_known() -> None:
    with pytest.raises(WrongInput, match=r"PartialFedFix: strategy=3 must be a text such as 'w/o BN', or a function"):
        PartialFedFix(3)
    with pytest.raises(WrongInput, match="'s7' does not fit the model, whose stages are s1, fc"):
        play(PartialFedFix("s7"), federation(ROWS32), normed(), 0)


@pytest.mark.parametrize(("method", "words"), [
    (PartialFedFix("full"), r"Fix\(strategy='full'\) loads everything, which is FedAvg tested after training"),
    (PartialFedFix("w/o *"), r"PartialFedFix\(strategy='w/o \*'\) loads nothing, which is training alone"),
    (PartialFedFix(is_fc), r"<your own is_fc>.*no record can hold a function.*cannot be resumed"),
    (PartialFedAdaptive(alpha_lr=0.0), "never learned with alpha_lr=0 or f_s=0; it stays a fair coin"),
    (PartialFedAdaptive(f_s=0), "never learned with alpha_lr=0 or f_s=0"),
    (PartialFedAdaptive(f_m=3, shared_batches=True), r"f_m=3 has no effect in PartialFedAdaptive\(level="),
    (PartialFedAdaptive(f_s=0, shared_batches=True), "f_s=0 has no effect"),
    (PartialFedAdaptive(finetune_epochs=2, merge="hard"), "finetune_epochs=2 has no effect"),
], ids=lambda value: repr(value)[:60])  # fmt: skip
def test_what_makes_no_difference_is_said_once(method: Method, words: str) -> None:
    with pytest.warns(MethodNote, match=words) as said:
        play(method, federation(regressions()), blocky(), 0)
    assert len(said) == 1


def test_the_defaults_have_nothing_to_say_and_do_something() -> None:
    data = federation(regressions())  # a warning is an error in these tests
    fix, adaptive, fedavg = (play(m, data, blocky(), 3, point="trained")
                             for m in (PartialFedFix(), PartialFedAdaptive(), FedAvg()))  # fmt: skip
    assert not same(common(fix), common(fedavg)) and not same(common(adaptive), common(fedavg))
    assert fix.common.finish_epochs == adaptive.common.finish_epochs == 5
    assert play(PartialFedFix(), data, blocky(), 0, finish_epochs=2).common.finish_epochs == 2


def test_names_under_which_they_are_known() -> None:
    for text, method in (
        ("partialfed-fix", PartialFedFix()), ("PartialFedFix(strategy='w/o BN&fc')", PartialFedFix("w/o BN&fc")),
        ("partialfed", PartialFedAdaptive()), ("PartialFed-Adaptive", PartialFedAdaptive()),
        ("PartialFed(level='stage', update='both')", PartialFedAdaptive(level="stage", update="both")),
    ):  # fmt: skip
        assert registry.parse("method", text) == method
