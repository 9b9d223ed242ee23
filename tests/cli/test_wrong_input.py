"""Wrong input of every kind: one clear message, exit code 2, no traceback, nothing lost and nothing left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from calling import contents, forget_plugins

from fedtailor.cli import main

# what is wrong: the arguments, and what the message must hold: the bad thing, and what is allowed or what to do
ON_TOY = ["--plugin", "toy.py", "--data", "toy"]
RUN = ["run", *ON_TOY]
COMPARE = ["compare", *ON_TOY]
WRONG: dict[str, tuple[list[str], list[str]]] = {
    "unknown command": (["rum"], ["'rum'", "--help"]),
    "unknown option": (["run", "--round", "3"], ["--round", "--help"]),
    "unknown method": ([*RUN, "--method", "qqqq"], ["method 'qqqq'", "known are", "FedBN"]),
    "misspelt method": ([*RUN, "--method", "fedbm"], ["'fedbm'", "did you mean FedBN"]),
    "argument the method lacks": ([*RUN, "--method", "Ditto(mu=1)"], ["mu", "usage: Ditto(lam=1.0)"]),
    "argument of the wrong type": ([*RUN, "--method", "Ditto(lam='much')"], ["lam='much'", "a number"]),
    "argument out of range": ([*RUN, "--method", "Ditto(lam=-1)"], ["lam=-1", "0 or more"]),
    "half a method": ([*RUN, "--method", "Ditto("], ["'Ditto('", "write a name or a call"]),
    "code for a method": ([*RUN, "--method", "__import__('os').mkdir('gotcha')"], ["not a name or a call of one"]),
    "code in an argument": ([*RUN, "--method", "Ditto(lam=open('gotcha', 'w'))"], ["no method 'open'"]),
    "code after a method": ([*RUN, "--method", "Ditto(lam=[print(1)][0])"], ["not a plain value"]),
    "method of a wrong kind": ([*RUN, "--method", "dirichlet"], ["no method 'dirichlet'"]),
    "two methods in one run": (["run", "two-methods.toml"], ["one method", "2", "compare"]),
    "no method to compare": (COMPARE, ["no method", "--method"]),
    "method that needs a norm": ([*RUN, "--method", "fedbn"], ["FedBN", "no normalisation layer", "lenet_bn"]),
    "method that needs a body": ([*RUN, "--method", "fedper"], ["FedPer", "single layer", "dnn"]),
    "the same in a comparison": ([*COMPARE, "--method", "fedavg", "--method", "fedper"], ["FedPer", "dnn"]),
    "unknown data": (["run", "--data", "mnits"], ["data 'mnits'", "fedtailor list data"]),
    "data out of range": (["run", "--data", "synthetic(alpha=-1)"], ["alpha=-1", "from 0"]),
    "unknown model": ([*RUN, "--model", "resnet5000"], ["model 'resnet5000'", "fedtailor list models"]),
    "model out of range": ([*RUN, "--model", "dnn(hidden=0)"], ["hidden=0", "at least one"]),
    "unknown partition": ([*RUN, "--partition", "dirichle"], ["'dirichle'", "did you mean dirichlet"]),
    "more classes than there are": ([*RUN, "--partition", "pathological(classes=4)"], ["classes=4", "1 to 3"]),
    "partition that the data cannot have": ([*RUN, "--partition", "domain"], ["no domains", "use iid"]),
    "no clients": ([*RUN, "--clients", "0"], ["clients=0", "from 1"]),
    "too many clients": ([*RUN, "--clients", "1000"], ["1000", "at most 48"]),
    "clients where they are given": (["run", "--clients", "3"], ["3 asked for", "sites"]),
    "NaN for a learning rate": ([*RUN, "--lr", "nan"], ["lr=nan", "above 0"]),
    "negative learning rate": ([*RUN, "--lr=-0.1"], ["lr=-0.1", "above 0"]),
    "learning rate in words": ([*RUN, "--lr", "fast"], ["lr='fast'", "a number"]),
    "momentum of one": ([*RUN, "--momentum", "1"], ["momentum=1.0", "below 1"]),
    "negative weight decay": ([*RUN, "--weight-decay=-1"], ["weight_decay=-1.0", "0 or more"]),
    "infinite clipping": ([*RUN, "--clip", "inf"], ["clip=inf", "0 or more"]),
    "growing learning rate": ([*RUN, "--lr-decay", "1.1"], ["lr_decay=1.1", "up to 1"]),
    "no rounds": ([*RUN, "--rounds", "0"], ["rounds=0", "1 or more"]),
    "half a round": ([*RUN, "--rounds", "1.5"], ["rounds='1.5'", "a whole number"]),
    "no epochs": ([*RUN, "--epochs", "0"], ["epochs=0", "1 or more"]),
    "epochs and steps": ([*RUN, "--epochs", "1", "--steps", "5"], ["epochs=1", "steps=5", "one of them"]),
    "negative batch": ([*RUN, "--batch=-1"], ["batch=-1", "0 or more"]),
    "no workers": ([*RUN, "--workers", "0"], ["workers=0", "1 or more"]),
    "no clients in a round": ([*RUN, "--cohort", "0"], ["cohort=0", "1 client or more"]),
    "more than all in a round": ([*RUN, "--cohort", "1.5"], ["cohort=1.5", "up to 1"]),
    "cohort beyond the clients": ([*RUN, "--cohort", "5"], ["cohort=5", "has 4"]),
    "cohort in words": ([*RUN, "--cohort", "half"], ["cohort='half'", "a number"]),
    "unknown weighting": ([*RUN, "--weighting", "fair"], ["weighting='fair'", "'uniform'"]),
    "unknown buffers": ([*RUN, "--buffers", "none"], ["buffers='none'", "'local'"]),
    "unknown point": ([*RUN, "--point", "best"], ["point='best'", "'adapted'"]),
    "point that a method lacks": ([*RUN, "--point", "adapted"], ["no adapted model", "point=received"]),
    "never testing": ([*RUN, "--eval-every", "0"], ["eval_every=0", "1 or more"]),
    "unknown policy": ([*RUN, "--on-nan", "ignore"], ["on_nan='ignore'", "'drop'"]),
    "unknown runner": ([*RUN, "--runner", "warp"], ["runner='warp'", "'sequential'"]),
    "unknown device": ([*RUN, "--device", "abacus"], ["device='abacus'", "device=cpu"]),
    "device that is not there": ([*RUN, "--device", "cuda:99"], ["device='cuda:99'", "device=cpu"]),
    "no seeds": ([*COMPARE, "--method", "fedavg", "--seeds", "0"], ["seeds=0", "1 or more"]),
    "misspelt key": (["run", "misspelt.toml"], ["misspelt.toml", "'roundz'", "did you mean rounds"]),
    "unknown key": (["run", "unknown-key.toml"], ["'colour'", "known are", "rounds"]),
    "wrong type in a file": (["run", "wrong-type.toml"], ["wrong-type.toml", "rounds = 'ten'", "a whole number"]),
    "truth for a number": (["run", "truth.toml"], ["batch = True", "a whole number"]),
    "impossible value in a file": (["run", "impossible.toml"], ["momentum=2.0", "below 1"]),
    "file that is not TOML": (["run", "not-toml.toml"], ["not-toml.toml", "TOML", "line 1"]),
    "file that is not text": (["run", "binary.toml"], ["binary.toml", "TOML"]),
    "missing file": (["run", "nowhere.toml"], ["nowhere.toml", "TOML file"]),
    "missing plugin": (["run", "--plugin", "nowhere.py"], ["nowhere.py", "Python file"]),
    "plugin that raises": (["run", "--plugin", "raises.py"], ["raises.py", "KeyError: 'surprise'"]),
    "plugin that exits": (["run", "--plugin", "exits.py"], ["exits.py", "must not"]),
    "plugin that is not Python": (["run", "--plugin", "wrong-type.toml"], ["wrong-type.toml", ".py"]),
    "plugin with a taken name": (["run", "--plugin", "taken.py"], ["'FedAvg'", "taken", "another"]),
    "folder below a file": ([*RUN, "--out", "toy.py/run"], ["toy.py/run", "another folder"]),
    "comparison below a file": ([*COMPARE, "--method", "fedavg", "--out", "toy.py/c"], ["toy.py/c", "another folder"]),
    "folder that holds a run": ([*RUN, "--out", "done"], ["done already holds a run", "fedtailor resume done"]),
    "comparison over a run": ([*COMPARE, "--method", "fedavg", "--out", "done"], ["done already holds a run"]),
    "run over a comparison": ([*RUN, "--out", "compared"], ["already holds a comparison"]),
    "another comparison": (
        [*COMPARE, "--method", "fedavg", "--rounds", "1", "--batch", "3", "--out", "compared"],
        ["another comparison", "batch 8", "fedtailor resume compared"],
    ),
    "comparison on other data": (
        [*COMPARE, "--method", "fedavg", "--rounds", "1", "--data-seed", "7", "--out", "compared"],
        ["another comparison", "other data"],
    ),
    "resuming nothing": (["resume", "nowhere"], ["nowhere is not a run folder"]),
    "resuming what is no run": (["resume", "empty"], ["empty is not a run folder"]),
    "run of another version": (["resume", "future"], ["format 99", "9.9.9", "use the version"]),
    "comparison of another version": (["resume", "future-comparison"], ["format 99", "use the version"]),
    "damaged record": (["resume", "damaged"], ["run.json", "cannot be read"]),
    "damaged rows": (["resume", "torn", "--plugin", "toy.py"], ["line 1", "damaged"]),
    "damaged checkpoints": (
        ["resume", "corrupted", "--plugin", "toy.py", "--rounds", "3"], ["no checkpoint of corrupted", "another folder"]
    ),
    "damaged comparison": (["resume", "damaged-comparison"], ["comparison.json", "lacks"]),
    "fewer rounds than there are": (["resume", "done", "--rounds", "1", "--plugin", "toy.py"], ["2 rounds already"]),
    "comparison with fewer rounds": (
        ["resume", "compared", "--rounds", "0", "--plugin", "toy.py"], ["cannot end at 0", "1 or more"]
    ),
    "resuming without its plugin": (["resume", "done"], ["plugin", "fedtailor resume done --plugin=toy.py"]),
    "resuming on other data": (
        ["resume", "changed", "--plugin", "toy.py", "--rounds", "3"], ["data are not those", "fingerprint"]
    ),
    "list of nothing": (["list", "colours"], ["'colours'", "methods"]),
    "report on nothing": (["report", "nowhere"], ["no folder nowhere"]),
    "report on what is no run": (["report", "empty"], ["empty", "run.json"]),
    "unknown format": (["report", "done", "--format", "bmp"], ["'bmp'", "pdf"]),
    "unknown selection": (["report", "done", "--select", "luckiest"], ["'luckiest'", "best_on_validation"]),
    "report below a file": (["report", "done", "--out", "toy.py/report"], ["toy.py", "another folder"]),
    "citing nothing": (["cite", "magic"], ["method 'magic'"]),
    "inspecting the impossible": (["inspect", *ON_TOY, "--method", "fedbn"], ["no normalisation layer"]),
}  # fmt: skip

FILES = {
    "two-methods.toml": 'method = ["fedavg", "fedbn"]',
    "misspelt.toml": "roundz = 3",
    "unknown-key.toml": 'colour = "red"',
    "wrong-type.toml": 'rounds = "ten"',
    "truth.toml": "batch = true",
    "impossible.toml": "momentum = 2.0",
    "not-toml.toml": "rounds: 3",
    "raises.py": "{}['surprise']",
    "exits.py": "import sys; sys.exit(0)",
    "taken.py": "from fedtailor import register\n@register('method', 'FedAvg')\ndef other(): ...",
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, plugin: Path) -> Path:
    """A folder with something wrong of every kind in it, and a run and a comparison that must stay whole."""
    place = tmp_path_factory.mktemp("bench")
    for name, text in FILES.items():
        (place / name).write_text(text, encoding="utf-8")
    (place / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (place / "empty").mkdir()
    shutil.copy(plugin, place / "toy.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        forget_plugins(patch)
        assert main([*RUN, "--rounds", "2", "--out", "done", "--quiet"]) == 0
        assert main([*COMPARE, "--method", "fedavg", "--rounds", "1", "--out", "compared", "--quiet"]) == 0
    for name, key, value in (("future", "format", 99), ("changed", "data", {"fingerprint": "f00d"})):
        shutil.copytree(place / "done", place / name)
        info = json.loads((place / name / "run.json").read_text(encoding="utf-8"))
        info[key] = {**info[key], **value} if isinstance(value, dict) else value
        (place / name / "run.json").write_text(json.dumps({**info, "fedtailor": "9.9.9"}), encoding="utf-8")
    for name, file, text in (
        ("damaged", "run.json", "{half"),
        ("torn", "rows.jsonl", "{half\n{}\n"),
        ("future-comparison", "comparison.json", '{"format": 99}'),
        ("damaged-comparison", "comparison.json", '{"format": 1}'),
    ):
        shutil.copytree(place / "done", place / name)
        (place / name / file).write_text(text, encoding="utf-8")
    shutil.copytree(place / "done", place / "corrupted")
    for path in (place / "corrupted" / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-8])
    return place


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input(
    what: str, bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, told = WRONG[what]
    monkeypatch.chdir(bench)
    before = contents(bench)
    capsys.readouterr()
    code = main(arguments)
    written = capsys.readouterr()
    assert code == 2, written.err
    assert written.out == ""
    lines = written.err.splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 1, "one message"
    assert all(line.startswith(("error: ", "note: ")) for line in lines), written.err
    for text in told:
        assert text in written.err
    assert "Traceback" not in written.err
    assert contents(bench) == before, "something was lost, changed or left behind"


def test_there_are_at_least_twenty_kinds() -> None:
    assert len(WRONG) >= 20
