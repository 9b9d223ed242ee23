"""How figures look: fixed colours per method, sizes, and SVG that follows the page into dark mode."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fedtailor.report.read import Comparison

# Seven hues that stay apart for readers with any of the three colour-vision deficiencies, on white and on near-black.
SERIES_LIGHT = ("#2f6ab8", "#dc3742", "#12a09c", "#720653", "#999a00", "#807aff", "#4b1eda")
SERIES_DARK = ("#48acfe", "#e9a44e", "#55fcb9", "#d65090", "#ede62f", "#b0e6ec", "#6a6fff")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))

_COLOURS, _DOTS = 64, 130  # of a small PNG: colours in all, and dots an inch

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Palette:
    """Colours by role, so that one drawing serves paper, light page and dark page."""

    ink: str
    muted: str
    grid: str
    band: str  # shading behind every other group
    surface: str
    fill: str  # amounts: cells and bars
    alone: str  # Local, the reference: always grey
    series: tuple[str, ...]


PRINT = Palette("#1b1f24", "#59626d", "#d9dde2", "#f2f4f6", "#ffffff", "#2f6ab8", "#6b7280", SERIES_LIGHT)
# Stand-ins, each replaced by a CSS variable of the page; none is a colour anyone would choose.
MARKED = Palette(
    "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06", "#0a0b07",
    tuple(f"#0a0c0{i}" for i in range(len(SERIES_LIGHT))),
)  # fmt: skip
_VARIABLES = {
    **{
        getattr(MARKED, role): f"var(--{role})" for role in ("ink", "muted", "grid", "band", "surface", "fill", "alone")
    },
    **{colour: f"var(--series-{i})" for i, colour in enumerate(MARKED.series)},
}


@dataclass(frozen=True)
class Look:
    """The look of one method, the same in every figure of a report."""

    colour: str
    marker: str
    dash: Any
    variable: str  # the CSS colour of the page

    @property
    def on_lines(self) -> str:
        """The marker on a line, where the upright one of Local would look like an error bar."""
        return "d" if self.marker == "|" else self.marker


def looks(comparison: Comparison, palette: Palette) -> dict[str, Look]:
    """A look per entry: in the order of the comparison, Local grey and dashed."""
    alone = [entry.label for entry in comparison.entries if entry.is_alone]
    return looks_of([entry.label for entry in comparison.entries], alone, palette)


def looks_of(names: Sequence[str], alone: Sequence[str], palette: Palette) -> dict[str, Look]:
    """A look per name, in their order; those that stand for training alone are grey and dashed."""
    found: dict[str, Look] = {}
    others = 0
    for name in names:
        if name in alone:
            found[name] = Look(palette.alone, "|", (0, (4, 2)), "var(--alone)")
            continue
        hue, turn = others % len(palette.series), others // len(palette.series)
        marker = MARKERS[(hue + 2 * turn) % len(MARKERS)]
        found[name] = Look(palette.series[hue], marker, DASHES[turn % len(DASHES)], f"var(--series-{hue})")
        others += 1
    return found


def settings(palette: Palette) -> Any:
    """Matplotlib settings of every figure; given to a context, never set globally."""
    return {
        "font.family": ["DejaVu Sans"],
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.labelsize": 9,
        "axes.labelcolor": palette.muted,
        "axes.edgecolor": palette.grid,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.unicode_minus": True,
        "grid.color": palette.grid,
        "grid.linewidth": 0.7,
        "text.color": palette.ink,
        "text.parse_math": False,  # names of sites and methods are text, dollar signs included
        "xtick.color": palette.grid,
        "ytick.color": palette.grid,
        "xtick.labelcolor": palette.muted,
        "ytick.labelcolor": palette.muted,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "legend.labelcolor": palette.ink,
        "figure.facecolor": palette.surface if palette is PRINT else "none",
        "savefig.facecolor": "auto",
        "svg.fonttype": "none",  # text stays text: searchable, small, and in the reader's own font
        "svg.hashsalt": "fedtailor",
        "pdf.fonttype": 42,
    }


def save(figure: Figure, file: Any, kind: str, dots: int = 200) -> None:
    """Write a figure as PDF, PNG (of so many dots an inch) or SVG, equal bytes for equal figures."""
    stamp: dict[str, Any] = {"CreationDate": None} if kind == "pdf" else {"Date": None} if kind == "svg" else {}
    with mpl.rc_context(settings(PRINT)):
        figure.savefig(file, format=kind, metadata=stamp, dpi=dots)


def save_small(figure: Figure, path: Path) -> None:
    """A PNG of few colours, for a repository: equal bytes for equal figures.

    The way of choosing them keeps the colours of thin lines, which the usual one mixes.
    """
    from PIL import Image

    buffer = io.BytesIO()
    save(figure, buffer, "png", _DOTS)
    with Image.open(buffer) as picture:
        few = picture.convert("RGB").quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(path, format="PNG", optimize=True)


def inline(figure: Figure, name: str, title: str, description: str, css_class: str = "") -> str:
    """A figure drawn in `MARKED` as an SVG element for a page: own ids, the page's colours and font, no link."""
    buffer = io.BytesIO()
    save(figure, buffer, "svg")
    text = buffer.getvalue().decode("utf-8")
    text = text[text.index("<svg") :]
    # What names a foreign address or would style the whole page is not needed.
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id|clip-path|href|xlink:href)="([^"]*)"', lambda found: _own(found, name), text)
    text = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "inherit" if "font-family:" in text else FONT.replace("'", ""), text)
    text = re.sub(r' d="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found.group()), text)
    view = re.search(r'viewBox="([^"]*)"', text)
    head = (
        f'<svg viewBox="{view.group(1) if view else ""}" role="img" class="{css_class}" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>'
    )
    return head + re.sub(r"\s*\n\s*", "\n", text[text.index(">") + 1 :])


def _own(found: re.Match[str], name: str) -> str:
    attribute, value = found.group(1).removeprefix("xlink:"), found.group(2)
    if attribute == "id":
        return f'id="{name}-{value}"'
    return f'{attribute}="#{name}-{value[1:]}"' if value.startswith("#") else f'{attribute}="{value}"'


def brief(name: str, most: int = 24) -> str:
    """A name on one line, cut where it would not fit."""
    text = " ".join(name.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def legend_columns(labels: Iterable[str], width: float) -> int:
    """How many columns of a legend fit: a letter is about 0.075 inch wide, the sample and gaps 0.6."""
    return max(1, int(width / (0.6 + 0.075 * max(len(brief(label)) for label in labels))))


def spread(wanted: Sequence[float], gap: float, least: float, most: float) -> list[float]:
    """Heights near the wanted ones, in the same order, at least `gap` apart and within bounds: for labels of lines."""
    # Neighbours that are too close become one block, whose height is the least-squares one: pool adjacent violators.
    blocks: list[tuple[float, list[int]]] = []  # (sum of wanted height less own place in the block, members)
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        blocks.append((wanted[i], [i]))
        while len(blocks) > 1 and _bottom(blocks[-1]) - _bottom(blocks[-2]) < gap * len(blocks[-2][1]):
            (high, upper), (low, lower) = blocks.pop(), blocks.pop()
            blocks.append((low + high - gap * len(lower) * len(upper), lower + upper))
    placed = [0.0] * len(wanted)
    for block in blocks:
        for place, i in enumerate(block[1]):
            placed[i] = _bottom(block) + gap * place
    # From the top down and then from the bottom up; if there are too many for the room, they leave it at the top.
    order = sorted(range(len(placed)), key=lambda i: placed[i])
    for place, i in enumerate(reversed(order)):
        placed[i] = min(placed[i], most - gap * place)
    for place, i in enumerate(order):
        placed[i] = max(placed[i], least + gap * place)
    return placed


def _bottom(block: tuple[float, list[int]]) -> float:
    return block[0] / len(block[1])
