"""One process tells another to do rounds: a JSON text a line, from `Process` to the adapter's `Line` and back.

                                                                      -> {"here": true}
    {"do": "prepare", "bundle": PATH, "options": {"evaluate": true}}   -> {"ready": true}
    {"do": "rounds", "count": 5}    -> {"passed": SECONDS, "processor": SECONDS}
    {"do": "save", "path": PATH}    -> {"saved": true}          the model, as .npz
    {"do": "tell"}                  -> {"software": ..., ...}   versions, threads
    {"do": "end"}

Rounds are timed where they are done, so that pipes and the other side take no part in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

PATIENCE = 600.0  # seconds for one answer
FOLDER = Path(__file__).parents[1]
ANSWERS = "FEDTAILOR_ANSWERS"  # the number of the file that an adapter writes its answers to

Order = dict[str, Any]
Values = Callable[[], Mapping[str, Any]]  # the model's tensors by name
Facts = Callable[[], Mapping[str, Any]]  # what can be told of the software


class Line:
    """The adapter's end: orders come by standard input, answers go where nothing else is written."""

    def __init__(self) -> None:
        self.answers = os.fdopen(int(os.environ[ANSWERS]), "w", buffering=1)
        self.kept: Order | None = None  # an order that ended the rounds, and is still to be carried out
        self.answer(here=True)

    def order(self) -> Order:
        if self.kept is not None:
            kept, self.kept = self.kept, None
            return kept
        text = sys.stdin.readline()
        return json.loads(text) if text else {"do": "end"}

    def answer(self, **content: Any) -> None:
        self.answers.write(json.dumps(content) + "\n")

    def bundles(self) -> Iterator[tuple[Path, Order]]:
        """What is to be prepared, one after the other: a file, and settings that are not as it says."""
        while (order := self.order())["do"] != "end":
            if order["do"] != "prepare":
                raise ValueError(f"{order} came before anything was prepared")
            yield Path(order["bundle"]), order["options"]

    def rounds(self, values: Values, facts: Facts) -> Iterator[None]:
        """One yield for each round to be done. What happens between a yield and the next is timed."""
        self.answer(ready=True)
        while True:
            order = self.order()
            if order["do"] == "rounds":
                processor, passed = time.process_time(), time.perf_counter()
                for _ in range(order["count"]):
                    yield
                self.answer(passed=time.perf_counter() - passed, processor=time.process_time() - processor)
            elif order["do"] == "save":
                np.savez(order["path"], **{name: np.asarray(value) for name, value in values().items()})
                self.answer(saved=True)
            elif order["do"] == "tell":
                self.answer(**facts())
            else:
                self.kept = order
                return


class Failed(RuntimeError):
    """An adapter ended or fell silent."""

    def __init__(self, adapter: str, why: str):
        super().__init__(f"{adapter} {why}")
        self.adapter = adapter


class Process:
    """The other end: an adapter in a process of its own, on one core and thread or with torch's own number."""

    def __init__(self, python: Path, adapter: str, log: Path, one_core: bool, scratch: Path):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])}
        environment["XDG_CACHE_HOME"] = str(scratch)  # nothing is remembered from another time
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            environment.pop(name, None)
            if one_core:
                environment[name] = "1"
        self.adapter, self.log = adapter, log
        reading, writing = os.pipe()
        self.answers = os.fdopen(reading)
        with log.open("w") as said:
            self.process = subprocess.Popen(
                [str(python), "-m", f"peers.{adapter}"], stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT,
                text=True, bufsize=1, env={**environment, ANSWERS: str(writing)}, pass_fds=[writing],
            )  # fmt: skip
        os.close(writing)
        if one_core and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, {max(os.sched_getaffinity(0))})

    def tell(self, **order: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
        except BrokenPipeError:
            raise self.failed("ended") from None

    def hear(self) -> dict[str, Any]:
        if not select.select([self.answers], [], [], PATIENCE)[0]:
            raise self.failed(f"said nothing for {PATIENCE:g} s")
        text = self.answers.readline()
        if not text:
            raise self.failed("ended")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def ask(self, **order: Any) -> dict[str, Any]:
        self.tell(**order)
        return self.hear()

    def failed(self, how: str) -> Failed:
        last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        return Failed(self.adapter, f"{how}: {''.join(last) or 'without a word'} (more in {self.log})")

    def close(self) -> None:
        """Ends it, and waits; what does not end when told is stopped."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.answers.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
