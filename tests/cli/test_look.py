"""`list`, `inspect`, `report` and `cite`."""

from __future__ import annotations

import contextlib
import io
import re
from inspect import signature
from pathlib import Path

import pytest
from calling import Call

from fedtailor import Arch, registry
from fedtailor.cli import catalogue, main
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
    assert "synthetic(alpha=0.5, beta=0.5, clients=100" in call("list", "data").out


@pytest.fixture(scope="module")
def listed() -> dict[str, str]:
    """What `list methods` says of each when it is named."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["list", "methods", *registry.names("method")]) == 0
    blocks = [" ".join(block.split()) for block in out.getvalue().split("\n\n") if block.strip()]
    return {re.split(r"\W", block)[0]: block for block in blocks}


def test_list_tells_what_stays(listed: dict[str, str]) -> None:
    assert "stays at the client: the whole model" in listed["Local"]
    assert "stays at the client: normalisation layers" in listed["FedBN"]
    assert "stays at the client: last layer" in listed["FedPer"]
    assert "stays at the client: nothing" in listed["FedAvg"]
    assert "stays at the client: the layers it adds" in listed["LocalAttention"]
    assert "a state of its own (v)" in listed["Ditto"]
    assert "a state of its own (local, losses, started, w); here around FedAvg()" in listed["AdaptiveLocalAggregation"]


def test_list_tells_what_is_sent_and_who_sees_it(listed: dict[str, str]) -> None:
    values = Arch(make("lenet_bn", classes=10, shape=(3, 28, 28), seed=0)).values()
    size = {name: value.numel() * value.element_size() for name, value in values.items()}
    norms = {name for name in size if name.startswith("bn")}
    assert norms == Arch(make("lenet_bn", classes=10, shape=(3, 28, 28), seed=0)).norm
    without_norms = 1 - sum(size[name] for name in norms) / sum(size.values())
    body = 1 - 4 * (84 * 10 + 10) / sum(size.values())  # the last layer has 84 inputs
    trained = 4 * 45178 / sum(size.values())  # the printed number of LeNet's parameters
    for name, down, up in (
        ("FedAvg", "1 model", "1"),
        ("FedBN", f"{without_norms:.2f} models", f"{without_norms:.2f}"),
        ("FedBABU", f"{body:.2f} models", f"{body:.2f}"),
        ("SCAFFOLD", f"{1 + trained:.2f} models", f"{1 + trained:.2f}"),
        ("pFedLA", "1 model", "1"),  # attention stays
    ):
        assert f"traffic: {down} down, {up} up; the server sees sums of uploads only tested:" in listed[name], name
    # M of them; what is trained of the others'; the others' and the mean of all
    for name, down in (("FedFomo", 5), ("APPLE", f"{7 * trained:.2f}"), ("FedHAM", 8)):
        assert f"traffic: {down} models down, 1 up; the server sees single clients' models" in listed[name], name
    assert "traffic: none; the server sees nothing" in listed["Local"]
    assert "the rows themselves, before the first round; the server sees everybody's rows" in listed["Centralised"]
    assert "1 up, and the public rows once; the server sees sums of uploads only and" in listed["FedHealth"]
    assert "Traffic is of one client in one round" in listed["Traffic"] and "among 8 clients" in listed["Traffic"]


def test_list_tells_what_is_tested_and_who_proposed_it(listed: dict[str, str]) -> None:
    assert "tested: adapted; Li et al., ICML 2021" in listed["Ditto"]
    assert "tested: received, and after 5 epochs of tuning at the end; McMahan et al." in listed["FedAvgFT"]
    assert "tested: received; McMahan et al., AISTATS 2017" in listed["FedAvg"]
    assert "tested: received; Li et al., MLSys 2020" in listed["FedProx"]
    assert "Guo et al., Neurocomputing 2023; Li et al., MLSys 2020" in listed["FedMCSA"]
    for name in registry.names("method"):
        assert re.search(r"traffic: .*; the server sees .* tested: (received|trained|adapted)\b.*; \w+", listed[name])
        assert "no paper stated" not in listed[name] and "could not be tried" not in listed[name], name


BROKEN = '''
from fedtailor import FedAvg, register
from dataclasses import dataclass


@register("method", "Broken")
@dataclass(frozen=True, repr=False)
class Broken(FedAvg):
    """FedAvg that does not get far."""

    def fit(self, client, state, model, got):
        raise ZeroDivisionError("no such luck")
'''


def test_list_goes_on_when_a_method_fails(call: Call) -> None:
    Path("broken.py").write_text(BROKEN, encoding="utf-8")
    ended = call("list", "methods", "Broken", "scaffold", "--plugin", "broken.py")
    assert ended.code == 0, ended.err
    block = next(block for block in ended.out.split("\n\n") if block.startswith("Broken"))
    assert "could not be tried on lenet_bn: ZeroDivisionError: no such luck" in block
    assert "traffic: ?" in block
    assert "\nSCAFFOLD" in ended.out
    every = call("list", "methods", "--plugin", "broken.py").out
    assert every.index("Your own\nBroken ") > every.index("Bounds\nLocal ")


def test_methods_are_listed_by_family(call: Call) -> None:
    """The five papers first, then what they are compared with, plug-ins, bounds; each method once, in a few words."""
    listed = [name for members in catalogue.FAMILIES.values() for name in members]
    assert sorted(listed) == sorted(registry.names("method"))
    ended = call("list", "methods")
    assert ended.out.startswith("The five papers\npFedLA ")
    places = [ended.out.index(f"{family}\n") for family in catalogue.FAMILIES]
    assert places == sorted(places) and "Plug-ins, which wrap another method\nLocalAttention " in ended.out
    names = re.findall(r"^(\w+)  ", ended.out, re.MULTILINE)
    assert names == listed
    assert "traffic" not in ended.out and "lam=" not in ended.out


def test_some_are_listed_with_all_that_is_known_of_them(call: Call) -> None:
    ended = call("list", "methods", "ditto", "ala")
    assert re.findall(r"^(\w+)\(", ended.out, re.MULTILINE) == ["Ditto", "AdaptiveLocalAggregation"]
    assert "Ditto(lam=1.0" in ended.out and "`fedtailor tune` tries: lam 0.1, 1.0, 2.0; three learning" in ended.out
    assert call("list", "data", "mnist").out.startswith("mnist(scale='range')\n")
    wrong = call("list", "methods", "dito")
    assert wrong.code == 2 and "did you mean Ditto" in wrong.err


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
