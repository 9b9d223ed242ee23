"""Every figure of a comparison, from records alone: for the page, for print, for a reader who sees colours otherwise.

Each figure is drawn at a width in inches and keeps the size of its letters, so a narrow one can be read on a phone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fedtailor.metrics import How
from fedtailor.registry import WrongInput
from fedtailor.report.curves import rounds, traffic, training
from fedtailor.report.outcomes import Outcome, outcomes
from fedtailor.report.read import Comparison
from fedtailor.report.sites import holdings, of_record, sites
from fedtailor.report.style import PRINT, Palette, save

__all__ = ["FORMATS", "draw", "holdings", "rounds", "sites", "traffic", "training", "write_figures"]

FORMATS = ("pdf", "png", "svg")


def draw(
    comparison: Comparison, found: Sequence[Outcome], palette: Palette = PRINT, width: float = 7.2
) -> dict[str, Figure]:
    """The figures that these records have numbers for, by name."""
    drawn = {
        "rounds": rounds(comparison, palette, width),
        "sites": sites(comparison, found, palette, width),
        "holdings": of_record(comparison.data, palette, width),
        "traffic": traffic(comparison, found, palette, width),
        "training": training(comparison, palette, width),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def write_figures(
    comparison: Comparison, folder: Path, formats: Iterable[str] = ("pdf", "png"), how: How = "last"
) -> list[Path]:
    """Every figure as a file of each format."""
    kinds = tuple(formats)
    for kind in kinds:
        if kind not in FORMATS:
            raise WrongInput(f"figures cannot be written as {kind!r}; choose {', '.join(FORMATS)}")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in draw(comparison, outcomes(comparison, how)).items():
        for kind in kinds:
            written.append(folder / f"{name}.{kind}")
            save(figure, written[-1], kind)
    return written
