"""Curves in TensorBoard: `federate(..., callbacks=[TensorBoard("logs/ditto")])`, with `fedtailor[tensorboard]`."""

from __future__ import annotations

from pathlib import Path

from fedtailor.driver import Callback, Driver
from fedtailor.metrics import summarise
from fedtailor.record import Row
from fedtailor.registry import WrongInput


class TensorBoard(Callback):
    """Writes, for each round that was tested, the mean over clients of every metric, and the traffic."""

    def __init__(self, folder: str | Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise WrongInput("TensorBoard is not installed; run: pip install 'fedtailor[tensorboard]'") from None
        self.writer = SummaryWriter(str(folder))

    def on_round(self, driver: Driver, row: Row) -> None:
        self.write(driver, row)

    def on_end(self, driver: Driver, row: Row) -> None:
        self.write(driver, row)
        self.writer.close()

    def write(self, driver: Driver, row: Row) -> None:
        when = "final" if row.get("finish") else row["point"]
        for part in ("test", "validation"):
            results = row[part] or {}
            for metric, values in results.items():
                if metric != "count":
                    mean = summarise(values, results["count"], driver.task.higher_is_better).macro
                    self.scalar(f"{part}/{metric} ({when})", mean, row["round"])
        if not row.get("finish"):
            self.scalar("traffic/bytes", float(sum(row["down"]) + sum(row["up"])), row["round"])

    def scalar(self, tag: str, value: float, round: int) -> None:
        self.writer.add_scalar(tag, value, round)
