"""The round loop: who is tested with what, who weighs how much, what happens when training goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import fedtailor as ft
from fedtailor import tree
from fedtailor.driver import Callback, Diverged, Driver
from fedtailor.method import Fitted, Method, Payload
from fedtailor.record import RunFolder
from fedtailor.registry import WrongInput
from fedtailor.site import finite, statistics
from fedtailor.toy import ToyNet, run, toy_driver, toy_federation


def accuracy(driver: Driver, model: tree.Tree, client: int) -> float:
    """Tested by hand: an ordinary network in evaluation mode, on the client's test rows."""
    net = driver.arch.module(model, ToyNet(3, driver.data.x.shape[1:]))
    rows = driver.data.tested.test[client]
    with torch.no_grad():
        return float((net(driver.data.x[rows]).argmax(1) == driver.data.y[rows]).double().mean())


def test_received_is_the_model_of_the_round_before() -> None:
    driver = toy_driver(ft.FedAvg(), rounds=3)
    for _ in range(3):
        before = dict(driver.server["model"])
        row = driver.step()
        assert row["test"]["accuracy"] == [accuracy(driver, before, i) for i in range(5)]


def test_clients_outside_the_cohort_are_tested_with_what_is_broadcast_and_their_own_parts() -> None:
    driver = toy_driver(ft.FedBN(), cohort=2)
    driver.step()
    model, kept = driver.server["model"], driver.kept
    row = driver.step()
    others = [i for i in range(5) if i not in row["cohort"]]
    assert len(others) == 3
    for i in others:
        assert row["test"]["accuracy"][i] == accuracy(driver, {**model, **kept[i]["personal"]}, i)


def test_where_models_differ_an_absent_client_is_tested_with_what_it_last_held() -> None:
    @dataclass(frozen=True, repr=False)
    class Own(Method):
        """Everybody gets the model times its number."""

        sees = "models"

        def send(self, fed, server, cohort):
            many = tree.expand(server["model"], len(cohort))
            scale = 1 + cohort.double()
            own = tree.join(
                lambda t: (t * scale.view(-1, *[1] * (t.dim() - 1))).to(t.dtype) if t.is_floating_point() else t, many
            )
            return Payload(own={"model": own})

    driver = toy_driver(Own(), cohort=2)
    driver.step()
    held = [kept["held"] for kept in driver.kept]
    row = driver.step()
    for i in set(range(5)) - set(row["cohort"]):
        assert row["test"]["accuracy"][i] == accuracy(driver, held[i], i)


def test_trained_is_what_fit_gave_and_is_kept() -> None:
    driver = toy_driver(ft.Local(), cohort=2)
    for _ in range(3):
        row = driver.step()
        for i in range(5):
            assert row["test"]["accuracy"][i] == accuracy(driver, driver.kept[i]["trained"], i)


def test_an_adapted_point_needs_an_adapted_model() -> None:
    with pytest.raises(WrongInput, match="no adapted model"):
        toy_driver(ft.FedAvg(), point="adapted")


@pytest.mark.parametrize(("weighting", "shares"), [("size", (12, 7, 3, 9, 1)), ("uniform", (1, 1, 1, 1, 1))])
def test_weights_are_sizes_or_equal(weighting: str, shares: tuple[int, ...]) -> None:
    class Tap(Driver):
        def aggregate(self, fed, server, uploads):
            self.uploads = dict(uploads)  # the driver lets go of its own
            return super().aggregate(fed, server, uploads)

    driver = toy_driver(ft.FedAvg(), cohort=1.0, weighting=weighting, kind=Tap)
    driver.step()
    total = sum(shares)
    name = "0.weight" if "0.weight" in driver.initial else next(iter(driver.arch.trainable))
    mean = sum(share / total * driver.uploads[i]["model"][name].double() for i, share in enumerate(shares))
    assert torch.allclose(driver.server["model"][name].double(), mean, atol=1e-6)


def test_a_centralised_run_trains_once_and_is_tested_at_every_site() -> None:
    driver = toy_driver(ft.Centralised())
    row = driver.step()
    assert row["cohort"] == [0] and len(row["steps"]) == 1
    assert row["steps"][0] == 8  # 12 + 7 + 3 + 9 + 1 = 32 rows in batches of 4
    assert row["test"]["accuracy"] == [accuracy(driver, driver.kept[0]["trained"], i) for i in range(5)]


def test_steps_count_batches_and_finish_adds_its_own() -> None:
    driver = run(toy_driver(ft.FedAvg(), cohort=1.0, epochs=2, finish_epochs=3, rounds=1))
    # batches of four; the last batch of 12, 7, 3, 9 and 1 rows is 4, 3, 3, 1 and 1 long: one row is no batch for a norm
    assert driver.rows[0]["steps"] == [6, 4, 2, 4, 0]
    assert driver.finish()["steps"] == [9, 6, 3, 6, 0]


def test_finishing_tunes_the_tested_model_and_moves_no_state() -> None:
    driver = run(toy_driver(ft.Ditto(), finish_epochs=2))
    before = tree.transform(torch.clone, driver.state)
    row = driver.finish()
    final = driver.final(0)
    assert row["finish"] and row["test"]["accuracy"][0] == accuracy(driver, final, 0)
    assert any(not torch.equal(final[n], driver.kept[0]["method"]["v"][n]) for n in driver.arch.trainable)
    left, right = tree.flatten(before), tree.flatten(driver.state)
    assert all(torch.equal(left[name], right[name]) for name in left)


@dataclass(frozen=True, repr=False)
class Blows(Method):
    """Client 3 reaches infinity in round 2."""

    def fit(self, client, state, model, got):
        factor = float("inf") if (client.number, client.round) == (3, 2) else 1.0
        return Fitted(tree.join(lambda t: t * factor if t.is_floating_point() else t, model), state)


def test_divergence_stops_the_run_and_keeps_what_was_reached(tmp_path: Path) -> None:
    spec = replace(toy_driver(Blows(), cohort=1.0).spec, checkpoint_every=10)
    with pytest.raises(Diverged, match=r"site-3 in round 2.*kept the state of round 1"):
        ft.federate(spec, toy_federation(), out=tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    assert folder.info()["status"] == "failed"
    assert folder.load()[0] == 1 and [row["round"] for row in folder.rows()] == [1]


def test_divergence_can_cost_a_client_its_round_only() -> None:
    driver = toy_driver(Blows(), cohort=1.0, on_nan="drop", rounds=3)
    driver.step()
    before = driver.kept[3]
    row = driver.step()
    assert row["stopped"] == [3] and row["up"][3] == 0 and row["train_loss"][3] is None
    assert driver.kept[3] is before
    assert driver.step()["stopped"] == []


def test_a_nan_loss_counts_as_divergence() -> None:
    federation = toy_federation()
    federation.x[federation.train[1]] = 1e38
    with pytest.raises(Diverged, match="site-1"):
        run(toy_driver(ft.FedAvg(), cohort=1.0, federation=federation))


def test_finite_rows_are_told_from_others_where_their_sum_is_not() -> None:
    largest = torch.finfo(torch.float32).max
    rows = torch.tensor([[largest, largest], [1.0, torch.nan], [torch.inf, -torch.inf], [0.0, 1.0]])
    assert finite(rows).tolist() == [True, False, False, True]
    assert finite(rows[3:]).tolist() == [True] and finite(rows[0]).tolist() == [True, True]
    assert finite(torch.zeros(2, 0)).tolist() == [True, True]
    assert finite(rows.view(2, 2, 1, 2)).tolist() == [False, False]


def test_ctrl_c_saves_the_last_whole_round(tmp_path: Path) -> None:
    class Interrupts(Callback):
        def on_client(self, driver, done, of):
            if driver.round == 2 and done == 2:
                raise KeyboardInterrupt

    spec = toy_driver(ft.Ditto()).spec
    with pytest.raises(KeyboardInterrupt):
        ft.federate(spec, toy_federation(), out=tmp_path / "a", callbacks=[Interrupts()])
    assert RunFolder.open(tmp_path / "a").info()["status"] == "interrupted"
    rest = ft.resume(tmp_path / "a", federation=toy_federation(), model=ToyNet)
    whole = ft.federate(spec, toy_federation())
    left, right = tree.flatten(rest.driver.state), tree.flatten(whole.driver.state)
    assert all(torch.equal(left[name], right[name]) for name in right)


def test_a_finished_run_can_be_extended(tmp_path: Path) -> None:
    spec = toy_driver(ft.SCAFFOLD(), rounds=2).spec
    ft.federate(spec, toy_federation(), out=tmp_path / "a")
    longer = ft.resume(tmp_path / "a", federation=toy_federation(), model=ToyNet, rounds=4)
    whole = ft.federate(replace(spec, rounds=4), toy_federation())
    assert [row["round"] for row in longer.rows] == [1, 2, 3, 4, 4]
    assert longer.rows[-1]["test"] == whole.rows[-1]["test"]


def test_other_data_are_refused_on_resume(tmp_path: Path) -> None:
    ft.federate(toy_driver(ft.FedAvg(), rounds=1).spec, toy_federation(), out=tmp_path / "a")
    other = toy_federation()
    other.x[0] += 1
    with pytest.raises(WrongInput, match="fingerprint"):
        ft.resume(tmp_path / "a", federation=other, model=ToyNet)
    with pytest.raises(WrongInput, match="model="):
        ft.resume(tmp_path / "a", federation=toy_federation())


@pytest.mark.parametrize("method", [ft.FedAvg(), ft.Local(), ft.Centralised(), ft.Ditto()])
def test_the_final_model_is_an_ordinary_module(method: Method) -> None:
    spec = toy_driver(method, rounds=2, cohort=1.0).spec
    done = ft.federate(spec, toy_federation())
    net = done.model("site-3")
    plain = ToyNet(3, done.driver.data.x.shape[1:])
    plain.load_state_dict(net.state_dict(), strict=True)
    rows = done.driver.data.tested.test[3]
    predicted = plain.eval()(done.driver.data.x[rows]).argmax(1)
    right = float((predicted == done.driver.data.y[rows]).double().mean())
    assert right == done.rows[-1]["test"]["accuracy"][3]
    counters = [v for k, v in net.state_dict().items() if k.endswith("num_batches_tracked")]
    assert counters and all(int(c) > 0 for c in counters)
    with pytest.raises(WrongInput, match="no client"):
        done.model("nobody")


def test_statistics_do_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = toy_driver(ft.FedAvg())
    rows = torch.arange(30)
    whole = statistics(driver.sites[0], driver.initial, rows)
    monkeypatch.setattr("fedtailor.site.EXAM_BATCH", 7)
    parts = statistics(driver.sites[0], driver.initial, rows)
    assert whole.keys() == parts.keys()
    assert all(torch.allclose(whole[name], parts[name]) for name in whole)


def test_the_runs_seed_and_the_datas_seed_are_apart() -> None:
    one, other = toy_driver(ft.FedAvg(), seed=1), toy_driver(ft.FedAvg(), seed=2)
    assert one.data.fingerprint() == other.data.fingerprint()
    cohorts = [[driver.step()["cohort"] for _ in range(4)] for driver in (one, other)]
    assert cohorts[0] != cohorts[1]


def test_tensorboard_gets_the_means(tmp_path: Path) -> None:
    event = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from fedtailor.tensorboard import TensorBoard

    done = ft.federate(toy_driver(ft.FedAvg()).spec, toy_federation(), callbacks=[TensorBoard(tmp_path)])
    events = event.EventAccumulator(str(tmp_path))
    events.Reload()
    curve = [e.value for e in events.Scalars("test/accuracy (received)")]
    means = [sum(row["test"]["accuracy"]) / 5 for row in done.rows[:-1]]
    assert curve == pytest.approx(means)


def test_an_interrupt_between_a_round_and_its_row_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RunFolder.append

    def interrupted(self: RunFolder, row: dict) -> None:
        if row["round"] == 3 and not row.get("finish"):
            raise KeyboardInterrupt
        append(self, row)

    monkeypatch.setattr(RunFolder, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ft.federate(toy_driver(ft.FedAvg(), rounds=4).spec, toy_federation(), out=tmp_path / "a")
    monkeypatch.undo()
    rest = ft.resume(tmp_path / "a", federation=toy_federation(), model=ToyNet)
    assert [row["round"] for row in rest.rows] == [1, 2, 3, 4, 4]
    assert [row["round"] for row in RunFolder.open(tmp_path / "a").rows()] == [1, 2, 3, 4, 4]


def test_an_unknown_device_is_wrong_input() -> None:
    with pytest.raises(WrongInput, match="device='gpu9' cannot be used"):
        toy_driver(ft.FedAvg(), device="gpu9")
