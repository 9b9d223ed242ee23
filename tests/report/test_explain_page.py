"""The page of what was learned, its part in a report, its figures as files, and what is said where there is nothing."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from explained import Rows, matrix, one, showing
from rich.console import Console
from test_html import Page

from fedtailor.registry import WrongInput
from fedtailor.report.explain import NothingLearned, find, write_explanation
from fedtailor.report.html import write_report
from fedtailor.report.learned.numbers import Table, as_html, as_rich, tables
from fedtailor.report.learned.section import notes
from fedtailor.report.read import read

Make = Callable[..., Path]


def everything(i: int, t: int) -> dict[str, Any]:
    """One of each kind."""
    return {
        "alpha": matrix(12, t)[i].tolist(), "beta[own,attended,global]": [0.3, 0.3, 0.4],
        "mixture[SE,ECA,CA]/one": [0.2, 0.3, 0.5], "mixture[SE,ECA,CA]/two": [0.4, 0.3, 0.3],
        "weights[0..1]/fc": [0.0, 0.25, 0.75], "loss[epoch]": [2.0, 1.5, None], "chance/conv": 0.5 + t / 100,
    }  # fmt: skip


def server(t: int) -> dict[str, Any]:
    return {"clients": list(range(12)), "attention/conv": matrix(12).tolist(), "attention/fc": matrix(12, 1).tolist()}


ALL: Callable[[Rows], Rows] = showing(everything, server)


FEW: Callable[[Rows], Rows] = showing(lambda i, t: {"alpha": matrix(12)[i].tolist(), "chance/conv": t / 100})


@pytest.fixture
def learned_run(make_run: Make) -> Path:
    return make_run("Clever()", rows=ALL, name="clever")


def page_of(text: Path) -> Page:
    return Page(text.read_text(encoding="utf-8"))


def by_title(tables_of: list[Table]) -> dict[str, Table]:
    return {table.title: table for table in tables_of}


# ---------- the page ----------


def test_the_page_has_every_picture_and_loads_nothing(learned_run: Path, tmp_path: Path) -> None:
    shown = page_of(write_explanation(find(read([learned_run])), tmp_path / "out"))
    words = shown.words()
    for part in ("What Clever learned on digits", "Round 12 of 12, seed 0.", "Shown by the server: attention.",
                 "Shown by each client of itself: alpha, beta, mixture, weights, loss and chance.",
                 "Means over the rows of the map.", "noisy-9"):  # fmt: skip
        assert part in words, part
    pictures = [attributes for tag, attributes in shown.elements if tag == "svg"]
    assert len(pictures) == 2 * 7, "seven, each wide and narrow"
    assert all(p["role"] == "img" and p["aria-labelledby"] for p in pictures)
    linked = [link for name in ("src", "href", "xlink:href") for link in shown.attributes(name)]
    assert linked and all(link.startswith(("#", "data:image/png;base64,")) for link in linked)
    assert {tag for tag, a in shown.elements if a.get("href", "").startswith("data:")} == {"image"}
    policy = next(a["content"] for tag, a in shown.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    ids = shown.attributes("id")
    assert len(ids) == len(set(ids))
    referred = [link[1:] for link in linked if link.startswith("#")] + re.findall(r"url\(#([^)]*)\)", shown.source)
    assert set(referred) <= set(ids)
    headings = [int(tag[1]) for tag, _ in shown.elements if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1 and all(after <= before + 1 for before, after in itertools.pairwise(headings))
    style = next(text for tag, text in shown.text if tag == "style")
    assert "svg image { filter: var(--cells); }" in style and style.count("--cells: invert(1)") == 2


def test_a_report_has_the_same_pictures(make_run: Make, tmp_path: Path) -> None:
    plain, learned = make_run("FedBN()", name="plain"), make_run("Clever()", rows=FEW, name="few")
    shown = page_of(write_report([learned, plain], tmp_path / "both"))
    words = shown.words()
    assert words.index("Training loss") < words.index("What was learned", words.index("Settings") + 10)
    assert sum(tag == "svg" for tag, _ in shown.elements) == 2 * (5 + 2)
    assert [data for tag, data in shown.text if tag == "h3" and data == "Clever"]
    assert not [data for tag, data in shown.text if tag == "h3" and data == "FedBN"], "which shows nothing"
    ids = shown.attributes("id")
    assert len(ids) == len(set(ids))
    assert "What was learned" not in page_of(write_report([plain], tmp_path / "plain")).words()
    write_report([learned], tmp_path / "files", ("svg",))
    files = {path.name for path in (tmp_path / "files/figures").glob("learned-*")}
    assert files == {"learned-clever-alpha.svg", "learned-clever-chance.svg"}


def test_figures_as_files(make_run: Make, tmp_path: Path) -> None:
    folder = make_run("Clever()", rows=FEW, name="few")
    found = find(read([folder]))
    page = write_explanation(found, tmp_path / "a", ("html", "pdf", "png"))
    write_explanation(found, tmp_path / "b", ("pdf",))
    assert page == tmp_path / "a/explain.html" and not (tmp_path / "b/explain.html").exists()
    names = {path.name for path in (tmp_path / "a/figures").iterdir()}
    assert names == {f"learned-{name}.{kind}" for name in ("alpha", "chance") for kind in ("pdf", "png")}
    for path in (tmp_path / "b/figures").iterdir():
        assert path.read_bytes().startswith(b"%PDF")
        assert path.read_bytes() == (tmp_path / "a/figures" / path.name).read_bytes()
    two = find(read([folder, make_run("Other()", rows=FEW, name="other")]))
    write_explanation(two, tmp_path / "c.html", ("svg",))
    assert (tmp_path / "figures/learned-other-alpha.svg").exists()
    with pytest.raises(WrongInput, match="'gif'; choose html, pdf, png, svg"):
        write_explanation(found, tmp_path, ("gif",))
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongInput, match=r"cannot write into .*; choose another folder"):
        write_explanation(found, tmp_path / "file" / "below")


def test_two_things_of_one_name_are_two_files(make_run: Make, tmp_path: Path) -> None:
    rows = showing(lambda i, t: {"p": matrix(12)[i].tolist(), "p[a,b]": [0.5, 0.5]})
    write_explanation(find(read([make_run(rows=rows)])), tmp_path / "out", ("svg",))
    assert {path.name for path in (tmp_path / "out/figures").iterdir()} == {"learned-p.svg", "learned-p-2.svg"}


def test_the_page_is_the_same_every_time_and_names_are_text(
    make_run: Make, make_data: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    bad = "<script>alert('x')</script>\"&"
    data = make_data(12)
    data["clients"][3] = data["group_names"][1] = bad
    name = bad.replace("/", "")
    rows = showing(lambda i, t: {name: 1.0, "alpha": matrix(12)[0].tolist(), f"mixture[SE,{name}]": [0.5, 0.5]})
    folder = make_run(bad, data=data, rows=rows, name="bad")
    found = find(read([folder]))
    first = write_explanation(found, tmp_path / "a").read_text(encoding="utf-8")
    assert first == write_explanation(found, tmp_path / "b").read_text(encoding="utf-8")
    page = Page(first)
    assert sum(tag == "script" for tag, _ in page.elements) == 1 and page.words().count(bad) > 4


def test_a_hundred_clients_make_a_page_that_can_be_sent(make_run: Make, tmp_path: Path) -> None:
    def shown(i: int, t: int) -> dict[str, Any]:
        return {"alpha": matrix(100)[i].tolist(), "chance/a": 0.5, "chance/b": 0.2, "loss[epoch]": [1.0, 0.5]}

    def of_server(t: int) -> dict[str, Any]:
        return {f"attention/layer{k}": matrix(100, k).tolist() for k in range(5)}

    folder = make_run(clients=100, rows=showing(shown, of_server), rounds=3)
    assert write_explanation(find(read([folder])), tmp_path / "out").stat().st_size < 2_500_000


# ---------- the tables ----------


def test_tables_hold_the_numbers(learned_run: Path) -> None:
    found = one(learned_run)
    tabled = by_title([table for lesson in found.lessons for table in tables(lesson, found.sites)])
    sums = tabled["attention: to whom it goes"]
    assert sums.head == ("", "itself", "own group", "each", "other groups", "each", "ratio") and sums.about
    assert [row[0] for row in sums.rows] == ["conv", "fc"]
    values, order = matrix(12), found.sites.order
    assert order == list(range(12)), "two clients of each of six groups"
    own = sum(values[i, i] for i in range(12)) / 12
    near = sum(values[i, i ^ 1] for i in range(12)) / 12
    assert sums.rows[0][1:4] == (f"{own:.3f}", f"{near:.3f}", f"{near:.3f}")
    assert sums.rows[0][4:] == (
        f"{1 - own - near:.3f}", f"{(1 - own - near) / 10:.3f}", f"{near / ((1 - own - near) / 10):.2g}"
    )  # fmt: skip
    each = tabled["alpha: client by client"]
    alpha = matrix(12, 12)[4]
    best = max((j for j in range(12) if j != 4), key=lambda j: alpha[j])
    assert each.rows[4][-1].startswith(f"{found.sites.names[best]} {alpha[best]:.3f}, ")
    assert tabled["beta"].rows[0] == (found.sites.names[0], "0.3000", "0.3000", "0.4000")
    mixture = tabled["mixture"]  # as pFedLA's table 11
    assert mixture.head == ("client", "", "one", "two", "average")
    assert [row[1:] for row in mixture.rows[:3]] == [
        ("SE", "0.2000", "0.4000", "0.3000"),
        ("ECA", "0.3000", "0.3000", "0.3000"),
        ("CA", "0.5000", "0.3000", "0.4000"),
    ]
    assert tabled["weights"].rows[0] == (found.sites.names[0], "fc", "0", "25", "75")
    assert tabled["weights"].head[2:] == ("0", "0.333", "0.667")
    assert tabled["loss"].rows[0] == (found.sites.names[0], *["2.000 to 1.500 (2)"] * 4)
    assert tabled["loss"].head == ("client", "round 1", "round 5", "round 8", "round 12")
    assert tabled["chance, round 12"].rows[0] == (found.sites.names[0], "0.620")


def test_tables_of_one_client(learned_run: Path) -> None:
    found = one(learned_run).only(3)
    assert found is not None
    tabled = by_title([table for lesson in found.lessons for table in tables(lesson, found.sites)])
    name = found.sites.names[3]
    whole = tabled[f"attention of {name}"]
    assert whole.head == ("to client", "conv", "fc") and len(whole.rows) == 12
    assert whole.rows[5] == (found.sites.names[5], f"{matrix(12)[3, 5]:.3f}", f"{matrix(12, 1)[3, 5]:.3f}")
    assert "Means" not in tabled["attention: to whom it goes"].caption


def printed(table: Table, width: int) -> tuple[int, str]:
    """In how many pieces, and the text of them."""
    console = Console(width=width, record=True, file=io.StringIO())
    pieces = as_rich(table, width)
    for piece in pieces:
        console.print(piece)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    return len(pieces), text


def test_a_table_wider_than_the_terminal_goes_on_below() -> None:
    numbers = [f"{k / 10:.3f}" for k in range(20)]
    table = Table("wide", ("client", *(f"layer{k}" for k in range(20))), (("a", *numbers),))
    pieces, text = printed(table, 60)
    assert pieces == 4 and re.findall(r"\d\.\d{3}", text) == numbers


@pytest.mark.parametrize("width", [80, 100])
def test_every_cell_is_printed_whole(learned_run: Path, width: int) -> None:
    found = one(learned_run)
    for table in (table for lesson in found.lessons for table in tables(lesson, found.sites)):
        cells = {part.strip() for part in re.split("[│┃\n]", printed(table, width)[1])}
        assert {cell for row in table.rows for cell in row} <= cells, table.title


def test_a_table_on_the_page_is_text() -> None:
    text = as_html(Table("<t>", ("client", "most to"), (("<b>", "a & b"),), caption="<i>"))
    assert "<b>" not in text and "<i>" not in text and "a &amp; b" in text


# ---------- which round, which client, and where there is nothing ----------


def test_absent_clients_and_other_seeds_are_told(make_run: Make) -> None:
    rows = showing(everything, cohort=lambda i, t: i > 1 or t < 5)
    folders = [make_run(seed=seed, rows=rows, name=f"s{seed}") for seed in (0, 1)]
    [found] = find(read(folders))
    told = " ".join(notes(found))
    assert "2 clients did not take part in it: what is shown of them is of their last round before." in told
    assert "Seed 1 not shown." in told
    assert not find(read(folders), round=4)[0].since


def test_what_has_no_form_is_told(make_run: Make) -> None:
    [found] = find(read([make_run(rows=showing(lambda i, t: {"chance/a": 1.0, "odd": [1.0, 2.0]}))]))
    assert "Recorded too, in a form that has no picture: odd." in notes(found)


def test_nothing_learned_is_said_in_words(make_run: Make) -> None:
    with pytest.raises(NothingLearned, match=r"^FedBN recorded nothing that was learned .*, in rounds 1 to 12"):
        find(read([make_run()]))
    untested = make_run("FedHAM()", name="u", rows=showing(tested=lambda t: False))
    with pytest.raises(NothingLearned, match="FedHAM: no round has been tested yet"):
        find(read([untested]))


def test_a_round_that_shows_nothing_names_those_that_do(make_run: Make) -> None:
    rows = showing(lambda i, t: {"chance/a": 0.5} if t > 4 else {}, tested=lambda t: t % 2 == 0)
    runs = read([make_run("FedHAM()", rows=rows)])
    assert find(runs, round=6)[0].round == 6
    for round, message in (
        (7, "round 7 of FedHAM was not tested, and what is learned is recorded then; choose of rounds 6, 8, 10 and 12"),
        (4, "FedHAM showed nothing that it learned in round 4; it did in rounds 6, 8, 10 and 12"),
        (99, "there is no round 99 of FedHAM, which has 12; choose of rounds 6, 8, 10 and 12"),
        (0, "there is no round 0 of FedHAM, which has 12"),
    ):
        with pytest.raises(WrongInput, match=message):
            find(runs, round=round)


def test_a_comparison_shows_those_that_have_the_round(make_run: Make) -> None:
    late = make_run("FedHAM()", name="late", rows=showing(lambda i, t: {"chance/a": 0.5} if t > 6 else {}))
    early = make_run("Clever()", name="early", rows=showing(lambda i, t: {"chance/a": 0.5}))
    runs = read([late, early, make_run("FedBN()", name="plain")])
    assert [found.label for found in find(runs)] == ["FedHAM", "Clever"]
    assert [found.label for found in find(runs, round=3)] == ["Clever"]


def test_a_client_by_name(make_run: Make) -> None:
    runs = read([make_run(rows=showing(everything, cohort=lambda i, t: i != 11))])
    names = runs[0].clients
    [found] = find(runs, client=names[2])
    assert {client for lesson in found.lessons for client in getattr(lesson, "clients", (2,))} == {2}
    with pytest.raises(WrongInput, match=f"there is no client 'plian-0'; did you mean {names[0]}?"):
        find(runs, client="plian-0")
    with pytest.raises(WrongInput, match=f"there is no client 'zzz'; there are {', '.join(names)}"):
        find(runs, client="zzz")
    with pytest.raises(WrongInput, match=f"{names[11]} took part in no round that shows what it learned, up to"):
        find(runs, client=names[11])


def test_a_runs_own_label_is_its_name(make_run: Make) -> None:
    long = "LocalAttention(FedAvg(), kind='hybrid', se_reduction=None, weighting='uniform')"
    [comparison] = read([make_run(long, name="a", label="LocalAttention(FedAvg)")])
    assert comparison.entries[0].label == "LocalAttention(FedAvg)"
    info = json.loads((make_run(long, name="b") / "run.json").read_text())
    assert "label" not in info, "records before it was written are read as well"
    assert read([make_run(long, name="c")])[0].entries[0].label.startswith("LocalAttention(FedAvg, kind=")
