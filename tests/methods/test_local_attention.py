"""LocalAttention and pFedLA: blocks in the slots of any method's network, trained with it and kept at home."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Collection

import numpy as np
import pytest
import torch
from quadratic import SIZES, common, federation, play, same
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor import (
    APPLE,
    SCAFFOLD,
    AdaptiveLocalAggregation,
    ComponentAttention,
    Ditto,
    FedAvg,
    FedBN,
    FedFomo,
    FedProx,
    FedRep,
    Local,
    LocalAttention,
    Method,
    Proximal,
    WrongInput,
    check_method,
    pFedLA,
    pFedMe,
    registry,
)
from fedtailor.arch import Arch
from fedtailor.method import MethodNote
from fedtailor.nn import AttentionBlock, Slot, alexnet_bn, lenet_bn

KINDS = ("se", "eca", "ca", "hybrid")
Model = dict[str, Tensor]


def pictures(sizes: Collection[int] = SIZES) -> list[tuple[np.ndarray, np.ndarray]]:
    """Two channels of 3 x 4 pixels, brighter from client to client, and a number to predict."""
    draw = np.random.default_rng(0)
    rule, rows = draw.normal(size=24), []
    for client, size in enumerate(sizes):
        x = draw.normal(client, 1, (size, 2, 3, 4))
        rows.append((x, np.tanh(x.reshape(size, -1) @ rule)))
    return rows


def tiny(norm: bool = True) -> nn.Sequential:
    """A convolution, its norm, a place for attention on 4 channels of 2 x 3, and a linear layer."""
    torch.default_generator.manual_seed(3)
    layer = {"conv": nn.Conv2d(2, 4, 2), **({"norm": nn.BatchNorm2d(4)} if norm else {}), "relu": nn.ReLU()}
    rest = {"slot": Slot(4), "flat": nn.Flatten(), "head": nn.Linear(24, 1)}
    return nn.Sequential(OrderedDict(**layer, **rest)).double()


ROWS, DATA = pictures(), federation(pictures())
NORM = {f"norm.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


# ---------- by hand ----------


@pytest.mark.parametrize(("weighting", "expected"), [("uniform", 1.0), ("size", 0.95)])
def test_one_round_by_hand(weighting: str, expected: float) -> None:
    # one pixel x = 1, h = w x, out = sigmoid(u2 relu(u1 h)) h; from w = u1 = 1, u2 = 0: a = 1/2, out = 1/2.
    # d out / d w = a = 1/2, d out / d u2 = h a (1 - a) relu(h) = 1/4, and the residuals are -1 and +1:
    # with rate 0.1, w goes to 1.1 and 0.9, u2 to 0.05 and -0.05; sizes are 1 and 3
    net = nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 1, 1, bias=False), slot=Slot(1), flat=nn.Flatten())).double()
    nn.init.ones_(net.conv.weight)
    x = np.ones((3, 1, 1, 1))
    data = federation([(x[:1], np.array([1.5])), (x, np.array([-0.5] * 3))])
    driver = play(pFedLA(kind="se", weighting=weighting), data, net, 0)
    u1, u2 = "slot.squeeze.weight", "slot.excite.weight"
    start = {u1: torch.ones(1, 1, dtype=torch.float64), u2: torch.zeros(1, 1, dtype=torch.float64)}
    driver.kept = [{**kept, "personal": start} for kept in driver.kept]
    driver.step()
    assert float(common(driver)["conv.weight"]) == pytest.approx(expected)
    assert [float(kept["personal"][u2]) for kept in driver.kept] == pytest.approx([0.05, -0.05])
    assert [float(kept["personal"][u1]) for kept in driver.kept] == [1.0, 1.0]


# ---------- a reference in bare PyTorch ----------


def normed(h: Tensor, m: Model, path: str, after: Model) -> Tensor:
    """Batch norm in training, over all but the channels; its running statistics go into `after`."""
    over = [d for d in range(h.dim()) if d != 1]
    count, shape = h.numel() // h.shape[1], [1, -1] + [1] * (h.dim() - 2)
    mean, var = h.mean(over), h.var(over, unbiased=False)
    after[f"{path}.running_mean"] = (0.9 * m[f"{path}.running_mean"] + 0.1 * mean).detach()
    after[f"{path}.running_var"] = (0.9 * m[f"{path}.running_var"] + 0.1 * var * count / (count - 1)).detach()
    after[f"{path}.num_batches_tracked"] = m[f"{path}.num_batches_tracked"] + 1
    scaled = (h - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt()
    return scaled * m[f"{path}.weight"].view(shape) + m[f"{path}.bias"].view(shape)


def mask(kind: str, h: Tensor, m: Model, path: str, after: Model) -> Tensor:
    z = h.mean((2, 3))
    if kind == "hybrid":
        e = m[f"{path}.u"].exp()
        masks = [mask(one, h, m, f"{path}.blocks.{one}", after) for one in ("se", "eca", "ca")]
        return sum(e[k] / e.sum() * a for k, a in enumerate(masks))
    if kind == "se":
        hidden = (z @ m[f"{path}.squeeze.weight"].T).clamp(min=0)
        return torch.sigmoid(hidden @ m[f"{path}.excite.weight"].T)[:, :, None, None]
    if kind == "eca":
        w, (n, c) = m[f"{path}.filter.weight"].flatten(), z.shape
        wide = torch.cat([z.new_zeros(n, 1), z, z.new_zeros(n, 1)], 1)
        slid = sum(w[k] * wide[:, k : k + c] for k in range(3))
        return torch.sigmoid(slid)[:, :, None, None]
    height = h.shape[2]

    def point(of: Tensor, name: str) -> Tensor:
        w, b = m[f"{path}.{name}.weight"][:, :, 0], m[f"{path}.{name}.bias"]
        return torch.einsum("oc,ncl->nol", w, of) + b[:, None]

    line = normed(point(torch.cat([h.mean(3), h.mean(2)], 2), "reduce"), m, f"{path}.norm", after)
    line = line * (line + 3).clamp(0, 6) / 6
    rows, columns = point(line[:, :, :height], "to_rows"), point(line[:, :, height:], "to_columns")
    return torch.einsum("nch,ncw->nchw", torch.sigmoid(rows), torch.sigmoid(columns))


class Reference:
    """The rounds of the paper, and of the methods it is built on, on full batches and in float64."""

    def __init__(self, kind: str, initial: Model, own: list[Model], private: set[str], weights: list[int]):
        self.kind, self.private, self.weights = kind, private, weights
        self.server = {name: t for name, t in initial.items() if name not in private}
        self.own = own
        self.whole = [{**initial, **o} for o in own]  # Ditto's v, pFedMe's theta
        self.lr, self.epochs = 0.1, 2

    def gradient(self, m: Model, client: int) -> tuple[Model, Model]:
        x, y = (torch.from_numpy(part) for part in ROWS[client])
        leaves = {n: t.clone().requires_grad_() for n, t in m.items() if "running" not in n and "num_" not in n}
        p, after = {**m, **leaves}, dict[str, Tensor]()
        h = normed(F.conv2d(x, p["conv.weight"], p["conv.bias"]), p, "norm", after).clamp(min=0)
        h = mask(self.kind, h, p, "slot", after) * h
        out = h.flatten(1) @ p["head.weight"].T + p["head.bias"]
        loss = (out[:, 0] - y).square().mean()
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)), after

    def train(self, m: Model, client: int, steps: int, pull: float = 0.0, anchor: Model | None = None) -> Model:
        for _ in range(steps):
            slope, after = self.gradient(m, client)
            moved = {}
            for name, g in slope.items():
                if pull and name not in self.private:  # no private name has a counterpart to be pulled to
                    g = g + pull * (m[name] - anchor[name])
                moved[name] = m[name] - self.lr * g
            m = {**m, **after, **moved}
        return m

    def local(self, method: str, i: int) -> Model:
        w = {**self.server, **self.own[i]}
        if method == "FedProx":
            return self.train(w, i, self.epochs, 2.0, w)
        if method == "Ditto":
            self.whole[i] = self.train(self.whole[i], i, self.epochs, 2.0, w)
        if method == "pFedMe":
            for _ in range(self.epochs):  # one batch an epoch, K = 2 steps on each
                theta = self.whole[i] = self.train(self.whole[i], i, 2, 3.0, w)
                fixed = {n for n in w if n in self.private or "running" in n or "num_" in n}
                w = {n: theta[n] if n in fixed else t - 0.05 * 3.0 * (t - theta[n]) for n, t in w.items()}
            return w
        return self.train(w, i, self.epochs)

    def round(self, method: str, cohort: list[int]) -> None:
        trained = {i: self.local(method, i) for i in cohort}
        for i in cohort:
            self.own[i] = {n: trained[i][n] for n in self.own[i]}
        total = sum(self.weights[i] for i in cohort)
        for n, t in self.server.items():
            if t.is_floating_point():
                self.server[n] = sum(self.weights[i] / total * trained[i][n] for i in cohort)
            else:
                self.server[n] = torch.stack([trained[i][n] for i in cohort]).amax(0)


def compare(base: str, method: Method, kind: str, weights: list[int], private: set[str]) -> None:
    """Three rounds of two of three clients."""
    driver = play(method, DATA, tiny(), 0, cohort=2, epochs=2)
    attention = {name for name in driver.initial if name.startswith("slot.")}
    assert driver.private == attention | private
    own = [dict(kept["personal"]) for kept in driver.kept]
    reference = Reference(kind, driver.initial, own, attention | private, weights)
    for _ in range(3):
        reference.round(base, driver.step()["cohort"])
    exact = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(common(driver), reference.server, **exact)
    for kept, theirs, whole in zip(driver.kept, reference.own, reference.whole, strict=True):
        torch.testing.assert_close(kept["personal"], theirs, **exact)
        for name in ("v", "theta"):
            if name in kept["method"]["inner"]:
                torch.testing.assert_close(kept["method"]["inner"][name], whole, **exact)


@pytest.mark.parametrize("kind", KINDS)
def test_reference_of_algorithm_1_with_two_of_three_clients_a_round(kind: str) -> None:
    compare("FedAvg", pFedLA(kind=kind), kind, [1, 1, 1], set())


@pytest.mark.parametrize(
    ("base", "inner", "weights", "private"),
    [
        ("FedAvg", FedAvg(), SIZES, set()),
        ("FedProx", FedProx(mu=2.0), SIZES, set()),
        ("FedBN", FedBN(), SIZES, NORM),
        ("Ditto", Ditto(lam=2.0), SIZES, set()),
        ("pFedMe", pFedMe(lam=3.0, K=2, eta=0.05), (1, 1, 1), set()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_reference_of_every_pairing_of_the_paper(base, inner, weights, private) -> None:
    compare(base, LocalAttention(inner), "hybrid", list(weights), private)


def test_the_pull_may_be_inside_or_outside_the_plug_in() -> None:
    compare("FedProx", Proximal(LocalAttention(FedAvg(), "se"), mu=2.0), "se", list(SIZES), set())


# ---------- limits ----------


@pytest.mark.parametrize(("place", "kind"), list(enumerate(["se", "eca", "ca"])))
def test_hybrid_with_all_the_weight_on_one_kind_is_that_kind_through_training(place: int, kind: str) -> None:
    both = [play(pFedLA(kind=k), DATA, tiny(), 0, cohort=2, epochs=2) for k in ("hybrid", kind)]
    hybrid, single = both
    u = torch.zeros(3, dtype=torch.float64)
    u[place] = 1e4
    chosen = f"slot.blocks.{kind}."
    hybrid.kept = [
        {**h, "personal": {**h["personal"], "slot.u": u,
                           **{n.replace("slot.", chosen): t for n, t in s["personal"].items()}}}
        for h, s in zip(hybrid.kept, single.kept, strict=True)
    ]  # fmt: skip
    for _ in range(3):
        hybrid.step(), single.step()
    assert same(common(hybrid), common(single))
    for h, s in zip(hybrid.kept, single.kept, strict=True):
        assert torch.equal(h["personal"]["slot.u"], u)
        assert same({n.replace(chosen, "slot."): t for n, t in h["personal"].items() if n.startswith(chosen)},
                    s["personal"])  # fmt: skip


@pytest.mark.parametrize("inner", [FedAvg(), FedProx(mu=2.0), FedBN(), Ditto(), SCAFFOLD(), FedRep()], ids=repr)
def test_with_all_masks_at_one_it_is_the_inner_method_bit_for_bit(inner: Method) -> None:
    plain, driver = (play(m, DATA, tiny(), 0, cohort=2, epochs=2) for m in (inner, LocalAttention(inner, "ca")))
    bias = {n: torch.full((4,), 50.0, dtype=torch.float64) for n in ("slot.to_rows.bias", "slot.to_columns.bias")}
    assert torch.sigmoid(bias["slot.to_rows.bias"]).eq(1).all()
    driver.kept = [
        {**kept, "personal": {**kept["personal"], **bias}, "method": opened(kept["method"], bias)}
        for kept in driver.kept
    ]
    for _ in range(3):
        plain.step(), driver.step()
    assert same(common(plain), common(driver))
    for a, b in zip(plain.kept, driver.kept, strict=True):
        assert same(a["personal"], {name: b["personal"][name] for name in a["personal"]})


def opened(state: dict, values: Model) -> dict:
    """A state in which every whole model has these values."""
    return {
        key: {**value, **values} if values.keys() <= value.keys() else opened(value, values)
        for key, value in state.items() if isinstance(value, dict)
    } | {key: value for key, value in state.items() if not isinstance(value, dict)}  # fmt: skip


def test_the_paper_s_ablation_is_the_inner_method_on_a_network_with_attention() -> None:
    built = LocalAttention(FedAvg(), "hybrid").build(tiny())
    ablation = play(LocalAttention(FedAvg(), private=False), DATA, tiny(), 0, cohort=2, epochs=2)
    built.load_state_dict(ablation.initial)
    plain = play(FedAvg(), DATA, built, 0, cohort=2, epochs=2)
    for _ in range(3):
        ablation.step(), plain.step()
    assert not ablation.private and any(name.startswith("slot.") for name in common(ablation))
    assert same(common(ablation), common(plain))


def test_with_everything_private_it_is_training_alone_with_attention() -> None:
    driver = play(LocalAttention(Local(), "eca"), DATA, tiny(), 2)
    assert driver.private == set(driver.arch.names) and driver.rows[0]["up"] == [0, 0, 0]


# ---------- where it starts and where it stays ----------


@pytest.mark.parametrize("kind", KINDS)
def test_each_client_draws_its_own_attention_and_all_share_the_base(kind: str) -> None:
    driver, again, other = (play(pFedLA(kind=kind), DATA, tiny(), 0, seed=seed) for seed in (0, 0, 1))
    own = [kept["personal"] for kept in driver.kept]
    drawn = [n for n in own[0] if n.endswith(".weight") and ".norm." not in n]
    for name in drawn:
        assert not own[0][name].equal(own[1][name]) and not own[1][name].equal(own[2][name])
    assert all(same(a, b["personal"]) for a, b in zip(own, again.kept, strict=True))
    assert not same(own[0], other.kept[0]["personal"])
    if kind == "hybrid":
        assert all(torch.equal(o["slot.u"], torch.zeros(3, dtype=torch.float64)) for o in own)


@pytest.mark.parametrize("private", [True, False])
def test_the_base_starts_bit_equal_with_and_without_the_plug_in(private: bool) -> None:
    plain = play(FedAvg(), DATA, tiny(), 0)
    for kind in KINDS:
        driver = play(LocalAttention(FedAvg(), kind, private=private), DATA, tiny(), 0)
        assert driver.initial.keys() > plain.initial.keys()
        assert same(plain.initial, {name: driver.initial[name] for name in plain.initial})


def test_nothing_of_the_attention_is_sent_and_in_the_ablation_all_of_it() -> None:
    fedavg, private, sent = (
        play(method, DATA, tiny(), 2) for method in (FedAvg(), pFedLA(), LocalAttention(FedAvg(), private=False))
    )
    assert private.rows[1]["down"] == fedavg.rows[1]["down"] and private.rows[1]["up"] == fedavg.rows[1]["up"]
    assert not any(name.startswith("slot.") for name in common(private))
    extra = sum(t.numel() * t.element_size() for n, t in sent.initial.items() if n.startswith("slot."))
    assert sent.rows[1]["up"] == [up + extra for up in fedavg.rows[1]["up"]]
    info = private.info()["parameters"]
    assert info["shared"] == fedavg.info()["parameters"]["total"] and info["personal"] > 0


def test_the_ablation_starts_at_one_value_and_averages() -> None:
    driver = play(LocalAttention(FedAvg(), "se", private=False, weighting="uniform"), DATA, tiny(), 0)
    assert all(not kept["personal"] for kept in driver.kept)
    start = driver.initial["slot.excite.weight"]
    alone = [play(LocalAttention(FedAvg(), "se", private=False), federation([rows]), tiny(), 1).server for rows in ROWS]
    driver.step()
    mean = sum(server["inner"]["model"]["slot.excite.weight"] for server in alone) / 3
    torch.testing.assert_close(common(driver)["slot.excite.weight"], mean)
    assert not mean.equal(start)


def test_the_ablation_starts_at_one_value_where_clients_send_before_they_train_too() -> None:
    method = LocalAttention(ComponentAttention(FedAvg()), "se", private=False)
    driver = play(method, DATA, tiny(), 0)
    assert all(same(kept["outbox"]["model"], driver.initial) for kept in driver.kept)


def test_an_absent_client_keeps_its_attention() -> None:
    driver = play(pFedLA(), DATA, tiny(), 1, cohort=1)
    before = driver.kept
    (present,) = driver.step()["cohort"]
    for i in range(3):
        assert same(before[i]["personal"], driver.kept[i]["personal"]) is (i != present)


def test_what_is_tested_is_the_average_with_the_clients_own_attention() -> None:
    driver = play(pFedLA(kind="ca"), DATA, tiny(), 2)
    final = driver.final(1)
    assert final["conv.weight"].equal(common(driver)["conv.weight"])
    assert final["slot.norm.running_mean"].equal(driver.kept[1]["personal"]["slot.norm.running_mean"])
    with torch.no_grad():
        error = abs(float(driver.arch.module(final)(torch.from_numpy(ROWS[1][0][:1]))) - ROWS[1][1][0])
    assert driver.finish()["test"]["rmse"][1] == pytest.approx(error)


def test_the_weighting_is_that_of_the_inner_method_and_the_paper_s_is_uniform() -> None:
    assert LocalAttention(FedAvg()).weighting == "size" and LocalAttention(SCAFFOLD()).weighting == "uniform"
    assert pFedLA().weighting == pFedLA(FedBN()).weighting == "uniform"
    assert pFedLA(weighting="size") == LocalAttention(FedAvg()) == LocalAttention(FedAvg(), weighting="size")
    size, uniform, asked = (
        play(pFedLA(kind="eca", weighting=w), DATA, tiny(), 1, weighting=r)
        for w, r in (("size", "auto"), ("uniform", "auto"), ("uniform", "size"))
    )
    assert not same(common(size), common(uniform)) and same(common(size), common(asked))


# ---------- counts ----------

# method, network: parameters added, and what the paper prints; it truncates and prints thousands and millions
COUNTS = [
    (dict(kind="se"), "lenet", 140, "45.31K"),
    (dict(kind="eca"), "lenet", 6, "45.18K"),
    (dict(kind="ca"), "lenet", 620, None),  # 45.54K is printed, which contradicts the hybrid's 45.95K
    (dict(kind="ca", ca_hidden=(3, 5)), "lenet", 362, "45.54K"),
    (dict(kind="hybrid"), "lenet", 772, "45.95K"),
    (dict(kind="se"), "alexnet", 39_936, "57.18M"),
    (dict(kind="eca"), "alexnet", 23, "57.14M"),
    (dict(kind="eca", eca_kernel=3), "alexnet", 15, "57.14M"),
    (dict(kind="ca"), "alexnet", 34_692, "57.18M"),
    (dict(kind="hybrid"), "alexnet", 74_666, "57.22M"),
]


@pytest.mark.parametrize(("options", "network", "added", "printed"), COUNTS)
def test_the_parameter_counts_are_those_of_the_paper(options, network: str, added: int, printed: str | None) -> None:
    with torch.device("meta"):
        base = (
            lenet_bn(classes=10, shape=(3, 28, 28))
            if network == "lenet"
            else alexnet_bn(classes=31, shape=(3, 224, 224))
        )
        net = LocalAttention(FedAvg(), **options).build(base)
        assert net.eval()(torch.zeros(2, *net.input.shape)).shape == (2, net.head.out_features)
    count, before = sum(p.numel() for p in net.parameters()), {"lenet": 45_178, "alexnet": 57_149_535}[network]
    assert count - before == added
    unit = {"lenet": 1e3, "alexnet": 1e6}[network]
    assert printed is None or f"{int(count / unit * 100) / 100:.2f}" == printed[:-1]


@pytest.mark.parametrize(
    ("options", "added"),
    [
        (dict(kind="se", se_reduction=2), 2 * 6 * 3 + 2 * 16 * 8),
        (dict(kind="eca", eca_kernel=5), 2 * 5),
        (dict(kind="ca", ca_reduction=1), 6 * 8 + 8 + 16 + 2 * (8 * 6 + 6) + 16 * 16 + 16 + 32 + 2 * (16 * 16 + 16)),
        (dict(kind="hybrid", se_reduction=2, eca_kernel=5, ca_hidden=(3, 5)), 292 + 10 + 362 + 6),
    ],
)
def test_the_sizes_of_the_blocks_are_options(options, added: int) -> None:
    net = pFedLA(**options).build(lenet_bn(classes=10, shape=(3, 28, 28)))
    assert sum(p.numel() for p in net.parameters()) == 45_178 + added


@pytest.mark.parametrize("attention_at", ["block", "conv"])
def test_every_layer_keeps_its_norm_wherever_the_attention_stands(attention_at: str) -> None:
    plain = Arch(lenet_bn(classes=10, shape=(3, 28, 28)))
    net = LocalAttention(FedAvg(), "ca").build(lenet_bn(classes=10, shape=(3, 28, 28), attention_at=attention_at))
    arch = Arch(net)
    assert {layer: names for layer, names in arch.layers.items() if layer in plain.layers} == plain.layers
    assert arch.head == plain.head and arch.norm > plain.norm
    blocks = [path for path, module in net.named_modules() if isinstance(module, AttentionBlock)]
    assert blocks == ["attention1", "attention2"]


def test_any_model_with_slots_will_do_however_deep_they_are() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleList([nn.Conv2d(2, 3, 1), Slot(3)])
            self.after = Slot(3)
            self.head = nn.Linear(36, 1)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.inner:
                x = layer(x)
            return self.head(self.after(x).flatten(1))

    driver = play(pFedLA(kind="eca"), DATA, Branch().double(), 1)
    assert driver.private == {"inner.1.filter.weight", "after.filter.weight"}


def test_one_slot_in_two_places_is_two_slots() -> None:
    slot = Slot(3)
    net = nn.Sequential(nn.Conv2d(2, 3, 1), slot, nn.ReLU(), slot, nn.Flatten(), nn.Linear(36, 1)).double()
    driver = play(pFedLA(kind="eca"), DATA, net, 1)
    assert driver.private == {"1.filter.weight", "3.filter.weight"}


def test_building_does_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    net = tiny()
    torch.set_rng_state(before)
    LocalAttention(FedAvg()).build(net)
    assert torch.equal(torch.get_rng_state(), before)


# ---------- what it shows ----------


def test_it_explains_the_mixture_as_last_trained() -> None:
    driver = play(pFedLA(), DATA, tiny(), 3)
    for i, kept in enumerate(driver.kept):
        shown = driver.rows[-1]["explain"]["clients"][str(i)]
        e = kept["personal"]["slot.u"].exp()
        assert shown == {"mixture[SE,ECA,CA]/slot": pytest.approx((e / e.sum()).tolist())}
        assert shown["mixture[SE,ECA,CA]/slot"] != pytest.approx([1 / 3] * 3, abs=1e-6)


@pytest.mark.parametrize(("inner", "name"), [(Ditto(), "v"), (pFedMe(K=1), "theta"), (Proximal(Ditto()), "v")])
def test_it_explains_the_model_that_the_inner_method_keeps(inner: Method, name: str) -> None:
    driver = play(LocalAttention(inner), DATA, tiny(), 2)
    kept = driver.kept[0]["method"]["inner"]
    u = kept.get("inner", kept)[name]["slot.u"]
    shown = driver.rows[-1]["explain"]["clients"]["0"]
    assert shown.keys() == {"mixture[SE,ECA,CA]/slot", f"mixture[SE,ECA,CA]/{name}/slot"}
    assert shown[f"mixture[SE,ECA,CA]/{name}/slot"] == pytest.approx(u.softmax(0).tolist())


def masked(m: Model, x: np.ndarray) -> float:
    """The mean of the mask of ECA over these rows, norms as in a test."""
    with torch.no_grad():
        h = F.conv2d(torch.from_numpy(x), m["conv.weight"], m["conv.bias"])
        h = F.batch_norm(h, m["norm.running_mean"], m["norm.running_var"], m["norm.weight"], m["norm.bias"]).relu()
        return float(mask("eca", h, m, "slot", {}).mean())


@pytest.mark.parametrize(("inner", "name"), [(FedFomo(M=2), "own"), (APPLE(), "core"), (APPLE(M=1), "core")], ids=repr)
def test_where_no_one_model_is_received_it_explains_the_one_that_is_kept(inner: Method, name: str) -> None:
    for kind, part in (("hybrid", "mixture[SE,ECA,CA]"), ("eca", "mean mask")):
        for norm in (True, False):
            driver = play(LocalAttention(inner, kind), DATA, tiny(norm), 2)
            shown = driver.rows[-1]["explain"]["clients"]["0"]
            m = driver.kept[0]["method"]["inner"][name]
            assert [key for key in shown if "slot" in key] == [f"{part}/{name}/slot"]
            value = shown[f"{part}/{name}/slot"]
            if kind == "hybrid":
                assert value == pytest.approx(m["slot.u"].softmax(0).tolist())
            elif norm:
                assert value == pytest.approx(masked(m, ROWS[0][0]))


def test_of_a_single_kind_it_explains_the_mean_mask() -> None:
    driver = play(pFedLA(kind="eca"), DATA, tiny(), 1)
    before = common(driver)
    driver.step()
    a = masked({**before, **driver.kept[2]["personal"]}, ROWS[2][0])
    assert driver.rows[-1]["explain"]["clients"]["2"] == {"mean mask/slot": pytest.approx(a)}


# ---------- refusals and notes ----------


@pytest.mark.parametrize("model", ["dnn", "cnn4", "mlr"])
def test_a_model_without_slots_is_refused_and_one_that_has_them_is_named(model: str) -> None:
    data = federation([(np.zeros((4, 1, 16, 16)).astype("float32"), np.zeros(4, dtype="float32"))])
    with pytest.raises(
        WrongInput, match=r"no place for attention; choose one that has, such as lenet_bn or alexnet_bn"
    ):
        play(pFedLA(), data, model, 1)


def test_slots_are_filled_once() -> None:
    with pytest.raises(WrongInput, match="no place for attention"):
        play(LocalAttention(LocalAttention(FedAvg(), "se"), "ca"), DATA, tiny(), 1)


def test_fedbn_on_a_model_whose_only_norms_are_in_the_attention_is_refused() -> None:
    with pytest.raises(WrongInput, match=r"of what FedBN\(\) keeps private.*such as lenet_bn"):
        play(LocalAttention(FedBN(), "ca"), DATA, tiny(norm=False), 1)
    with pytest.raises(WrongInput, match="FedBN: the model has no normalisation layer"):
        play(LocalAttention(FedBN(), "se"), DATA, tiny(norm=False), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "cbam"}, "kind='cbam' must be se, eca, ca or hybrid"),
        ({"se_reduction": 0}, "se_reduction=0 must be 1 or more"),
        ({"ca_reduction": 0}, "ca_reduction=0 must be 1 or more"),
        ({"eca_kernel": 2}, "eca_kernel=2 must be odd"),
        ({"eca_kernel": -1}, "eca_kernel=-1 must be odd"),
        ({"ca_hidden": (3, 0)}, r"ca_hidden=\(3, 0\) must be widths of 1 or more"),
        ({"weighting": "rows"}, "weighting='rows' must be 'size' or 'uniform', or None"),
    ],
)
def test_impossible_settings_are_refused(options, message: str) -> None:
    with pytest.raises(WrongInput, match=message):
        LocalAttention(FedAvg(), **options)


def test_a_width_for_each_slot() -> None:
    with pytest.raises(WrongInput, match=r"ca_hidden=\(3, 5\) gives 2 widths, but the model has 1 slots"):
        play(LocalAttention(FedAvg(), "ca", ca_hidden=(3, 5)), DATA, tiny(), 1)


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"kind": "se", "eca_kernel": 3}, "eca_kernel=3 has no effect with kind='se'"),
        ({"kind": "eca", "ca_hidden": (3,)}, "ca_hidden=.* has no effect with kind='eca'"),
        ({"kind": "ca", "se_reduction": 2}, "se_reduction=2 has no effect"),
        ({"ca_reduction": 4, "ca_hidden": (3,)}, "ca_reduction=4 has no effect beside ca_hidden"),
    ],
)
def test_a_setting_without_effect_says_so(options, note: str) -> None:
    with pytest.warns(MethodNote, match=note):
        play(LocalAttention(FedAvg(), **options), DATA, tiny(), 0)


def test_the_defaults_say_nothing_and_the_settings_read_back() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in KINDS:
            play(pFedLA(kind=kind), DATA, tiny(), 0)
    for method in (pFedLA(), LocalAttention(FedBN(), "ca", ca_hidden=(3, 5), private=False), pFedLA(FedProx(), "se")):
        assert registry.parse("method", repr(method)) == method
    assert registry.parse("method", "pfedla(FedBN(), kind='eca')") == pFedLA(FedBN(), kind="eca")
    assert registry.parse("method", "pFedLA").inner == FedAvg()
    sizes = {"se_reduction": 2, "eca_kernel": 5, "ca_reduction": 8, "ca_hidden": (3, 5)}
    assert pFedLA(FedBN(), **sizes) == LocalAttention(FedBN(), **sizes, weighting="uniform")


# ---------- the contract ----------


@pytest.mark.parametrize(
    "method",
    [
        *(pFedLA(kind=kind) for kind in KINDS[:3]),
        LocalAttention(FedBN(), "ca", private=False),
    ],
    ids=["SE", "ECA", "CA", "ablation"],
)
def test_every_kind_and_the_ablation_keep_the_laws(method: Method) -> None:
    check_method(method)


@pytest.mark.parametrize(
    "method",
    [
        LocalAttention(AdaptiveLocalAggregation(FedAvg(), cap=2), "ca"),
        LocalAttention(ComponentAttention(FedAvg()), "hybrid"),
    ],
    ids=["ALA", "MCSA"],
)
def test_with_another_plug_in_inside_it_still_is_private_pure_and_resumable(method: Method) -> None:
    check_method(method, ["has pure hooks", "keeps the private", "resumes", "keeps types"])
