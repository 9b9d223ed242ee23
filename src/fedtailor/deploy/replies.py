"""What sites answer, checked before it is used: names, shapes, types, sizes, finite numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.deploy import robust, wire
from fedtailor.deploy.envelope import Letter
from fedtailor.deploy.wire import BadMessage
from fedtailor.site import Exam, Reply
from fedtailor.task import Task
from fedtailor.tree import State, Tree

MOST_EXPLAINED = 1 << 20  # bytes of a reply that are there to be looked at
PARTS = ("test", "validation")


@dataclass(frozen=True)
class Reader:
    """Reads the answers of one exchange."""

    task: Task
    classes: int
    example: Tree  # a model as it is uploaded; its values do not matter
    private: frozenset[str]
    longest: float  # what the norm of an upload may be

    def reply(self, number: int, round: int, letter: Letter) -> Reply:
        """What came of a site's training."""
        about, state = letter.about, letter.state
        steps = about.get("steps")
        if type(steps) is not int or not 0 <= steps < 2**40:
            raise BadMessage("its number of steps is none")
        seconds = [_seconds(about.get(key)) for key in ("train_seconds", "exam_seconds")]
        if about.get("diverged"):
            return Reply(number, None, None, steps, None, {}, train_seconds=seconds[0])
        loss = state.get("loss")
        if loss is not None and not (isinstance(loss, Tensor) and loss.dtype is torch.float64 and loss.dim() == 0):
            raise BadMessage("its loss is not a number")
        upload = self.upload(state["upload"]) if "upload" in state else None
        return Reply(
            number, upload, {"round": torch.tensor(round)}, steps, None if loss is None else float(loss),
            self.exam(number, state.get("exam")), self.explained(state.get("explain")), *seconds,
        )  # fmt: skip

    def upload(self, state: Any) -> State:
        """What the method aggregates."""
        if not isinstance(state, Mapping) or state.keys() - {"model", "extra"} or "model" not in state:
            raise BadMessage("its upload is not a model with extras")
        model, extra = state["model"], state.get("extra", {})
        if not isinstance(model, Mapping) or not isinstance(extra, Mapping):
            raise BadMessage("its upload is not a model with extras")
        wire.check_like(model, self.example, "upload")
        wire.check_finite(state, "upload")
        personal = {path.rsplit("/", 1)[-1] for path, _ in tree.leaves(state)} & self.private
        if personal:
            raise BadMessage(f"its upload holds the personal {sorted(personal)[0]!r}")
        for part in (dict(model), dict(extra)):
            length = robust.length(part)
            if length > self.longest:
                raise BadMessage(
                    f"its upload has norm {length:.3g}, above the limit of {self.longest:.3g} (norm_limit)"
                )
        return {"model": dict(model), "extra": dict(extra)}

    def exam(self, number: int, state: Any) -> dict[int, Exam]:
        """Counts of a site's exam; nothing where it was not examined."""
        if not state:
            return {}
        if not isinstance(state, Mapping) or state.keys() - set(PARTS):
            raise BadMessage("its exam is not one")
        example = self.counts()
        for part in state.values():
            wire.check_like(part if isinstance(part, Mapping) else {"": part}, example, "exam")
            if float(part["count"]) < 1:
                raise BadMessage("its exam counts no row")
        return {number: {part: dict(state[part]) for part in PARTS if part in state}}

    def counts(self) -> Tree:
        """What an exam of one row would give."""
        out = torch.zeros(1, self.task.outputs(self.classes))
        y = torch.zeros(1) if self.task.outputs(2) == 1 else torch.zeros(1, dtype=torch.int64)
        return self.task.statistics(out, y)

    def explained(self, state: Any) -> Tree:
        """Small tensors that a site chose to show."""
        if not state:
            return {}
        if not isinstance(state, Mapping):
            raise BadMessage("what it explains has no names")
        if tree.nbytes(state) > MOST_EXPLAINED:
            raise BadMessage("what it explains is too large")
        return tree.flatten(state)  # a method's names may hold a /


def outliers(replies: Mapping[int, Reply]) -> dict[int, str]:
    """Those whose extras are not of the form that most have: they could not be stacked."""
    forms = {i: form(reply.upload["extra"]) for i, reply in replies.items() if reply.upload is not None}
    if not forms:
        return {}
    usual, _ = Counter(forms.values()).most_common(1)[0]
    return {i: "the extras of its upload are not like those of the others" for i in forms if forms[i] != usual}


def form(state: State) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((path, wire.outline(tensor)) for path, tensor in tree.leaves(state)))


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0
