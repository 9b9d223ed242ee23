"""Values as coloured cells: the scale, its bar, and numbers where there is room for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import FuncNorm, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fedtailor.report.learned.lessons import Numbers
from fedtailor.report.style import PRINT, Palette

# Pictures of cells are opaque on every page; in the dark its style sheet turns their lightness round.
_LESS = ("#5b2c00", "#b45309", "#f2a65a")
_MORE = ("#9dc3ea", "#2f6ab8", "#0e2748")
_ROOM = 20.0  # points a cell needs for its number


@dataclass(frozen=True)
class Scale:
    """From values to colours: white at `centre`, blue above, orange below."""

    low: float
    high: float
    centre: float = 0.0
    root: bool = False  # by the square root of the distance from the centre, so that little does not look like nothing

    @property
    def norm(self) -> Normalize:
        if not self.root:
            return Normalize(self.low, self.high)
        norm: Normalize = FuncNorm((_root, _square), vmin=self.low, vmax=self.high)
        return norm

    @property
    def colours(self) -> LinearSegmentedColormap:
        stops = ("#ffffff", *_MORE) if self.low >= self.centre else (*_LESS, "#ffffff", *_MORE)
        return LinearSegmentedColormap.from_list("cells", stops)

    def strength(self, value: float) -> float:
        """From 0, which is white, to 1."""
        most = max(self.high - self.centre, self.centre - self.low)
        share = abs(value - self.centre) / most if most else 0.0
        return float(np.sqrt(share) if self.root else share)

    @property
    def ticks(self) -> list[float]:
        """On the bar: 0, and 1, 2 or 5 times powers of ten that stand apart; or a centre of its own, and both ends."""
        if self.centre:
            return [self.low, self.centre, self.high]
        steps = [m * 10.0**k for k in range(int(np.floor(np.log10(self.high))), -9, -1) for m in (5, 2, 1)]
        kept: list[float] = []
        for step in (step for step in steps if step <= self.high * 1.0001):
            place = self.strength(step)
            if place > 0.13 and (not kept or self.strength(kept[-1]) - place > 0.1):
                kept.append(step)
        return [*(-step for step in kept if self.low < 0), 0.0, *kept[::-1]]


def _root(x: ArrayLike) -> Any:
    return np.sign(x) * np.sqrt(np.abs(x))


def _square(x: ArrayLike) -> Any:
    return np.sign(x) * np.square(x)


def scale_of(values: Sequence[Numbers], root: bool) -> Scale:
    """From 0 to the largest value, and as far below 0 where there are negative ones."""
    numbers = np.concatenate([array.ravel() for array in values])
    numbers = numbers[np.isfinite(numbers)]
    most = float(np.abs(numbers).max(initial=0.0)) or 1.0
    most = 1.0 if 0.98 < most < 1 else most
    return Scale(-most if (numbers < 0).any() else 0.0, most, root=root)


def scale_around(values: Numbers, centre: float) -> Scale:
    """As far below the centre as above, and so far that a hundredth is not taken for much."""
    most = max(0.02, float(np.nanmax(np.abs(values - centre), initial=0.0)))
    return Scale(centre - most, centre + most, centre)


def paint(axes: Axes, values: Numbers, scale: Scale, aspect: str = "auto") -> None:
    """The cells, the first row on top."""
    axes.imshow(values, cmap=scale.colours, norm=scale.norm, aspect=aspect, interpolation="nearest")  # type: ignore[arg-type]
    axes.grid(False)
    axes.tick_params(length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)


def write_numbers(axes: Axes, values: Numbers, scale: Scale, palette: Palette, cell: float, digits: int = 2) -> None:
    """Each value in its cell, where a cell of so many inches has room for it."""
    if 72 * cell < _ROOM + 4 * (digits - 2):
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            text = f"{value:.{digits}f}" if abs(value) >= 0.5 * 10**-digits else "0"
            axes.text(
                column, row, text.replace("-", "\N{MINUS SIGN}"), ha="center", va="center", fontsize=6.5,
                color=palette.surface if scale.strength(value) > 0.55 else palette.ink,
            )  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """Panels of equal height, row by row, with a bar at the right: in inches, so that squares are square.

    On paper the figure ends where they do; on the page all figures have one width, for letters of one size.
    """

    width: float
    left: float  # for the names of rows
    below: float  # for the names of columns, under the last panel of each column
    height: float  # of a panel
    widths: tuple[float, ...]  # of the panels of a row
    count: int
    head: float = 0.26  # for the title of a panel
    between: float = 0.0  # for the names of columns, where every row of panels has them

    right: ClassVar[float] = 0.76
    gap: ClassVar[float] = 0.13

    def draw(self, palette: Palette) -> tuple[Figure, list[Axes], Axes]:
        """The figure, its panels, and the place of the bar."""
        across = len(self.widths)
        down = -(-self.count // across)
        step = self.height + self.head + self.between
        length = min(3.2, max(0.9, (down - 1) * step + self.height))
        tall = max(down * step - self.between + self.below, self.head + length) + 0.06
        end = self.left + sum(self.widths) + self.gap * (across - 1)
        wide = min(self.width, end + self.right) if palette is PRINT else self.width
        figure, panels = Figure((wide, tall)), list[Axes]()
        for number in range(self.count):
            row, column = divmod(number, across)
            x = self.left + sum(self.widths[:column]) + self.gap * column
            y = tall - row * step - self.height - self.head
            panels.append(_placed(figure, x, y, self.widths[column], self.height))
        return figure, panels, _placed(figure, end + 0.12, tall - self.head - length, 0.11, length)


def _placed(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches from the lower left."""
    w, h = figure.get_size_inches()
    axes: Axes = figure.add_axes((x / w, y / h, width / w, height / h))
    return axes


def bar(place: Axes, scale: Scale, title: str, palette: Palette) -> None:
    """The colours and what they stand for."""
    figure = place.figure
    shown = figure.colorbar(ScalarMappable(scale.norm, scale.colours), cax=place)
    assert shown.solids is not None
    shown.solids.set_rasterized(True)
    shown.outline.set_edgecolor(palette.grid)
    shown.set_label(title, color=palette.muted)
    shown.set_ticks(scale.ticks, labels=[f"{tick:.3g}".replace("-", "\N{MINUS SIGN}") for tick in scale.ticks])
    shown.ax.tick_params(length=2, color=palette.grid, labelcolor=palette.muted, labelsize=7.5)
    shown.ax.minorticks_off()
