"""Sets that are made: the same each time, of the sizes that are stated, and as different as they are made to be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor import load
from fedtailor.data import Dataset, five_digits, shapes, stations, synth_digits, v_mnist
from fedtailor.data.shapes import SHAPES, outline
from fedtailor.data.stations import INSTRUMENT, pollution, wandering, weather
from fedtailor.data.synth_digits import FONTS, coloured, font_folder
from fedtailor.data.v_mnist import EQUAL, MEAN, TOTAL, of_kind, patches, sizes_of, turned
from fedtailor.registry import WrongInput


def again(home: Path, make: object) -> tuple[Dataset, Dataset]:
    """Made twice, the second time without what was kept of the first."""
    first = make()  # type: ignore[operator]
    for file in (home.parent / "cache" / "fedtailor").glob("*"):
        file.unlink()
    return first, make()  # type: ignore[operator]


def same(one: Dataset, other: Dataset) -> bool:
    return torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


# ---------- SynthDigits ----------


def test_synth_digits_are_the_same_each_time_and_all_different(home: Path) -> None:
    one, other = again(home, lambda: synth_digits(rows=60))
    assert same(one, other)
    assert one.x.shape == (60, 3, 32, 32) and one.y.bincount().tolist() == [6] * 10
    assert len(one.x.flatten(1).unique(dim=0)) == 60
    assert float(one.x.double().std((2, 3)).mean(1).min()) > 3, "something is to be seen in each"


def test_its_fonts_come_with_matplotlib() -> None:
    assert len(FONTS) == len(set(FONTS)) == 20
    assert all((font_folder() / f"{name}.ttf").is_file() for name in FONTS)


def test_ink_has_one_colour_on_a_ground_that_changes_from_one_side_to_the_other() -> None:
    ink = np.zeros((32, 32))
    ink[10:20, 10:20] = 1
    for seed in range(5):
        page = coloured(ink, np.random.default_rng(seed))
        body = page[:, 10:20, 10:20].reshape(3, -1)
        assert np.allclose(body, body[:, :1])
        edges = [page[:, 0, 0], page[:, -1, -1]]
        assert all(np.linalg.norm(body[:, 0] - edge) >= 0.35 for edge in edges)
        assert np.allclose(page[:, 0, :], page[:, 0, :1]) or np.allclose(page[:, :, 0], page[:, :1, 0])


# ---------- V-MNIST ----------


def test_sizes_are_those_that_fedham_prints() -> None:
    """72,795 rows at 18 sites, 4,044 on average with a deviation of 1,876; or 4,600 at each."""
    sizes = sizes_of(18, TOTAL, 1876 / MEAN)
    assert sizes.sum() == 72_795 and round(sizes.mean()) == 4044 and abs(sizes.std() - 1876) < 1
    assert sizes.min() > 100 and sizes[:15].sum() <= 70_000, "there are so many digits"
    assert sizes_of(18, 18 * EQUAL, 0.0).tolist() == [4600] * 18


def test_digits_on_noise_and_on_pictures_keep_their_ink() -> None:
    ink = torch.zeros(100, 1, 28, 28)
    ink[:, :, 5:20, 10:14] = 1.0
    for kind in ("noise", "picture"):
        page = of_kind(kind, ink)
        assert (page[ink == 1] == 1).all()
        ground = page[ink == 0].reshape(100, -1)
        assert float(ground.std(1).min()) > 0.05 and float(ground.min()) >= 0 and float(ground.max()) <= 1
    noise = of_kind("noise", ink)[ink == 0]
    assert float(noise.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(noise.std()) == pytest.approx((1 / 12) ** 0.5, abs=0.01)
    assert torch.equal(of_kind("plain", ink), ink)


def test_patches_are_parts_of_photographs() -> None:
    from sklearn.datasets import load_sample_images

    whole = [image.mean(2, dtype=np.float32) / 255 for image in load_sample_images().images]
    for patch in patches(3, np.random.default_rng(0)).numpy()[:, 0]:
        found = any(np.array_equal(page[top : top + 28, left : left + 28], patch) for page in whole
                    for top, left in np.argwhere(page[:-28, :-28] == patch[0, 0]))  # fmt: skip
        assert found and patch.std() >= 0.1


def test_a_quarter_turn_is_a_quarter_turn() -> None:
    class Quarter:
        def uniform(self, low: float, high: float, count: int) -> np.ndarray:
            assert low == 0 and high == pytest.approx(2 * np.pi)
            return np.full(count, np.pi / 2)

    ink = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    out = turned(ink, Quarter())  # type: ignore[arg-type]
    assert torch.allclose(out, torch.rot90(ink, 1, (2, 3)), atol=1e-5) or torch.allclose(
        out, torch.rot90(ink, -1, (2, 3)), atol=1e-5
    )


def test_from_scikit_learns_digits_each_is_used_once(home: Path) -> None:
    one, other = v_mnist(source="digits"), v_mnist(source="digits")
    assert same(one, other) and one.x.shape == (1797, 1, 28, 28)
    assert one.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    made = load(one)
    assert made.n == 15 and made.group_names == ("plain", "turned", "noise", "picture", "turned picture")
    assert made.clients[:4] == ("plain-1", "plain-2", "plain-3", "turned-1")
    grounds = [float(one.x[one.domain == kind][:, :, :4, :4].double().mean()) for kind in range(5)]
    assert max(grounds[:2]) < 20 and min(grounds[2:]) > 60
    assert load("v_mnist(source='digits', balanced=True)").sizes.tolist() == pytest.approx([84] * 15, abs=2)


@pytest.mark.slow
def test_from_mnist_it_is_fedhams_federation(data_folder: Path) -> None:
    if not all((data_folder / f"{name}.npz").is_file() for name in ("mnist", "fashion_mnist")):
        pytest.skip("needs MNIST and Fashion-MNIST")
    made = load("v_mnist(balanced=True)")
    assert made.n == 18 and len(made.x) == 82_800
    held = [len(a) + len(b) + len(c) for a, b, c in zip(made.train, made.validation, made.test, strict=True)]
    assert held == [4600] * 18
    plain = made.x[: 3 * 4600].numpy()
    assert len({picture.tobytes() for picture in plain}) > 13_790, "no digit twice"


# ---------- stations ----------


def test_a_course_returns_to_zero_with_the_deviation_stated() -> None:
    course = wandering(np.random.default_rng(0), 200_000, 0.9, 3.0)
    assert course.mean() == pytest.approx(0, abs=0.2) and course.std() == pytest.approx(3, rel=0.05)
    assert np.corrcoef(course[:-1], course[1:])[0, 1] == pytest.approx(0.9, abs=0.01)


def test_each_instrument_is_off_by_a_factor_of_its_own() -> None:
    sky, factors = weather(np.random.default_rng(0), 3000), []
    for seed in range(40):
        air = pollution(np.random.default_rng(seed), 0, sky, 0.0)
        ratio = np.log(air["PM2.5"] / air["truth"])
        assert ratio.std() == pytest.approx(0.08, abs=0.01)
        factors.append(ratio.mean())
    assert np.std(factors) == pytest.approx(INSTRUMENT, rel=0.3)


def test_stations_have_thirteen_values_and_the_truth_is_not_among_them() -> None:
    one, other = stations(count=8, windows_each=60), stations(count=8, windows_each=60)
    assert same(one, other)
    assert one.x.shape[1:] == (48, 13) and one.domain_names == ("plain", "coast", "valley", "hills")
    made = load(one)
    assert made.n == 8 and made.groups == (0, 1, 2, 3, 0, 1, 2, 3)
    counts = one.y.bincount(minlength=5)
    assert int(counts.max()) > 3 * int(counts.min()), "the grades are not balanced"
    held = [len(a) + len(b) + len(c) for a, b, c in zip(made.train, made.validation, made.test, strict=True)]
    assert all(60 <= rows <= 66 for rows in held)
    share = [one.y[one.domain == city].double().mean() for city in range(4)]
    assert max(share) - min(share) > 1, "nor do cities have the same"


# ---------- shapes ----------


def test_outlines_are_closed_areas_of_different_size() -> None:
    """Their areas by the shoelace formula; of the disc pi, of the square 2 * 1.1 ** 2, of the cross by hand 2.31."""
    areas = {}
    for shape in SHAPES:
        x, y = outline(shape).T
        areas[shape] = abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2
    assert areas["disc"] == pytest.approx(np.pi, rel=0.01) and areas["square"] == pytest.approx(2.42)
    assert areas["cross"] == pytest.approx(2 * 2 * 0.7 - 0.7**2)
    assert min(areas.values()) > 0.5


def test_shapes_are_the_same_each_time_and_look_like_their_styles(home: Path) -> None:
    one, other = again(home, lambda: shapes(rows=28, size=24))
    assert same(one, other)
    assert one.x.shape == (112, 3, 24, 24) and one.y.bincount().tolist() == [16] * 7
    assert one.domain is not None
    means = one.x.double().mean((1, 2, 3))
    light = [float(means[one.domain == style].mean()) for style in range(4)]
    assert light[3] == max(light) and light[3] > 200, "sketches are white paper"
    grey = (one.x.double().amax(1) - one.x.double().amin(1)).mean((1, 2))
    assert float(grey[one.domain == 3].max()) == 0 and float(grey[one.domain == 1].mean()) > 40
    assert load("shapes(rows=28, size=24)").clients[:3] == ("photo-1", "photo-2", "painting-1")


# ---------- five sets of digits ----------


def test_five_sets_come_to_one_size_and_keep_their_labels(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, channels: int, side: int) -> Dataset:
        y = torch.arange(80) % 10
        x = (20 * y + 10).to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, channels, side, side).contiguous()
        return Dataset(name, x, y, tuple("0123456789"), licence=f"of {name}")

    import sys

    module = sys.modules["fedtailor.data.five_digits"]
    for name, channels, side in (("mnist", 1, 28), ("svhn", 3, 32), ("usps", 1, 16), ("mnist_m", 3, 32)):
        monkeypatch.setattr(module, name, lambda name=name, channels=channels, side=side: made(name, channels, side))
    monkeypatch.setattr(module, "synth_digits", lambda rows: made("synth_digits", 3, 32))
    found = five_digits(rows=60)
    assert found.x.shape == (300, 3, 28, 28) and found.x.dtype is torch.uint8
    assert (found.x == (20 * found.y + 10).reshape(-1, 1, 1, 1)).all(), "each picture has its own label's grey"
    assert found.domain is not None and found.domain.bincount().tolist() == [60] * 5
    assert found.domain_names == ("mnist", "svhn", "usps", "synth", "mnist_m") and "usps: of usps" in found.licence
    assert same(found, five_digits(rows=60))


def test_too_few_rows_are_refused(home: Path) -> None:
    for make in (lambda: synth_digits(rows=5), lambda: shapes(rows=5), lambda: five_digits(rows=5),
                 lambda: stations(count=2), lambda: shapes(size=3)):  # fmt: skip
        with pytest.raises(WrongInput, match="is not possible"):
            make()
