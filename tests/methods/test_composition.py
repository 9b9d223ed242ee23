"""Plug-ins around other methods: every pairing that the papers claim, and what is refused or said of the others.

What a pairing computes is in the tests of its parts (references of pFedLA on all of its base methods in
test_local_attention.py, of FedMCSA and of MCSA on pFedMe in test_mcsa.py). Here is what holds for pairings as such.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from quadratic import TwoLayers, federation, play, regressions, same
from torch import nn

from fedtailor import (
    APPLE,
    SCAFFOLD,
    AdaptiveLocalAggregation,
    Centralised,
    ComponentAttention,
    Ditto,
    Driver,
    FedAMP,
    FedAvg,
    FedBN,
    FedFomo,
    FedHAM,
    FedPHP,
    FedProx,
    FedRep,
    Local,
    LocalAttention,
    Method,
    PartialFedAdaptive,
    PartialFedFix,
    PerFedAvg,
    Proximal,
    RunSpec,
    Wrapper,
    WrongInput,
    check_method,
    pFedMe,
    tree,
)
from fedtailor.method import MethodNote
from fedtailor.toy import ToyNet, run, toy_driver, toy_federation, without_norm

ALA, MCSA = AdaptiveLocalAggregation, ComponentAttention
quiet = pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")

ON_ALA: list[Method] = [
    FedAvg(), FedProx(), PerFedAvg(), FedRep(), pFedMe(K=1), Ditto(), FedAMP(), FedPHP(), PartialFedFix(),
    PartialFedAdaptive(),
]  # fmt: skip
REGISTERED: list[Wrapper] = [  # tests/contract puts these to every law under their own names
    LocalAttention(FedAvg(), "se"), ALA(FedAvg(), cap=2), MCSA(FedAvg()), Proximal(MCSA(FedAvg())),
]  # fmt: skip
COMPOSED: list[Wrapper] = [
    *(LocalAttention(inner, "se") for inner in (FedProx(), FedBN(), pFedMe(K=1), Ditto())),
    *(ALA(inner, cap=2) for inner in ON_ALA if inner != FedAvg()),
    MCSA(pFedMe(K=1)), MCSA(LocalAttention(FedAvg(), "se")), ALA(LocalAttention(FedBN(), "se"), cap=2),
]  # fmt: skip


def short(method: object) -> str:
    """The names from the outside in."""
    name = type(method).__name__
    return f"{name}({short(method.inner)})" if isinstance(method, Wrapper) else name


def state_inside(state: dict[str, Any]) -> dict[str, Any]:
    while "inner" in state:
        state = state["inner"]
    return state


@pytest.mark.parametrize("method", COMPOSED, ids=short)
def test_every_pairing_keeps_all_laws(method: Method) -> None:
    check_method(method)


@pytest.mark.parametrize("method", REGISTERED + COMPOSED, ids=short)
def test_no_pairing_is_its_inner_method_or_has_anything_to_say(method: Wrapper) -> None:
    spec = {"model": ToyNet, "rounds": 3, "batch": 4, "lr": 0.1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, inner = (run(Driver(RunSpec(method=m, **spec), toy_federation())) for m in (method, method.inner))
    for i in range(4):  # the fifth holds a single row
        base = inner.final(i)
        changed = {name for name, value in ours.final(i).items() if name in base and not torch.equal(value, base[name])}
        assert changed & ours.common.shared


# ---------- ALA ----------


@quiet
@pytest.mark.parametrize("inner", ON_ALA, ids=short)
def test_ala_with_its_weights_held_at_one_is_the_inner_method_bit_for_bit(inner: Method) -> None:
    plain, wrapped = (run(toy_driver(m, momentum=0.5)) for m in (inner, ALA(inner, p=2, eta=0.0, cap=2)))
    assert same(tree.flatten(wrapped.server["inner"]), tree.flatten(plain.server))
    for i, (kept, held) in enumerate(zip(plain.kept, wrapped.kept, strict=True)):
        assert same(tree.flatten(held["method"]["inner"]), tree.flatten(kept["method"]))
        assert same(held["personal"], kept["personal"])
        assert same(wrapped.final(i), plain.final(i))
    for a, b in zip(wrapped.rows, plain.rows, strict=True):
        assert [a["test"]["loss"][i] for i in a["cohort"]] == [b["test"]["loss"][i] for i in b["cohort"]]


def test_ala_mixes_neither_attention_nor_norms_that_stay_at_home() -> None:
    driver = run(toy_driver(ALA(LocalAttention(FedBN(), "ca"), p=9, eta=2.0, cap=3)))
    w = driver.kept[0]["method"]["w"]
    assert w.keys() == {"0.weight", "0.bias", "5.weight", "5.bias"} == driver.common.shared
    assert any((x != 1).any() for kept in driver.kept for x in kept["method"]["w"].values())
    assert driver.private == {name for name in driver.arch.names if name.startswith(("1.", "3."))}


def test_ala_around_a_strategy_that_loads_none_of_its_layers_says_that_it_is_inert() -> None:
    data = federation(regressions())
    inert = ALA(PartialFedFix("w/o fc"), p=1, eta=2.0, cap=3)
    with pytest.warns(MethodNote, match="with p=1 only layers that .*'w/o fc'.* does not load have weights: nothing"):
        driver = play(inert, data, TwoLayers(), 4)
    plain = play(PartialFedFix("w/o fc"), data, TwoLayers(), 4)
    assert all(same(a["trained"], b["trained"]) for a, b in zip(driver.kept, plain.kept, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        driver = play(ALA(PartialFedFix("w/o fc"), p=2, eta=2.0, cap=3), data, TwoLayers(), 4)
    assert not all(same(a["trained"], b["trained"]) for a, b in zip(driver.kept, plain.kept, strict=True))


# ---------- MCSA ----------


@quiet
def test_mcsa_without_selection_on_pfedme_is_pfedme() -> None:
    options = {"batch": 2, "epochs": 2, "momentum": 0.5}
    inner, data = pFedMe(lam=3.0, K=2, eta=0.05), federation(regressions())
    ours, plain = (play(m, data, TwoLayers(), 3, **options) for m in (MCSA(inner, sigma=0.0), inner))
    for a, b in zip(ours.kept, plain.kept, strict=True):
        torch.testing.assert_close(a["method"]["inner"]["theta"], b["method"]["theta"], rtol=1e-12, atol=1e-14)
    w = [kept["trained"] for kept in ours.kept]
    mean = {name: sum(model[name] for model in w) / 3 for name in w[0]}
    torch.testing.assert_close(plain.server["model"], mean, rtol=1e-12, atol=1e-14)


@quiet
@pytest.mark.parametrize("inner", [FedAvg(), pFedMe(lam=3.0, K=2, eta=0.05)], ids=short)
def test_mcsa_without_selection_sends_the_plain_mean_of_the_cohort(inner: Method) -> None:
    driver = play(MCSA(inner, sigma=0.0, train="sampled"), federation(regressions()), TwoLayers(), 4, cohort=2)
    payload = driver.common.method.send(driver.fed(5), driver.server, torch.tensor([0, 2]))
    for name, models in driver.server["models"].items():
        mean = (models[0] + models[2]) / 2  # whatever their sizes, and whoever else has sent before
        for place in range(2):
            torch.testing.assert_close(payload.own["model"][name][place], mean, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("inner", [FedAvg(), pFedMe(lam=3.0, K=2, eta=0.05)], ids=short)
def test_mcsa_that_selects_only_oneself_is_every_client_for_itself(inner: Method) -> None:
    rows = regressions()
    driver = play(MCSA(inner, sigma=1e9), federation(rows), TwoLayers(), 3, epochs=2, momentum=0.5)
    for i, own in enumerate(rows):
        alone = play(inner, federation([own]), TwoLayers(), 3, epochs=2, momentum=0.5)
        torch.testing.assert_close(driver.kept[i]["trained"], alone.server["model"], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(driver.kept[i]["method"]["inner"], alone.kept[0]["method"], rtol=1e-12, atol=1e-14)


def test_mcsa_leaves_private_attention_at_home_and_compares_none_of_it() -> None:
    driver = run(toy_driver(MCSA(LocalAttention(FedAvg(), "se"))))
    attention = {name for name in driver.arch.names if name.startswith("3.")}
    assert attention == driver.private and not attention & driver.server["models"].keys()
    assert driver.rows[-1]["explain"]["server"].keys() == {"clients", "attention/0", "attention/5"}
    selective = MCSA(LocalAttention(FedAvg(), "se"), sigma=1e9)
    ours, alone = (run(toy_driver(m, cohort=1.0)) for m in (selective, LocalAttention(Local(), "se")))
    for pair in zip(ours.kept, alone.kept, strict=True):
        a, b = (tree.drop(kept["trained"], ours.arch.counters) for kept in pair)  # of which everybody has the largest
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@quiet
def test_a_pull_of_0_on_mcsa_is_mcsa_bit_for_bit() -> None:
    plain, pulled = (run(toy_driver(m)) for m in (MCSA(FedAvg(), 5.0), Proximal(MCSA(FedAvg(), 5.0), mu=0.0)))
    assert same(tree.flatten(pulled.server["inner"]), tree.flatten(plain.server))
    assert all(same(a["trained"], b["trained"]) for a, b in zip(plain.kept, pulled.kept, strict=True))


# ---------- order ----------

PLUG_INS: dict[str, Callable[[Method], Method]] = {
    "ALA": lambda inner: ALA(inner, eta=2.0, cap=2),
    "LocalAttention": lambda inner: LocalAttention(inner, "se"),
    "MCSA": lambda inner: MCSA(inner, sigma=5.0, train="sampled"),
    "Proximal": lambda inner: Proximal(inner, mu=2.0),
}
PAIRS = [(a, b) for a in PLUG_INS for b in PLUG_INS if a < b]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_plug_ins_stand_in_different_places_so_that_their_order_is_no_matter(a: str, b: str) -> None:
    one, other = (
        run(toy_driver(PLUG_INS[x](PLUG_INS[y](FedAvg())), point="received")) for x, y in ((a, b), (b, a))
    )
    assert same(state_inside(one.server)["model"], state_inside(other.server)["model"])
    for i, (kept, held) in enumerate(zip(one.kept, other.kept, strict=True)):
        assert same(kept["personal"], held["personal"]) and same(one.final(i), other.final(i))
    assert [row["test"] for row in one.rows] == [row["test"] for row in other.rows]


# ---------- what has no meaning, and what has no effect ----------


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ALA(FedFomo()), "FedFomo itself mixes models on each client by what it learned; there is no one"),
        (lambda: ALA(APPLE()), "APPLE itself mixes models on each client by what it learned; there is no one model"),
        (lambda: ALA(FedHAM()), "FedHAM itself mixes models on each client by what it learned; there is no one model"),
        (lambda: ALA(LocalAttention(FedHAM())), "itself mixes models on each client by what it learned"),
        (lambda: ALA(ALA(FedAvg())), "AdaptiveLocalAggregation itself mixes models"),
        (lambda: ALA(FedAMP(start_at="own")), "FedAMP goes on from its own model.*choose start_at='u'"),
        (lambda: Proximal(FedFomo()), r"FedFomo\(.* receives no one model that it could be held near"),
        (lambda: Proximal(APPLE()), r"APPLE\(.* receives no one model that it could be held near"),
        *((lambda inner=inner: MCSA(inner), "more than one model for all, and attention can replace no more than")
          for inner in (FedFomo(), APPLE(), FedHAM(p=0), SCAFFOLD(), FedAMP(), MCSA(FedAvg()))),
        (lambda: LocalAttention(LocalAttention(FedAvg())), "use LocalAttention once"),
    ],
)  # fmt: skip
def test_a_pairing_without_meaning_is_refused_with_the_reason(make: Callable[[], Method], reason: str) -> None:
    with pytest.raises(WrongInput, match=reason):
        toy_driver(make())


def slotless(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(shape[0], 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(18, classes))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (slotless, "no place for attention; choose one that has, such as lenet_bn or alexnet_bn"),
        (without_norm, "the model has no normalisation layer.*choose one that has, such as lenet_bn"),
    ],
)
def test_a_model_that_lacks_what_an_inner_method_needs_is_refused_through_all_plug_ins(model: Any, reason: str) -> None:
    for method in (ALA(LocalAttention(FedBN(), "se")), Proximal(LocalAttention(ALA(FedBN()), "se"))):
        with pytest.raises(WrongInput, match=reason):
            toy_driver(method, model=model)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (ALA(Local()), "AdaptiveLocalAggregation: Local shares no layer of this model, so there is nothing to mix"),
        (MCSA(Local()), "ComponentAttention: nothing that is trained is shared"),
        (Proximal(Local()), "Proximal: nothing that is trained is shared"),
        (ALA(Centralised()), "AdaptiveLocalAggregation: a single client receives its own model"),
        (MCSA(Centralised()), "ComponentAttention: with one client there is nobody else to attend to"),
        (ALA(Proximal(FedAvg(), anchor="moving")), "Proximal: anchor='moving' makes mu=.* inert"),
        (Proximal(MCSA(FedAvg(), sigma=0.0)), "ComponentAttention: with sigma=0 attention is uniform"),
        (MCSA(pFedMe(beta=0.5)), "ComponentAttention: it replaces the server's mean, so that beta=0.5 .* no effect"),
        (LocalAttention(ALA(FedAvg(), eta=0.0)), "AdaptiveLocalAggregation: with eta=0 all weights stay one"),
    ],
    ids=lambda value: short(value) if isinstance(value, Method) else "",
)
def test_a_plug_in_without_effect_says_so_once_wherever_it_stands(method: Method, says: str) -> None:
    with pytest.warns(MethodNote, match=says) as said:
        Driver(RunSpec(method=method, model=ToyNet, batch=4), toy_federation())
    assert len(said) == 1
