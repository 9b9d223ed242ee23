"""Progress of a run: a live line on a terminal, a plain line now and then elsewhere.

>>> with Progress() as progress:
...     federate(spec, federation, callbacks=[progress])
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Display
from rich.text import Text

from fedtailor.driver import Callback, Driver
from fedtailor.record import Row
from fedtailor.report import words
from fedtailor.report.outcomes import mean_of

LINES = 10  # plain lines of a run ...
PATIENCE = 300.0  # ... and at most so many seconds between two of them
IN_ROUNDS = {  # what is tested after a round, and why that is not yet what the run ends with
    "received": "of what a client received, before its training",
    "trained": "of what a client trained, before the tuning at the end",
    "adapted": "of a copy adapted from what a client received, before the last exchange",
}


class Progress(Callback):
    """Accuracy so far, rate and time left, of one run or of the runs of a comparison.

    `names` are what methods are called, by their text; `runs` and `rounds` are the totals that are still to come, where
    there are several runs.
    """

    def __init__(
        self, console: Console | None = None, names: Mapping[str, str] | None = None, runs: int = 1, rounds: int = 0
    ):
        self.console = console or Console(stderr=True, highlight=False)
        self.names = names or {}
        self.runs, self.rounds = runs, rounds
        self.run = 0
        self.rounds_done = 0
        self.all_began = time.perf_counter()
        self.display: Display | None = None
        self.bar = self.whole = TaskID(0)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            bar = BarColumn(bar_width=20)
            text = TextColumn("{task.fields[text]}", markup=False)
            columns = (TextColumn("{task.description}", markup=False), bar, text)
            self.display = Display(*columns, console=self.console, transient=True, refresh_per_second=5)
            self.bar = self.display.add_task("", total=None, text="", visible=False)
            self.whole = self.display.add_task("all runs", total=self.rounds or None, text="", visible=self.runs > 1)
            self.display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.display is not None:
            self.display.stop()
            self.display = None

    def on_start(self, driver: Driver) -> None:
        method, seed = repr(driver.spec.method), driver.spec.seed
        name = self.names.get(method, method)
        self.title = f"{name}, seed {seed}" if self.runs > 1 else name
        self.run += 1
        self.first = driver.round
        self.began = self.spoke = time.perf_counter()
        self.score = ""
        if driver.round:
            self._line(f"{self.title}: going on after round {driver.round} of {driver.spec.rounds}")
        if self.display is not None:
            self.display.update(
                self.bar, description=self.title, total=driver.spec.rounds, completed=driver.round, visible=True,
                text=f"{driver.round}/{driver.spec.rounds}",
            )  # fmt: skip

    def on_client(self, driver: Driver, done: int, of: int) -> None:
        if self.display is not None:
            self.display.update(self.bar, completed=driver.round + done / of)

    def on_round(self, driver: Driver, row: Row) -> None:
        if row["test"]:
            self.score = self._score(driver, row)
        now, done, of = time.perf_counter(), driver.round, driver.spec.rounds
        rate = (done - self.first) / (now - self.began)
        left = (of - done) / rate
        parts = [self.score, f"{rate:.2g} rounds/s", f"{words.duration(left)} left" if done < of else ""]
        text = ", ".join(part for part in parts if part)
        if self.display is not None:
            self.display.update(self.bar, completed=done, text=f"{done}/{of}  {text}")
            self.display.update(self.whole, completed=self.rounds_done + done, text=self._whole(done))
            return
        tenth = (done * LINES) // of > ((done - 1) * LINES) // of
        if tenth or now - self.spoke > PATIENCE:
            self.spoke = now
            self._line(f"{self.title}: round {done} of {of}, {text}")

    def on_end(self, driver: Driver, row: Row) -> None:
        of, spent = driver.spec.rounds, time.perf_counter() - self.began
        self.rounds_done += of
        all_of = f" ({self._whole(0)})" if self.runs > 1 and self.display is None else ""
        done = f"{of - self.first} round{'s' if of - self.first > 1 else ''}"
        score = f"{self._score(driver, row)} with the final models"
        if self.score and self.score != self._score(driver, row):
            score += f" (a round's is {IN_ROUNDS[driver.common.point]})"
        self._line(f"{self.title}: done, {score}, {done} in {words.duration(spent)}{all_of}")

    def _score(self, driver: Driver, row: Row) -> str:
        """The mean over clients, as far as this row has it."""
        metric = driver.task.primary
        mean = mean_of((row["test"] or {}).get(metric))
        if mean is None:
            return "not tested"
        return f"{metric} {words.number(mean, metric)}{' %' if words.is_share(metric) else ''}"

    def _whole(self, done: int) -> str:
        """Where the comparison is."""
        behind = self.rounds_done + done
        spent = time.perf_counter() - self.all_began
        left = max(self.rounds - behind, 0) / behind * spent if behind else 0.0
        return f"run {self.run} of {self.runs}" + (f", {words.duration(left)} left" if left else "")

    def _line(self, text: str) -> None:
        (self.display.console if self.display is not None else self.console).print(Text(text), soft_wrap=True)
