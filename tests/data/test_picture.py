from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox
from matplotlib.text import Text

from fedtailor.data import Dataset, Federation, load
from fedtailor.report.federation import draw


def many_groups() -> Dataset:
    rows = torch.arange(4000)
    names = tuple(f"hospital number {i}" for i in range(25))
    classes = tuple(f"a rather long class name {i}" for i in range(30))
    images = torch.rand(4000, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Dataset("scans", images, rows % 30, classes, domain=rows % 25, domain_names=names)


CASES: dict[str, tuple[object, ...]] = {
    "digits": ("digits",),
    "synthetic": ("synthetic",),
    "dirichlet": ("digits", "dirichlet(alpha=0.1)"),
    "a hundred": ("digits", "dirichlet(alpha=0.1)", 100),
    "pathological": ("digits", "pathological"),
    "five": ("digits", "iid", 5),
    "one": ("digits", "iid", 1),
    "many groups": (many_groups(), "domain(sites=4, train=10, validation=5)"),
    "two hundred classes": (
        Dataset("fine", torch.rand(9000, 4), torch.arange(9000) % 200, tuple(f"sort {i}" for i in range(200))),
        "dirichlet",
    ),
    "regression": (
        Dataset("hours", torch.rand(900, 4), torch.rand(900), (), task="regression"),
        "by_size(sigma=2.0)",
    ),
}


@pytest.fixture(scope="module", params=list(CASES))
def federation(request: pytest.FixtureRequest) -> Federation:
    return load(*CASES[request.param])  # type: ignore[arg-type]


def words(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> list[Text]:
    """What is really drawn: an axis keeps ticks beyond its ends, too."""
    figure.draw_without_rendering()  # the layout settles
    drawn: dict[Text, None] = {}
    draw_text = Text.draw

    def spy(text: Text, *arguments: object) -> None:
        if text.get_text().strip() and text.get_visible():
            drawn[text] = None
        draw_text(text, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Text, "draw", spy)
        figure.draw_without_rendering()
    return list(drawn)


def test_no_two_words_overlap_and_none_is_cut_off(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = draw(federation)
    shown = words(figure, monkeypatch)
    assert len(shown) > 5
    boxes = [text.get_window_extent() for text in shown]
    page = figure.bbox
    for i, box in enumerate(boxes):
        assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1, shown[i]
        assert page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, shown[i]
        for j in range(i):
            shrunk = box.shrunk(0.96, 0.9)  # boxes include the room for letters that hang below the line
            assert not shrunk.overlaps(boxes[j].shrunk(0.96, 0.9)), (shown[i], shown[j])


def test_amounts_are_the_rows_of_each_client(federation: Federation) -> None:
    figure = draw(federation)
    axes = next(axes for axes in figure.axes if axes.get_ylabel() in ("rows", "training rows"))
    if axes.get_yscale() == "log":
        drawn = [float(y) for points in axes.collections for _, y in points.get_offsets()]
    else:
        drawn = [bar.get_height() for bar in axes.containers[0]]
        held = [len(a) + len(b) for a, b in zip(federation.validation, federation.test, strict=True)]
        assert sorted(bar.get_height() for bar in axes.containers[1]) == sorted(held)
        tops = [bar.get_y() for bar in axes.containers[1]]
        assert tops == drawn  # stacked on the training rows
    order = sorted(range(federation.n), key=lambda i: federation.groups[i])
    sizes = federation.sizes[order].tolist()
    assert drawn == (sizes if len(set(federation.groups)) < federation.n else federation.sizes.tolist())


def test_the_area_of_a_dot_is_the_share_of_the_class(federation: Federation) -> None:
    figure = draw(federation)
    panels = [axes for axes in figure.axes if axes.get_ylabel() == "class"]
    counts = federation.label_counts().numpy()
    if counts.shape[1] == 0:
        assert not panels
        return
    (points,) = (found for found in panels[0].collections if isinstance(found, PathCollection))
    order = sorted(range(federation.n), key=lambda i: federation.groups[i])
    if len(set(federation.groups)) == federation.n:
        order = list(range(federation.n))
    share = counts[order] / counts[order].sum(1, keepdims=True)
    columns = np.unique(np.asarray(points.get_offsets())[:, 0])
    assert len(columns) == federation.n
    table = np.zeros_like(share)
    for (x, y), area in zip(np.asarray(points.get_offsets()), points.get_sizes(), strict=True):
        table[int(np.flatnonzero(columns == x)[0]), int(y)] = area
    assert np.allclose(table / table.max(), share / share.max())


def test_every_group_shows_a_sample_of_its_own() -> None:
    federation = load("digits")
    figure = draw(federation)
    boxes = [found for found in figure.findobj(AnnotationBbox) if isinstance(found, AnnotationBbox)]
    assert len(boxes) == 6
    labels = set()
    for group, box in enumerate(boxes):
        pixels = np.asarray(box.offsetbox.get_data())
        own = [row for i in range(12) if federation.groups[i] == group for row in federation.train[i].tolist()]
        images = federation.x[own].numpy()
        low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
        distance = np.abs(((images - low) / (high - low)).transpose(0, 2, 3, 1) - pixels).max((1, 2, 3))
        assert distance.min() < 1e-5
        labels.add(int(federation.y[own[int(distance.argmin())]]))
    assert len(labels) == 1  # the same digit in every domain


def test_the_global_settings_of_matplotlib_are_left_alone() -> None:
    before = dict(mpl.rcParams)
    draw(load("digits", "iid", 5))
    assert dict(mpl.rcParams) == before


def test_a_pooled_federation_shows_its_sites() -> None:
    figure = draw(load("digits").pooled())
    assert any("12 clients" in text.get_text() for text in figure.texts)
