"""Progress of many cells: bars on a terminal, a line for each that ends elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedtailor.cli.terminal import console, say
from fedtailor.papers import effort
from fedtailor.report import words

if TYPE_CHECKING:
    from fedtailor.papers.plan import Job


class Shown:
    """How far the cells are, and the time left: that of the estimate, mended by what was seen so far."""

    def __init__(self, jobs: Sequence[Job], processes: int, screen: Console | None = None):
        self.costs = {job.folder: effort.seconds(job.cell) for job in jobs}
        self.total = sum(self.costs.values())
        self.expected = effort.machine() * self.total / max(1, min(processes, len(jobs)))
        self.parts: dict[object, float] = {}  # of the cost of each cell that runs, what is done
        self.resumed: dict[object, float] = {}  # of it, what was done before
        self.done = 0.0
        self.count = 0
        self.began = time.perf_counter()
        self.screen = screen or console(stderr=True)
        self.display: Progress | None = None
        self.whole = TaskID(0)
        self.bars: dict[object, TaskID] = {}

    def __enter__(self) -> Shown:
        if self.screen.is_terminal and self.costs:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
                       TextColumn("{task.fields[text]}", markup=False))  # fmt: skip
            self.display = Progress(*columns, console=self.screen, transient=True, refresh_per_second=4)
            self.whole = self.display.add_task("all cells", total=self.total or 1, text=self.text())
            self.display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.display is not None:
            self.display.stop()
            self.display = None

    def tell(self, job: Job, done: int, of: int) -> None:
        part = self.costs[job.folder] * done / of
        self.resumed.setdefault(job.folder, part)
        self.parts[job.folder] = part
        if self.display is not None:
            if job.folder not in self.bars:
                self.bars[job.folder] = self.display.add_task(job.title, total=of, text="")
            self.display.update(self.bars[job.folder], completed=done, text=f"{done}/{of}")
            self.display.update(self.whole, completed=self.done + sum(self.parts.values()), text=self.text())

    def ended(self, job: Job, reason: str) -> None:
        self.parts.pop(job.folder, None)
        self.done += self.costs[job.folder]
        self.count += 1
        if self.display is not None and job.folder in self.bars:
            self.display.remove_task(self.bars.pop(job.folder))
        say(f"{job.title}: {'failed: ' + reason if reason else 'done'} ({self.text()})")

    def text(self) -> str:
        left = self.left()
        return f"{self.count} of {len(self.costs)} cells" + (f", about {words.duration(left)} left" if left else "")

    def left(self) -> float:
        """Seconds: at the rate seen so far, once there is something to see."""
        behind = self.done + sum(self.parts.values())
        made = behind - sum(self.resumed.values())
        spent = time.perf_counter() - self.began
        rate = self.expected / self.total if self.total else 0.0
        if made > 0.02 * self.total:
            rate = spent / made
        return rate * (self.total - behind)
