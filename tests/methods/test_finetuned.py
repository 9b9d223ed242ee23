"""FedAvg+FT, FTL, FedAvg-C and FedProx-C: one global model, fine-tuned at different times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from nets import Frozen, Tied, normed
from quadratic import SIZES, Line, TwoLayers, common, federation, left, play, regressions, same, squares, w_of
from reference import SETTINGS, close, descend, line, mean, options, two_layers, values

from fedtailor import (
    FTL,
    Arch,
    Client,
    FedAvg,
    FedAvgC,
    FedAvgFT,
    FedBABU,
    FedProx,
    FedProxC,
    Received,
    RunSpec,
    TunedStart,
    Wrapper,
    WrongInput,
    federate,
    schedule,
)
from fedtailor.method import MethodNote
from fedtailor.report.outcomes import outcomes
from fedtailor.report.read import read
from fedtailor.tree import State, Tree

# FedAvg+FT.


def test_fedavg_is_tuned_once_after_the_last_round() -> None:
    data = squares((1.0, 5.0), (2.0, 1.0), (1, 3))
    tuned, plain = (play(m, data, Line(0.0), 3) for m in (FedAvgFT(ft_epochs=4), FedAvg()))
    assert same(tuned.server["model"], plain.server["model"])
    assert [row["test"] for row in tuned.rows] == [row["test"] for row in plain.rows]
    w = w_of(plain)
    for i, (c, h) in enumerate(((1.0, 2.0), (5.0, 1.0))):
        assert float(tuned.final(i)["w"]) == pytest.approx(c + left(0.1, h, 4) * (w - c))
        assert float(plain.final(i)["w"]) == w


@pytest.mark.parametrize("setting", SETTINGS)
def test_fedavg_ft_numpy_reference(setting: dict[str, float]) -> None:
    rows = regressions()
    driver = play(FedAvgFT(), federation(rows), Line(0.4, -0.1), 3, cohort=2, **setting)
    w = values(Line(0.4, -0.1))
    for row in driver.rows:
        trained = [descend(w, line(*rows[i]), **options(setting, row["round"])) for i in row["cohort"]]
        w = mean(trained, [SIZES[i] for i in row["cohort"]])
    for i, own in enumerate(rows):
        close(driver.final(i), descend(w, line(*own), **{**options(setting, 4), "epochs": 5}))


def test_the_run_may_ask_for_another_finish() -> None:
    data = squares((1.0,), (1.0,), (1,))
    driver = play(FedAvgFT(ft_epochs=4), data, Line(0.0), 1, finish_epochs=0)
    assert float(driver.final(0)["w"]) == w_of(driver)


def test_a_report_says_that_the_end_was_tuned(tmp_path: Path) -> None:
    data = regressions()
    for method, name in ((FedAvgFT(ft_epochs=4), "tuned"), (FedAvg(), "plain")):
        spec = RunSpec(method=method, model=Line(0.4, -0.1), rounds=1, batch=0, lr=0.1)
        federate(spec, federation(data), out=tmp_path / name)
    taken = {}
    for name in ("tuned", "plain"):
        (comparison,) = read([tmp_path / name])
        taken[name] = outcomes(comparison)[0].taken
    assert taken == {"tuned": "end of run, 4 tuning epochs", "plain": "end of run"}


# FTL.


@pytest.mark.parametrize("trainable, names", [("all", None), ("head", ("head.weight",))])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.filterwarnings("ignore:FTL. with trainable='head'")
def test_ftl_numpy_reference(setting: dict[str, float], trainable: str, names: tuple[str, ...] | None) -> None:
    rows = regressions()
    driver = play(FTL(trainable), federation(rows), TwoLayers(), 3, cohort=2, **setting)
    server = values(TwoLayers())
    own = [server] * 3
    for row in driver.rows:
        for i in row["cohort"]:
            own[i] = descend(server, two_layers(*rows[i]), only=names, **options(setting, row["round"]))
        cohort = row["cohort"]
        server = mean([own[i] for i in cohort], [SIZES[i] for i in cohort])
        for i, (x, y) in enumerate(rows):  # tested after local training; absent clients with the last one
            out = float(x[0] @ own[i]["body.weight"].T @ own[i]["head.weight"][0])
            assert row["test"]["rmse"][i] == pytest.approx(abs(out - y[0]), rel=1e-9)
            assert row["point"] == "trained"
    close(common(driver), server)


def test_ftl_all_is_fedavg_tested_later() -> None:
    data = federation(regressions(dtype=np.float32))
    ftl, fedavg, later = (
        play(m, data, normed(), 3, batch=2, cohort=2, **o)
        for m, o in ((FTL(), {}), (FedAvg(), {}), (FedAvg(), {"point": "trained"}))
    )
    assert same(ftl.server["model"], fedavg.server["model"])
    assert ftl.rows[-1]["test"] == later.rows[-1]["test"] != fedavg.rows[-1]["test"]


def test_ftl_head_says_that_the_rest_stays_as_drawn() -> None:
    with pytest.warns(MethodNote, match="every layer but the last keeps its first values"):
        driver = play(FTL("head"), federation(regressions()), TwoLayers(), 2, momentum=0.9, weight_decay=0.1)
    assert torch.equal(common(driver)["body.weight"], TwoLayers().body.weight)
    assert driver.rows[0]["up"] == [8 * 6] * 3  # the whole model travels


def test_ftl_head_needs_a_head_and_something_below_it() -> None:
    net = TwoLayers()
    net.head.requires_grad_(False)
    with pytest.raises(WrongInput, match=r"FTL: the model's last layer has no trained tensor.*such as dnn"):
        play(FTL("head"), federation(regressions()), net, 1)
    play(FTL(), federation(regressions()), net, 1)
    rows = regressions(dtype=np.float32)
    with pytest.warns(MethodNote, match="a single layer, so that trainable='head' is 'all'"):
        head = play(FTL("head"), federation(rows), torch.nn.Linear(2, 1), 2)
    assert not torch.equal(head.final(0)["weight"], head.initial["weight"])


# FedAvg-C and FedProx-C.


def test_a_tuned_start_by_hand() -> None:
    # from 0 towards 1: tuned for two epochs 0.1, 0.19, which is tested; trained for one more 0.271, which is sent
    driver = play(FedAvgC(ft_epochs=2), squares((1.0,), (2.0,), (1,)), Line(0.0), 1, lr=0.05)
    assert driver.rows[0]["point"] == "received"
    assert driver.rows[0]["test"]["rmse"] == pytest.approx([1 - 0.19])
    assert w_of(driver) == pytest.approx(0.271)
    assert driver.rows[0]["steps"] == [1]  # of training; the tuning is the start


@pytest.mark.parametrize("mu", [0.0, 2.0])
@pytest.mark.parametrize("setting", SETTINGS)
def test_tuned_start_numpy_reference(setting: dict[str, float], mu: float) -> None:
    rows = regressions()
    method = FedProxC(mu=mu, ft_epochs=3) if mu else FedAvgC(ft_epochs=3)
    driver = play(method, federation(rows), Line(0.4, -0.1), 3, cohort=2, **setting)
    w = values(Line(0.4, -0.1))
    for row in driver.rows:
        work, sent = options(setting, row["round"]), []
        for i in row["cohort"]:
            f = line(*rows[i])
            tuned = descend(w, f, **{**work, "epochs": 3})  # without the pull
            x, y = rows[i]
            assert row["test"]["rmse"][i] == pytest.approx(abs(float(x[0] @ tuned["w"] - y[0])), rel=1e-9)
            sent.append(descend(tuned, lambda m, f=f, w=w: {"w": f(m)["w"] + mu * (m["w"] - w["w"])}, **work))
        w = mean(sent, [SIZES[i] for i in row["cohort"]])
    close(common(driver), w)
    for i, own in enumerate(rows):
        close(driver.final(i), descend(w, line(*own), **{**options(setting, 4), "epochs": 3}))


def test_the_extra_epochs_enter_the_upload_and_have_batches_of_their_own() -> None:
    rows, batch = regressions((7, 4)), 3
    driver = play(FedAvgC(ft_epochs=2), federation(rows), Line(0.4, -0.1), 2, batch=batch, momentum=0.5)
    w = values(Line(0.4, -0.1))["w"]
    for row in driver.rows:
        sent = []
        for i, (x, y) in enumerate(rows):
            own = w.copy()
            for stream, epochs in ((1, 2), (0, 1)):  # tuning; then the batches that plain training would have
                velocity = np.zeros(2)
                for epoch in range(epochs):
                    order = schedule.epoch_order(0, row["round"], i, stream, epoch, torch.arange(len(y))).numpy()
                    for part in np.split(order, range(batch, len(y), batch)):
                        velocity = 0.5 * velocity + line(x[part], y[part])({"w": own})["w"]
                        own = own - 0.1 * velocity
            sent.append({"w": own})
        w = mean(sent, [7, 4])["w"]
    close(common(driver), {"w": w})


@dataclass(frozen=True, repr=False)
class HalfWay(FedAvg):
    """Any method that makes something of its message before it trains."""

    def start(self, client: Client, state: State, got: Received) -> tuple[Tree, State]:
        return {name: 0.5 * value for name, value in got.model.items()}, state


def test_what_is_tuned_is_the_start_of_the_inner_method() -> None:
    # 4 is received and 2 made of it; a tuning step covers a tenth of the way to 1, and leaves 1.9; then 1.81 is sent
    driver = play(TunedStart(HalfWay(), ft_epochs=1), squares((1.0,), (1.0,), (1,)), Line(4.0), 1)
    assert driver.rows[0]["test"]["rmse"] == pytest.approx([0.5**0.5 * 0.9])
    assert w_of(driver) == pytest.approx(1.81)


@pytest.mark.parametrize("inner", [FedAvg(), FedProx(mu=0.5), FedBABU(ft_epochs=1)], ids=repr)
def test_without_tuning_it_is_the_inner_method_and_says_so(inner) -> None:
    data, options = federation(regressions(dtype=np.float32)), {"batch": 2, "cohort": 2, "momentum": 0.9}
    plain = play(inner, data, normed(), 3, **options)
    with pytest.warns(MethodNote, match="ft_epochs=0 nothing is fine-tuned, and this is"):
        tuned = play(TunedStart(inner, ft_epochs=0), data, normed(), 3, **options)
    assert same(common(tuned), common(plain))


@dataclass(frozen=True, repr=False)
class HeadAtHome(Wrapper):
    """Any plug-in that keeps some names private, as local attention does."""

    def personal(self, arch: Arch) -> frozenset[str]:
        return arch.head


def test_a_private_head_goes_on_from_where_training_left_it_and_is_tuned_first() -> None:
    rows = regressions()
    driver = play(HeadAtHome(FedProxC(mu=0.7, ft_epochs=2)), federation(rows), TwoLayers(), 3, cohort=2)
    start = values(TwoLayers())
    body, heads = {"body.weight": start["body.weight"]}, [{"head.weight": start["head.weight"]}] * 3
    for row in driver.rows:
        sent = []
        for i in row["cohort"]:
            f = two_layers(*rows[i])
            tuned = descend({**body, **heads[i]}, f, lr=0.1, epochs=2)

            def pulled(m, f=f, body=body):  # the head has no received counterpart to be near to
                slope = f(m)
                return {**slope, "body.weight": slope["body.weight"] + 0.7 * (m["body.weight"] - body["body.weight"])}

            sent.append(descend(tuned, pulled, lr=0.1, epochs=1))
            heads[i] = {"head.weight": sent[-1]["head.weight"]}
        mixed = mean(sent, [SIZES[i] for i in row["cohort"]])
        body = {"body.weight": mixed["body.weight"]}
    close(common(driver), body)
    for kept, head in zip(driver.kept, heads, strict=True):
        close(kept["personal"], head)


@pytest.mark.parametrize("method", [FedAvgFT(), FTL(), FedAvgC(ft_epochs=2), FedProxC(ft_epochs=2)], ids=repr)
def test_frozen_and_tied_tensors(method) -> None:
    data, settings = federation(regressions(dtype=np.float32)), {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    frozen = play(method, data, Frozen(), 4, **settings)
    for place in (common(frozen), frozen.final(1)):
        for name, value in Frozen().state_dict().items():
            assert torch.equal(place[name], value) == name.startswith("body"), name
    tied = play(method, data, Tied(), 2, **settings)
    assert set(tied.final(0)) == {"up.weight", "head.weight", "head.bias"}
    assert not torch.equal(tied.final(0)["up.weight"], Tied().up.weight)


@pytest.mark.parametrize("method", [FedAvgFT(), FTL(), FedAvgC(), FedProxC()], ids=repr)
def test_one_model_travels_each_way(method) -> None:
    driver = play(method, federation(regressions()), Line(0.4, -0.1), 1, cohort=2)
    expected = [16 if i in driver.rows[0]["cohort"] else 0 for i in range(3)]
    assert driver.rows[0]["down"] == driver.rows[0]["up"] == expected


def test_the_named_methods_are_the_compositions() -> None:
    assert FedAvgC() == TunedStart(FedAvg(), ft_epochs=10)
    assert FedProxC(mu=0.5) == TunedStart(FedProx(mu=0.5), ft_epochs=10)
    assert FedAvgFT().finish_epochs == 5


def test_fedavg_ft_without_tuning_says_so() -> None:
    with pytest.warns(MethodNote, match="FedAvgFT: with ft_epochs=0"):
        play(FedAvgFT(ft_epochs=0), federation(regressions()), Line(0.4, -0.1), 0)


def test_impossible_values_are_refused() -> None:
    for make, words in (
        (lambda: FedAvgFT(ft_epochs=-1), "FedAvgFT: ft_epochs=-1 must be 0 or more"),
        (lambda: FedAvgC(ft_epochs=-1), "TunedStart: ft_epochs=-1 must be 0 or more"),
        (lambda: FTL(trainable="tail"), "FTL: trainable='tail' must be 'all' or 'head'"),
    ):
        with pytest.raises(WrongInput, match=words):
            make()
