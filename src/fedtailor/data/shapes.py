"""Shapes in four styles: pictures of several domains that are drawn, for when PACS or Office-Home are not at hand.

Seven shapes, as a shaded body on a grainy ground (photo), in strokes of related colours (painting), as a flat area with
an outline (cartoon) and as a thin wavering line on white paper (sketch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedtailor.data.decoding import Pixels, check_side, kept
from fedtailor.data.federation import Dataset
from fedtailor.registry import WrongInput, register
from fedtailor.schedule import rng

if TYPE_CHECKING:
    from PIL.Image import Image

SHAPES = ("disc", "square", "triangle", "star", "cross", "crescent", "heart")
STYLES = ("photo", "painting", "cartoon", "sketch")
BIG = 128  # drawn at this size, for smooth edges

Numbers = NDArray[np.float64]


def outline(shape: str) -> Numbers:
    """The corners of a shape around the origin, [n, 2], about one wide in each direction."""
    turn = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    if shape == "disc":
        corners = np.stack([np.cos(turn), np.sin(turn)], 1)
    elif shape in ("square", "triangle"):
        turn = np.linspace(0, 2 * np.pi, 4 if shape == "square" else 3, endpoint=False)
        corners = 1.1 * np.stack([np.cos(turn), np.sin(turn)], 1)
    elif shape == "star":
        turn = np.linspace(0, 2 * np.pi, 10, endpoint=False)
        reach = np.where(np.arange(10) % 2, 0.45, 1.1)
        corners = np.stack([reach * np.cos(turn), reach * np.sin(turn)], 1)
    elif shape == "cross":
        arm = [(0.35, 1), (0.35, 0.35), (1, 0.35)]
        corners = np.array([(x * a, y * b) for a, b, way in ((1, 1, 1), (1, -1, -1), (-1, -1, 1), (-1, 1, -1))
                            for x, y in arm[::way]])  # fmt: skip
    elif shape == "crescent":
        half = np.linspace(-2.2, 2.2, 40)
        outer = np.stack([np.cos(half), np.sin(half)], 1)
        inner = np.stack([0.75 * np.cos(half[::-1]) - 0.45, 0.85 * np.sin(half[::-1])], 1)
        corners = np.concatenate([outer, inner])
    else:
        corners = np.stack([16 * np.sin(turn) ** 3, 13 * np.cos(turn) - 5 * np.cos(2 * turn) - 2 * np.cos(3 * turn)
                            - np.cos(4 * turn)], 1) / 15  # fmt: skip
    return corners


def placed(shape: str, draw: np.random.Generator) -> list[tuple[float, float]]:
    """The shape somewhere on the page, of some size, turned and a little out of shape."""
    angle, size = draw.uniform(-0.6, 0.6), draw.uniform(0.22, 0.36) * BIG
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    stretch = np.diag(draw.uniform(0.8, 1.2, 2))
    centre = BIG / 2 + draw.uniform(-0.12, 0.12, 2) * BIG
    return [(float(x), float(y)) for x, y in outline(shape) @ stretch @ turn * size + centre]


def area(corners: list[tuple[float, float]]) -> Image:
    from PIL import Image, ImageDraw

    page = Image.new("L", (BIG, BIG))
    ImageDraw.Draw(page).polygon(corners, fill=255)
    return page


def apart(draw: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Two colours that can be told from each other."""
    while True:
        one, other = draw.uniform(0, 1, (2, 3))
        if np.linalg.norm(one - other) > 0.5:
            return one, other


def photo(shape: str, draw: np.random.Generator) -> Numbers:
    """A body lit from one side, out of focus, on a ground with grain."""
    from PIL import ImageFilter

    ink = np.asarray(area(placed(shape, draw)).filter(ImageFilter.GaussianBlur(2)), np.float64) / 255
    rows, columns = np.mgrid[0:BIG, 0:BIG] / BIG
    angle = draw.uniform(0, 2 * np.pi)
    light = 0.65 + 0.5 * ((rows - 0.5) * np.sin(angle) + (columns - 0.5) * np.cos(angle))
    body, ground = apart(draw)
    page: Numbers = ink * body[:, None, None] * light + (1 - ink) * ground[:, None, None] * (1.3 - light)
    return page + draw.normal(0, 0.06, (3, BIG, BIG))


def painting(shape: str, draw: np.random.Generator) -> Numbers:
    """Strokes of two families of colours, that of the shape within it."""
    from PIL import Image, ImageDraw

    ink = np.asarray(area(placed(shape, draw)))
    families = 255 * np.stack(apart(draw))
    page = Image.new("RGB", (BIG, BIG), tuple(int(c) for c in families[0]))
    pen = ImageDraw.Draw(page)
    for x, y, angle in zip(*draw.uniform(0, 1, (3, 1500)), strict=True):
        column, row = int(x * BIG), int(y * BIG)
        family = families[int(ink[min(row, BIG - 1), min(column, BIG - 1)] > 0)]
        colour = tuple(int(c) for c in np.clip(family + draw.normal(0, 25, 3), 0, 255))
        reach = 3 * np.array([np.cos(np.pi * angle), np.sin(np.pi * angle)])
        pen.line([column - reach[0], row - reach[1], column + reach[0], row + reach[1]], colour, 4)
    return np.asarray(page, np.float64).transpose(2, 0, 1) / 255


def cartoon(shape: str, draw: np.random.Generator) -> Numbers:
    """A flat bright area with a black outline on a flat light ground."""
    from PIL import Image, ImageDraw

    body, ground = (np.rint(255 * draw.uniform(low, 1, 3)) for low in (0.2, 0.7))
    page = Image.new("RGB", (BIG, BIG), tuple(int(c) for c in ground))
    corners = placed(shape, draw)
    ImageDraw.Draw(page).polygon(corners, tuple(int(c) for c in body))
    ImageDraw.Draw(page).line([*corners, corners[0], corners[1]], (0, 0, 0), int(draw.integers(5, 9)))
    return np.asarray(page, np.float64).transpose(2, 0, 1) / 255


def sketch(shape: str, draw: np.random.Generator) -> Numbers:
    """A thin grey line that wavers, drawn twice, on white."""
    from PIL import Image, ImageDraw

    page = Image.new("L", (BIG, BIG), 255)
    corners = np.array(placed(shape, draw))
    for _ in range(2):
        drawn = corners + draw.normal(0, 1.5, corners.shape)
        line = [(float(x), float(y)) for x, y in (*drawn, drawn[0])]
        ImageDraw.Draw(page).line(line, int(draw.integers(30, 110)), 3)
    grey = np.asarray(page, np.float64) / 255
    return np.broadcast_to(grey, (3, BIG, BIG))


DRAW = {"photo": photo, "painting": painting, "cartoon": cartoon, "sketch": sketch}


def all_drawn(rows: int, size: int) -> Pixels:
    """The pictures of all styles one after the other, uint8 [styles * rows, 3, size, size]."""
    try:
        from PIL import Image
    except ImportError:
        raise WrongInput("pictures need Pillow; install it with: pip install 'fedtailor[images]'") from None
    x = np.empty((len(STYLES) * rows, 3, size, size), np.uint8)
    for style, name in enumerate(STYLES):
        for row in range(rows):
            draw = rng(0, "shapes", name, row)
            pixels = np.clip(DRAW[name](SHAPES[row % len(SHAPES)], draw), 0, 1)
            page = Image.fromarray(np.rint(255 * pixels).astype(np.uint8).transpose(1, 2, 0))
            x[style * rows + row] = np.asarray(page.resize((size, size), Image.Resampling.BOX)).transpose(2, 0, 1)
    return x


@register("data", "shapes")
def shapes(rows: int = 350, size: int = 32) -> Dataset:
    """Seven shapes in four styles, so many pictures of each style: photo, painting, cartoon, sketch; drawn."""
    check_side("shapes", size)
    if rows < 28:
        raise WrongInput(f"shapes: rows={rows} is not possible; ask for 28 or more of each style")
    shape = (len(STYLES) * rows, 3, size, size)
    x = kept("shapes", (rows, size, 1), shape, "drawn", lambda: [all_drawn(rows, size)])
    row = torch.arange(len(x))
    return Dataset(
        name="shapes",
        x=x,
        y=row % rows % len(SHAPES),
        classes=SHAPES,
        domain=row // rows,
        domain_names=STYLES,
        model="lenet_bn",
        partition="domain(sites=2, train=0.4, validation=0.1, test=None)",
        settings={"rounds": 50, "epochs": 1, "batch": 16, "lr": 0.02},
        licence="drawn by Fedtailor, free of rights",
        about=f"seven shapes in four styles, at {size} x {size} pixels",
    )
