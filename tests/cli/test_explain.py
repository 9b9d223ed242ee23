"""`explain`: tables in the terminal, a page, pictures as files; and words where there is nothing to show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from calling import Call, Ended, contents

from fedtailor import registry
from fedtailor.cli.explain import explaining


@pytest.fixture
def explained(toy: Call) -> Call:
    """`explained("FedAMP")` runs a method for two rounds on the toy data, into a folder `run`."""

    def explained(method: str, *options: object) -> Ended:
        ended = toy("run", "--method", method, "--rounds", 2, "--model", "lenet_bn", "--out", "run", *options)
        assert ended.code == 0, ended.err
        return ended

    return explained


def rows_of(text: str) -> dict[str, list[str]]:
    lines = [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│")]
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in lines}


def shown(folder: str, where: str) -> dict[str, object]:
    """What the last round of a record shows."""
    rows = [json.loads(line) for line in Path(folder, "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    found: dict[str, object] = rows[1]["explain"][where]
    return found


def test_a_map_in_numbers_and_as_a_page(explained: Call, call: Call) -> None:
    explained("FedAMP")
    ended = call("explain", "run", "--format", "png", "--format", "svg")
    assert ended.code == 0, ended.err
    assert "FedAMP  Round 2 of 2, seed 0. Shown by the server: attention." in ended.out
    xi = shown("run", "server")["attention"]
    assert isinstance(xi, list)
    own = sum(xi[i][i] for i in range(4)) / 4
    others = sum(sum(row) for row in xi) / 4 - own
    table = rows_of(ended.out)
    assert table["attention"] == [f"{own:.3f}", f"{others:.3f}", f"{others / 3:.3f}"], "iid clients have no groups"
    assert Path("run/explain.html").is_file() and "Open run/explain.html" in ended.err
    assert {path.name for path in Path("run/figures").iterdir()} == {"learned-attention.png", "learned-attention.svg"}
    assert max(map(len, ended.out.splitlines())) <= 100


def test_one_client_one_round_and_another_place(explained: Call, call: Call) -> None:
    explained("pFedLA")
    name = "client-2"
    ended = call("explain", "run", "--client", name, "--round", 1, "--out", "elsewhere.html")
    assert ended.code == 0, ended.err
    assert Path("elsewhere.html").is_file() and not Path("run/explain.html").exists()
    assert "Round 1 of 2" in ended.out
    rows = [json.loads(line) for line in Path("run/rows.jsonl").read_text(encoding="utf-8").splitlines()]
    number = rows_of(ended.out)
    clients = json.loads(Path("run/run.json").read_text(encoding="utf-8"))["data"]["clients"]
    mixture = rows[0]["explain"]["clients"][str(clients.index(name))]
    first, second = (mixture[f"mixture[SE,ECA,CA]/attention{k}"] for k in (1, 2))
    expected = [f"{v:.4f}" for v in (first[0], second[0], (first[0] + second[0]) / 2)]
    assert number[name] == ["SE", *expected]
    assert not [other for other in clients if other != name and other in ended.out]


def test_explaining_changes_no_record(explained: Call, call: Call) -> None:
    explained("FedALA")
    before = contents(Path("run"))
    assert call("explain", "run", "--out", "page").code == 0
    assert contents(Path("run")) == before


def test_a_comparison_shows_each_method_that_learned_something(
    toy: Call, call: Call, without_report: None
) -> None:
    methods = ("--method", "FedAvg", "--method", "FedFomo(M=2)", "--method", "PartialFedAdaptive")
    assert toy("compare", *methods, "--rounds", 2, "--model", "lenet_bn", "--out", "both").code == 0
    ended = call("explain", "both")
    assert ended.code == 0, ended.err
    assert re.findall(r"^(\S+)  Round 2 of 2", ended.out, re.MULTILINE) == ["FedFomo(M=2)", "PartialFedAdaptive"]
    assert "Nothing to show of Local, FedAvg." in ended.err
    text = Path("both/explain.html").read_text(encoding="utf-8")
    assert "FedFomo(M=2) and PartialFedAdaptive" in text and "probability of loading globally" in text


# ---------- what cannot be ----------


def refused(ended: Ended) -> str:
    """The one line of an error."""
    assert ended.code == 2 and not ended.out
    [line] = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    return line


def test_what_is_no_run(call: Call) -> None:
    assert "there is no folder nowhere; give a folder that `fedtailor run` or `compare` wrote" in refused(
        call("explain", "nowhere")
    )
    Path("empty").mkdir()
    assert "it has no run.json" in refused(call("explain", "empty"))


def test_a_method_that_learns_nothing_beside_its_model(explained: Call, call: Call) -> None:
    explained("FedAvg")
    told = refused(call("explain", "run"))
    assert "FedAvg recorded nothing that was learned beside the models, in rounds 1 and 2" in told
    assert "; explain is for " in told and "FedMCSA" in told and "FedProx" not in told
    assert not Path("run/explain.html").exists()


def test_a_round_that_was_not_tested(explained: Call, call: Call) -> None:
    explained("FedAMP", "--eval-every", 2)
    assert "round 1 of FedAMP was not tested" in refused(call("explain", "run", "--round", 1))
    assert "choose of round 2" in refused(call("explain", "run", "--round", 1))
    assert "there is no round 3 of FedAMP, which has 2" in refused(call("explain", "run", "--round", 3))


def test_a_client_that_is_none(explained: Call, call: Call) -> None:
    explained("FedAMP")
    assert "did you mean client-1?" in refused(call("explain", "run", "--client", "clinet-1"))
    assert "there are client-0, client-1, client-2, client-3" in refused(call("explain", "run", "--client", "x"))


def test_formats_and_numbers(explained: Call, call: Call) -> None:
    explained("FedAMP")
    assert "'gif'; choose html, pdf, png, svg" in refused(call("explain", "run", "--format", "gif"))
    assert "--round" in refused(call("explain", "run", "--round", "last"))


def test_those_that_explain_are_found_by_their_hooks() -> None:
    found = explaining()
    assert {"APPLE", "FedALA", "FedAMP", "FedFomo", "FedHAM", "FedMCSA", "pFedLA", "PartialFedAdaptive"} <= set(found)
    assert not {"FedAvg", "FedBN", "Ditto", "Local", "FedProx", "PartialFedFix", "SCAFFOLD"} & set(found)
    assert set(found) < set(registry.names("method"))
