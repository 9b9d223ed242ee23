"""`federation`, `serve`, `join`, `state`, `export` and `predict`, as far as they go without a network."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from calling import Call

from fedtailor import load
from fedtailor.deploy import export
from fedtailor.record import RunFolder

pytest.importorskip("cryptography")

from fedtailor.deploy.folder import Folder


def test_from_init_to_revoke(call: Call) -> None:
    made = call("federation", "init", "clinic", "--name", "clinic", "--host", "127.0.0.1", "--method", "fedbn")
    assert made.code == 0, made.err
    assert "fedtailor federation invite clinic NAME" in made.err
    text = Path("clinic/federation.toml").read_text()
    assert 'method = "FedBN()"' in text and 'model = "lenet_bn"' in text and "rounds = 40" in text
    assert call("federation", "invite", "clinic", "north").code == 0
    assert Path("north.bundle").stat().st_mode & 0o77 == 0
    again = call("federation", "invite", "clinic", "north", "--out", "other.bundle")
    assert again.code == 2 and "was invited already" in again.err and not Path("other.bundle").exists()
    checked = call("serve", "clinic", "--check")
    assert checked.code == 0 and "FedBN(), 40 rounds; invited: north" in checked.err
    shown = call("federation", "status", "clinic")
    assert shown.code == 0 and "not started" in shown.out and "(364 days)" in shown.out
    assert "the server does not run: `fedtailor serve clinic` starts it" in shown.out
    folder = Folder(Path("clinic"))
    folder.tell_online(["north"])
    shown = call("federation", "status", "clinic")
    assert "waiting for sites" in shown.out and "online" in shown.out and "does not run" not in shown.out
    old = json.loads(Path("clinic/online.json").read_text())
    Path("clinic/online.json").write_text(json.dumps({**old, "time": old["time"] - 60}))
    shown = call("federation", "status", "clinic")
    assert "not started" in shown.out and "online" not in shown.out
    assert call("federation", "revoke", "clinic", "north").code == 0
    assert "revoked" in call("federation", "status", "clinic").out
    assert call("federation", "rotate", "clinic", "north", "--out", "new.bundle").code == 0
    before = Path("clinic/keys/server.crt").read_text()
    assert call("federation", "rotate", "clinic", "--server").code == 0
    assert Path("clinic/keys/server.crt").read_text() != before
    assert call("federation", "logs", "clinic").code == 0
    assert call("federation", "stop", "clinic").code == 0 and Path("clinic/stop").exists()


def test_rows_are_checked_before_joining(call: Call) -> None:
    call("federation", "init", "clinic", "--name", "clinic", "--host", "127.0.0.1")
    call("federation", "invite", "clinic", "plain-1")
    good = call("join", "plain-1.bundle", "--data", "digits", "--state", "kept", "--check")
    assert good.code == 0 and "40 training, 20 validation and 90 test rows that fit clinic" in good.err
    odd = call("join", "plain-1.bundle", "--data", "synthetic(alpha=1, beta=1)", "--state", "kept", "--check")
    assert odd.code == 2 and "name one with --client" in odd.err
    odd = call("join", "plain-1.bundle", "--data", "digits", "--client", "north", "--state", "kept", "--check")
    assert odd.code == 2 and "no client 'north'" in odd.err
    synthetic = "synthetic(alpha=1, beta=1)"
    call("federation", "init", "other", "--name", "other", "--host", "127.0.0.1", "--data", synthetic)
    call("federation", "invite", "other", "south")
    odd = call("join", "south.bundle", "--data", "digits", "--client", "plain-1", "--state", "kept", "--check")
    assert odd.code == 2 and "do not fit the federation: their shape is (3, 28, 28), and it needs (60,)" in odd.err
    assert not Path("kept").exists()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("serve", "nowhere"), "nowhere has no federation.toml"),
        (("join", "no.bundle", "--data", "digits", "--state", "s"), "there is no bundle no.bundle"),
        (("state", "ls", "nowhere"), "there is no folder nowhere"),
        (("export", "nowhere"), "there is no folder nowhere"),
        (("predict", "no.safetensors", "x.npy"), "there is no model no.safetensors"),
        (("federation", "init", "d", "--name", "d", "--host", "h", "--method", "fedhealth"), "needs public rows"),
        (("federation", "init", "d", "--name", "d", "--host", "h", "--ca", "x"), "three files"),
    ],
)
def test_wrong_input_is_named(command: tuple[str, ...], why: str, call: Call) -> None:
    ended = call(*command)
    assert ended.code == 2 and why in ended.err, ended.err


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_personal_model_of_a_run(call: Call) -> None:
    """Exported, read back into a plain module, it predicts what the run's own model predicts, and its card is right."""
    method = "LocalAttention(FedBN())"
    ran = call("run", "--data", "digits", "--method", method, "--rounds", 2, "--out", "run", "--quiet")
    assert ran.code == 0, ran.err
    ended = call("export", "run", "--client", "noisy-1", "--out", "noisy.safetensors")
    assert ended.code == 0, ended.err
    card, module = export.read(Path("noisy.safetensors"))
    assert (card.client, card.round, card.point, card.classes) == ("noisy-1", 2, "received", list("0123456789"))
    federation = load("digits")
    i = federation.clients.index("noisy-1")
    rows = federation.test[i]
    row = RunFolder(Path("run")).rows()[-1]
    with torch.no_grad():
        right = (module(federation.x[rows]).argmax(1) == federation.y[rows]).double().mean()
    assert float(right) == pytest.approx(row["test"]["accuracy"][i]) == card.metrics["test"]["accuracy"]
    np.save("rows.npy", federation.x[rows[:3]].numpy())
    told = call("predict", "noisy.safetensors", "rows.npy")
    assert told.code == 0, told.err
    lines = list(csv.DictReader(told.out.splitlines()))
    with torch.no_grad():
        best = module(federation.x[rows[:3]]).softmax(1).max(1)
    assert [line["label"] for line in lines] == [str(int(label)) for label in best.indices]
    assert [float(line["probability"]) for line in lines] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert json.loads(Path("noisy.json").read_text())["method"].startswith("LocalAttention")


def exported(call: Call, data: str, model: str, client: str) -> tuple[export.Card, torch.nn.Module]:
    """The personal model of a short run."""
    ran = call("run", "--data", data, "--model", model, "--method", "ditto", "--rounds", 2, "--out", "run", "--quiet")
    assert ran.code == 0, ran.err
    assert call("export", "run", "--client", client, "--out", "m.safetensors").code == 0
    return export.read(Path("m.safetensors"))


def test_rows_of_a_table_are_prepared_as_those_learned_from(call: Call) -> None:
    """A file of further rows is given as it is: other units, words, more columns in another order."""
    draw = np.random.default_rng(0)
    lines = ["site,colour,size,weight,ill"]
    for row in range(60):
        colour, size = ("red", "blue", "green")[row % 3], 500 + 100 * draw.normal()
        ill = "no" if size < 500 else "yes"
        lines.append(f"{('north', 'south')[row % 2]},{colour},{size:.3f},{draw.normal():.3f},{ill}")
    Path("t.csv").write_text("\n".join(lines) + "\n")
    data = "table('t.csv', label='ill', site='site', categories=('colour',))"
    card, module = exported(call, data, "mlr", "north")
    with torch.no_grad():
        best = module(load(data).x).softmax(1).max(1)
    for header in (lines[0], lines[0].replace("site", "place")):
        Path("further.csv").write_text("\n".join([header, *lines[1:]]) + "\n")
        told = call("predict", "m.safetensors", "further.csv")
        assert told.code == 0, told.err
        found = list(csv.DictReader(told.out.splitlines()))
        assert [line["label"] for line in found] == [card.classes[i] for i in best.indices]
        assert [float(line["probability"]) for line in found] == pytest.approx(best.values.tolist(), abs=1e-4)
    Path("further.csv").write_text("colour,size,weight\nred,many,1\n")
    wrong = call("predict", "m.safetensors", "further.csv")
    assert wrong.code == 2 and "further.csv, line 2: 'many' under 'size' is no number" in wrong.err
    assert wrong.out == ""


def test_a_picture_is_prepared_as_those_learned_from(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its size and its colours are."""
    Image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd() / "cache"))
    draw = np.random.default_rng(0)
    for site in ("north", "south"):
        for kind, level in (("dark", 60), ("light", 190)):
            for number in range(5):
                path = Path("pictures", site, kind, f"{number}.png")
                path.parent.mkdir(parents=True, exist_ok=True)
                picture = Image.fromarray((level + draw.integers(-50, 50, (20, 31))).astype(np.uint8))
                picture.convert("L" if number % 2 else "RGB").save(path)
    data = "pictures('pictures', size=16)"
    card, module = exported(call, data, "mlr", "south")
    federation = load(data)
    with torch.no_grad():
        best = module(federation.inputs(torch.arange(20))).softmax(1).max(1)
    told = call("predict", "m.safetensors", *sorted(map(str, Path("pictures").rglob("*.png"))))
    assert told.code == 0, told.err
    found = list(csv.DictReader(told.out.splitlines()))
    assert [float(line["probability"]) for line in found] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert [line["label"] for line in found] == [card.classes[i] for i in best.indices]


def test_what_cannot_be_exported_is_named(call: Call) -> None:
    compared = call("compare", "--method", "ditto", "--rounds", 1, "--out", "both", "--quiet")
    assert compared.code == 0, compared.err
    ended = call("export", "both", "--client", "noisy-1")
    assert ended.code == 2 and "both is a comparison; export from one of its runs: both/local/seed-0" in ended.err
    ended = call("export", "both/ditto/seed-0", "--client", "noisy-9")
    assert ended.code == 2 and "there is no client 'noisy-9'; name one with --client: plain-1" in ended.err


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_predicted_is_named(call: Call) -> None:
    assert call("run", "--method", "fedavg", "--rounds", 1, "--out", "run", "--quiet").code == 0
    assert call("export", "run", "--client", "plain-1", "--out", "m.safetensors").code == 0
    np.save("wrong.npy", np.zeros((2, 3, 5)))
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    Path("x.txt").write_text("1")
    for file, why in (("wrong.npy", "(2, 3, 5)"), ("objects.npy", "cannot be read"), ("x.txt", "of no kind")):
        ended = call("predict", "m.safetensors", file)
        assert ended.code == 2 and why in ended.err, ended.err
    data = bytearray(Path("m.safetensors").read_bytes())
    Path("m.safetensors").write_bytes(data[:200])
    assert "is not a model that" in call("predict", "m.safetensors", "wrong.npy").err
    assert "name one client with --client" in call("export", "run").err
