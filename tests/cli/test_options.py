"""A working call of every option of `run` and `compare`, from the command line and from a file."""

from __future__ import annotations

import inspect
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from calling import Call, untimed

from fedtailor import registry
from fedtailor.cli.runs import compare, run

pytestmark = pytest.mark.usefixtures("without_report")

METHOD = "Proximal(FedAvg(), mu=0.1)"

# the option as written, and what run.json must say of it: keys and a value
OPTIONS: dict[str, tuple[list[str], list[str], Any]] = {
    "data": ([], ["data", "name"], "toy"),
    "partition": (["--partition", "dirichlet(alpha=1.0, clients=2)"], ["data", "clients"], ["client-0", "client-1"]),
    "clients": (["--clients", "2"], ["data", "clients"], ["client-0", "client-1"]),
    "data_seed": (["--data-seed", "5"], ["data", "source"],
                  "toy | iid(clients=4, validation=0.1, test=0.25) | seed=5"),
    "model": (["--model", "dnn(hidden=3)"], ["spec", "model"], "dnn(hidden=3)"),
    "method": (["--method", METHOD], ["method"], repr(registry.parse("method", METHOD))),
    "plugin": ([], ["data", "name"], "toy"),
    "rounds": (["--rounds", "3"], ["spec", "rounds"], 3),
    "cohort": (["--cohort", "0.5"], ["spec", "cohort"], 0.5),
    "epochs": (["--epochs", "2"], ["spec", "epochs"], 2),
    "steps": (["--steps", "4"], ["spec", "steps"], 4),
    "batch": (["--batch", "0"], ["spec", "batch"], 0),
    "lr": (["--lr", "0.2"], ["spec", "lr"], 0.2),
    "momentum": (["--momentum", "0.5"], ["spec", "momentum"], 0.5),
    "weight_decay": (["--weight-decay", "1e-3"], ["spec", "weight_decay"], 0.001),
    "clip": (["--clip", "2"], ["spec", "clip"], 2.0),
    "lr_decay": (["--lr-decay", "0.9"], ["spec", "lr_decay"], 0.9),
    "weighting": (["--weighting", "uniform"], ["spec", "weighting"], "uniform"),
    "buffers": (["--buffers", "local"], ["spec", "buffers"], "local"),
    "point": (["--point", "trained"], ["point"], "trained"),
    "eval_every": (["--eval-every", "2"], ["spec", "eval_every"], 2),
    "finish_epochs": (["--finish-epochs", "1"], ["spec", "finish_epochs"], 1),
    "seed": (["--seed", "4"], ["spec", "seed"], 4),
    "seeds": (["--seeds", "1"], ["spec", "seed"], 0),
    "runner": (["--runner", "sequential"], ["spec", "runner"], "sequential"),
    "workers": (["--workers", "1"], ["spec", "workers"], 1),
    "device": (["--device", "cpu"], ["spec", "device"], "cpu"),
    "on_nan": (["--on-nan", "drop"], ["spec", "on_nan"], "drop"),
    "checkpoint_every": (["--checkpoint-every", "1"], ["spec", "checkpoint_every"], 1),
    "out": (["--out", "mine"], ["status"], "complete"),
    "quiet": (["--quiet"], ["status"], "complete"),
}  # fmt: skip


def info_of(folder: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return info


@pytest.mark.parametrize("command", [run, compare])
def test_every_option_is_called_here(command: Any) -> None:
    assert set(inspect.signature(command).parameters) == {*OPTIONS, "file"}


@pytest.mark.parametrize("option", OPTIONS)
def test_run(option: str, toy: Call) -> None:
    written, keys, value = OPTIONS[option]
    ended = toy("run", "--rounds", 1, "--out", "mine", *written)
    assert ended.code == 0, ended.err
    found: Any = info_of(Path("mine"))
    for key in keys:
        found = found[key]
    assert found == value


def test_compare_takes_them_all(toy: Call) -> None:
    apart = {"data", "plugin", "method", "out", "quiet", "steps", "rounds", "seeds"}
    written = [part for option in OPTIONS if option not in apart for part in OPTIONS[option][0]]
    ended = toy("compare", *written, "--method", "fedavg", "--seeds", 2, "--rounds", 1, "--quiet", "--out", "mine")
    assert ended.code == 0, ended.err
    for path in ("fedavg/seed-4", "fedavg/seed-5", "local/seed-4", "local/seed-5"):
        spec = info_of(Path("mine") / path)["spec"]
        for option in OPTIONS.keys() - apart - {"seed"}:
            _, keys, value = OPTIONS[option]
            if keys[0] == "spec":
                assert spec[keys[1]] == value


def test_compare_takes_steps(toy: Call) -> None:
    assert toy("compare", "--method", "fedavg", "--steps", 3, "--rounds", 1, "--out", "mine").code == 0
    assert untimed(Path("mine/fedavg/seed-0"))[0]["steps"] == [3, 3, 3, 3]


def test_a_number_of_clients_is_not_a_share(toy: Call) -> None:
    for written, size in (("1", 1), ("1.0", 4), ("3", 3)):
        assert toy("run", "--rounds", 1, "--cohort", written, "--out", written).code == 0
        assert len(untimed(Path(written))[0]["cohort"]) == size


def test_what_is_not_given_is_the_datas(toy: Call) -> None:
    assert toy("run", "--out", "mine").code == 0
    info = info_of(Path("mine"))
    assert [info["spec"][key] for key in ("rounds", "batch", "lr")] == [2, 8, 0.1]
    assert info["method"] == "FedAvg()"


def test_a_file_says_the_same_as_the_command_line(toy: Call, call: Call, plugin: Path) -> None:
    written = {
        "data": "toy", "partition": "iid(clients=3)", "data-seed": 2, "model": "dnn", "method": "Ditto(lam=0.5)",
        "plugin": str(plugin), "rounds": 2, "cohort": 2, "epochs": 2, "batch": 4, "lr": 0.3, "momentum": 0.1,
        "weight_decay": 0.01, "clip": 1, "lr-decay": 0.9, "weighting": "size", "point": "received", "seed": 3,
        "on-nan": "drop",
    }  # fmt: skip
    lines = [f"{key} = {json.dumps(value)}" for key, value in written.items()]
    Path("all.toml").write_text("\n".join(lines), encoding="utf-8")
    options = [str(part) for key, value in written.items() for part in (f"--{key.replace('_', '-')}", value)]
    assert call("run", "all.toml", "--out", "file").code == 0
    assert call("run", *options, "--out", "line").code == 0
    file, line = info_of(Path("file")), info_of(Path("line"))
    assert file["spec"] == line["spec"]
    assert file["data"] == line["data"]
    assert untimed(Path("file")) == untimed(Path("line"))
    assert call(*_arguments(file["command"]), "--out", "again").code == 0, "the command in the record repeats the run"
    assert untimed(Path("again")) == untimed(Path("file"))


def _arguments(command: str) -> list[str]:
    program, *arguments = shlex.split(command)
    assert program == "fedtailor"
    return arguments


def test_the_command_line_goes_over_the_file(toy: Call) -> None:
    Path("some.toml").write_text("rounds = 5\nepochs = 3\nlr = 0.5", encoding="utf-8")
    assert toy("run", "some.toml", "--rounds", 1, "--steps", 2, "--out", "mine").code == 0
    spec = info_of(Path("mine"))["spec"]
    assert (spec["rounds"], spec["epochs"], spec["steps"], spec["lr"]) == (1, None, 2, 0.5)


def test_a_files_plugin_is_beside_it(call: Call, plugin: Path) -> None:
    place = Path("project")
    place.mkdir()
    (place / "own.py").write_text(plugin.read_text(encoding="utf-8"), encoding="utf-8")
    text = 'plugin = ["own.py"]\ndata = "toy"\nmethod = ["fedavg", "fedprox"]\nrounds = 1\nquiet = true\nout = "mine"'
    (place / "run.toml").write_text(text, encoding="utf-8")
    ended = call("compare", place / "run.toml")
    assert ended.code == 0
    assert ended.err == ""
    assert Path("mine/fedprox/seed-0/run.json").is_file()


def test_run_with_seeds_has_no_local(toy: Call) -> None:
    ended = toy("run", "--method", "fedavg", "--seeds", 3, "--rounds", 1, "--out", "mine")
    assert ended.code == 0
    assert sorted(p.name for p in Path("mine/fedavg").iterdir()) == ["seed-0", "seed-1", "seed-2"]
    assert not Path("mine/local").exists()
    assert "±" in ended.out
    assert "not computed" in ended.out


def test_without_out_each_run_has_a_folder_of_its_own(toy: Call) -> None:
    for _ in range(2):
        assert toy("run", "--rounds", 1, "--method", "Ditto(lam=0.5)", "--quiet").code == 0
    assert toy("compare", "--rounds", 1, "--method", "fedavg", "--quiet").code == 0
    found = sorted(path.name for path in Path("runs").iterdir())
    assert sum(name.startswith("toy-compare-") for name in found) == 1
    assert sum(name.startswith("toy-ditto-") for name in found) == 2


def test_a_note_is_said_once_however_often_it_is_due(toy: Call) -> None:
    # in every round but the first, under both seeds, and again where there is more to run
    arguments = ["run", "--method", "FedAMP(sigma=1e-6, alpha_k=1e-3)", "--rounds", 3, "--seeds", 2, "--out"]
    for folder in ("mine", "yours"):
        ended = toy(*arguments, folder)
        assert ended.code == 0, ended.err
        assert ended.err.count("note: FedAMP") == 1
