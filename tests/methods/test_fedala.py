"""ALA: an element-wise mix of the model received and one's own, learned before each local training."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from nets import Frozen, Residual, normed
from quadratic import SIZES, Line, TwoLayers, common, federation, play, regressions, same, squares, w_of
from reference import Gradient, Model, close, descend, mean, two_layers, values
from torch import Tensor, nn

from fedtailor import (
    AdaptiveLocalAggregation,
    Arch,
    Ditto,
    FedALA,
    FedAvg,
    FedAvgC,
    FedBN,
    FedPer,
    FedProx,
    FedRep,
    Local,
    Method,
    PerFedAvg,
    Wrapper,
    WrongInput,
    pFedMe,
)  # fmt: skip
from fedtailor.method import MethodNote
from fedtailor.methods import fedala

ALA = AdaptiveLocalAggregation
HALF = {"batch": 2, "epochs": 2, "momentum": 0.9, "cohort": 2}


def own_state(driver, client: int) -> dict[str, Any]:
    """What ALA itself keeps at a client, under any plug-ins around it."""
    state = driver.kept[client]["method"]
    while "losses" not in state:
        state = state["inner"]
    return state


def epochs_of(driver, client: int) -> int:
    """Epochs of weight learning in the client's last round."""
    return int(own_state(driver, client)["losses"].isfinite().sum())


# Against computations of our own.


def test_two_rounds_by_hand() -> None:
    # round 1 is FedAvg: 0.1 and 0.5, mean 0.3. In round 2 both slopes at hat = 0.3 are 0.3 - c: client 0 would raise
    # its weight, 1 - 0.2 * -0.7, and is clipped; client 1 has 1 - 0.1 * (-0.2 * -4.7) = 0.906
    data = squares((1.0, 5.0), (1.0, 1.0), (1, 1))
    driver = play(FedALA(s=100, eta=0.1, cap=1), data, Line(0.0), 2)
    assert [float(own_state(driver, i)["w"]["w"]) for i in range(2)] == pytest.approx([1.0, 0.906])
    hats = (0.3, 0.5 + (0.3 - 0.5) * 0.906)  # 0.3188
    locals_ = [hat + 0.1 * (c - hat) for hat, c in zip(hats, (1.0, 5.0), strict=True)]
    assert [float(own_state(driver, i)["local"]["w"]) for i in range(2)] == pytest.approx(locals_)
    assert w_of(driver) == pytest.approx(sum(locals_) / 2)
    # the model tested in round 2 is hat, before the training of that round; x = sqrt(1/2)
    assert driver.rows[1]["point"] == "received"
    errors = [0.5**0.5 * abs(c - hat) for hat, c in zip(hats, (1.0, 5.0), strict=True)]
    assert driver.rows[1]["test"]["rmse"] == pytest.approx(errors)


def test_the_weights_go_where_the_mix_is_best() -> None:
    # client 0 wants 1 and has gone beyond it, client 1 pulls the mean to the other side: hat = 1 lies between, at
    # W = (c - local) / (received - local)
    driver = play(FedALA(s=100, eta=0.1, threshold=0, cap=300), squares((1.0, -3.0), (4.0, 1.0), (1, 3)), Line(0.0), 1)
    local, received = 1.2, w_of(driver)
    kept = driver.kept[0]["method"]
    driver.kept[0] = {**driver.kept[0], "method": {**kept, "local": {"w": torch.tensor([local], dtype=torch.float64)}}}
    driver.step()
    assert float(own_state(driver, 0)["w"]["w"]) == pytest.approx((1.0 - local) / (received - local), abs=1e-6)
    assert driver.rows[1]["test"]["rmse"][0] == pytest.approx(0, abs=1e-6)


def learned(
    received: Model, local: Model, w: Model, gradient: Gradient, loss: Callable[[Model], float], first: bool,
    *, names: Sequence[str], eta: float, threshold: float, cap: int,
) -> tuple[Model, Model, list[float]]:  # fmt: skip
    """Alg. 1 lines 7 to 12 of a client whose whole local set is one batch, with the authors' stopping rule."""
    w, losses = {name: w[name].copy() for name in names}, []
    while True:
        hat = {**received, **{n: local[n] + (received[n] - local[n]) * w[n] for n in names}}
        losses.append(loss(hat))
        slope = gradient(hat)
        for n in names:
            w[n] = np.clip(w[n] - eta * slope[n] * (received[n] - local[n]), 0, 1)
        if not first or len(losses) == cap or (len(losses) > 10 and np.std(losses[-10:]) < threshold):
            hat = {**received, **{n: local[n] + (received[n] - local[n]) * w[n] for n in names}}
            return hat, w, losses


@pytest.mark.parametrize("p, names", [(1, ("head.weight",)), (2, ("body.weight", "head.weight"))])
@pytest.mark.parametrize("threshold", [0.0, 0.002, 0.02])
def test_numpy_reference_with_two_of_three_clients_a_round(threshold: float, p: int, names: tuple[str, ...]) -> None:
    rows = regressions()
    rule = {"eta": 0.5, "threshold": threshold, "cap": 30}
    driver = play(FedALA(p=p, s=100, **rule), federation(rows), TwoLayers(), 5, cohort=2, epochs=2, momentum=0.5)
    start = values(TwoLayers())
    server, local = start, [start] * 3
    w = [{name: np.ones_like(start[name]) for name in names} for _ in rows]
    begun, lasted = [False] * 3, [0] * 3
    for row in driver.rows:
        sent = []
        for i in row["cohort"]:
            x, y = rows[i]
            hat = server
            lasted[i] = 0
            if any((local[i][n] != server[n]).any() for n in names):

                def loss(m: Model, x=x, y=y) -> float:
                    return float(np.mean((x @ m["body.weight"].T @ m["head.weight"][0] - y) ** 2))

                hat, w[i], losses = learned(
                    server, local[i], w[i], two_layers(x, y), loss, not begun[i], names=names, **rule
                )
                begun[i], lasted[i] = True, len(losses)
            local[i] = descend(hat, two_layers(x, y), lr=0.1, epochs=2, momentum=0.5)
            sent.append(local[i])
            error = abs(float(x[0] @ hat["body.weight"].T @ hat["head.weight"][0] - y[0]))
            assert row["test"]["rmse"][i] == pytest.approx(error, abs=1e-9)
        server = mean(sent, [SIZES[i] for i in row["cohort"]])
    close(common(driver), server, 1e-9)
    for i in range(3):
        close(own_state(driver, i)["w"], w[i], 1e-9)
        close(own_state(driver, i)["local"], {n: local[i][n] for n in names}, 1e-9)
        assert epochs_of(driver, i) == lasted[i]
    assert any((w[i][n] != 1).any() for i in range(3) for n in names)


def test_numpy_reference_in_mini_batches_of_a_sample() -> None:
    # the optimiser's momentum and weight decay are for training; weights take plain steps, batch by batch
    rows, share, eta, cap = regressions((6, 9, 4)), 0.6, 0.3, 3
    method = FedALA(s=100 * share, eta=eta, threshold=0, cap=cap)
    driver = play(method, federation(rows), Line(0.4, -0.1), 4, cohort=2, batch=2, momentum=0.9, weight_decay=0.05)
    server = np.array([0.4, -0.1])
    local, w, begun = [server] * 3, [np.ones(2)] * 3, [False] * 3
    last: list[list[float]] = [[], [], []]

    def slope(hat: np.ndarray, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
        return 2 / len(y) * x.numpy().T @ (x.numpy() @ hat - y.numpy())

    for row in driver.rows:
        sent = []
        for i in row["cohort"]:
            client = driver.sites[i].client(row["round"])  # for the draws
            update = server - local[i]
            last[i] = []
            if update.any():
                for epoch in range(1 if begun[i] else cap):
                    for batch in client.sample(share).batches(epochs=1, stream=fedala.STREAM + epoch):
                        hat = local[i] + update * w[i]
                        loss = float(np.mean((batch.x.numpy() @ hat - batch.y.numpy()) ** 2))
                        w[i] = (w[i] - eta * slope(hat, batch.x, batch.y) * update).clip(0, 1)
                    last[i].append(loss)  # of the last batch, before its step
                begun[i] = True
            theta, velocity = local[i] + update * w[i], np.zeros(2)
            for batch in client.batches():
                velocity = 0.9 * velocity + slope(theta, batch.x, batch.y) + 0.05 * theta
                theta = theta - 0.1 * velocity
            local[i] = theta
            sent.append({"w": theta})
        server = mean(sent, [(6, 9, 4)[i] for i in row["cohort"]])["w"]
    close(common(driver), {"w": server}, 1e-9)
    for i in range(3):
        close(own_state(driver, i)["w"], {"w": w[i]}, 1e-9)
        shown = own_state(driver, i)["losses"]
        assert shown[shown.isfinite()].tolist() == pytest.approx(last[i], rel=1e-6)
    assert all((x != 1).any() for x in w)


# The initial stage and what follows.


def test_the_initial_stage_is_the_second_round_and_then_one_epoch_a_round() -> None:
    lasted = []
    driver = play(FedALA(threshold=0, cap=7), federation(regressions()), Line(0.4, -0.1), 0)
    for _ in range(4):
        driver.step()
        lasted.append([epochs_of(driver, i) for i in range(3)])
    assert lasted == [[0] * 3, [7] * 3, [1] * 3, [1] * 3]


def test_the_initial_stage_is_each_clients_own() -> None:
    driver = play(FedALA(threshold=0, cap=7), federation(regressions((4,) * 6)), Line(0.4, -0.1), 0, cohort=2)
    lasted: dict[int, list[int]] = {i: [] for i in range(6)}
    for _ in range(9):
        driver.step()
        for i in driver.rows[-1]["cohort"]:
            lasted[i].append(epochs_of(driver, i))
    first = driver.rows[0]["cohort"]  # they alone have received what they had
    assert len(first) == 2 and any(len(rounds) > 1 for i, rounds in lasted.items() if i not in first)
    for i, rounds in lasted.items():
        assert rounds == ([0, 7] + [1] * 9 if i in first else [7] + [1] * 9)[: len(rounds)]


def test_it_ends_when_the_last_ten_of_more_than_ten_losses_hardly_differ() -> None:
    data = federation(regressions())
    for threshold, cap, epochs in ((1e9, 100, 11), (1e9, 8, 8), (0.0, 25, 25)):
        driver = play(FedALA(threshold=threshold, cap=cap), data, Line(0.4, -0.1), 2)
        assert [epochs_of(driver, i) for i in range(3)] == [epochs] * 3


def test_later_epochs_0_freezes_the_weights_after_the_initial_stage() -> None:
    driver = play(FedALA(later_epochs=0, eta=0.3, cap=3), federation(regressions()), Line(0.4, -0.1), 2)
    after_two = [own_state(driver, i)["w"] for i in range(3)]
    driver.step()
    for i, w in enumerate(after_two):
        assert same(own_state(driver, i)["w"], w)
        assert epochs_of(driver, i) == 0
    assert any((w["w"] != 1).any() for w in after_two)
    hat = driver.rows[2]["test"]["rmse"]  # frozen weights still mix
    assert hat != play(FedAvg(), federation(regressions()), Line(0.4, -0.1), 3).rows[2]["test"]["rmse"]


def test_it_may_begin_after_some_rounds_of_the_inner_method() -> None:
    """Until then it is that method to the last bit, and the first stage is in the round after."""
    late = play(FedALA(after=2, eta=0.3, cap=3), federation(regressions()), Line(0.4, -0.1), 2)
    plain = play(FedAvg(), federation(regressions()), Line(0.4, -0.1), 2)
    assert same(common(late), common(plain)) and late.rows[1]["test"] == plain.rows[1]["test"]
    assert [epochs_of(late, i) for i in range(3)] == [0, 0, 0]
    assert all((own_state(late, i)["w"]["w"] == 1).all() for i in range(3))
    late.step()
    plain.step()
    assert [epochs_of(late, i) for i in range(3)] == [3, 3, 3]
    assert late.rows[2]["test"]["rmse"] != plain.rows[2]["test"]["rmse"]


def test_an_absent_client_keeps_its_weights_and_its_model() -> None:
    driver = play(FedALA(eta=0.3, cap=3), federation(regressions()), Line(0.4, -0.1), 3)
    before = [own_state(driver, i) for i in range(3)]
    driver.cohort_size = 1
    driver.step()
    for i in set(range(3)) - set(driver.rows[-1]["cohort"]):
        assert same(own_state(driver, i)["w"], before[i]["w"])
        assert same(own_state(driver, i)["local"], before[i]["local"])


def test_a_new_random_subset_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []

    def spy(client, theta, **options: Any):
        drawn.append(tuple(client.rows.tolist()))
        return descend_(client, theta, **options)

    descend_ = fedala.descend
    monkeypatch.setattr(fedala, "descend", spy)
    play(FedALA(s=50, cap=1), federation(regressions((20, 20))), Line(0.4, -0.1), 4, eval_every=99)
    own = [rows for rows in drawn if max(rows) < 20]
    assert len(own) == 3  # rounds 2 to 4; in the first there is nothing to learn
    assert all(len(set(rows)) == 10 for rows in own)
    assert len({tuple(sorted(rows)) for rows in own}) == 3
    assert all(sorted(rows) != list(range(min(rows), min(rows) + 10)) for rows in own)  # no contiguous slice


def test_every_epoch_of_weight_learning_has_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[tuple[float, ...]] = []

    def spy(client, theta, **options: Any):
        batches = client.batches(epochs=1, stream=options["stream"])
        orders.append(tuple(value for batch in batches for value in batch.x[:, 0].tolist()))
        return descend_(client, theta, **options)

    descend_ = fedala.descend
    monkeypatch.setattr(fedala, "descend", spy)
    play(FedALA(s=100, threshold=0, cap=4), federation(regressions((12, 12))), Line(0.4, -0.1), 2, batch=3)
    assert len(orders) == len(set(orders)) == 2 * 4
    assert len({frozenset(order) for order in orders}) == 2  # the same rows each time


def test_the_batch_of_weight_learning_is_the_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def spy(client, theta, **options: Any):
        result = descend_(client, theta, **options)
        taken.append(len(result.losses))
        return result

    descend_ = fedala.descend
    monkeypatch.setattr(fedala, "descend", spy)
    play(FedALA(s=50, cap=1), federation(regressions((20, 20))), Line(0.4, -0.1), 2, batch=3, eval_every=99)
    assert taken == [4, 4]  # ten rows in batches of three


# Limits.


INNER = [
    FedAvg(), FedProx(mu=0.5), FedRep(), pFedMe(), Ditto(), PerFedAvg(), FedBN(), FedPer(), Local(),
    FedAvgC(ft_epochs=1),
]  # fmt: skip


@pytest.mark.parametrize("inner", INNER, ids=repr)
@pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
def test_with_all_weights_held_at_one_it_is_the_inner_method_bit_for_bit(inner: Method) -> None:
    data = federation(regressions(dtype=np.float32))
    plain = play(inner, data, normed(), 3, **HALF)
    for wrapped in (ALA(inner, p=2, eta=0.0, cap=2), ALA(inner, p=0, cap=2)):
        driver = play(wrapped, data, normed(), 3, **HALF)
        assert same(common(driver), common(plain))
        for i in range(3):
            assert same(driver.kept[i]["personal"], plain.kept[i]["personal"])
            assert same(driver.final(i), plain.final(i))
        for i in plain.rows[-1]["cohort"]:
            assert driver.rows[-1]["test"]["rmse"][i] == plain.rows[-1]["test"]["rmse"][i]


def test_the_default_does_something_from_the_second_round_on() -> None:
    data = federation(regressions())
    for rounds in (1, 2):
        ala, fedavg = (play(m, data, Line(0.4, -0.1), rounds) for m in (FedALA(), FedAvg()))
        assert same(common(ala), common(fedavg)) is (rounds == 1)
        assert (ala.rows[-1]["test"] == fedavg.rows[-1]["test"]) is (rounds == 1)


def test_the_weights_stay_within_0_and_1() -> None:
    driver = play(FedALA(eta=50.0, cap=20), federation(regressions()), Line(0.4, -0.1), 4)
    weights = torch.cat([own_state(driver, i)["w"]["w"] for i in range(3)])
    assert weights.min() == 0 and weights.max() == 1


def test_clients_learn_weights_of_their_own() -> None:
    driver = play(FedALA(eta=0.3, cap=3), federation(regressions()), Line(0.4, -0.1), 3)
    assert not same(own_state(driver, 0)["w"], own_state(driver, 1)["w"])


# Layers.


def weights_of(method: Method, net: torch.nn.Module, **options: Any) -> set[str]:
    data = federation(regressions(dtype=np.float32))
    return set(own_state(play(method, data, net, 1, **options), 0)["w"])


@pytest.mark.parametrize("p, names", [
    (1, {"3.weight", "3.bias"}),
    (2, {"3.weight", "3.bias", "0.weight", "0.bias", "1.weight", "1.bias"}),
])  # fmt: skip
def test_p_counts_layers_with_the_norm_that_follows(p: int, names: set[str]) -> None:
    assert weights_of(FedALA(p=p, cap=1), normed()) == names


def test_p_counts_shared_layers_only() -> None:
    assert weights_of(ALA(FedRep(), cap=1), TwoLayers().float()) == {"body.weight"}
    assert weights_of(ALA(FedPer(), cap=1), normed()) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert weights_of(ALA(FedBN(), p=2, cap=1), normed()) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert weights_of(FedALA(p=2, cap=1), Residual()) == {"fc.weight", "fc.bias", "bn_free.weight", "bn_free.bias",
                                                          "after.weight", "after.bias"}  # fmt: skip


@pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
def test_p_above_the_shared_layers_is_all_of_them() -> None:
    data = federation(regressions(dtype=np.float32))
    for inner, layers in ((FedAvg(), 2), (FedPer(), 1)):
        rule = {"eta": 0.3, "cap": 3}
        enough, more, fewer = (play(ALA(inner, p=p, **rule), data, normed(), 3) for p in (layers, 9, layers - 1))
        assert same(common(enough), common(more)) and not same(common(enough), common(fewer))
        assert all(same(own_state(enough, i)["w"], own_state(more, i)["w"]) for i in range(3))


def test_p_counts_blocks_or_stages_where_it_is_told_to() -> None:
    block = {name for name, _ in Residual().named_parameters() if name.startswith("layer1.0.")}
    top = {"fc.weight", "fc.bias", "bn_free.weight", "bn_free.bias", "after.weight", "after.bias"}
    assert len(block) == 8
    for level in ("block", "stage"):
        assert weights_of(FedALA(p=2, cap=1, level=level), Residual()) == top
        assert weights_of(FedALA(p=3, cap=1, level=level), Residual()) == top | block
        assert weights_of(ALA(FedBN(), p=3, cap=1, level=level), Residual()) == {
            name for name in top | block if not re.search("n1|downsample.1|after", name)
        }  # fmt: skip
    assert weights_of(FedALA(p=3, cap=1), Residual()) < top | block
    with pytest.raises(WrongInput, match="level='tensor' must be one of stage, block, layer"):
        FedALA(level="tensor")


@pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
def test_with_weights_everywhere_all_levels_are_one() -> None:
    """Running statistics as well: they follow the mean weight of their own layer, not that of a whole stage."""
    data, net = federation(regressions(dtype=np.float32)), Residual()
    layers, *others = (
        play(FedALA(p=99, eta=0.3, cap=3, level=level), data, net, 3, epochs=2)
        for level in ("layer", "block", "stage")
    )
    for other in others:
        assert same(common(layers), common(other))
        assert all(same(layers.final(i), other.final(i)) for i in range(3))


@dataclass(frozen=True, repr=False)
class HeadAtHome(Wrapper):
    def personal(self, arch: Arch) -> frozenset[str]:
        return self.inner.personal(arch) | arch.head


def test_a_plug_in_around_it_may_keep_names_private() -> None:
    data = federation(regressions(dtype=np.float32))
    driver = play(HeadAtHome(FedALA(p=2, eta=0.3, cap=3)), data, normed(), 3)
    w = own_state(driver, 0)["w"]
    assert torch.equal(w["3.weight"], torch.ones(1, 4))  # untouched: what is private is not mixed
    assert not torch.equal(w["0.weight"], torch.ones(4, 2))


def test_what_stays_home_is_as_the_inner_method_starts_it() -> None:
    # tuned before it starts, it is not what was trained last: a mix would show
    inner = FedAvgC(ft_epochs=1)
    method = HeadAtHome(ALA(inner, p=2, eta=2.0, cap=5))
    driver = play(method, federation(regressions(dtype=np.float32)), normed(), 2, buffers="local", epochs=2)
    for i in range(3):
        kept, got, client = driver.kept[i], driver.last_delivery()[i], driver.sites[i].client(3)
        got = replace(got, model={**got.model, **kept["personal"]})
        hat, after = method.start(client, kept["method"], got)
        tuned, _ = inner.start(client, kept["method"]["inner"]["inner"], got)
        w = after["inner"]["w"]
        assert w["3.weight"].eq(1).all() and w["3.bias"].eq(1).all()
        for name in ("3.weight", "3.bias", "1.running_mean", "1.running_var"):
            assert torch.equal(hat[name], tuned[name])
            assert not torch.equal(hat[name], kept["personal"][name])
        assert not torch.equal(hat["0.weight"], tuned["0.weight"])


def test_the_lower_layers_are_taken_as_received() -> None:
    data = federation(regressions())
    driver = play(FedALA(p=1, eta=0.3, cap=3), data, TwoLayers(), 2)
    received = driver.server["inner"]["model"]
    final = driver.final(0)
    assert torch.equal(final["body.weight"], received["body.weight"])
    assert not torch.equal(final["head.weight"], received["head.weight"])


def test_a_frozen_first_layer_does_not_switch_it_off() -> None:
    with pytest.warns(MethodNote, match="only 2 layers are shared"):
        driver = play(FedALA(p=9, eta=0.3, cap=3), federation(regressions(dtype=np.float32)), Frozen(), 3)
    state = own_state(driver, 0)
    assert bool(state["started"])
    assert set(state["w"]) == {"middle.weight", "middle.bias", "head.weight", "head.bias"}
    assert not torch.equal(state["w"]["middle.weight"], torch.ones(2, 50))


class OneTensorMoves(nn.Module):
    """Of its trained tensors, only the one in the middle ever gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(2))
        self.live = nn.Linear(2, 1, bias=False)
        self.dead = nn.Linear(2, 3)
        nn.init.constant_(self.dead.bias, -100.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.live(x) + torch.relu(self.dead(x)).sum(1, keepdim=True) + 0 * self.unused.sum()


def test_one_tensor_that_differs_anywhere_is_enough_to_start() -> None:
    driver = play(FedALA(p=3, eta=0.3, cap=3), federation(regressions(dtype=np.float32)), OneTensorMoves(), 3)
    for i in range(3):
        state = own_state(driver, i)
        assert bool(state["started"])
        assert (state["w"]["live.weight"] != 1).any()
        for name in ("dead.weight", "dead.bias", "unused"):
            assert state["w"][name].eq(1).all()


def test_running_statistics_follow_the_mean_weight_of_their_layer() -> None:
    data = federation(regressions(dtype=np.float32))
    driver = play(FedALA(p=2, eta=2.0, cap=5), data, normed(), 2, epochs=3)
    local, received = own_state(driver, 0)["local"], driver.last_delivery()[0].model
    # what the next start would give, from the weights that it would learn
    site, state = driver.sites[0], driver.kept[0]["method"]
    hat, after = driver.common.method.start(site.client(3), state, driver.last_delivery()[0])
    layer = [after["w"][n].flatten() for n in ("0.weight", "0.bias", "1.weight", "1.bias")]
    usual = torch.cat(layer).mean()
    assert 0 < usual < 1
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(hat[name], local[name] + (received[name] - local[name]) * usual)
    assert torch.equal(hat["1.num_batches_tracked"], received["1.num_batches_tracked"])


def test_statistics_that_stay_home_are_not_mixed() -> None:
    data = federation(regressions(dtype=np.float32))
    driver = play(FedALA(p=2, eta=2.0, cap=5), data, normed(), 2, buffers="local")
    got = driver.last_delivery()[0]
    assert not any("running" in name for name in got.model)
    final = driver.final(0)
    for name in ("1.running_mean", "1.running_var"):
        assert torch.equal(final[name], driver.kept[0]["personal"][name])


# Composition.


def test_the_adapted_model_of_the_inner_method_is_made_from_the_mix() -> None:
    # Per-FedAvg under ALA is tested after one step from hat, not from the model received
    data, alpha = squares((1.0, 5.0), (1.0, 1.0), (1, 1)), 0.5
    driver = play(ALA(PerFedAvg(alpha=alpha, beta=0.1), s=100, eta=0.1, cap=1), data, Line(0.0), 2)
    # g = (1 - alpha) (w - c): round 1 gives 0.05 and 0.25, mean 0.15; then W = 1 - 0.1 (-0.1 * -4.85) at client 1
    hat = 0.25 + (0.15 - 0.25) * (1 - 0.1 * 0.1 * 4.85)
    tested = hat + alpha * (5.0 - hat)
    assert driver.rows[1]["test"]["rmse"][1] == pytest.approx(0.5**0.5 * (5.0 - tested))


def test_on_ditto_and_pfedme_it_mixes_the_branch_that_is_sent() -> None:
    data = federation(regressions())
    for inner, slot in ((Ditto(), "v"), (pFedMe(lam=2.0, eta=0.1), "theta")):
        driver = play(ALA(inner, eta=0.5, cap=3), data, Line(0.4, -0.1), 3)
        states = [own_state(driver, i) for i in range(3)]
        assert any((state["w"]["w"] != 1).any() for state in states)
        for i, state in enumerate(states):
            assert not torch.equal(state["local"]["w"], state["inner"][slot]["w"])
            assert torch.equal(driver.final(i)["w"], state["inner"][slot]["w"])  # tested as ever


def test_proximal_pulls_towards_what_was_received_and_not_towards_the_mix() -> None:
    # client 1 of the example by hand: hat = 0.3188 in round 2, pulled with mu = 2 towards 0.3
    data = squares((1.0, 5.0), (1.0, 1.0), (1, 1))
    for method in (ALA(FedProx(mu=2.0), s=100, eta=0.1, cap=1), FedALA(s=100, eta=0.1, cap=1)):
        driver = play(method, data, Line(0.0), 2)
        pull = 2.0 * (0.3188 - 0.3) if isinstance(method.inner, Wrapper) else 0.0
        assert float(own_state(driver, 1)["local"]["w"]) == pytest.approx(0.3188 - 0.1 * (0.3188 - 5.0 + pull))


@dataclass(frozen=True, repr=False)
class LearnsItsStart(Method):
    learns_start = True


@pytest.mark.parametrize("inner", [LearnsItsStart(), HeadAtHome(LearnsItsStart()), FedALA()], ids=repr)
def test_a_method_that_learns_its_start_is_refused_with_the_reason(inner: Method) -> None:
    with pytest.raises(WrongInput, match=r"itself mixes models on each client.*use ALA around another method"):
        ALA(inner)


# Absent clients, words, pictures.


def test_absent_clients_are_tested_with_what_they_last_held_or_with_a_mix_of_their_own() -> None:
    data, options = squares((1.0, 5.0), (1.0, 1.0), (1, 1)), {"s": 100, "eta": 0.1, "cap": 1}
    held, fresh = (
        play(FedALA(**options, init_all=everybody), data, Line(0.0), 6, cohort=1) for everybody in (False, True)
    )
    assert same(common(held), common(fresh))  # a test moves nothing
    for i in range(2):
        assert same(own_state(held, i)["w"], own_state(fresh, i)["w"])
    last = next(r for r in range(5, 0, -1) if held.rows[r]["cohort"] != held.rows[r - 1]["cohort"])
    (absent,) = {0, 1} - set(held.rows[last]["cohort"])
    errors = [row["test"]["rmse"][absent] for row in held.rows[: last + 1]]
    assert errors[-1] == errors[-2]
    again = [row["test"]["rmse"][absent] for row in fresh.rows[: last + 1]]
    assert again[-1] != again[-2]
    assert again[-1] != errors[-1]


def test_what_makes_no_difference_is_said_once() -> None:
    data = federation(regressions(dtype=np.float32))
    for method, words in (
        (FedALA(p=0), "p=0 no layer has weights"), (FedALA(eta=0.0), "eta=0 all weights stay one"),
        (FedALA(p=3), "p=3, but only 2 layers are shared"), (ALA(Local()), "Local shares no layer"),
        (ALA(pFedMe(beta=0.0)), "pFedMe: with beta=0"),
    ):  # fmt: skip
        with pytest.warns(MethodNote, match=words) as said:
            play(method, data, normed(), 1)
        assert len(said) == 1
    with pytest.warns(MethodNote, match="a single client receives its own model"):
        play(FedALA(), federation(regressions((4,))), Line(0.4, -0.1), 2)


@pytest.mark.parametrize("wrong", [
    {"p": -1}, {"s": 0.0}, {"s": 101.0}, {"eta": -1.0}, {"eta": float("inf")}, {"threshold": -1.0}, {"cap": 0},
    {"later_epochs": -1}, {"after": -1},
])  # fmt: skip
def test_impossible_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongInput, match=f"{next(iter(wrong))}=.* must be"):
        FedALA(**wrong)


def test_a_client_too_small_for_a_step_takes_what_is_learned_already() -> None:
    driver = play(FedALA(cap=3), federation(regressions((1, 4), dtype=np.float32)), normed(), 3)
    assert [epochs_of(driver, i) for i in range(2)] == [0, 1]
    assert all(torch.equal(x, torch.ones_like(x)) for x in own_state(driver, 0)["w"].values())


def test_one_model_travels_each_way_and_steps_count_training_only() -> None:
    driver = play(FedALA(cap=3), federation(regressions()), Line(0.4, -0.1), 3)
    for row in driver.rows:
        assert row["down"] == row["up"] == [16, 16, 16]
        assert row["steps"] == [1, 1, 1]


def test_it_shows_its_losses_and_a_histogram_for_each_layer() -> None:
    driver = play(FedALA(p=2, eta=2.0, cap=5, threshold=0.0), federation(regressions(dtype=np.float32)), normed(), 3)
    shown = [[row["explain"]["clients"][str(i)] for row in driver.rows] for i in range(3)]
    for client in shown:
        assert [sum(x is not None for x in one["ALA loss[epoch]"]) for one in client] == [0, 5, 1]
        for layer in ("0", "3"):
            first, *_, last = (one[f"ALA weights[0..1]/{layer}"] for one in client)
            assert first == [0] * 9 + [1]  # all ones at first
            assert len(last) == 10 and sum(last) == pytest.approx(1)
    assert any(client[-1]["ALA weights[0..1]/0"][-1] < 1 for client in shown)


def test_the_named_method_is_the_composition() -> None:
    assert FedALA(p=2, s=50) == ALA(FedAvg(), p=2, s=50)
