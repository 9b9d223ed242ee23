"""The memory that FedHAM takes: linear in the cluster times the model, counted in models."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from quadratic import federation, regressions
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fedtailor import Driver, FedHAM, Received, RunSpec, tree

WIDTH = 256
THETA = {"q": 16, "h": 4}  # so that Theta does not count beside the model


def deep() -> nn.Module:
    """330,000 numbers in layers of equal size."""
    body = [layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Linear(2, WIDTH), nn.ReLU(), *body, nn.Linear(WIDTH, 1))


def peak(work: Callable[[], object]) -> int:
    """The most bytes of tensors that were made in `work` and alive at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = work()  # noqa: F841 - alive to the end
    events = seen.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(np.cumsum([size for _, size in changes]).max())


def driver_of(clients: int, method: FedHAM) -> Driver:
    rows = regressions((4,) * clients, dtype=np.float32)
    return Driver(RunSpec(method=method, model=deep(), rounds=3, batch=2, lr=0.01), federation(rows))


def test_a_client_needs_three_models_beside_those_it_is_given_however_many() -> None:
    # the mixture, the gradient towards it, and no more than another model in passing
    driver = driver_of(2, FedHAM(p=0, **THETA))
    model, size = driver.initial, tree.nbytes(driver.initial)
    client, state = driver.sites[0].client(2), driver.kept[0]["method"]
    found = []
    for count in (1, 4, 16):
        peers = {name: x * torch.linspace(0.9, 1.1, count).view(-1, *[1] * x.dim()) for name, x in model.items()}
        got = Received(model, {}, peers, torch.zeros(count, dtype=torch.int64), 0, {"warm": 0})
        found.append(peak(lambda got=got: driver.common.method.fit(client, state, model, got)) / size)
    assert max(found) < 3.2
    assert max(found) - min(found) < 0.05


@pytest.mark.filterwarnings("ignore:.*turned to the clients' own:UserWarning")
def test_a_round_and_the_last_delivery_grow_with_the_clients_and_not_with_their_square() -> None:
    # all see all: unpacked at once, their messages would be 12, 56 and 240 models
    found = {}
    for clients in (4, 8, 16):
        driver = driver_of(clients, FedHAM(p=1, **THETA))
        size = tree.nbytes(driver.initial)
        driver.step()
        found[clients] = peak(driver.step) / size, peak(driver.finish) / size
    assert all(a <= 4 * n + 4 and b <= 2 * n + 4 for n, (a, b) in found.items())


SCRIPT = """
import json, resource, sys
import torch
from fedtailor import SGD, Arch, Client, FedHAM, Received, task, tree
from fedtailor.method import Fed
from fedtailor.nn import alexnet_bn

torch.set_num_threads(1)
count = int(sys.argv[1])
net = alexnet_bn(classes=10, shape=(3, 224, 224))
arch = Arch(net)
glob, x = arch.values(), arch.values()
peers = {name: value.expand(count, *value.shape).clone() for name, value in glob.items()}
for value in peers.values():
    if value.is_floating_point():
        for j in range(count):
            value[j].mul_(0.9 + 0.05 * j)
method = FedHAM()
fed = Fed(arch, count + 1, torch.ones(count + 1), (0,) * (count + 1), 11, 20, 0)
client = Client(
    arch=arch, task=task.of("classification"), x=torch.rand(2, 3, 224, 224), y=torch.tensor([1, 2]),
    rows=torch.arange(2), seed=0, number=0, round=11, rounds=20, lr=0.01, batch=2, epochs=1, steps_asked=None,
    opt=SGD(), shared=arch.trainable, private=frozenset(), smallest=2,
)
state = method.init_client(fed, x)
got = Received(glob, {}, peers, torch.arange(1, count + 1), 0, {"warm": 0})

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = most()
method.fit(client, state, x, got)
size = tree.nbytes(glob)
parameters = sum(p.numel() for p in net.parameters())
print(json.dumps({"parameters": parameters, "size": size, "before": before, "after": most()}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts resident memory in the unit of Linux")
def test_four_peers_of_alexnet() -> None:
    """With 57 million parameters and four peers, a client's round needs less than four models beside those it is given:
    its own, the global one and the four."""
    needs = {}
    for count in (1, 4):
        done = subprocess.run([sys.executable, "-c", SCRIPT, str(count)], capture_output=True, text=True, check=True)
        told = json.loads(done.stdout)
        assert told["parameters"] == 57_063_498 and told["size"] > 4 * 57_063_498
        assert told["before"] > (count + 3) * told["size"]  # the network, x_i, x^g and the peers
        needs[count] = (told["after"] - told["before"]) / told["size"]
    assert needs[4] < 4
    assert needs[4] - needs[1] < 0.5  # what more peers need is their own size
