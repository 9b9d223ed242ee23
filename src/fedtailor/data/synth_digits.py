"""SynthDigits: digits drawn from fonts, in colours, turned, shifted and blurred, with others beside them.

After the set of that name of Ganin et al. (2016), which was drawn from the fonts of Windows and has no public copy that
may be passed on. The fonts here are those that come with Matplotlib, so that everybody has them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedtailor.data.decoding import kept
from fedtailor.data.federation import Dataset
from fedtailor.registry import WrongInput, register
from fedtailor.schedule import rng

SIDE = 32
ENLARGED = 2  # drawn at twice the size, for smooth edges
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique", "DejaVuSansMono",
    "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic",
    "STIXGeneralBolIta", "cmr10", "cmb10", "cmss10", "cmtt10",
)  # fmt: skip
CONTRAST = 0.35  # least distance of two colours, of 3 ** 0.5


def font_folder() -> Path:
    import matplotlib  # takes a moment to import

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def drawn(labels: np.ndarray) -> np.ndarray:
    """A picture of each digit, uint8 [n, 3, 32, 32]."""
    try:
        from PIL import Image, ImageDraw, ImageFilter, ImageFont
    except ImportError:
        raise WrongInput("pictures need Pillow; install it with: pip install 'fedtailor[images]'") from None
    draw, big = rng(0, "synth_digits"), SIDE * ENLARGED
    sizes = range(17, 27)
    folder = font_folder()
    fonts = {(name, size): ImageFont.truetype(str(folder / f"{name}.ttf"), size * ENLARGED)
             for name in FONTS for size in sizes}  # fmt: skip
    x = np.empty((len(labels), 3, SIDE, SIDE), np.uint8)
    for row, label in enumerate(labels):
        font = fonts[FONTS[draw.integers(len(FONTS))], int(draw.choice(sizes))]
        page = Image.new("L", (big, big))
        pen = ImageDraw.Draw(page)
        shift = draw.uniform(-3, 3, 2) * ENLARGED
        beside = draw.random(2) < 0.5
        step = font.getlength("0") * draw.uniform(1.0, 1.25)
        for place, shown in ((0, True), (-1, beside[0]), (1, beside[1])):
            digit = str(label if place == 0 else draw.integers(10))
            if shown:
                pen.text((big / 2 + shift[0] + place * step, big / 2 + shift[1]), digit, 255, font, "mm")
        page = page.rotate(draw.uniform(-25, 25), Image.Resampling.BILINEAR)
        page = page.filter(ImageFilter.GaussianBlur(draw.uniform(0, 1.2) * ENLARGED))
        ink = np.asarray(page.resize((SIDE, SIDE), Image.Resampling.BOX), np.float64) / 255
        x[row] = np.rint(255 * coloured(ink, draw))
    return x


def coloured(ink: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Ink of one colour on a ground that goes from a second to a third, [3, side, side] from 0 to 1."""
    colours = draw.random((3, 3))
    while min(np.linalg.norm(colours[0] - colours[1]), np.linalg.norm(colours[0] - colours[2])) < CONTRAST:
        colours = draw.random((3, 3))
    slope = np.linspace(0, 1, SIDE)
    blend = slope[:, None] if draw.random() < 0.5 else slope[None, :]
    ground = colours[1][:, None, None] * (1 - blend) + colours[2][:, None, None] * blend
    pixels: np.ndarray = colours[0][:, None, None] * ink + ground * (1 - ink)
    return pixels


@register("data", "synth_digits")
def synth_digits(rows: int = 9298) -> Dataset:
    """SynthDigits: digits drawn from Matplotlib's fonts, coloured, turned and blurred, 32 x 32; made, not measured."""
    if rows < 20:
        raise WrongInput(f"synth_digits: rows={rows} is not possible; ask for 20 or more")
    labels = np.arange(rows) % 10
    x = kept("synth_digits", (rows, FONTS, 1), (rows, 3, SIDE, SIDE), "drawn", lambda: [drawn(labels)])
    return Dataset(
        name="synth_digits",
        x=x,
        y=torch.from_numpy(labels.astype(np.int64)),
        classes=tuple("0123456789"),
        model="lenet_bn",
        partition="dirichlet(alpha=0.1, clients=20)",
        settings={"rounds": 100, "epochs": 1, "batch": 32, "lr": 0.01},
        licence="drawn by Fedtailor; the fonts' licences are free (Bitstream Vera, STIX, AMS)",
        about="digits drawn from fonts, in colours, turned, shifted and blurred",
    )
