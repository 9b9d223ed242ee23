"""FedFomo: gains by others' models on rows held out, and a mixture of those that help."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from nets import Frozen, normed
from quadratic import Line, TwoLayers, federation, play, regressions, same, squares, step_telling
from reference import SETTINGS, Model, close, descend, options, two_layers, values
from torch import Tensor

from fedtailor import (
    AdaptiveLocalAggregation,
    ComponentAttention,
    Driver,
    FedFomo,
    Local,
    LocalAttention,
    Method,
    Proximal,
    TunedStart,
    Wrapper,
    WrongInput,
    check_method,
    registry,
)
from fedtailor.arch import Arch
from fedtailor.method import MethodNote

NOTED = pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
SIZES = (6, 9, 14)  # of which 1, 2 and 3 rows are held out


def related(seed: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    """Clients of nearly one slope and much noise, so that the models of others help."""
    draw = np.random.default_rng(seed)
    slope = draw.normal(size=2)
    rows = []
    for size in SIZES:
        x = draw.normal(size=(size, 2))
        rows.append((x, x @ (slope + 0.2 * draw.normal(size=2)) + draw.normal(size=size)))
    return rows


ROWS = related()


def state(driver: Driver, client: int) -> dict[str, Tensor]:
    kept = driver.kept[client]["method"]
    return kept.get("inner", kept)


def split(driver: Driver, client: int, round: int = 1) -> tuple[list[int], list[int]]:
    """The rows that a client trains on and those held out, counted from its first."""
    first = int(driver.data.train[client][0])
    rest, held = driver.sites[client].client(round).holdout(0.2)
    return (rest.rows - first).tolist(), (held.rows - first).tolist()


# ---------- the reference, from the paper ----------


def error(m: Model, x: np.ndarray, y: np.ndarray) -> float:
    return float(((x @ m["body.weight"].T @ m["head.weight"][0] - y) ** 2).mean())


def expected(
    driver: Driver, sent: Sequence[dict[int, list[int]]], M: int, setting: dict[str, float], shared: Collection[str]
) -> tuple[list[Model], np.ndarray, list[Model], list[np.ndarray]]:
    """All clients' models after these rounds, the server's P, and of each client's last round mixture and weights."""
    own = [values(TwoLayers()) for _ in ROWS]
    P, trained = np.eye(3), set[int]()
    mixture, weights = [values(TwoLayers())] * 3, [np.zeros(3)] * 3
    for row, ids in zip(driver.rows, sent, strict=True):
        after, scores = {}, np.zeros((3, 3))
        for i in row["cohort"]:
            others = [j for j in trained if j != i]
            best = sorted((P[i, j] for j in others), reverse=True)[:M]
            assert sorted((P[i, j] for j in ids[i]), reverse=True) == pytest.approx(best)
            assert set(ids[i]) <= set(others)
            rest, held = ([part[rows] for part in ROWS[i]] for rows in split(driver, i))
            w = {name: value.copy() for name, value in own[i].items()}
            for j in ids[i]:
                theirs = {**own[i], **{name: own[j][name] for name in shared}}
                way = np.sqrt(sum(((theirs[name] - own[i][name]) ** 2).sum() for name in shared))
                scores[i, j] = (error(own[i], *held) - error(theirs, *held)) / way
            positive = np.maximum(scores[i], 0)
            weights[i] = positive / positive.sum() if positive.any() else positive
            for j in ids[i]:
                for name in shared:
                    w[name] = w[name] + weights[i][j] * (own[j][name] - own[i][name])
            mixture[i] = w
            after[i] = descend(w, two_layers(*rest), **options(setting, row["round"]))
        for i, model in after.items():
            own[i] = model
        P, trained = P + scores, trained | set(row["cohort"])
    return own, P, mixture, weights


@dataclass(frozen=True, repr=False)
class HeadAtHome(Wrapper):
    """Any plug-in that keeps some names private, as local attention does."""

    def personal(self, arch: Arch) -> frozenset[str]:
        return arch.head


@pytest.mark.parametrize("shared", [("body.weight", "head.weight"), ("body.weight",)], ids=["whole", "private head"])
@pytest.mark.parametrize("setting", SETTINGS, ids=["plain", "all options"])
@pytest.mark.parametrize("M", [1, 2])
def test_reference_with_two_of_three_clients_a_round(M: int, setting: dict[str, float], shared: tuple[str]) -> None:
    method: Method = FedFomo(M=M, epsilon=0.0)
    method = method if len(shared) == 2 else HeadAtHome(method)
    setting = {**setting, "lr": setting["lr"] / 5}  # slow enough for others to be ahead
    driver = play(method, federation(ROWS), TwoLayers(), 0, cohort=2, **setting)
    sent = [step_telling(driver) for _ in range(8)]
    assert len({tuple(row["cohort"]) for row in driver.rows}) > 1
    own, P, mixture, weights = expected(driver, sent, M, setting, shared)
    largest = [max(client["weights"]) for row in driver.rows for client in row["explain"]["clients"].values()]
    assert sum(weight > 0 for weight in largest) > 5 and any(0 < weight < 1 for weight in largest) is (M == 2)
    for i in range(3):
        close(state(driver, i)["own"], own[i], 1e-9)
        close(driver.kept[i]["held"], mixture[i], 1e-9)  # what is tested, absent clients with their last
        np.testing.assert_allclose(state(driver, i)["weights"], weights[i], rtol=1e-7, atol=1e-12)
        upload = {name: value[i] for name, value in server(driver)["models"].items()}
        close(upload, {name: own[i][name] for name in shared}, 1e-9)
    np.testing.assert_allclose(server(driver)["P"], P, rtol=1e-7, atol=1e-10)


def server(driver: Driver) -> dict[str, Tensor]:
    return driver.server.get("inner", driver.server)


def test_three_rounds_by_hand() -> None:
    # f_i = (w - c_i)^2 / 2 with c = 2, 5, 3, and steps of a tenth of the way: 0.2, 0.5, 0.3 after round 1.
    # client 0 loses 1.62, and 1.125 and 1.445 with the others': gains 0.495 / 0.3 = 1.65 and 0.175 / 0.1 = 1.75
    # client 1 is nearest its centre itself: (10.125 - 11.52) / 0.3 = -4.65 and (10.125 - 11.045) / 0.2 = -4.6
    # client 2: (3.645 - 3.92) / 0.1 = -2.75 and (3.645 - 3.125) / 0.2 = 2.6, and takes client 1's as it is
    driver = play(FedFomo(M=2), squares((2.0, 5.0, 3.0), (1.0,) * 3, (5, 5, 5)), Line(0.0), 2)
    mix = 0.2 + (1.65 * 0.3 + 1.75 * 0.1) / 3.4
    after = [mix + 0.1 * (2 - mix), 0.95, 0.5 + 0.1 * 2.5]
    assert [float(state(driver, i)["own"]["w"]) for i in range(3)] == pytest.approx(after)
    P = [[1, 1.65, 1.75], [-4.65, 1, -4.6], [-2.75, 2.6, 1]]
    np.testing.assert_allclose(driver.server["P"], P, rtol=1e-12)
    assert driver.rows[-1]["test"]["rmse"] == pytest.approx(  # x = sqrt(1/2): before the training of the round
        [0.5**0.5 * (2 - mix), 0.5**0.5 * 4.5, 0.5**0.5 * 2.5]
    )
    # round 3 starts from the models as trained, and not from the mixtures: client 1 from 0.95, the best of 3 for itself
    driver.step()
    gain = ((5 - 0.95) ** 2 - (5 - 0.75) ** 2) / 2 / 0.2
    assert float(driver.server["P"][1, 2]) == pytest.approx(-4.6 + gain)
    assert float(state(driver, 1)["own"]["w"]) == pytest.approx(0.95 + 0.1 * 4.05)


# ---------- scores and weights ----------


def test_equal_models_have_no_score_and_leave_a_client_its_own() -> None:
    data = squares((1.0, 1.0, 1.0), (2.0, 2.0, 2.0), (5, 5, 5))
    driver = play(FedFomo(M=2), data, Line(0.3), 1)
    for _ in range(2):
        before = [state(driver, i)["own"] for i in range(3)]
        assert same(before[0], before[1]) and same(before[0], before[2])
        driver.step()
        for i in range(3):
            assert same(driver.kept[i]["held"], before[i])
            assert not state(driver, i)["scores"].any() and not state(driver, i)["weights"].any()
    assert torch.equal(driver.server["P"], torch.eye(3, dtype=torch.float64))


def test_a_model_that_loses_as_much_or_more_has_no_weight_and_one_without_a_finite_loss_no_score() -> None:
    # client 0 is at 1 with its centre at 2: to 3 it is as far, 4 is farther, 1e200 squared is beyond float64
    driver = play(FedFomo(M=3, epsilon=0.0), squares((2.0,) * 4, (1.0,) * 4, (5,) * 4), Line(0.0), 1)
    models = torch.tensor([[1.0], [3.0], [4.0], [1e200]], dtype=torch.float64)
    driver.server = {**driver.server, "models": {"w": models}}
    kept = driver.kept[0]
    driver.kept[0] = {**kept, "method": {**kept["method"], "own": {"w": models[0]}}}
    driver.step()
    assert state(driver, 0)["scores"].tolist() == pytest.approx([0, 0, (0.5 - 2) / 3, 0])
    assert not state(driver, 0)["weights"].any()
    assert float(driver.kept[0]["held"]["w"]) == 1.0


def test_weights_are_all_zero_or_sum_to_one_and_none_is_negative() -> None:
    driver = play(FedFomo(M=2), federation(regressions((5, 7, 9, 11))), TwoLayers(), 0, batch=4, lr=0.05)
    sums = []
    for _ in range(8):
        driver.step()
        for row in driver.rows[-1]["explain"]["clients"].values():
            weights = np.array(row["weights"])
            assert (weights >= 0).all()
            sums.append(weights.sum())
    assert {round(total, 12) for total in sums} == {0.0, 1.0}


# ---------- who is sent to whom ----------


def sent(driver: Driver, round: int = 2, seed: int = 0, **server: Tensor) -> list[list[int]]:
    """Whose models each client would be sent, all taking part."""
    fed = replace(driver.fed(round), seed=seed)
    ids = driver.common.method.send(fed, {**driver.server, **server}, torch.arange(fed.n)).peer_ids
    assert ids is not None
    return [[j for j in row if j >= 0] for row in ids.tolist()]


def lines(method: Method, n: int, rounds: int = 0, **options: object) -> Driver:
    return play(method, squares(range(n), (1.0,) * n, (2,) * n), Line(0.0), rounds, **options)


def test_the_largest_affinities_are_sent_and_never_the_clients_own() -> None:
    driver = lines(FedFomo(M=2, epsilon=0.0), 5)
    seen, P = torch.ones(5), torch.eye(5, dtype=torch.float64)
    P[0] = torch.tensor([9.0, -3.0, 0.5, 2.0, -1.0])
    P[4] = torch.tensor([-3.0, -2.0, -1.0, -4.0, 1.0])  # none has helped: the two that harmed least
    for round in range(1, 8):
        assert [sent(driver, round, seen=seen, P=P)[i] for i in (0, 4)] == [[2, 3], [1, 2]]


def test_in_the_first_round_nobody_is_sent_and_later_nobody_who_never_trained() -> None:
    # the first model is nobody's, and often ahead of what a client has trained for itself
    for method in (FedFomo(M=2, epsilon=1.0, epsilon_decay=0.0), FedFomo(M=3, epsilon=0.0)):
        driver = lines(method, 4, cohort=1)
        trained: set[int] = set()
        for _ in range(10):
            for i, ids in step_telling(driver).items():
                others = trained - {i}
                assert set(ids) <= others and len(ids) == min(len(others), method.M)
                trained.add(i)
        assert len(trained) == 4
        assert not any(sent(driver, seen=torch.zeros(4)))


@NOTED
@pytest.mark.parametrize("M", [4, 5, 50])
def test_where_m_reaches_all_others_all_are_sent(M: int) -> None:
    driver = lines(FedFomo(M=M, epsilon=1.0), 5, rounds=1)
    assert sent(driver) == [[j for j in range(5) if j != i] for i in range(5)]


def test_a_place_goes_to_chance_less_often_from_round_to_round() -> None:
    # one place among 21 clients; chance hits one of the 19 others of 20 with epsilon = 0.3, 0.15 and 0
    driver = lines(FedFomo(M=1), 21)
    seen, P = torch.ones(21), torch.eye(21, dtype=torch.float64)
    favourite = [(i + 1) % 21 for i in range(21)]
    P[range(21), favourite] = 2.0
    for round, epsilon in ((1, 0.3), (4, 0.15), (7, 0.0), (30, 0.0)):
        drawn = [ids for seed in range(40) for ids in sent(driver, round, seed, seen=seen, P=P)]
        strangers = sum(ids != [best] for ids, best in zip(drawn, favourite * 40, strict=True)) / len(drawn)
        assert strangers == pytest.approx(epsilon * 19 / 20, abs=0.04 if epsilon else 0)


def test_ties_are_broken_at_random() -> None:
    driver = lines(FedFomo(M=2, epsilon=0.0), 6)
    drawn = {tuple(sent(driver, round, seen=torch.ones(6))[0]) for round in range(1, 60)}
    assert len(drawn) == 10  # all pairs of five


# ---------- the rows held out ----------


def test_a_fixed_fifth_of_the_training_rows_is_held_out() -> None:
    # drawn anew in each round, the scores would be taken on rows trained on
    driver = play(FedFomo(M=2), federation(ROWS), Line(0.4, -0.1), 0)
    for i, size in enumerate(SIZES):
        rest, held = split(driver, i)
        assert sorted(rest + held) == list(range(size))
        assert len(held) == round(size / 5)
        assert all(split(driver, i, later) == (rest, held) for later in (2, 3, 9))


def test_of_a_row_held_out_only_the_scores_know() -> None:
    driver = play(FedFomo(M=2), federation(ROWS), Line(0.4, -0.1), 2)
    rest, held = split(driver, 2)
    for row, trains in ((held[0], False), (rest[0], True)):
        rows = [(x.copy(), y.copy()) for x, y in ROWS]
        rows[2][1][row] += 7.0
        other = play(FedFomo(M=2), federation(rows), Line(0.4, -0.1), 1)
        once = play(FedFomo(M=2), federation(ROWS), Line(0.4, -0.1), 1)
        assert same(state(other, 2)["own"], state(once, 2)["own"]) is not trains
        other.step()
        assert not torch.equal(state(other, 2)["scores"], state(driver, 2)["scores"])


def test_no_client_looks_at_validation_or_test_rows() -> None:
    data = federation(ROWS)
    x = torch.cat([data.x, data.x[:6]])
    y = torch.cat([data.y, data.y[:6]])
    validation = tuple(torch.arange(len(data.x) + 2 * i, len(data.x) + 2 * i + 2) for i in range(3))
    spoiled = x.clone()
    spoiled[torch.cat([*validation, *data.test])] = 1e6
    runs = [
        play(FedFomo(M=2), replace(data, x=part, y=y, validation=validation), Line(0.4, -0.1), 3)
        for part in (x, spoiled)
    ]
    assert runs[0].rows[-1]["validation"] != runs[1].rows[-1]["validation"]
    assert same(runs[0].server["models"], runs[1].server["models"])
    assert torch.equal(runs[0].server["P"], runs[1].server["P"])


def on_the_rest(driver: Driver) -> Driver:
    """Local training on the rows that are not held out, in as many rounds."""
    rest = [driver.sites[i].client(1).holdout(0.2)[0].rows for i in range(driver.data.n)]
    options = {"epochs": 2, "batch": 3, "momentum": 0.9}
    return play(Local(), replace(driver.data, train=tuple(rest)), TwoLayers(), driver.round, **options)


@NOTED
@pytest.mark.parametrize(("sizes", "rounds"), [(SIZES, 1), ((14,), 4)], ids=["first round", "alone"])
def test_to_whom_nobody_is_sent_trains_alone_on_the_other_rows(sizes: tuple[int, ...], rounds: int) -> None:
    data = federation(regressions(sizes))
    driver = play(FedFomo(M=2), data, TwoLayers(), rounds, epochs=2, batch=3, momentum=0.9)
    for i, alone in enumerate(on_the_rest(driver).kept):
        assert same(state(driver, i)["own"], alone["trained"])
        assert driver.rows[0]["down"][i] == 0


def test_a_client_of_one_row_trains_on_it_and_scores_nobody() -> None:
    driver = play(FedFomo(M=2), squares((1.0, 2.0, 3.0), (1.0,) * 3, (1, 4, 4)), Line(0.0), 3)
    assert not state(driver, 0)["scores"].any() and not driver.server["P"][0, 1:].any()
    assert float(state(driver, 0)["own"]["w"]) == pytest.approx(1 - 0.9**3)
    assert float(driver.server["P"][1, 0]) < 0  # but its model is sent to others


# ---------- what is not trained ----------


def loss_in_torch(model: dict[str, Tensor], x: np.ndarray, y: np.ndarray) -> float:
    net = normed().double()
    net.load_state_dict(model)
    with torch.no_grad():
        return float((net.eval()(torch.from_numpy(x))[:, 0] - torch.from_numpy(y)).square().mean())


@pytest.mark.parametrize("buffers", ["with_layer", "local"])
def test_statistics_are_mixed_with_their_layer_or_stay_and_counters_are_ones_own(buffers: str) -> None:
    driver = play(
        FedFomo(M=2), federation(ROWS), normed().double(), 2, batch=4, epochs=2, buffers=buffers, momentum=0.5
    )
    before, models = [state(driver, i)["own"] for i in range(3)], driver.server["models"]
    learned = [name for name, _ in normed().named_parameters()]
    assert ("1.running_var" in models) == (buffers == "with_layer")
    driver.step()
    mixed = 0
    for i in range(3):
        held = [part[split(driver, i)[1]] for part in ROWS[i]]
        scores = [0.0] * 3
        for j in (j for j in range(3) if j != i):
            theirs = {**before[i], **{name: stack[j] for name, stack in models.items()}}
            way = sum((theirs[name] - before[i][name]).square().sum() for name in learned).sqrt()
            scores[j] = float((loss_in_torch(before[i], *held) - loss_in_torch(theirs, *held)) / way)
        assert state(driver, i)["scores"].tolist() == pytest.approx(scores, rel=1e-9)
        start, weights = driver.kept[i]["held"], state(driver, i)["weights"]
        mixed += int(weights.any())
        for name, own in before[i].items():
            change = sum(weights[j] * (models[name][j] - own) for j in range(3)) if name in models else 0
            torch.testing.assert_close(start[name], own + change if own.is_floating_point() else own)
    assert mixed
    assert len({int(one["1.num_batches_tracked"]) for one in before}) == 3


def test_frozen_parameters_stay_bit_for_bit() -> None:
    driver = play(FedFomo(M=2), federation(regressions(SIZES, dtype=np.float32)), Frozen(), 4)
    assert any(state(driver, i)["weights"].any() for i in range(3))
    for i in range(3):
        for model in (state(driver, i)["own"], driver.kept[i]["held"], driver.final(i)):
            assert torch.equal(model["body.weight"], Arch(Frozen()).values()["body.weight"])


# ---------- what travels, what is tested and shown ----------


def test_as_many_models_down_as_are_sent_and_one_up_beside_the_scores() -> None:
    driver = play(FedFomo(M=2), federation(ROWS), Line(0.4, -0.1), 0, cohort=2)
    for _ in range(4):
        ids = step_telling(driver)
        row = driver.rows[-1]
        assert row["down"] == [16 * len(ids.get(i, [])) for i in range(3)]
        assert row["up"] == [16 + 3 * 8 if i in ids else 0 for i in range(3)]
    assert FedFomo().sees == "models" and FedFomo().point == "received"


def test_what_is_private_reaches_neither_the_server_nor_the_others() -> None:
    driver = play(HeadAtHome(FedFomo(M=2)), federation(ROWS), TwoLayers(), 2)
    assert driver.private == {"head.weight"} and set(server(driver)["models"]) == {"body.weight"}
    heads = [driver.kept[i]["personal"]["head.weight"] for i in range(3)]
    driver.step()
    assert all(torch.equal(driver.kept[i]["held"]["head.weight"], heads[i]) for i in range(3))


def test_it_shows_the_weights_and_the_affinities() -> None:
    driver = play(FedFomo(M=2), federation(ROWS), Line(0.4, -0.1), 3, cohort=2)
    shown = driver.rows[-1]["explain"]
    np.testing.assert_allclose(shown["server"]["affinity"], driver.server["P"])
    assert shown["clients"].keys() == {str(i) for i in driver.rows[-1]["cohort"]}
    for i, parts in shown["clients"].items():
        assert parts == {"weights": state(driver, int(i))["weights"].tolist()}


# ---------- words, refusals, pairings ----------


@pytest.mark.parametrize(
    ("n", "says"), [(1, "a single client has nobody's model"), (3, "M=5, but only 2 other clients: all are sent")]
)
def test_what_has_no_effect_is_said_once(n: int, says: str) -> None:
    with pytest.warns(MethodNote, match=f"FedFomo: {says}") as said:
        lines(FedFomo(), n, rounds=2)
    assert len(said) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"M": 0}, {"holdout": 0.0}, {"holdout": 1.0}, {"epsilon": -0.1}, {"epsilon": 1.1}, {"epsilon_decay": -0.1},
     {"epsilon_decay": float("inf")}, {"epsilon_decay": float("nan")}],
)  # fmt: skip
def test_impossible_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(WrongInput, match=f"FedFomo: {next(iter(wrong))}=.* must be"):
        FedFomo(**wrong)


def test_the_text_is_read_back() -> None:
    method = FedFomo(M=7, holdout=0.1, epsilon=0.0)
    assert registry.parse("method", repr(method)) == method
    assert registry.parse("method", "fedfomo") == FedFomo()


@pytest.mark.parametrize(
    ("around", "says"),
    [
        (AdaptiveLocalAggregation, "FedFomo itself mixes models on each client by what it learned.* around another"),
        (Proximal, "receives no one model that it could be held near; choose an inner method"),
        (ComponentAttention, "sends more than one model for all.* choose an inner method"),
        (TunedStart, "receives no one model that it could fine-tune; choose an inner method"),
    ],
)
def test_a_plug_in_that_needs_one_model_received_is_refused(around: type[Wrapper], says: str) -> None:
    with pytest.raises(WrongInput, match=f"{around.__name__}: .*{says}"):
        play(around(FedFomo(M=2)), federation(ROWS), Line(0.4, -0.1), 0)


@pytest.mark.parametrize("method", [FedFomo(M=2), LocalAttention(FedFomo(M=2), "se")], ids=repr)
def test_pairings_keep_the_laws(method: Method) -> None:
    check_method(method)
