"""FedMCSA: attention over components on the server, a pull towards the outcome on the client."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from nets import Frozen, normed
from quadratic import SIZES, Line, TwoLayers, federation, play, regressions, same
from torch import Tensor, nn

from fedtailor import (
    SCAFFOLD,
    ComponentAttention,
    Driver,
    FedAMP,
    FedAvg,
    FedBN,
    FedMCSA,
    FedMCSAWithoutAttention,
    FedPer,
    Local,
    LocalAttention,
    Method,
    Proximal,
    WrongInput,
    check_method,
    pFedMe,
    registry,
)
from fedtailor.arch import Arch
from fedtailor.method import MethodNote
from fedtailor.methods import mixing

Values = dict[str, Tensor]


def two_biased() -> nn.Module:
    """Two layers of two tensors each; the second bias starts at zero, as many do."""
    torch.default_generator.manual_seed(5)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    nn.init.zeros_(net[2].bias)
    return net


LAYERS = [["0.weight", "0.bias"], ["2.weight", "2.bias"]]
TENSORS = [[name] for names in LAYERS for name in names]


# ---------- the reference, from Algorithm 1 ----------


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot, aa, bb = (sum(x * y for x, y in zip(u, v, strict=True)) for u, v in ((a, b), (a, a), (b, b)))
    if aa == 0 and bb == 0:
        return 1.0
    return 0.0 if aa == 0 or bb == 0 else dot / math.sqrt(aa * bb)


def attend(models: list[Values], groups: list[list[str]], sigma: float, sizes: Sequence[int] | None) -> list[Values]:
    """Eq. 6 and 7, with the row's own denominator; `sizes` multiply the weights, which are then normalised again."""
    mixed: list[Values] = [{} for _ in models]
    for names in groups:
        vectors = [[float(x) for name in names for x in model[name].flatten()] for model in models]
        for i, query in enumerate(vectors):
            psi = [math.exp(sigma * (cosine(query, key) - 1)) for key in vectors]
            if sizes is not None:
                psi = [p * n for p, n in zip(psi, sizes, strict=True)]
            for name in names:
                mixed[i][name] = sum(p / sum(psi) * model[name] for p, model in zip(psi, models, strict=True))
    return mixed


def algorithm_1(
    cohorts: Sequence[Sequence[int]],
    groups: list[list[str]],
    sigma: float,
    lam: float,
    *,
    everybody: bool = True,
    by_size: bool = False,
    moving: bool = False,
    lr: float = 0.1,
    steps: int = 3,
) -> list[Values]:
    """FedMCSA with modules and autograd, the whole local set as batch; returns all clients' models at the end."""
    data = [tuple(torch.from_numpy(part) for part in rows) for rows in regressions()]
    nets = [two_biased() for _ in data]
    anchors = [copy.deepcopy(net.state_dict()) for net in nets]
    for cohort in cohorts:
        sent = [copy.deepcopy(nets[i].state_dict()) for i in cohort]
        back = attend(sent, groups, sigma, [len(data[i][1]) for i in cohort] if by_size else None)
        for i, values in zip(cohort, back, strict=True):
            nets[i].load_state_dict(values)
            anchors[i] = copy.deepcopy(values)
        for i in range(3) if everybody else cohort:
            x, y = data[i]
            for _ in range(steps):
                pull = sum((p - anchors[i][name]).square().sum() for name, p in nets[i].named_parameters())
                loss = (nets[i](x)[:, 0] - y).square().mean() + lam / 2 * pull
                slopes = torch.autograd.grad(loss, list(nets[i].parameters()))
                with torch.no_grad():
                    for p, slope in zip(nets[i].parameters(), slopes, strict=True):
                        p -= lr * slope
                if moving:  # as the authors' code does
                    anchors[i] = copy.deepcopy(nets[i].state_dict())
    return [net.state_dict() for net in nets]


REFERENCES = {
    "as printed": (FedMCSA(sigma=7.0, lam=1.5), LAYERS, {}),
    "tensors": (FedMCSA(sigma=7.0, lam=1.5, component="tensor"), TENSORS, {}),
    "sizes": (FedMCSA(sigma=2.0, lam=1.5, size_weighting=True), LAYERS, {"by_size": True}),
    "sampled": (FedMCSA(sigma=7.0, lam=1.5, train="sampled"), LAYERS, {"everybody": False}),
    "without a pull": (ComponentAttention(FedAvg(), sigma=7.0), LAYERS, {"lam": 0.0}),
}


@pytest.mark.parametrize("case", REFERENCES)
def test_reference_with_two_of_three_clients_a_round(case: str) -> None:
    method, groups, options = REFERENCES[case]
    driver = play(method, federation(regressions()), two_biased(), 4, cohort=2, steps=3)
    cohorts = [row["cohort"] for row in driver.rows]
    assert len({tuple(cohort) for cohort in cohorts}) > 1
    settings = {"sigma": 2.0 if case == "sizes" else 7.0, "lam": 1.5, **options}
    expected = algorithm_1(cohorts, groups, **settings)
    for kept, values in zip(driver.kept, expected, strict=True):
        torch.testing.assert_close(kept["trained"], dict(values), rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
def test_reference_with_the_moving_anchor_of_the_authors_code() -> None:
    method = FedMCSA(sigma=7.0, lam=1.5, anchor="moving")
    driver = play(method, federation(regressions()), two_biased(), 3, cohort=2, steps=3)
    expected = algorithm_1([row["cohort"] for row in driver.rows], LAYERS, 7.0, 1.5, moving=True)
    for kept, values in zip(driver.kept, expected, strict=True):
        torch.testing.assert_close(kept["trained"], dict(values), rtol=1e-10, atol=1e-12)


# ---------- attention ----------


def received(method: Method, model: nn.Module, models: Sequence[dict[str, object]], **options: object) -> Driver:
    """A driver whose server has the given models of three clients."""
    driver = play(method, federation(regressions()), model, 0, **options)
    kept = {name: torch.stack([torch.as_tensor(m[name], dtype=torch.float64) for m in models]) for name in models[0]}
    driver.server = {**driver.server, "models": kept}
    return driver


def send(driver: Driver, *clients: int) -> list[Values]:
    payload = driver.common.method.send(driver.fed(1), driver.server, torch.tensor(clients))
    return [driver.message(payload, place, i).model for place, i in enumerate(clients)]


def maps(driver: Driver) -> Values:
    return driver.common.method.explain_server(driver.fed(1), driver.server)


def test_three_vectors_by_hand() -> None:
    # right angles between the first two, 45 degrees to the third: with sigma = ln 4 / (1 - 1/sqrt 2) the ratio of the
    # weights of a vector itself and of the third is 4
    sigma = math.log(4) / (1 - 0.5**0.5)
    method = ComponentAttention(FedAvg(), sigma=sigma)
    driver = received(method, Line(0.0, 0.0), [{"w": (1.0, 0.0)}, {"w": (0.0, 2.0)}, {"w": (3.0, 3.0)}])
    far = math.exp(-sigma)
    total = 1 + far + 0.25
    first, second = (1 * 1.0 + 0.25 * 3) / total, (far * 2 + 0.25 * 3) / total
    assert send(driver, 0, 1, 2)[0]["w"].tolist() == pytest.approx([first, second], rel=1e-12)
    assert send(driver, 0, 2)[0]["w"].tolist() == pytest.approx([(4 + 3) / 5, 3 / 5], rel=1e-12)  # 4/5 and 1/5
    # with sizes 2, 3, 5 the drawn two count 4 * 2 and 1 * 5
    by_size = ComponentAttention(FedAvg(), sigma=sigma, size_weighting=True)
    driver = received(by_size, Line(0.0, 0.0), [{"w": (1.0, 0.0)}, {"w": (0.0, 2.0)}, {"w": (3.0, 3.0)}])
    assert send(driver, 0, 2)[0]["w"].tolist() == pytest.approx([(8 + 15) / 13, 15 / 13], rel=1e-12)


def test_rows_sum_to_one_as_those_of_the_printed_equation_do_not() -> None:
    draw = np.random.default_rng(3)
    models = [{"w": draw.normal(size=2)} for _ in range(3)]
    psi = maps(received(ComponentAttention(FedAvg(), sigma=2.0), Line(0.0, 0.0), models))["attention/net"]
    torch.testing.assert_close(psi.sum(1), torch.ones(3, dtype=torch.float64))
    e = np.exp(2.0 * np.array([[cosine(a["w"], b["w"]) for b in models] for a in models]))
    printed = e / e.sum(1)  # entry (i, k) over the sum of row k
    assert abs(printed.sum(1) - 1).max() > 0.05
    np.testing.assert_allclose(psi.numpy(), e / e.sum(1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("options", [{"component": "tensor"}, {"size_weighting": True}], ids=repr)
def test_rows_sum_to_one_whatever_the_options(options: dict[str, object]) -> None:
    driver = play(FedMCSA(sigma=4.0, **options), federation(regressions()), two_biased(), 3)
    shown = {name: psi for name, psi in maps(driver).items() if name.startswith("attention/")}
    assert len(shown) == (4 if "component" in options else 2)
    for psi in shown.values():
        torch.testing.assert_close(psi.sum(1), torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("by_size", [False, True])
def test_equal_models_share_attention_evenly_and_stay_what_they_are(by_size: bool) -> None:
    # as in round 1; by size, each client counts with its rows
    method = FedMCSA(size_weighting=by_size)
    driver = play(method, federation(regressions(dtype=np.float32)), two_biased().float(), 0)
    share = torch.tensor(SIZES, dtype=torch.float64) / 10 if by_size else torch.full((3,), 1 / 3, dtype=torch.float64)
    for layer in ("0", "2"):
        torch.testing.assert_close(maps(driver)[f"attention/{layer}"], share.expand(3, 3), rtol=1e-12, atol=0)
    assert all(same(model, driver.initial) for model in send(driver, 0, 1, 2))


@pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
@pytest.mark.parametrize("component", ["layer", "tensor"])
def test_sigma_0_is_the_plain_mean_of_the_cohort(component: str) -> None:
    method = ComponentAttention(FedAvg(), sigma=0.0, component=component, train="sampled")
    driver = play(method, federation(regressions()), two_biased(), 3, cohort=2)
    sent = send(driver, 0, 2)
    for name, x in driver.server["models"].items():
        for model in sent:
            torch.testing.assert_close(model[name], (x[0] + x[2]) / 2, rtol=1e-13, atol=1e-15)
    # with everybody in the cohort, local training starts where it does in FedAvg with equal weights
    everybody = play(method, federation(regressions()), two_biased(), 3)
    fedavg = play(FedAvg(), federation(regressions()), two_biased(), 3, weighting="uniform", point="trained")
    for ours, theirs in zip(everybody.kept, fedavg.kept, strict=True):
        torch.testing.assert_close(ours["trained"], theirs["trained"], rtol=1e-12, atol=1e-14)


def test_a_very_large_sigma_is_no_mixing_and_the_run_is_local_training() -> None:
    method = ComponentAttention(FedAvg(), sigma=1e9)
    driver = play(method, federation(regressions()), two_biased(), 4, cohort=2)
    for i, model in zip((0, 2), send(driver, 0, 2), strict=True):
        assert same(model, {name: x[i] for name, x in driver.server["models"].items()})
    alone = play(Local(), federation(regressions()), two_biased(), 4)
    for ours, theirs in zip(driver.kept, alone.kept, strict=True):
        torch.testing.assert_close(ours["trained"], theirs["trained"], rtol=1e-12, atol=1e-14)


def test_the_scale_of_sigma_decides_how_selective_attention_is_between_like_models() -> None:
    # cosines near 1, as between large layers: the paper's 50 is all but uniform, 1000 is not
    models = [{"w": (1.0, 0.0)}, {"w": (1.0, 0.06)}, {"w": (1.0, -0.06)}]
    even, sharp = (maps(received(ComponentAttention(FedAvg(), sigma=s), Line(0.0, 0.0), models))["attention/net"]
                   for s in (50.0, 1000.0))  # fmt: skip
    assert even.max() < 0.4  # of 1/3 each
    assert sharp.diagonal().min() > 0.7


def test_zero_vectors_have_cosine_1_with_each_other_and_0_with_the_rest() -> None:
    cosines = mixing.cosines({"b": torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])}, {"b"})
    assert cosines.tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    tiny = mixing.cosines({"b": torch.tensor([[1e-160, 0.0], [0.0, 1.0]], dtype=torch.float64)}, {"b"})
    assert tiny.tolist() == [[1, 0], [0, 1]]  # whose square is lost in rounding
    # a bias that starts at zero is a component of its own here, and all values stay finite
    driver = play(ComponentAttention(FedAvg(), component="tensor"), federation(regressions()), two_biased(), 1)
    assert driver.initial["2.bias"].tolist() == [0.0]
    assert all(bool(t.isfinite().all()) for kept in driver.kept for t in kept["trained"].values())


def test_components_are_compared_one_by_one() -> None:
    # bodies at right angles, heads parallel: only the heads are shared out
    body, turned = [[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]
    models = [{"body.weight": body, "head.weight": [[1.0, 1.0]]}, {"body.weight": turned, "head.weight": [[3.0, 3.0]]}]
    driver = received(ComponentAttention(FedAvg(), sigma=1e4), TwoLayers(), [*models, models[0]])
    first, second = send(driver, 0, 1)
    assert first["body.weight"].tolist() == body and second["body.weight"].tolist() == turned
    assert first["head.weight"].tolist() == second["head.weight"].tolist() == [[2.0, 2.0]]


def test_a_convolution_attends_as_one_with_its_norm() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.norm(self.conv(x[:, None, None, :])).flatten(1))

    driver = play(ComponentAttention(FedAvg()), federation(regressions(dtype=np.float32)), Small(), 2)
    assert set(driver.rows[-1]["explain"]["server"]) == {"clients", "attention/conv", "attention/fc"}
    psi = torch.tensor(driver.rows[-1]["explain"]["server"]["attention/conv"], dtype=torch.float64)
    flat = torch.cat([driver.server["models"][n].flatten(1) for n in Arch(Small()).layers["conv"] if "running" not in n
                      and "tracked" not in n], 1).double()  # fmt: skip
    unit = flat / flat.norm(dim=1, keepdim=True)
    torch.testing.assert_close(psi, torch.softmax(50 * unit @ unit.T, 1), rtol=1e-9, atol=1e-12)


# ---------- what is not trained, and what is private ----------


@pytest.mark.parametrize("component", ["layer", "tensor"])
def test_statistics_follow_their_layer_and_counters_are_the_largest(component: str) -> None:
    method = ComponentAttention(FedAvg(), sigma=3.0, component=component, train="sampled")
    driver = play(method, federation(regressions((2, 4, 8), dtype=np.float32)), normed(), 2, batch=2, epochs=2)
    models, sent = driver.server["models"], send(driver, 0, 1, 2)
    learned = ["0.weight", "0.bias", "1.weight", "1.bias"]
    vectors = [[float(x) for name in learned for x in models[name][i].flatten()] for i in range(3)]
    psi = torch.softmax(3.0 * torch.tensor([[cosine(a, b) for b in vectors] for a in vectors]), 1)
    for name in ("1.running_mean", "1.running_var", *(learned if component == "layer" else ())):
        expected = torch.einsum("ij,j...->i...", psi, models[name])
        torch.testing.assert_close(torch.stack([m[name] for m in sent]), expected, rtol=1e-5, atol=1e-6)
    counts = models["1.num_batches_tracked"]
    assert len(set(counts.tolist())) == 3
    assert [m["1.num_batches_tracked"].item() for m in sent] == [counts.max().item()] * 3
    assert sent[0]["1.num_batches_tracked"].dtype is torch.int64


def test_frozen_parameters_are_never_mixed() -> None:
    driver = play(ComponentAttention(FedAvg(), sigma=0.5), federation(regressions(dtype=np.float32)), Frozen(), 3)
    before = Arch(Frozen()).values()
    for model in send(driver, 0, 1, 2):
        assert torch.equal(model["body.weight"], before["body.weight"])
        assert torch.equal(model["body.bias"], before["body.bias"])


def test_private_names_are_in_no_component() -> None:
    driver = play(ComponentAttention(FedBN()), federation(regressions(dtype=np.float32)), normed(), 2)
    assert {name.split(".")[0] for name in driver.server["models"]} == {"0", "3"}
    head = play(ComponentAttention(FedPer()), federation(regressions()), TwoLayers(), 2)
    assert set(maps(head)) == {"clients", "attention/body"}


# ---------- who exchanges, who trains, what is tested ----------


def test_all_train_and_only_the_cohort_exchanges() -> None:
    driver = play(FedMCSA(), federation(regressions()), two_biased(), 3, cohort=1)
    size = 8 * sum(p.numel() for p in two_biased().parameters())
    for row in driver.rows:
        assert row["trainers"] == [0, 1, 2] and row["steps"] == [1, 1, 1]
        assert row["up"] == row["down"] == [size if i in row["cohort"] else 0 for i in range(3)]
        assert row["point"] == "trained"
    sampled = play(FedMCSA(train="sampled"), federation(regressions()), two_biased(), 3, cohort=1)
    assert all(row["trainers"] == row["cohort"] for row in sampled.rows)


def test_alone_in_a_cohort_a_client_gets_its_own_model_back_bit_for_bit() -> None:
    driver = play(ComponentAttention(FedAvg()), federation(regressions()), two_biased(), 4, cohort=1)
    assert same(send(driver, 1)[0], {name: x[1] for name, x in driver.server["models"].items()})


def test_the_personal_model_of_pfedme_is_what_is_tested() -> None:
    # three numbers followed by loops: theta on a spring around w, w after it, w mixed by attention (all cosines are 1
    # or -1 in one dimension)
    rows, lam, eta, sigma = regressions(), 2.0, 0.05, 1.0
    rows = [(x[:, :1], y) for x, y in rows]
    method = ComponentAttention(pFedMe(lam=lam, K=2, eta=eta), sigma=sigma)
    driver = play(method, federation(rows), Line(0.4), 3, cohort=2, epochs=2)
    w, theta = [0.4] * 3, [0.4] * 3
    for row in driver.rows:
        drawn = row["cohort"]
        e = [[math.exp(sigma * np.sign(w[i] * w[j])) for j in drawn] for i in drawn]
        mixed = [sum(p * w[j] for p, j in zip(line, drawn, strict=True)) / sum(line) for line in e]
        for i, value in zip(drawn, mixed, strict=True):
            w[i] = value
        for i, (x, y) in enumerate(rows):
            for _ in range(2):
                for _ in range(2):
                    slope = 2 / len(y) * x[:, 0] @ (x[:, 0] * theta[i] - y)
                    theta[i] -= 0.1 * (slope + lam * (theta[i] - w[i]))
                w[i] -= eta * lam * (w[i] - theta[i])
    assert [float(kept["trained"]["w"]) for kept in driver.kept] == pytest.approx(w, rel=1e-12)
    assert driver.rows[-1]["point"] == "adapted"
    errors = [(x[0, 0] * t - y[0]) ** 2 for t, (x, y) in zip(theta, rows, strict=True)]
    assert driver.rows[-1]["test"]["loss"] == pytest.approx(errors, rel=1e-9)


def test_the_ablation_is_the_mean_for_all_tested_before_training() -> None:
    # as the paper has it: everybody gets the mean of the drawn models and trains, drawn or not
    lam, data = 1.5, [tuple(torch.from_numpy(part) for part in rows) for rows in regressions()]
    driver = play(FedMCSAWithoutAttention(lam=lam), federation(regressions()), two_biased(), 4, cohort=2, steps=3)
    mean = dict(two_biased().state_dict())
    for row in driver.rows:
        assert row["point"] == "received"
        net = two_biased()
        net.load_state_dict(mean)
        errors = [float((net(x[:1])[:, 0] - y[:1]).detach().square()) for x, y in data]
        assert row["test"]["loss"] == pytest.approx(errors, rel=1e-9)
        trained = []
        for x, y in data:
            net.load_state_dict(mean)
            for _ in range(3):
                pull = sum((p - mean[name]).square().sum() for name, p in net.named_parameters())
                loss = (net(x)[:, 0] - y).square().mean() + lam / 2 * pull
                for p, slope in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
                    p.data -= 0.1 * slope
            trained.append(copy.deepcopy(net.state_dict()))
        total = sum(SIZES[i] for i in row["cohort"])  # drawn next, they are whom the next mean is of
        mean = {name: sum(SIZES[i] / total * trained[i][name] for i in row["cohort"]) for name in mean}
    torch.testing.assert_close(driver.server["inner"]["model"], mean, rtol=1e-10, atol=1e-12)


# ---------- seeing inside, names, guards ----------


def test_attention_is_shown_over_the_clients_that_sent_last() -> None:
    driver = play(ComponentAttention(FedAvg(), sigma=5.0), federation(regressions()), two_biased(), 4, cohort=2)
    for row in driver.rows:
        shown = row["explain"]["server"]
        assert shown["clients"] == row["cohort"]
        for layer in ("0", "2"):
            psi = np.array(shown[f"attention/{layer}"])
            assert psi.shape == (2, 2)
            np.testing.assert_allclose(psi.sum(1), 1, rtol=1e-12)
    # where all train, it is the attention that made this round's models
    vectors = [[float(x) for x in driver.server["models"]["0.weight"][i].flatten()]
               + driver.server["models"]["0.bias"][i].tolist() for i in row["cohort"]]  # fmt: skip
    e = math.exp(5 * (cosine(*vectors) - 1))
    assert psi_of(driver, "0")[0, 1] == pytest.approx(e / (1 + e), rel=1e-9)


def psi_of(driver: Driver, layer: str) -> np.ndarray:
    return np.array(driver.rows[-1]["explain"]["server"][f"attention/{layer}"])


def test_the_names_are_the_compositions() -> None:
    composed = Proximal(ComponentAttention(FedAvg(), sigma=9.0, train="sampled"), mu=2.0, anchor="moving")
    assert FedMCSA(sigma=9.0, lam=2.0, anchor="moving", train="sampled") == composed
    assert registry.parse("method", repr(composed)) == composed
    assert FedMCSAWithoutAttention(lam=2.0) == Proximal(FedAvg(), mu=2.0)
    assert registry.parse("method", "FedMCSA-MCSA") == FedMCSAWithoutAttention() == Proximal(FedAvg(), mu=5.0)
    assert registry.parse("method", "MCSA(pFedMe())") == ComponentAttention(pFedMe())
    assert FedMCSA().sees == "models" and FedMCSA().trains == "all" and FedMCSA().point == "trained"


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (ComponentAttention(FedAvg(), sigma=0.0), "sigma=0 attention is uniform"),
        (ComponentAttention(Local()), "nothing to attend to"),
        (FedMCSA(anchor="moving"), "inert"),
    ],
    ids=repr,
)
def test_a_null_point_is_said(method: Method, says: str) -> None:
    with pytest.warns(MethodNote, match=says):
        play(method, federation(regressions()), two_biased(), 0)


def test_one_client_has_nobody_to_attend_to() -> None:
    with pytest.warns(MethodNote, match="nobody else"):
        play(ComponentAttention(FedAvg()), federation(regressions((4,))), two_biased(), 0)


@pytest.mark.parametrize(
    "wrong", [{"sigma": -1.0}, {"sigma": math.inf}, {"sigma": math.nan}, {"component": "model"}, {"train": "none"}]
)
def test_impossible_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WrongInput, match=f"{next(iter(wrong))}=.* must be"):
        ComponentAttention(FedAvg(), **wrong)


@pytest.mark.parametrize("name", [FedMCSA, FedMCSAWithoutAttention])
@pytest.mark.parametrize("lam", [-1.0, math.inf, math.nan])
def test_an_impossible_lambda_is_refused_by_its_name(name: Callable[..., Method], lam: float) -> None:
    with pytest.raises(WrongInput, match=f"{name.__name__}: lam={lam} must be 0 or more"):
        name(lam=lam)


@pytest.mark.parametrize("inner", [SCAFFOLD(), FedAMP()], ids=repr)
def test_an_inner_method_without_one_model_for_all_is_refused(inner: Method) -> None:
    with pytest.raises(WrongInput, match="more than one model for all"):
        play(ComponentAttention(inner), federation(regressions()), two_biased(), 0)


PAIRINGS = [
    FedMCSA(component="tensor", size_weighting=True, train="sampled", inner_steps=2),
    ComponentAttention(FedBN()),
    LocalAttention(ComponentAttention(FedAvg())),
]


@pytest.mark.parametrize("method", PAIRINGS, ids=repr)
def test_pairings_keep_the_laws(method: Method) -> None:
    check_method(method)
