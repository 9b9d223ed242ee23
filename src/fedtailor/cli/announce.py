"""What is going to be run, said before it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedtailor.cli.terminal import say

if TYPE_CHECKING:
    from fedtailor.data.federation import Federation
    from fedtailor.driver import Driver
    from fedtailor.spec import RunSpec


@dataclass(frozen=True)
class Facts:
    """What is said of one method, kept without the states that its driver holds."""

    label: str
    point: str
    parameters: int
    personal: int
    memory: int
    steps: float  # optimiser steps of all clients in a round, one pass each
    plan: str  # how clients are trained

    @classmethod
    def of(cls, label: str, driver: Driver) -> Facts:
        from fedtailor import tree
        from fedtailor.runners.planner import words
        from fedtailor.schedule import steps_of

        spec, arch = driver.spec, driver.arch
        smallest = 2 if arch.statistics else 1
        steps = [steps_of(len(site.rows), spec.batch, spec.epochs, spec.steps, smallest) for site in driver.sites]
        parameters = tree.drop(driver.initial, arch.buffers)
        return cls(
            label, driver.common.point, driver.size_of(parameters),
            driver.size_of(tree.pick(parameters, driver.private)), driver.memory(),
            driver.cohort_size * sum(steps) / len(steps), words(driver.runner.plan(), driver.because),
        )  # fmt: skip


def announce(federation: Federation, facts: Sequence[Facts], spec: RunSpec, seeds: Sequence[int], folder: Path) -> None:
    """Data, model, methods, amount of work, memory, folder; `spec` is that of any of the runs."""
    from fedtailor.report import words

    rows = [sum(map(len, lists)) for lists in (federation.train, federation.validation, federation.test)]
    data = f"{federation.n} clients, {rows[0]:,} training, {rows[1]:,} validation and {rows[2]:,} test rows"
    lines = [("data", f"{federation.name}: {data}"), ("", federation.source)]
    lines.append(("model", str(spec.model or federation.model)))
    width = max(len(one.label) for one in facts)
    for place, one in enumerate(facts):
        kept = f" ({one.personal:,} of them personal)" if one.personal else ""
        about = f"{one.label:<{width}}  {one.parameters:,} parameters{kept}, tested: {one.point}"
        lines.append(("method" if not place else "", about))
    lines.append(("rounds", _work(federation, spec, max(one.steps for one in facts))))
    runs = len(seeds) * len(facts)
    if runs > 1:
        lines.append(("seeds", f"{words.listing([str(seed) for seed in seeds])} ({runs} runs in all)"))
    for place, plan in enumerate(dict.fromkeys(one.plan for one in facts)):
        whose = [one.label for one in facts if one.plan == plan]
        lines.append(("" if place else "plan", plan if len(whose) == len(facts) else f"{plan}: {', '.join(whose)}"))
    memory = max(one.memory for one in facts)
    lines.append(("memory", f"about {words.size(memory)} beside Python and its libraries"))
    lines.append(("folder", str(folder)))
    for head, text in [*lines, ("", "")]:
        say(f"{head:<8}{text}".rstrip())


def _work(federation: Federation, spec: RunSpec, steps: float) -> str:
    size = spec.cohort_size(federation.n)
    who = f"all {size} clients" if size == federation.n else f"{size} of {federation.n} clients"
    epochs = spec.epochs or 1
    local = f"{spec.steps} steps" if spec.steps is not None else f"{epochs} epoch{'s' if epochs > 1 else ''}"
    batch = f"batches of {spec.batch}" if spec.batch else "its whole set as one batch"
    return f"{spec.rounds}, each with {who}: {local}, {batch}, lr {spec.lr:g}; {steps:,.0f} optimiser steps a round"
