"""`fedtailor reproduce`, on a small table and on the lists."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from calling import FINDS_US, Call
from small_table import SMALL_TABLE

from fedtailor import papers

SCRIPT = '''
import sys
sys.path[:0] = [{tests!r}]
from small_table import SMALL_TABLE
from fedtailor import papers
from fedtailor.cli import main
papers.TABLES["fedmcsa:table2"] = SMALL_TABLE
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
'''
TESTS = Path(__file__).parents[1]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(papers.TABLES, "fedmcsa:table2", SMALL_TABLE)


def test_the_list_names_every_table_with_a_time(call: Call) -> None:
    ended = call("reproduce", "list")
    assert ended.code == 0
    for name in papers.TABLES:
        assert name in ended.out
    assert re.search(r"\d+ (s|min|h)", ended.out) and "factor of two" in ended.err
    assert not re.search(r"\b1 cells|\b\d{3,} h\b", ended.out)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fedmcsa:table9"], "did you mean fedmcsa:table"),
        (["nonsense"], "there are pfedla:table1"),
        (["fedmcsa:table2", "--scale", "huge"], "choose quick, reduced, full"),
        (["fedham:table3", "--scale", "full"], "choose quick or reduced"),
        (["fedmcsa:table2", "--only", "method=FedSGD"], "there are FedMCSA, FedMCSA-MCSA"),
        (["fedmcsa:table2", "--only", "size=big"], "choose method, data, model"),
        (["fedmcsa:table2", "--seeds", "0"], "1 or more"),
        (["fedmcsa:table2", "--jobs", "none"], "not a whole number"),
        (["fedmcsa:table2", "here"], "one argument too many"),
        (["report"], "name the folder of the records"),
        (["report", "nowhere"], "no folder nowhere"),
    ],
)
def test_wrong_input(call: Call, arguments: list[str], told: str) -> None:
    ended = call("reproduce", *arguments)
    assert ended.code == 2, ended.err
    assert told in ended.err.replace("\n", " ") and ended.err.count("error:") == 1
    assert not Path("runs").exists()


def test_a_small_table(call: Call, small: None) -> None:
    ended = call("reproduce", "fedmcsa:table2", "--jobs", 1, "--out", "mine", "--keep", "kept")
    assert ended.code == 0, ended.err
    assert "4 of 5 cells" in ended.err and "FMNIST/MLR left out" in ended.err and "nowhere.npz" in ended.err
    assert "digits/MLR stands in for CIFAR10" in ended.err
    assert "MNIST/MLR" in ended.out and "CIFAR10/MLR, with digits in its place" in ended.out
    assert "FedMCSA is better than FedAvg: " in ended.out and "4 of 5 cells" in ended.out
    for kind in ("md", "html"):
        assert "94.06" not in ended.out and Path(f"mine/fedmcsa-table2.{kind}").exists()
    page = Path("mine/fedmcsa-table2.html").read_text(encoding="utf-8")
    assert "http://" not in page and "https://" not in page and "2 rounds" in page
    assert page.count("<figure>") == 2 and "Accuracy over the rounds" in page
    for name in ("rounds", "rounds-narrow", "clients", "clients-narrow"):
        assert all(Path(f"mine/fedmcsa-table2-figures/{name}.{kind}").exists() for kind in ("pdf", "png"))
    assert "fedmcsa-table2-figures" in ended.err
    kept = sorted(path.name for path in Path("kept/fedmcsa-table2/quick").iterdir())
    assert len(kept) == 4 and all(path.endswith("-seed-0.json") for path in kept)

    again = call("reproduce", "fedmcsa:table2", "--jobs", 1, "--out", "mine")
    assert again.code == 0 and "4 of 4 runs are complete already" in again.err
    assert again.out == ended.out

    only = ("--only", "method=FedAvg,data=MNIST")
    more = call("reproduce", "fedmcsa:table2", "--jobs", 1, "--out", "mine", "--seeds", 2, *only)
    assert more.code == 0 and "1 of 2 runs are complete already" in more.err and "±" in more.out


def test_a_page_of_kept_records(call: Call, small: None) -> None:
    assert call("reproduce", "fedmcsa:table2", "--jobs", 1, "--out", "mine", "--keep", "kept").code == 0
    Path("kept/fedmcsa-table2/remarks.md").write_text("It was raining.\n", encoding="utf-8")
    stale = Path("kept/fedmcsa-table2/quick/mnist-mlr-fedavg-00000000-seed-0.json")
    stale.write_text("{}", encoding="utf-8")
    ended = call("reproduce", "report", "kept", "--out", "page.md")
    assert ended.code == 0, ended.err
    text = Path("page.md").read_text(encoding="utf-8")
    assert "| `fedmcsa:table2` | quick | 4 of 5 |" in text
    assert "It was raining." in text and "Neurocomputing" in text
    assert "fedtailor reproduce fedmcsa:table2 --scale quick --keep results" in text
    assert stale.name in text and stale.name in ended.err
    assert "| FedAvg |" in text and "with digits in its place" in text
    places = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert sorted(places) == [f"page/fedmcsa-table2-quick-{name}.png" for name in ("clients", "rounds")]
    assert all(Path(place).read_bytes().startswith(b"\x89PNG") for place in places), "a figure that is shown is there"
    assert sorted(str(path) for path in Path("page").iterdir()) == sorted(places)


def test_ctrl_c_keeps_what_was_reached(tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(SCRIPT.format(tests=str(TESTS)), encoding="utf-8")
    asked = ["--jobs", "2", "--out", "mine", "--keep", "kept here"]
    command = [sys.executable, str(script), "reproduce", "fedmcsa:table2", *asked]
    process = subprocess.Popen(
        command, env={**os.environ, **FINDS_US}, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not list(tmp_path.glob("mine/*/seed-0/rows.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("it was done before the signal came")
    assert process.returncode == 130, err
    assert "Traceback" not in err
    told = "fedtailor reproduce fedmcsa:table2 --scale quick --jobs 2 --out mine --keep 'kept here'"
    assert f"what was reached is kept, go on with: {told}\n" in err, "with the same folders, or it would begin anew"


def test_counts_are_exact(call: Call) -> None:
    ended = call("reproduce", "pfedla:table2", "--out", "mine", "--keep", "kept")
    assert ended.code == 0, ended.err
    assert "45,178" in ended.out and "5 of 6 exact" not in ended.out
    assert ended.out.count("exact") >= 5
    assert call("reproduce", "report", "kept", "--out", "page.md").code == 0
    assert "45,950" in Path("page.md").read_text(encoding="utf-8")
