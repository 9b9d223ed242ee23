"""A federation as a picture, before anything is run: what the rows look like, and who holds how much of what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from matplotlib.ticker import LogFormatter, LogLocator, MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from fedtailor.data.federation import Federation
from fedtailor.report.style import PRINT, Palette, brief, settings

_THUMBNAIL = 0.46  # inches
_GAP = 0.7  # between groups, in columns
_MOST_SAMPLES = 10
_MOST_NAMES = 40  # clients that can all be named below their columns
_WIDE = 30  # sizes that differ by more than this factor are shown on a logarithmic axis


@dataclass(frozen=True)
class _Column:
    """Where the columns stand: the clients in the order of their groups, with a gap after each group."""

    order: list[int]
    place: list[float]
    heads: list[tuple[float, float, int]]  # (centre, width, group) of each named group

    @property
    def limits(self) -> tuple[float, float]:
        return -0.7, self.place[-1] + 0.7


def draw(federation: Federation, palette: Palette = PRINT, width: float = 8.0) -> Figure:
    """One column per client: a sample of each group (or class), amounts of rows, and the share of each class."""
    shown, counts = federation.tested, federation.tested.label_counts().numpy()
    column = _columns(shown.groups)
    samples = _samples(shown, grouped=bool(column.heads))
    classes = counts.shape[1]
    pitch = max(0.035, min(0.21, 4.2 / classes)) if classes else 0.0
    heads = (0.22 if column.heads or samples else 0.0) + (_THUMBNAIL if samples else 0.0)
    heights = [height for height in (heads, 1.0, pitch * classes) if height]
    with mpl.rc_context(settings(palette)):
        figure = Figure((width, 1.35 + sum(heights)), layout="constrained")
        panels = list(np.atleast_1d(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)))
        figure.suptitle(_title(shown), x=0.01, ha="left", fontsize=10, color=palette.ink)
        if heads:
            _headings(panels.pop(0), shown, column, samples, palette, width)
        _amounts(panels[0], shown, column, palette)
        if classes:
            _dots(panels[1], counts, shown.classes, column, palette, pitch, width)
        _names(panels[-1], shown.clients, column)
        return figure


def _title(federation: Federation) -> str:
    sites = "client" if federation.n == 1 else "clients"
    return f"{federation.name}: {federation.n} {sites}, {int(federation.sizes.sum()):,} training rows"


def _columns(groups: Sequence[int]) -> _Column:
    """Groups are set apart only where they gather several clients, and are more than one."""
    apart = 1 < len(set(groups)) < len(groups)
    order = sorted(range(len(groups)), key=lambda i: groups[i]) if apart else list(range(len(groups)))
    place, heads = [], []
    x = 0.0
    for position, client in enumerate(order):
        if apart and position and groups[client] != groups[order[position - 1]]:
            x += _GAP
        place.append(x)
        x += 1
    for group in sorted(set(groups)) if apart else ():
        own = [at for at, client in zip(place, order, strict=True) if groups[client] == group]
        heads.append(((own[0] + own[-1]) / 2, own[-1] - own[0] + 1, group))
    return _Column(order, place, heads)


def _samples(federation: Federation, grouped: bool) -> list[tuple[str, NDArray[np.float32]]]:
    """A named picture for each group, or else for each class; none where rows are not pictures."""
    x = federation.x
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        return []
    held: dict[int, dict[int, int]] = {}  # group or class -> label -> a row
    for client, rows in enumerate(federation.train):
        labels = federation.y[rows].tolist() if federation.task != "regression" else [0] * len(rows)
        for row, label in zip(rows.tolist(), labels, strict=True):
            held.setdefault(federation.groups[client] if grouped else label, {}).setdefault(label, row)
    names = federation.group_names if grouped or federation.task == "regression" else federation.classes
    common = sorted(set.intersection(*(set(rows) for rows in held.values())))  # labels that every group has
    label = common[len(common) // 2] if common else -1
    chosen = {key: rows.get(label, next(iter(rows.values()))) for key, rows in held.items()}
    step = 1 if grouped else math.ceil(len(chosen) / _MOST_SAMPLES)
    return [(names[key], _picture(x[chosen[key]].cpu().numpy())) for key in sorted(chosen)[::step]]


def _picture(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """[height, width, 3] from 0 to 1."""
    low, high = values.min(), values.max()
    scaled = (values - low) / (high - low if high > low else 1)
    return np.broadcast_to(scaled, (3, *scaled.shape[1:])).transpose(1, 2, 0)


def _headings(
    axes: Axes,
    federation: Federation,
    column: _Column,
    samples: Sequence[tuple[str, NDArray[np.float32]]],
    palette: Palette,
    width: float,
) -> None:
    """The names of the groups above their columns, each with a sample; or samples of the classes, side by side."""
    axes.axis("off")
    axes.set_ylim(0, 1)
    left, right = column.limits
    if column.heads:
        places = [centre for centre, _, _ in column.heads]
        names = [federation.group_names[group] for _, _, group in column.heads]
    else:
        places = list(np.linspace(left, right, len(samples) + 2)[1:-1])
        names = [name for name, _ in samples]
    room = width * 0.9 * min(np.diff([left, *places, right])[1:-1], default=right - left) / (right - left)
    for place, name, sample in zip(places, names, [*samples, *[None] * len(places)], strict=False):
        if sample is not None:
            box = OffsetImage(sample[1], zoom=72 * min(_THUMBNAIL, 0.85 * room) / sample[1].shape[0])
            box.image.set_interpolation("nearest")
            frame = {"edgecolor": palette.grid, "linewidth": 0.7}
            top = AnnotationBbox(box, (place, 1), box_alignment=(0.5, 1), pad=0, bboxprops=frame)
            axes.add_artist(top)
        letters = int(room / 0.09)
        if len(name) <= letters or letters >= 5:  # less would not tell one from the other
            weight = "bold" if column.heads else "normal"
            text = brief(name, letters)
            axes.text(place, 0, text, ha="center", va="bottom", fontsize=8, fontweight=weight, color=palette.ink)


def _amounts(axes: Axes, federation: Federation, column: _Column, palette: Palette) -> None:
    """Rows of each client: bars, or dots on a logarithmic axis where sizes differ widely."""
    train = federation.sizes.numpy()[column.order]
    pairs = zip(federation.validation, federation.test, strict=True)
    held_out = np.array([len(validation) + len(test) for validation, test in pairs])[column.order]
    axes.tick_params(axis="x", length=0)
    if train.max() > _WIDE * train.min():
        axes.scatter(column.place, train, s=14, color=palette.fill, linewidth=0, zorder=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(0, 0)))
        axes.set_ylabel("training rows")
        axes.grid(False, axis="x")
        return
    axes.grid(False)
    axes.bar(column.place, train, width=0.78, color=palette.fill, alpha=0.85, label="training")
    if held_out.any():
        label = "validation and test"
        axes.bar(column.place, held_out, bottom=train, width=0.78, color=palette.fill, alpha=0.3, label=label)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel("rows")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, borderaxespad=0, handlelength=1)


def _dots(
    axes: Axes,
    counts: NDArray[np.int64],
    classes: Sequence[str],
    column: _Column,
    palette: Palette,
    pitch: float,
    width: float,
) -> None:
    """A dot for each client and class, its area the class's share of the client's training rows."""
    share = counts[column.order] / counts[column.order].sum(1, keepdims=True)
    left, right = column.limits
    cell = max(4.0, 72 * min(pitch, 0.85 * width / (right - left)))  # points
    client, label = np.nonzero(share)
    area = (0.95 * cell) ** 2 * share[client, label] / share.max()
    axes.scatter(np.array(column.place)[client], label, s=area, color=palette.fill, alpha=0.85, linewidth=0)
    axes.set_ylim(len(classes) - 0.4, -0.6)
    step = math.ceil(len(classes) * 0.13 / (pitch * len(classes)))
    ticks = range(0, len(classes), step)
    axes.set_yticks(list(ticks), [brief(classes[tick], 14) for tick in ticks])
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("class")
    axes.grid(False)
    axes.set_title(
        f"share of the client's training rows (largest dot {share.max():.0%})",
        loc="right", fontsize=8, color=palette.muted,
    )  # fmt: skip


def _names(axes: Axes, clients: Sequence[str], column: _Column) -> None:
    axes.set_xlim(*column.limits)
    step = 1 if len(clients) <= _MOST_NAMES else math.ceil(len(clients) / 25)
    longest = max(len(brief(name)) for name in clients)
    crowded = longest * 0.075 * len(clients) > 6.5
    axes.set_xticks(
        column.place[::step],
        [brief(clients[client]) for client in column.order[::step]],
        rotation=90 if crowded else 0,
        fontsize=7,
    )
    axes.tick_params(axis="x", length=0)
