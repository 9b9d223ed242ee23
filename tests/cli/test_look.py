"""`list`, `inspect`, `report` and `cite`."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest
from calling import Call

from fedtailor import Arch, registry
from fedtailor.nn import make


@pytest.mark.parametrize("kind", ["methods", "data", "models", "partitions"])
def test_list_names_all(kind: str, call: Call) -> None:
    ended = call("list", kind)
    assert ended.code == 0, ended.err
    singular = kind if kind == "data" else kind.removesuffix("s")
    for name in registry.names(singular):
        assert re.search(rf"^{re.escape(name)}\b", ended.out, re.MULTILINE), name
        assert registry.entry(singular, name).summary.split()[0] in ended.out
    assert max(map(len, ended.out.splitlines())) <= 100


def test_list_tells_options_and_leaves_out_what_is_filled_in(call: Call) -> None:
    assert "dirichlet(alpha=0.1, clients=20" in call("list", "partitions").out
    assert "pathological(classes=2" in call("list", "partitions").out
    assert "dnn(hidden=None)" in call("list", "models").out
    assert "synthetic(alpha=0.5, beta=0.5)" in call("list", "data").out


def test_list_tells_what_stays(call: Call) -> None:
    blocks = {
        block.split()[0].split("(")[0]: block for block in call("list", "methods").out.split("\n\n") if block.strip()
    }
    assert "stays at the client: the whole model" in blocks["Local"]
    assert "stays at the client: normalisation layers" in blocks["FedBN"]
    assert "stays at the client: last layer" in blocks["FedPer"]
    assert "stays at the client: nothing" in blocks["FedAvg"]
    assert "a state of its own (v)" in blocks["Ditto"] and "ICML 2021" in blocks["Ditto"]
    assert "sees nothing" in blocks["Local"] and "sees everybody's rows" in blocks["Centralised"]
    assert "tested: adapted" in blocks["Ditto"]


def test_list_shows_the_users_own(call: Call, plugin: Path) -> None:
    assert "Pictures of one bright corner." in call("list", "data", "--plugin", plugin).out


def rows(table: str) -> dict[str, list[str]]:
    """The cells of a table by the first of each row."""
    lines = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if line.startswith("│")
    ]
    return {first: rest for first, *rest in lines}


def test_inspect_has_every_tensor(toy: Call) -> None:
    ended = toy("inspect", "--model", "lenet_bn", "--method", "fedbn")
    assert ended.code == 0, ended.err
    arch = Arch(make("lenet_bn", classes=3, shape=(1, 16, 16), seed=0))
    found = rows(ended.out)
    assert set(arch.names) <= found.keys()
    for name in arch.names:
        layer, role, kept, shape, down, up = found[name]
        assert name in arch.layers[layer]
        assert role == arch.role(name)
        assert kept == ("personal" if name in arch.norm else "shared")
        assert shape == (" x ".join(map(str, arch.values()[name].shape)) or "1")
        assert (down == up == "0") if name in arch.norm else (down == up != "0")
    values = arch.values()
    personal = sum(values[name].numel() for name in arch.norm & arch.trainable)
    total = sum(values[name].numel() for name in arch.trainable)
    assert f"{total:,} parameters: {total - personal:,} shared, {personal:,} personal." in ended.out


def test_inspect_has_what_travels_beside_the_model(toy: Call) -> None:
    found = rows(toy("inspect", "--method", "scaffold").out)
    size = 4 * (16 * 16 * 3 + 3)  # mlr in float32
    assert size == 3084
    assert found["c"][-2:] == ["3.08 kB", "0"]
    assert found["dc"][-2:] == ["0", "3.08 kB"]
    assert found["total"][-2:] == ["6.17 kB", "6.17 kB"]


def test_inspect_buffers(toy: Call) -> None:
    shared = rows(toy("inspect", "--model", "lenet_bn").out)
    local = rows(toy("inspect", "--model", "lenet_bn", "--buffers", "local").out)
    assert shared["bn1.running_mean"][2] == "shared"
    assert local["bn1.running_mean"][2] == "personal"
    assert local["bn1.weight"][2] == "shared"


@pytest.mark.parametrize("method", registry.names("method"))
def test_inspect_knows_every_method(method: str, toy: Call) -> None:
    needed = [
        p for p in signature(registry.entry("method", method).factory).parameters.values() if p.default is p.empty
    ]
    written = f"{method}(FedAvg())" if needed else method  # a wrapper
    ended = toy("inspect", "--model", "lenet_bn", "--method", written)
    assert ended.code == 0, ended.err
    assert "parameters" in ended.out


def test_cite(call: Call) -> None:
    ended = call("cite", "Proximal(FedBN())")
    keys = re.findall(r"^@\w+\{(\w+),", ended.out, re.MULTILINE)
    assert keys == ["li2020federated", "li2021fedbn", "fedtailor"]
    alone = call("cite", "local")
    assert re.findall(r"^@\w+\{(\w+),", alone.out, re.MULTILINE) == ["fedtailor"]
    assert "no paper" in alone.err


def test_report(toy: Call, call: Call) -> None:
    for method in ("fedavg", "local"):
        assert toy("run", "--method", method, "--rounds", 2, "--out", method).code == 0
    ended = call("report", "fedavg")
    assert ended.code == 0, ended.err
    assert Path("fedavg/report.html").is_file()
    assert "not computed" in ended.out, "Local was not run in this folder"
    ended = call("report", "fedavg", "local", "--out", "both", "--format", "svg", "--format", "md", "--select", "best")
    assert ended.code == 0, ended.err
    assert Path("both/report.html").is_file() and Path("both/report.md").is_file()
    assert list(Path("both").rglob("*.svg"))
    assert "not computed" not in ended.out
    assert "best" in ended.out
