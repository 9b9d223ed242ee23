"""Settings that switch a method off, in whole or in part: each is said once, by name; the defaults have nothing to say.

Silent null points are how comparisons go wrong: a beta of 0 whose global model never moves still prints an accuracy.
"""

from __future__ import annotations

import functools
import re
import warnings
from pathlib import Path

import pytest
from small import method_named

from fedtailor import Driver, Method, RunSpec, Wrapper, data, registry
from fedtailor.cli import main
from fedtailor.method import overrides

# On digits with lenet_bn: twelve clients of six styles, five layers.
NULL_POINTS = [
    ("FedProx(mu=0)", "Proximal: with mu=0 there is no pull, and this is the inner method"),
    ("FedProxC(mu=0)", "Proximal: with mu=0"),
    ("Proximal(FedSGD(), mu=0.1)", "Proximal: FedSGD takes one step"),
    ("Proximal(Local(), mu=0.1)", "Proximal: nothing that is trained is shared"),
    ("Proximal(FedAvg(), mu=0.1, anchor='moving')", "Proximal: anchor='moving' makes mu=0.1"),
    ("Ditto(lam=0)", "Ditto: with lam=0 .* trained alone"),
    ("pFedMe(lam=0)", "pFedMe: with lam=0 the global model never moves"),
    ("pFedMe(eta=0)", "pFedMe: with eta=0 the global model never moves"),
    ("pFedMe(beta=0)", "pFedMe: with beta=0 the server keeps its first model"),
    ("FedRep(head_epochs=0)", "FedRep: with head_epochs=0 no head is ever trained"),
    ("FedBABU(ft_epochs=0)", "FedBABU: with ft_epochs=0"),
    ("FedAvgFT(ft_epochs=0)", "FedAvgFT: with ft_epochs=0 .* this is FedAvg"),
    ("FedAvgC(ft_epochs=0)", "TunedStart: with ft_epochs=0 .* this is FedAvg"),
    ("FTL(trainable='head')", "FTL: with trainable='head'"),
    ("PerFedAvg(alpha=0)", "PerFedAvg: with alpha=0 .* this is FedAvg"),
    ("PerFedAvg(beta=0)", "PerFedAvg: with beta=0 the global model never moves"),
    ("PerFedAvg(delta=0.1)", "PerFedAvg: delta=0.1 has no effect with variant='FO'"),
    ("FedPHP(mu_max=0)", "FedPHP: mu_max=0 inherits nothing"),
    ("FedPHP(lambda_r=0)", "FedPHP: lambda_r=0 takes the regulariser away"),
    ("FedHealth(cloud_epochs=0)", "FedHealth: with cloud_epochs=0 there is no cloud model"),
    ("FedHealth(ft_epochs=0)", "FedHealth: with ft_epochs=0 nothing is transferred"),
    ("FedHealth(eta_c=0)", "FedHealth: eta_c=0 takes the alignment away"),
    ("FedALA(p=0)", "AdaptiveLocalAggregation: with p=0 .* this is FedAvg"),
    ("FedALA(eta=0)", "AdaptiveLocalAggregation: with eta=0 .* this is FedAvg"),
    ("FedALA(p=9)", "AdaptiveLocalAggregation: p=9, but only 5 layers are shared"),
    ("ALA(FedRep(), p=5)", "AdaptiveLocalAggregation: p=5, but only 4 layers are shared"),
    ("ALA(PartialFedFix('w/o fc'))", "AdaptiveLocalAggregation: with p=1 only layers that .* does not load"),
    ("ALA(Local())", "AdaptiveLocalAggregation: Local shares no layer"),
    ("PartialFedFix('w/o *')", r"PartialFedFix\(strategy='w/o \*'\) loads nothing"),
    ("PartialFedFix('full')", r"PartialFedFix\(strategy='full'\) loads everything"),
    ("PartialFedAdaptive(alpha_lr=0)", "PartialFedAdaptive: the strategy is never learned"),
    ("PartialFedAdaptive(f_s=0)", "PartialFedAdaptive: the strategy is never learned"),
    ("PartialFedAdaptive(shared_batches=True, f_m=2)", "PartialFedAdaptive: f_m=2 has no effect"),
    ("PartialFedAdaptive(merge='hard', finetune_epochs=2)", "PartialFedAdaptive: finetune_epochs=2 has no effect"),
    ("pFedLA(kind='se', eca_kernel=5)", "LocalAttention: eca_kernel=5 has no effect with kind='se'"),
    ("pFedLA(kind='ca', ca_hidden=(3, 5), ca_reduction=4)", "LocalAttention: ca_reduction=4 has no effect beside"),
    ("FedMCSA(lam=0)", "Proximal: with mu=0"),
    ("FedMCSA(sigma=0)", "ComponentAttention: with sigma=0 attention is uniform"),
    ("FedMCSA(anchor='moving')", "Proximal: anchor='moving' makes mu=5.0"),
    ("FedMCSAWithoutAttention(lam=0)", "Proximal: with mu=0"),
    ("MCSA(Local())", "ComponentAttention: nothing that is trained is shared"),
    ("MCSA(pFedMe(beta=2))", "ComponentAttention: it replaces the server's mean, so that beta=2"),
    ("FedAMP(lam=0)", "FedAMP: with lam=0 the mixture is where a client starts"),
    ("FedAMP(lam=0, start_at='own')", "FedAMP: with lam=0 and start_at='own' every client trains alone"),
    ("HeurFedAMP(sigma=0)", "HeurFedAMP: with sigma=0 all other clients weigh the same"),
    ("HeurFedAMP(xi_self=1)", "HeurFedAMP: with xi_self=1"),
    ("FedHAM(p=0, k=12)", "FedHAM: k=12 clusters of 12 clients leave every client alone"),
    ("FedHAM(p=0, lam=0)", "FedHAM: lam=0 takes no step"),
    ("FedHAM(p=0, ham_lr=0)", "FedHAM: ham_lr=0 takes no step"),
    ("FedHAM(p=0, layers='second', k=3)", "FedHAM: k=3 has no effect"),
    ("FedFomo(M=12)", "FedFomo: M=12, but only 11 other clients"),
    ("APPLE(lr_p=0)", "APPLE: lr_p=0 leaves the relation vector"),
    ("APPLE(mu=0)", "APPLE: mu=0, so nothing pulls p"),
    ("APPLE(L=0)", "APPLE: L=0, so nothing pulls p"),
    ("APPLE(M=12)", "APPLE: M=12, but only 11 other clients"),
]
ALONE = [  # in a federation of a single client
    ("FedALA", "AdaptiveLocalAggregation: a single client receives its own model"),
    ("FedMCSA", "ComponentAttention: with one client there is nobody else"),
    ("FedAMP", "FedAMP: with one client there is nobody"),
    ("HeurFedAMP", "HeurFedAMP: with one client there is nobody"),
    ("FedHAM(p=0)", "FedHAM: a single client has nobody to attend to"),
    ("FedFomo", "FedFomo: a single client has nobody's model"),
    ("APPLE", "APPLE: a single client has only its own core"),
]
ONE_LAYER = [  # with mlr
    ("FTL(trainable='head')", "FTL: the model is a single layer"),
    ("FedPHP", "FedPHP: only the last layer is trained"),
]
CASES = [
    *((*case, ("--data", "digits", "--batch", "0", "--cohort", "2")) for case in NULL_POINTS),
    *((*case, ("--data", "digits", "--batch", "0", "--partition", "iid", "--clients", "1")) for case in ALONE),
    *((*case, ("--data", "synthetic", "--batch", "8", "--cohort", "2")) for case in ONE_LAYER),
]
SMALL = ("--rounds", "1", "--steps", "1", "--quiet")

load = functools.cache(data.load)


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the rows takes longer than most of these runs."""
    monkeypatch.setattr(data, "load", load)


@pytest.mark.parametrize(("method", "says", "where"), CASES, ids=[f"{m} on {w[1]}" for m, _, w in CASES])
def test_it_is_said_once_on_the_command_line(
    method: str, says: str, where: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["run", *where, "--method", method, *SMALL, "--out", str(tmp_path / "run")])
    written = capsys.readouterr().err
    assert code == 0, written
    notes = [line for line in written.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1 and re.match(f"note: {says}", notes[0]), written


@pytest.mark.parametrize("name", registry.names("method"))
def test_the_defaults_have_nothing_to_say(name: str) -> None:
    federation = load("digits")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        driver = Driver(RunSpec.of(federation, method_named(name), steps=1, batch=0, cohort=4), federation)
        for _ in range(3):
            driver.step()
    assert not [str(one.message) for one in said]


def parts(method: Method) -> list[str]:
    """The classes that a method is made of."""
    return [type(method).__name__, *(parts(method.inner) if isinstance(method, Wrapper) else [])]


def test_every_method_that_has_something_to_say_is_in_the_table() -> None:
    table = {part for text, _, _ in CASES for part in parts(registry.parse("method", text))}
    for name in registry.names("method"):
        method = method_named(name)
        assert not overrides(method, "notes") or parts(method)[0] in table, name
