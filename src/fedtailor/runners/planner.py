"""How a run trains its clients: as asked for; by a rule, where the run is short; or by timing a few steps.

What was measured is remembered for the method, the model, the shapes and the machine. It is recorded with the run, so
that a resumed run goes on as it began. A plan changes results by rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.registry import WrongInput
from fedtailor.runners import Runner, Work, probe, remembered
from fedtailor.runners.cost import round_cost, round_steps
from fedtailor.runners.sequential import Sequential
from fedtailor.runners.stacked import Stacked
from fedtailor.runners.workers import Workers, can_fork
from fedtailor.site import Common

SMALL_MODEL = 2_000_000  # parameters; below it one thread is as fast as several, and steadier
NARROW = 32  # channels up to which a convolution leaves a core idle
SHORT = 20.0  # seconds of a whole run, by its estimated cost; a longer one is worth a probe
PATIENCE = 8.0  # seconds of a probe before its last candidate
LONG_ROUND = 0.2  # seconds; a longer round is shared out among processes

KINDS: dict[str, type[Sequential | Stacked]] = {"sequential": Sequential, "stacked": Stacked}
OPTIONS = {"sequential": ("layout", "products"), "stacked": ("chunk", "products")}
Plan = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """What is to be planned."""

    runner: str  # as asked for, or auto
    workers: int | None
    common: Common
    sizes: Sequence[int]  # training rows of each client
    trainers: int  # clients that train in a round
    sample: Tensor  # one row
    first: Callable[[], Sequence[Work]]  # the work of the first round

    @property
    def shareable(self) -> bool:
        """Whether several processes may train the clients of a round."""
        several = self.trainers > 1 and torch.get_num_threads() > 1 and self.workers is None
        return several and self.sample.device.type == "cpu" and can_fork()

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.common.arch.net.parameters())


def planned(question: Question) -> tuple[Runner, str]:
    """The runner, and why it was taken."""
    one_thread = question.parameters < SMALL_MODEL or (question.workers or 1) > 1
    asked = {"threads": 1 if one_thread else torch.get_num_threads(), "workers": question.workers or 1}
    if question.runner != "auto":
        return made({**asked, "runner": question.runner}), "as asked for"
    rule = {**asked, "runner": by_rule(question)}
    cost = question.common.rounds * round_cost(question.common, question.sizes, question.trainers, question.sample)
    if cost < SHORT or question.sample.device.type != "cpu":
        return made(rule), "by rule"
    key = remembered.key_of(question.common, question.sizes, question.trainers, question.sample, question.workers)
    plan = remembered.recall(key)
    if plan is None or plan.get("runner") not in KINDS:
        try:
            plan = measured(question, asked)
        except Exception as error:  # a fault of the method, which the run itself will show
            return made(rule), f"by rule, for measuring it failed: {type(error).__name__}"
        remembered.remember(key, plan)
    return made(plan), str(plan["because"])


def by_rule(question: Question) -> str:
    """Stacks pay where a client's own products leave a core idle."""
    convolutions = [m for m in question.common.arch.net.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    narrow = all(m.out_channels <= NARROW for m in convolutions)
    stacked = question.trainers > 1 and narrow and question.parameters < SMALL_MODEL
    return "stacked" if stacked else "sequential"


def measured(question: Question, asked: Plan) -> dict[str, Any]:
    """The fastest of the candidates, shared out among processes where a round is long."""
    threads = 1 if question.shareable else asked["threads"]
    way, step, alone = probe.fastest(question.first(), threads, PATIENCE)
    seconds = step * round_steps(question.common, question.sizes, question.trainers)
    workers = asked["workers"]
    if question.shareable and seconds > LONG_ROUND:
        workers = min(torch.get_num_threads(), question.trainers)
    gain = alone / step
    because = f"measured: {gain:.1f} times as fast as one by one" if gain > 1.05 else "measured: nothing is faster"
    return {**way.plan(), "workers": workers, "because": because}


def again(plan: Plan) -> Runner:
    """The runner that a record tells of: a resumed run takes the one it began with."""
    if plan.get("runner") not in KINDS:
        raise WrongInput(f"the run's runner {plan.get('runner')!r} is unknown here; use the version that wrote the run")
    return made(plan)


def made(plan: Plan) -> Runner:
    options = {name: plan[name] for name in OPTIONS[plan["runner"]] if name in plan}
    within = KINDS[plan["runner"]](plan["threads"], **options)
    return Workers(within, plan["workers"]) if plan.get("workers", 1) > 1 else within


def words(plan: Plan, because: str) -> str:
    """A plan in a line for the reader."""
    alone = plan["runner"] == "sequential"
    parts = ["clients one by one" if alone else f"{plan.get('chunk', 'all')} clients in a stack"]
    if "layout" in plan:
        parts.append("channels last")
    if "products" in plan:
        parts.append("faster products")
    if plan.get("workers", 1) > 1:
        parts.append(f"{plan['workers']} processes")
    elif plan.get("threads", 1) > 1:
        parts.append(f"{plan['threads']} threads")
    return ", ".join(parts) + (f" ({because})" if because else "")
