"""What was measured, as tables in Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedtailor.runners.planner import words
from peers.peak import FLOP
from peers.workloads import ALL, MODES, ONE, TESTED, WORKLOADS

NAMES = {"plain": "plain loop", "by_hand": "by hand"}

Piece = Mapping[str, Any]


def median(piece: Piece, entrant: str, clock: str = "passed") -> float:
    return statistics.median(piece["entrants"][entrant][clock])


def ratio(piece: Piece, entrant: str, clock: str = "passed") -> float:
    """How many times as long as ours its median round takes; NaN where it did not take part."""
    return median(piece, entrant, clock) / median(piece, "ours", clock) if entrant in piece["entrants"] else math.nan


def number(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(value: float, target: float | None, at_most: bool = False) -> str:
    if math.isnan(value):
        return ""
    if target is None:
        return number(value)
    met = value <= target if at_most else value >= target
    return f"{number(value)} ({'at most' if at_most else 'aim'} {target:g}{'' if met else ', missed'})"


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def speed(pieces: Sequence[Piece], mode: str) -> list[str]:
    """Beside others in one mode: how many times as long as ours their median round takes."""
    found = {piece["workload"]: piece for piece in pieces if piece["mode"] == mode}
    columns = ["fluke", "pfl", *([] if mode == TESTED else ["plain"]), *(["by_hand"] if mode == ONE else [])]
    heads = ["workload", *(NAMES.get(one, one) for one in columns), *(["processor time"] if mode == ONE else [])]
    heads += ["ours, ms", *([] if mode == TESTED else ["GFLOP/s of the peak"]), "repetitions", "our plan"]
    lines = [row(heads), row(["---"] * len(heads))]
    for workload in WORKLOADS:
        piece = found.get(workload.name)
        if piece is None:
            continue
        cells = [cell(ratio(piece, other), workload.targets.get((mode, other))) for other in columns]
        if mode == ONE:
            steady = [ratio(piece, other, "processor") for other in columns]
            cells.append(", ".join(number(value) for value in steady if not math.isnan(value)))
        cells += [f"{1000 * median(piece, 'ours'):.1f}", *([] if mode == TESTED else [share(piece)])]
        ours = piece["entrants"]["ours"]
        lines.append(row([workload.name, *cells, str(len(ours["passed"])), words(ours["plan"], "")]))
    return lines if len(lines) > 2 else []


def share(piece: Piece) -> str:
    """Products and convolutions per second, beside what the machine can do."""
    reached, peak = piece["flop"] / median(piece, "ours"), FLOP / median(piece, "peak")
    return f"{reached / 1e9:.0f} of {peak / 1e9:.0f}, {reached / peak:.0%}"


def dearness(pieces: Sequence[Piece]) -> list[str]:
    """Methods beside FedAvg, for each client that trains."""
    found = {piece["workload"]: piece for piece in pieces if piece["mode"] not in MODES}
    lines = [row(["workload", "method", "times FedAvg", "processor time", "our plan"]), row(["---"] * 5)]
    for workload in WORKLOADS:
        piece = found.get(workload.name)
        for method, limit in workload.dearer.items() if piece else ():
            one, base = piece["entrants"][method], piece["entrants"]["ours"]
            clients = one["trainers"] / base["trainers"]
            passed, processor = (ratio(piece, method, clock) / clients for clock in ("passed", "processor"))
            cells = [cell(passed, limit, at_most=True), number(processor), words(one["plan"], "")]
            lines.append(row([workload.name, method, *cells]))
    return lines if len(lines) > 2 else []


TITLES = {
    ONE: "Training only, one core and one thread each",
    ALL: "Training only, the default threads of each",
    TESTED: "Training with the software's own evaluation after every round, the default threads of each",
}


def document(pieces: Sequence[Piece], machine: Mapping[str, Any], missing: Mapping[str, str]) -> str:
    """All tables, with what has to be known of them."""
    data = {piece["workload"]: piece["data"] for piece in pieces}
    lines = [
        f"Measured {machine['date']} on {machine['machine']} with `{machine['command']}`.",
        f"{'; '.join(versions(pieces))}. Times are medians of the rounds, in turn; the load of the machine "
        f"was {machine['load']}.",
        "",
        *(f"- **{one.name}** ({one.model}): {one.about}; {data[one.name]}" for one in WORKLOADS if one.name in data),
        "",
        "How many times as long as ours the median round of others takes:",
    ]
    for mode in MODES:
        table = speed(pieces, mode)
        lines += ["", f"**{TITLES[mode]}**", "", *table] if table else []
    table = dearness(pieces)
    if table:
        lines += ["", "**What methods cost beside FedAvg, for each client that trains; one core**", "", *table]
    lines += ["", *(f"{name} is missing: {why}." for name, why in missing.items())]
    apart = {
        kind: max((distance for piece in pieces for distance in piece["apart"][kind].values()), default=None)
        for kind in ("float64", "float32")
    }
    if apart["float64"] is not None:
        lines += [
            "",
            f"All compute the same: after a round of several steps in float64 at most {apart['float64']:.0e} of the "
            f"largest change of a value lies between them, and after one of a single step in float32 "
            f"{apart['float32']:.0e}.",
        ]
    return "\n".join(lines) + "\n"


def versions(pieces: Sequence[Piece]) -> list[str]:
    return sorted({entrant["software"] for piece in pieces for entrant in piece["entrants"].values()})
