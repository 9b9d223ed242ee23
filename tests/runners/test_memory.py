"""What a step frees is there for the next one."""

from __future__ import annotations

import resource

import pytest
import torch

from fedtailor import RunSpec
from fedtailor.data.federation import Federation
from fedtailor.driver import Driver
from fedtailor.methods import FedAvg
from fedtailor.runners import memory
from fedtailor.runners.stacked import Stacked

CLIENTS, ROWS, BATCH = 5, 160, 32


def pictures() -> Federation:
    n = CLIENTS * (ROWS + 1)
    drawn = torch.Generator().manual_seed(0)
    lists = torch.arange(n).split([ROWS, 1] * CLIENTS)
    return Federation(
        name="pictures", x=torch.randn(n, 3, 28, 28, generator=drawn), y=torch.randint(0, 10, (n,), generator=drawn),
        train=lists[::2], test=lists[1::2], validation=(torch.empty(0, dtype=torch.int64),) * CLIENTS,
        clients=tuple(map(str, range(CLIENTS))), groups=(0,) * CLIENTS, group_names=("all",),
        classes=tuple(map(str, range(10))),
    )  # fmt: skip


@pytest.mark.skipif(memory.library() is None, reason="the C library is not the GNU one")
def test_rounds_ask_the_system_for_hardly_any_memory_once_there_was_one() -> None:
    spec = RunSpec(method=FedAvg(), model="lenet_bn", rounds=9, eval_every=9, batch=BATCH, lr=0.01)
    driver = Driver(spec, pictures(), runner=Stacked(threads=1))
    driver.step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        driver.step()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    page, largest = resource.getpagesize(), CLIENTS * BATCH * 6 * 24 * 24 * 4  # bytes of the first activations
    assert faults < 3 * largest / page, "three rounds' steps ask for what their first activations take, over and over"
