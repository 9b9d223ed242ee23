"""FedHealth: a cloud model of public rows, FedAvg from there, and transfer of the last layers at each client."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from nets import Frozen, normed
from quadratic import Line, common, federation, play, regressions, same, squares
from reference import SETTINGS
from small import SmallNet, small_federation, small_spec
from torch import Tensor, nn

from fedtailor import Driver, FedAvg, FedHealth, LocalAttention, WrongInput
from fedtailor.method import MethodNote
from fedtailor.methods.fedhealth import coral, linear_layers
from fedtailor.site import take_exam

quiet = pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
Values = dict[str, Tensor]
Rows = tuple[Tensor, Tensor]
LAST = {"hidden.weight", "after.weight", "after.bias", "head.weight", "head.bias"}
STATISTICS = {f"{norm}.{leaf}" for norm in ("norm", "after") for leaf in ("running_mean", "running_var")}


def pictures(sizes: Sequence[int] = (6, 9, 14)) -> list[tuple[np.ndarray, np.ndarray]]:
    """Squares of 3 x 3 pixels, brighter from client to client, and a number to predict."""
    draw = np.random.default_rng(0)
    rule, rows = draw.normal(size=9), []
    for client, size in enumerate(sizes):
        x = draw.normal(0.5 * client, 1, (size, 1, 3, 3))
        rows.append((x, np.tanh(x.reshape(size, -1) @ rule)))
    return rows


def deep() -> nn.Sequential:
    """A convolution with its norm, which the transfer leaves alone, and two linear layers, the first with a norm."""
    torch.default_generator.manual_seed(3)
    first = {"conv": nn.Conv2d(1, 2, 2), "norm": nn.BatchNorm2d(2), "relu": nn.ReLU(), "flat": nn.Flatten()}
    hidden = {"hidden": nn.Linear(8, 3, bias=False), "after": nn.BatchNorm1d(3), "tanh": nn.Tanh()}
    return nn.Sequential(OrderedDict(**first, **hidden, head=nn.Linear(3, 1))).double()


DATA = federation(pictures())


def split(driver: Driver) -> tuple[list[Rows], Rows]:
    """The rows of every client that are left, and the public ones."""
    data = driver.data
    return [(data.x[i], data.y[i]) for i in data.train], (data.x[data.public], data.y[data.public])


# ---------- the reference, from the paper ----------


def apart(a: Tensor, b: Tensor) -> Tensor:
    """CORAL, entry by entry of the two covariance matrices."""
    h, total = a.shape[1], torch.zeros((), dtype=a.dtype)

    def covariance(x: Tensor, i: int, j: int) -> Tensor:
        return sum((row[i] - x[:, i].mean()) * (row[j] - x[:, j].mean()) for row in x) / (len(x) - 1)

    for i in range(h):
        for j in range(h):
            total = total + (covariance(a, i, j) - covariance(b, i, j)) ** 2
    return total / (4 * h**2)


def trained(
    net: nn.Sequential, values: Values, rows: Rows, only: set[str], public: Tensor | None = None, eta: float = 0.0,
    *, lr: float, epochs: int, momentum: float = 0.0, weight_decay: float = 0.0,
) -> Values:  # fmt: skip
    """Full batches; statistics follow the pass of the loss, and not those of the alignment."""
    net, (x, y) = copy.deepcopy(net).train(), rows
    net.load_state_dict(values)
    moved = [p for name, p in net.named_parameters() if not only or name in only]
    opt = torch.optim.SGD(moved, lr=lr, momentum=momentum, weight_decay=weight_decay)
    for _ in range(epochs):
        net.zero_grad()
        loss = (net(x)[:, 0] - y).square().mean()
        statistics = {name: b.clone() for name, b in net.named_buffers()}
        if public is not None:
            loss = loss + eta * apart(net[:-1](public), net[:-1](x))
        loss.backward()
        opt.step()
        for name, buffer in net.named_buffers():
            buffer.copy_(statistics[name])
    return net.state_dict()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("align", ["coral", "none"])
def test_reference_with_two_of_three_clients_a_round(align: str, setting: dict[str, float]) -> None:
    method = FedHealth(eta_c=2.0, cloud_epochs=3, ft_epochs=4, align=align, share=0.3)
    driver = play(method, DATA, deep(), 3, cohort=2, **setting)
    local, public = split(driver)
    sizes = [len(y) for _, y in local]
    assert sizes == [4, 6, 10] and len(public[1]) == 2 + 3 + 4
    work = {key: value for key, value in setting.items() if key not in ("lr_decay", "epochs")}
    w = trained(deep(), deep().state_dict(), public, set(), **{**work, "epochs": 3})  # the cloud model
    aligned = {"public": public[0], "eta": 2.0} if align == "coral" else {}
    for row in [*driver.rows, None]:
        work["lr"] = setting["lr"] * setting.get("lr_decay", 1.0) ** ((row["round"] if row else 4) - 1)
        tested = [trained(deep(), w, rows, LAST, **aligned, **{**work, "epochs": 4}) for rows in local]
        if row is None:  # what the last delivery would give
            break
        for i, model in enumerate(tested):
            net = deep()
            net.load_state_dict(model)
            x, y = (torch.from_numpy(part[:1]) for part in pictures()[i])
            error = float((net.eval()(x)[:, 0] - y).detach().square())
            assert row["test"]["loss"][i] == pytest.approx(error, rel=1e-9)
        sent = [(sizes[i], trained(deep(), w, local[i], set(), **{**work, "epochs": setting["epochs"]}))
                for i in row["cohort"]]  # fmt: skip
        total = sum(size for size, _ in sent)
        mean = {n: sum(size / total * model[n] for size, model in sent) for n in w}
        w = {n: mean[n] if mean[n].is_floating_point() and "batches" not in n
             else torch.stack([model[n] for _, model in sent]).amax(0) for n in w}  # fmt: skip
    torch.testing.assert_close(common(driver), w, rtol=1e-9, atol=1e-12)
    for i, model in enumerate(tested):
        torch.testing.assert_close(driver.final(i), model, rtol=1e-9, atol=1e-12)


# ---------- by hand ----------


def test_the_alignment_by_hand() -> None:
    def matrix(*rows: tuple[float, ...]) -> Tensor:
        return torch.tensor(rows, dtype=torch.float64)

    # one feature: variances 2 and 18, (2 - 18)^2 / 4
    assert float(coral(matrix((0,), (2,)), matrix((0,), (6,)))) == pytest.approx(64.0)
    # two: covariances [[2, 2], [2, 2]] and [[2, 0], [0, 0]], three entries 2 apart: 12 / 16
    a, b = matrix((0, 0), (2, 2)), matrix((5, 0), (7, 0))
    assert float(coral(a, b)) == pytest.approx(0.75) == float(coral(b, a))
    assert float(coral(a, a + 9)) == 0  # where the rows lie is no matter
    draw = np.random.default_rng(1)
    a, b = (torch.from_numpy(draw.normal(size=(rows, 4))) for rows in (5, 3))
    assert float(coral(a, b)) == pytest.approx(float(apart(a, b)), rel=1e-12)
    assert float(coral(a[:1], b)) == 0  # a single row has no covariance


@quiet
def test_one_round_by_hand() -> None:
    # the rows of a client are alike, so it does not matter which are public. Cloud: client 0 gives 1 row of 2, which
    # wants 1, client 1 gives 2 of 4, which want 4: mean slope (w - 1 + 2 (w - 4)) / 3, from 0: 0.1 * 3 = 0.3. Local:
    # 0.37 and 0.67, mean with 1 and 2 rows 0.57. Tested, before that round: 0.3 tuned by one epoch, 0.37 and 0.67
    method = FedHealth(cloud_epochs=1, ft_epochs=1, share=0.5)
    net = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    driver = play(method, squares((1.0, 4.0), (1.0, 1.0), (2, 4)), net, 0)
    assert float(common(driver)["weight"]) == pytest.approx(0.3)
    driver.step()
    assert float(common(driver)["weight"]) == pytest.approx(0.57)
    errors = [0.5**0.5 * (1.0 - 0.37), 0.5**0.5 * (4.0 - 0.67)]  # x = sqrt(1/2)
    assert driver.rows[0]["point"] == "adapted" and driver.rows[0]["test"]["rmse"] == pytest.approx(errors)


# ---------- the public rows ----------


def test_public_rows_are_taken_out_of_the_clients_and_belong_to_nobody() -> None:
    data = federation(regressions((1, 2, 10, 25)))
    driver = play(FedHealth(share=0.2), data, normed().double(), 0)
    left, public = driver.data.train, driver.data.public.tolist()
    assert [len(rows) for rows in left] == [1, 1, 8, 20]  # one row at least is given, and one kept
    for before, after in zip(data.train, left, strict=True):
        given = set(before.tolist()) - set(after.tolist())
        assert set(after.tolist()) < set(before.tolist()) or len(before) == 1
        assert given <= set(public) and not set(after.tolist()) & set(public)
    assert len(set(public)) == len(public) == 0 + 1 + 2 + 5
    assert driver.fed(1).sizes.tolist() == [1, 1, 8, 20]  # the weights of the mean
    for part in ("validation", "test"):
        pairs = zip(getattr(driver.data, part), getattr(data, part), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    other = play(FedHealth(share=0.2), data, normed().double(), 0, seed=1)
    assert other.data.public.tolist() != public


def test_other_methods_keep_all_their_rows_and_cannot_reach_public_ones() -> None:
    driver = play(FedAvg(), DATA, deep(), 0)
    assert not len(driver.data.public) and driver.sites[0].client(1).public is None
    assert [len(rows) for rows in driver.data.train] == [6, 9, 14]


def test_public_rows_that_the_data_have_are_used_as_they_are() -> None:
    data = small_federation()
    driver = Driver(small_spec(FedHealth(share=0.9)), data)
    assert torch.equal(driver.data.public, data.public)
    assert all(torch.equal(a, b) for a, b in zip(driver.data.train, data.train, strict=True))


def test_they_are_sent_once_and_counted_once_with_a_clients_first_message() -> None:
    driver = play(FedHealth(share=0.3), DATA, deep(), 6, cohort=1)
    model = sum(t.numel() * t.element_size() for t in deep().state_dict().values())
    rows = 9 * (9 * 8 + 8)  # nine public rows of nine pixels and a number, in float64
    seen = set[int]()
    for row in driver.rows:
        (drawn,) = row["cohort"]
        assert row["up"] == [model if i == drawn else 0 for i in range(3)]
        assert row["down"] == [model + rows * (i not in seen) if i == drawn else 0 for i in range(3)]
        seen.add(drawn)
    assert len(seen) > 1 and len(driver.rows) > len(seen)


@quiet
def test_the_cloud_model_is_trained_on_the_public_rows_and_on_no_others() -> None:
    def cloud(y: Tensor, **options: Any) -> Values:
        return common(play(FedHealth(share=0.3, **options), replace(DATA, y=y), deep(), 0))

    public = split(play(FedHealth(share=0.3), DATA, deep(), 0))[1]
    place = play(FedHealth(share=0.3), DATA, deep(), 0).data.public
    assert len(public[1]) == len(place)
    others = torch.ones_like(DATA.y).index_fill(0, place, 0.0)
    assert same(cloud(DATA.y), cloud(DATA.y + others))
    assert not same(cloud(DATA.y), cloud(DATA.y + (1 - others)))
    assert same(cloud(DATA.y, cloud_epochs=0), dict(deep().state_dict()))


# ---------- the transfer ----------


def test_only_the_linear_layers_and_their_norms_are_transferred() -> None:
    driver = play(FedHealth(eta_c=1.0), DATA, deep(), 2, epochs=2)
    assert linear_layers(driver.arch) == LAST
    for i in range(3):
        final = driver.final(i)
        moved = {name for name, value in final.items() if not torch.equal(value, common(driver)[name])}
        assert moved - driver.arch.counters == LAST | STATISTICS


@quiet
def test_the_tuned_copies_are_discarded() -> None:
    tuned, untouched = (play(FedHealth(ft_epochs=e), DATA, deep(), 3, cohort=2) for e in (5, 0))
    assert same(common(tuned), common(untouched))
    assert tuned.rows[-1]["test"] != untouched.rows[-1]["test"]


@quiet
def test_without_a_cloud_model_and_transfer_it_is_fedavg_on_the_rows_that_are_left() -> None:
    ours = play(FedHealth(cloud_epochs=0, ft_epochs=0, share=0.3), DATA, deep(), 3, cohort=2, batch=2, epochs=2)
    kept = replace(DATA, train=ours.data.train)
    fedavg = play(FedAvg(), kept, deep(), 3, cohort=2, batch=2, epochs=2)
    assert same(common(ours), common(fedavg))
    assert [row["test"] for row in ours.rows] == [row["test"] for row in fedavg.rows]


@quiet
def test_without_alignment_no_public_row_reaches_the_transfer() -> None:
    none, zero, coral_ = (
        play(FedHealth(align=align, eta_c=eta), DATA, deep(), 2)
        for align, eta in (("none", 1.0), ("coral", 0.0), ("coral", 1.0))
    )
    for i in range(3):
        assert same(none.final(i), zero.final(i)) and not same(none.final(i), coral_.final(i))


def test_alignment_brings_the_covariances_together() -> None:
    def distance(eta: float) -> float:
        driver = play(FedHealth(eta_c=eta, ft_epochs=20, share=0.3), DATA, deep(), 1)
        local, public = split(driver)
        return float(apart(*(driver.arch.features(driver.final(2), x) for x in (public[0], local[2][0]))))

    assert distance(100.0) < 0.7 * distance(1.0) < 0.7 * 0.7 * distance(1e-4)


def test_in_mini_batches_each_own_batch_meets_a_public_one() -> None:
    # 20 and 30 rows left in batches of 8, and 12 public rows in batches of 8 and 4, drawn again when they are used up
    driver = play(FedHealth(share=0.2, ft_epochs=2), federation(pictures((25, 37))), deep(), 1, batch=8)
    assert len(driver.data.public) == 5 + 7
    client = driver.sites[0].client(2, "adapted")
    own, theirs = list(client.batches(epochs=2)), list(client.with_public_rows().batches(steps=6))
    assert [len(batch.y) for batch in own] == [8, 8, 4] * 2 and [len(batch.y) for batch in theirs] == [8, 4] * 3
    w, last = dict(common(driver)), driver.arch
    for mine, public in zip(own, theirs, strict=True):
        w = trained(deep(), w, (mine.x, mine.y), LAST, public.x, 0.01, lr=0.1, epochs=1)
    assert last.head <= LAST
    torch.testing.assert_close(driver.final(0), w, rtol=1e-9, atol=1e-12)


def test_too_few_rows_for_an_alignment() -> None:
    # one public row is no batch for a norm and has no covariance; the transfer goes on without it
    data = federation(pictures((3, 1)))
    driver = play(FedHealth(share=0.3, eta_c=5.0), data, deep(), 1)
    assert len(driver.data.public) == 1
    plain = play(FedHealth(share=0.3, align="none"), data, deep(), 1)
    assert all(same(driver.final(i), plain.final(i)) for i in range(2))
    assert same(driver.final(1), common(driver))  # a single row is no batch either: tested is what was received


def test_statistics_that_stay_home_are_the_clients_own_and_the_cloud_has_its_own() -> None:
    driver = play(FedHealth(share=0.3), DATA, deep(), 2, buffers="local")
    assert not set(common(driver)) & STATISTICS
    for i in range(3):
        assert not same(driver.final(i), driver.final((i + 1) % 3))


def test_frozen_tensors_stay_in_the_cloud_in_the_rounds_and_in_the_transfer() -> None:
    data = federation(regressions((6, 9, 14), dtype=np.float32))
    driver = play(FedHealth(share=0.3), data, Frozen(), 2, momentum=0.9, weight_decay=0.1, lr=0.02)
    for place in (common(driver), driver.final(1)):
        for name, value in Frozen().state_dict().items():
            assert torch.equal(place[name], value) == name.startswith("body"), name


def test_what_is_tested_is_the_personalised_model_on_every_site() -> None:
    driver = play(FedHealth(share=0.3), DATA, deep(), 2, cohort=1)
    row = driver.finish()
    for i, site in enumerate(driver.sites):
        exam = take_exam(site, driver.final(i))[i]["test"]
        assert row["test"]["loss"][i] == pytest.approx(float(exam["loss_sum"] / exam["count"]))


def test_dropout_in_the_cloud_model_is_drawn_from_the_runs_seed_and_from_nowhere_else() -> None:
    assert any(isinstance(module, nn.Dropout) for module in SmallNet(3, (1, 6, 6)).modules())
    models = []
    for other in (0, 1):
        torch.default_generator.manual_seed(other)
        before = torch.get_rng_state()
        models.append(Driver(small_spec(FedHealth()), small_federation()).server["model"])
        assert torch.equal(torch.get_rng_state(), before)
    assert same(*models)


# ---------- words ----------


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (FedHealth(cloud_epochs=0), "FedHealth: with cloud_epochs=0 there is no cloud model"),
        (FedHealth(ft_epochs=0), "FedHealth: with ft_epochs=0 nothing is transferred"),
        (FedHealth(eta_c=0.0), "FedHealth: eta_c=0 takes the alignment away"),
    ],
    ids=repr,
)
def test_a_null_point_is_said_by_name_once(method: FedHealth, says: str) -> None:
    with pytest.warns(MethodNote) as said:
        play(method, DATA, deep(), 2)
    assert len(said) == 1 and says in str(said[0].message)


def test_an_alignment_of_inputs_that_are_not_trained_is_said_once() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1)).double()
    with pytest.warns(MethodNote, match="FedHealth: only the last layer is trained in the transfer") as said:
        aligned = play(FedHealth(eta_c=5.0), DATA, net, 2)
    assert len(said) == 1
    plain = play(FedHealth(align="none"), DATA, net, 2)
    assert all(same(aligned.final(i), plain.final(i)) for i in range(3))


def test_the_defaults_say_nothing_and_do_something() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        driver = play(FedHealth(), DATA, deep(), 2)
    assert not same(driver.final(0), driver.final(1)) and not same(driver.final(0), common(driver))


@pytest.mark.parametrize("net", [Line(0.4, -0.1), nn.Sequential(nn.Conv1d(1, 1, 2), nn.Flatten())], ids=repr)
def test_a_model_without_linear_layers_is_refused(net: nn.Module) -> None:
    rows = regressions((6, 9))
    if not isinstance(net, Line):
        rows, net = [(x[:, None], y) for x, y in rows], net.double()
    with pytest.raises(WrongInput, match=r"FedHealth: the model has no linear layer.*such as dnn"):
        play(FedHealth(), federation(rows), net, 0)


def test_a_plug_in_whose_private_names_the_cloud_model_would_lack_is_refused() -> None:
    with pytest.raises(WrongInput, match="what is private to the clients it lacks; choose private=False"):
        LocalAttention(FedHealth())


@pytest.mark.parametrize(
    "wrong",
    [{"eta_c": -1.0}, {"eta_c": float("nan")}, {"cloud_epochs": -1}, {"ft_epochs": -1}, {"align": "mmd"},
     {"share": 0.0}, {"share": 1.0}],
)  # fmt: skip
def test_impossible_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WrongInput, match=f"FedHealth: .*{next(iter(wrong))}.* must be"):
        FedHealth(**wrong)
