"""Numbers in words and units, the same in tables, figures and sentences."""

from __future__ import annotations

import math

MINUS = "\N{MINUS SIGN}"


def is_share(metric: str) -> bool:
    """Whether a metric lies between 0 and 1 and is read in per cent."""
    return metric in ("accuracy", "precision", "recall", "f1", "auc")


def scale(metric: str) -> float:
    """What a value is multiplied with to be read."""
    return 100.0 if is_share(metric) else 1.0


def with_unit(metric: str) -> str:
    """The metric as the title of an axis."""
    return f"{metric} (%)" if is_share(metric) else metric


def number(value: float, metric: str, signed: bool = False) -> str:
    """A value of a metric without its unit: `87.3`, and `+12.6` if signed."""
    if not math.isfinite(value):
        return "diverged"
    text = (
        f"{100 * value:{'+' if signed else ''}.1f}"
        if is_share(metric)
        else f"{value:+.3g}"
        if signed
        else f"{value:.4g}"
    )
    if float(text) == 0:  # no "-0.0"
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def value(amount: float, metric: str) -> str:
    """A value with its unit: `87.3 %`."""
    return f"{number(amount, metric)} %" if is_share(metric) else number(amount, metric)


def difference(amount: float, metric: str) -> str:
    """A difference with its unit: `+12.6 points`, `-0.03 rmse`."""
    return f"{number(amount, metric, signed=True)} {'points' if is_share(metric) else metric}"


def size(count: float) -> str:
    """Bytes for people, in powers of 1000: `178 kB`."""
    if count == 0:
        return "0"
    for name in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {name}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Seconds for people: `8.2 s`, `3 min 05 s`, `2 h 10 min`, `5 d 3 h`."""
    if seconds < 99.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 60:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    hours = int(minutes) // 60
    return f"{hours} h {int(minutes) % 60:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def count(value: float) -> str:
    """A count that may be a mean: `2`, `2.3`."""
    return f"{value:.0f}" if abs(value - round(value)) < 0.05 else f"{value:.1f}"


def listing(names: list[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""
