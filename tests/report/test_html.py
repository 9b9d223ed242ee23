from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import fedtailor.report
from fedtailor.registry import WrongInput
from fedtailor.report.html import write_report

Make = Callable[..., Path]
MakeData = Callable[..., dict[str, Any]]
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """What a browser would see: elements, attributes, text by element."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.source = text
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]

    def words(self) -> str:
        return " ".join(" ".join(data.split()) for tag, data in self.text if tag not in ("style", "script"))


def page(*folders: Path, out: Path, **options: Any) -> Page:
    return Page(write_report(folders, out / "out", **options).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def usual(usual_comparison: Path) -> Page:
    return page(usual_comparison, out=usual_comparison.parent)


def test_nothing_is_loaded_from_anywhere(usual: Page) -> None:
    linked = [link for name in ("src", "href", "xlink:href", "data", "action") for link in usual.attributes(name)]
    assert linked and all(link.startswith("#") for link in linked)
    styles = [*usual.attributes("style"), *(text for tag, text in usual.text if tag == "style")]
    assert not any(re.search(r"@import|url\((?!#)", style) for style in styles)
    assert not {"link", "iframe", "img", "object", "embed", "base"} & {tag for tag, _ in usual.elements}
    policy = next(a["content"] for tag, a in usual.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    script = "".join(text for tag, text in usual.text if tag == "script")
    assert not re.search(r"fetch|XMLHttp|import|WebSocket|http", script)


def test_ids_are_unique_and_every_reference_resolves(usual: Page) -> None:
    ids = usual.attributes("id")
    assert len(ids) == len(set(ids))
    referred = [link[1:] for link in usual.attributes("href")]
    referred += [name for names in usual.attributes("aria-labelledby") for name in names.split()]
    referred += re.findall(r"url\(#([^)]*)\)", usual.source)
    assert referred and set(referred) <= set(ids)


def test_both_themes_define_every_colour(usual: Page) -> None:
    style = next(text for tag, text in usual.text if tag == "style")
    used = set(re.findall(r"var\(--([\w-]+)\)", usual.source)) - {"much", "side"}
    light = style[: style.index("@media")]
    dark = style[style.index("prefers-color-scheme") : style.index("* {")]
    assert used >= {"ink", "surface", "series-0", "alone", "fill"}
    for theme in (light, dark):
        assert used <= set(re.findall(r"--([\w-]+):", theme))
    assert style.count("--series-0: #48acfe") == 2, "by the system's wish and by the button"


def test_everything_that_belongs_on_the_page_is_there(usual: Page) -> None:
    words = usual.words()
    for part in (
        "FedBN helps 12 of 12 sites",
        "Comparison",
        "Over the rounds",
        "Site by site",
        "Who holds what",
        "Traffic",
        "Training loss",
        "How to read it",
        "Settings",
        "fedtailor compare --data digits --method 'FedBN()'",
        "fedtailor 0.1.0, torch 2.10",
        "title = {FedBN()}",
        "digits | domain(sites=12) | seed=0",
    ):
        assert part in words, part
    headings = [int(tag[1]) for tag, _ in usual.elements if re.fullmatch("h[1-6]", tag)]
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(headings))
    pictures = [attributes for tag, attributes in usual.elements if tag == "svg"]
    assert len(pictures) == 10, "five figures, each wide and narrow"
    assert all(p["role"] == "img" and p["aria-labelledby"] for p in pictures)
    tables = sum(tag == "table" for tag, _ in usual.elements)
    assert tables == sum("scroll" in a.get("class", "").split() for _, a in usual.elements), (
        "a table scrolls in its box"
    )


def test_every_run_and_every_client_is_present(make_comparison: Make, tmp_path: Path, make_data: MakeData) -> None:
    folder = make_comparison(["FedBN()", "Local()"], seeds=3)
    words = page(folder, out=folder.parent).words()
    for run in json.loads((folder / "comparison.json").read_text())["runs"]:
        assert Path(run["path"]).name in words
    assert words.count("seed-") == 6 and words.count("12 of 12") >= 6
    for client in make_data(12)["clients"]:
        assert client in words
    assert str(tmp_path) not in words, "a page that is passed on names nobody's home"


def test_names_are_text_and_never_markup(make_comparison: Make, tmp_path: Path, make_data: MakeData) -> None:
    bad = "<script>alert('x')</script>\"&"
    block = make_data(12)
    block["clients"][3] = block["group_names"][1] = block["classes"][2] = block["name"] = block["source"] = bad
    folder = make_comparison(
        ["FedBN()", "Local()"], data=block, citation=bad, fedtailor=bad, model=bad, plan={bad: bad}, spec={"lr": bad}
    )
    plan = json.loads((folder / "comparison.json").read_text())
    plan["command"] = bad
    plan["runs"][0]["label"] = plan["runs"][1]["label"] = bad
    (folder / "comparison.json").write_text(json.dumps(plan))
    shown = page(folder, out=tmp_path)
    assert sum(tag == "script" for tag, _ in shown.elements) == 1
    assert "alert" not in next(text for tag, text in shown.text if tag == "script")
    assert shown.words().count(bad) > 10
    assert not [name for _, attributes in shown.elements for name in attributes if name.startswith("on")]


def test_a_large_report_stays_small(make_comparison: Make, tmp_path: Path, make_data: MakeData) -> None:
    methods = [
        f"{name}()"
        for name in ["FedAvg", "FedBN", "FedProx", "FedPer", "FedRep", "SCAFFOLD", "FedALA", "FedAMP", "Local"]
    ]
    folder = make_comparison(methods, seeds=1, data=make_data(100, classes=100), rounds=100)
    written = write_report([folder], tmp_path)
    assert written.stat().st_size < 5_000_000


def test_trouble_is_shown_above_the_numbers(make_comparison: Make, tmp_path: Path) -> None:
    folder = make_comparison(["FedBN()", "Local()"], seeds=1)
    rows = (folder / "fedbn/seed-0/rows.jsonl").read_text().splitlines()
    stopped = json.dumps({**json.loads(rows[3]), "stopped": [0]})
    (folder / "fedbn/seed-0/rows.jsonl").write_text("\n".join([*rows[:3], stopped, rows[4][:50]]))
    words = page(folder, out=tmp_path).words()
    assert words.index("Before you rely on this") < words.index("Comparison")
    for part in ("So far:", "not finished", "half written", "became NaN and was stopped at plain-0 (round 4)"):
        assert part in words


def test_each_federation_has_its_own_part(make_run: Make, tmp_path: Path) -> None:
    shown = page(
        make_run(clients=12), make_run("Local()", clients=6), make_run("Local()", name="l", clients=12), out=tmp_path
    )
    words = shown.words()
    assert "2 federations" in words
    assert "FedBN and Local on digits, 12 sites" in words and "Local on digits, 6 sites" in words
    ids = shown.attributes("id")
    assert len(ids) == len(set(ids))


def test_what_the_server_sees_and_when_numbers_were_taken(make_run: Make, tmp_path: Path) -> None:
    parts = {"total": 44_426, "shared": 0, "personal": 44_426}
    runs = [make_run("Local()", parameters=parts), make_run("Centralised()"), make_run("FedBN()", finish_epochs=5)]
    shown = page(*runs, out=tmp_path)
    seen = dict(re.findall(r"(Local|Centralised|FedBN)\(\) +[\d,]+ +[\d,]+ +(.*?) +[05] ", shown.words()))
    assert seen == {"Local": "nothing", "Centralised": "everybody's rows", "FedBN": "sums of uploads"}
    assert "end of run: Local and Centralised; end of run, 5 tuning epochs: FedBN." in shown.words()


def test_where_it_is_written(make_comparison: Make, make_data: MakeData, tmp_path: Path) -> None:
    folder = make_comparison(["FedBN()", "Local()"], seeds=1, data=make_data(3))
    assert write_report([folder], tmp_path / "new/dir") == tmp_path / "new/dir/report.html"
    assert write_report([folder], tmp_path / "my.html") == tmp_path / "my.html"
    assert write_report([folder], tmp_path / "text", ("md",)) == tmp_path / "text/report.md"
    assert write_report([folder], tmp_path / "both", ("html", "png")) == tmp_path / "both/report.html"
    assert len(list((tmp_path / "both/figures").glob("*.png"))) == 5
    assert not (tmp_path / "text/report.html").exists()


def test_what_cannot_be_written_is_an_error(make_comparison: Make, make_data: MakeData, tmp_path: Path) -> None:
    folder = make_comparison(["FedBN()"], seeds=1, data=make_data(3))
    with pytest.raises(WrongInput, match="'docx'; choose html, md, pdf, png, svg"):
        write_report([folder], tmp_path, ("docx",))
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongInput, match="cannot write the report"):
        write_report([folder], tmp_path / "file" / "below")


def test_the_page_is_the_same_every_time(make_comparison: Make, make_data: MakeData, tmp_path: Path) -> None:
    folder = make_comparison(["FedBN()", "Local()"], seeds=1, data=make_data(3))
    assert write_report([folder], tmp_path / "a").read_text() == write_report([folder], tmp_path / "b").read_text()


def test_reports_read_records_only() -> None:
    forbidden = {"methods", "rounds", "driver", "local", "method", "runners", "arch", "nn"}
    for file in Path(fedtailor.report.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not (name.startswith("fedtailor.") and name.split(".")[1] in forbidden), f"{file.name}: {name}"
