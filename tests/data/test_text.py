"""AG News from the published tables: labels, words and their numbers."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from fedtailor import load
from fedtailor.data import ag_news
from fedtailor.data.text import words_of
from fedtailor.registry import WrongInput

TRAIN = (
    '"3","Wall St. Bears","Short-sellers, Wall Street\'s \\band"\n'
    '"1","He said ""no""","Twice;\nsaid no"\n'
    '"4","Said","(said) said said!"\n'
)
TEST = '"2","Ball: no?","said"\n'


def tables(home: Path, train: str = TRAIN, test: str = TEST) -> None:
    (home / "ag_news").mkdir(exist_ok=True)
    (home / "ag_news" / "train.csv").write_text(train, encoding="utf-8")
    (home / "ag_news" / "test.csv").write_text(test, encoding="utf-8")


def test_english_is_cut_into_words_and_marks() -> None:
    assert words_of('It\'s "fine": (a.b), isn;t<br />it?! ') == [
        "it", "'", "s", "fine", "(", "a", ".", "b", ")", ",", "isn", "t", "it", "?", "!",
    ]  # fmt: skip


def test_texts_are_the_numbers_of_their_words_the_most_frequent_first(home: Path) -> None:
    """By hand: said stands seven times, no three times, wall twice."""
    tables(home)
    found = ag_news(words=8)
    assert found.y.tolist() == [2, 0, 3, 1] and found.classes == ("World", "Sports", "Business", "Sci/Tech")
    split = [words_of(text) for text in (
        "Wall St. Bears Short-sellers, Wall Street's \\band", 'He said "no" Twice;\nsaid no', "Said (said) said said!",
        "Ball: no? said",
    )]  # fmt: skip
    counts = {word: sum(text.count(word) for text in split) for text in split for word in text}
    assert counts["said"] == 7 and counts["no"] == 3 and counts["wall"] == 2
    order = sorted(counts, key=lambda word: (-counts[word], word))
    assert order[:3] == ["said", "no", "wall"]
    number = {word: place + 1 for place, word in enumerate(order)}
    for row, text in zip(found.x.tolist(), split, strict=True):
        assert row == ([number[word] for word in text] + [0] * 8)[:8]
    assert found.x[3].tolist() == [number["ball"], 2, number["?"], 1, 0, 0, 0, 0]
    assert found.x.dtype is torch.int64
    assert found.model == f"fasttext(vocabulary={len(counts) + 1})"


def test_the_model_that_it_states_has_a_vector_for_every_word(home: Path) -> None:
    from fedtailor import FedAvg, RunSpec, federate

    tables(home, TRAIN * 4)
    made = load("ag_news(words=6)", "iid(clients=2)")
    run = federate(RunSpec.of(made, FedAvg(), rounds=1), made)
    vectors = run.model(0).embedding.weight
    assert len(vectors) == int(made.x.max()) + 1


def test_the_compact_copy_has_a_header_and_labels_from_0(home: Path) -> None:
    text = "split,label,source,text\ntrain,0,a,one two\ntest,3,t,\"two, three\"\n"
    (home / "ag_news.csv.gz").write_bytes(gzip.compress(text.encode()))
    found = ag_news(words=4)
    assert found.y.tolist() == [0, 3]
    assert found.x.tolist() == [[3, 1, 0, 0], [1, 2, 4, 0]]  # two; then the comma, one and three


@pytest.mark.parametrize(("train", "words"), [
    (TRAIN + '"5","a","b"\n', r"train.csv, line 5: \['5', 'a', 'b'\] is no label from 1 to 4"),
    (TRAIN + '"1","a"\n', r"train.csv, line 5: \['1', 'a'\] is no label"),
])  # fmt: skip
def test_a_wrong_row_is_named_by_its_line(train: str, words: str, home: Path) -> None:
    """The second row goes over two lines."""
    tables(home, train)
    with pytest.raises(WrongInput, match=words):
        ag_news()


def test_other_wrong_input(home: Path) -> None:
    with pytest.raises(WrongInput, match="words=0"):
        ag_news(words=0)
    with pytest.raises(WrongInput, match="ag_news is not at hand"):
        ag_news()
    (home / "ag_news.csv.gz").write_bytes(gzip.compress(b"label,text\n1,a\n"))
    with pytest.raises(WrongInput, match=r"line 1: the columns are \['label', 'text'\]"):
        ag_news()
    (home / "ag_news.csv.gz").write_bytes(gzip.compress(b"split,label,source,text\ntest,4,t,a\n"))
    with pytest.raises(WrongInput, match=r"line 2: .*label from 0 to 3"):
        ag_news()
