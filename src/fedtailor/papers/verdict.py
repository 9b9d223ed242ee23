"""Whether a number is met, and whether a table's claims hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedtailor.papers.preset import Claim

Met = Literal["met", "above", "below", "not compared", "not printed", "no number", "not run"]
Holds = Literal["holds", "does not hold", "level"]
Seeds = Mapping[int, float]  # by seed, in per cent


def mean(values: Seeds) -> float:
    return math.fsum(values.values()) / len(values)


def deviation(values: Seeds) -> float | None:
    """Over seeds, with n - 1."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values.values()) / (len(values) - 1))


def met(ours: Seeds, runs: int, printed: float | None, band: float, comparable: bool) -> Met:
    """`met` within the band; a number of another setting is shown beside the paper's and not judged."""
    if not ours:
        return "no number" if runs else "not run"
    if printed is None:
        return "not printed"
    if not comparable:
        return "not compared"
    difference = mean(ours) - printed
    # both numbers have two decimals, so that a difference of exactly the band is within it
    return "met" if abs(difference) <= band + 0.005 else "above" if difference > 0 else "below"


@dataclass(frozen=True)
class Compared:
    """Two rows in one column, or two columns in one row: by how much the first is better, and what that says."""

    better: str
    worse: str
    place: str
    difference: float
    holds: Holds


@dataclass(frozen=True)
class Judged:
    """What became of a claim."""

    claim: Claim
    compared: tuple[Compared, ...]
    missing: int  # comparisons whose cells have no number

    def count(self, holds: Holds) -> int:
        return sum(one.holds == holds for one in self.compared)

    @property
    def verdict(self) -> str:
        """In a few words."""
        of = len(self.compared)
        if not of:
            return "not run"
        if self.count("holds") == of:
            return "holds" if of == 1 else f"holds in all {of} comparisons"
        if not self.count("holds"):
            level = self.count("level")
            if level == of:
                return "undecided: level" if of == 1 else f"undecided: level in all {of} comparisons"
            return "does not hold" if not level else f"does not hold: level in {level} of {of}, worse in the others"
        told = f"holds in part: in {self.count('holds')} of {of} comparisons"
        return told + (f", level in {self.count('level')}" if self.count("level") else "")


def held(claim: Claim, difference: float, margin: float) -> Holds:
    """What a difference of two rows says of the claim; where they are claimed to be level, that is what has to hold."""
    if abs(difference) <= margin:
        return "holds" if claim.expects == "level" else "level"
    return "holds" if difference > 0 and claim.expects == "better" else "does not hold"


def judge(claim: Claim, numbers: Mapping[tuple[str, str], Seeds], columns: Sequence[str], margin: float) -> Judged:
    """`numbers` by row and column; those of equal seeds are compared.

    Level are two rows whose difference is within the margin, or within two standard errors of the mean over seeds.
    """
    found, missing = [], 0
    rows = list(dict.fromkeys(row for row, _ in numbers))
    for better, worse in claim.pairs:
        for place in claim.columns or (columns if claim.along == "rows" else rows):
            one, other = (
                numbers.get((name, place) if claim.along == "rows" else (place, name), {}) for name in (better, worse)
            )
            differences = {seed: one[seed] - other[seed] for seed in one.keys() & other.keys()}
            if not differences:
                missing += 1
                continue
            difference, spread = mean(differences) * (-1 if claim.smaller else 1), deviation(differences)
            noise = 0.0 if spread is None else 2 * spread / math.sqrt(len(differences))
            found.append(Compared(better, worse, place, difference, held(claim, difference, max(margin, noise))))
    return Judged(claim, tuple(found), missing)
