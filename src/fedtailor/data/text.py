"""AG News: short texts, as the numbers of their words."""

from __future__ import annotations

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedtailor.data.download import ORIGINS, Origin, Remote, originate, place
from fedtailor.data.federation import Dataset
from fedtailor.data.files import first_of, home
from fedtailor.registry import WrongInput, register

ADDRESS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
CLASSES = ("World", "Sports", "Business", "Sci/Tech")

# checksums: recorded alike by many who fetched them, beside torchtext's MD5
originate("ag_news", Origin(
    "for non-commercial use and research (AG's corpus; Zhang et al., 2015)",
    (
        Remote("train.csv", f"{ADDRESS}/train.csv", 29_470_338,
               "sha256:76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e"),
        Remote("test.csv", f"{ADDRESS}/test.csv", 1_857_427,
               "sha256:521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699"),
    ),
    compact="ag_news.csv.gz",
))  # fmt: skip

# the usual cut of English into words: marks stand apart; quotation marks, colons and semicolons go
MARKS = (("'", " ' "), ('"', ""), (".", " . "), ("<br />", " "), (",", " , "), ("(", " ( "), (")", " ) "), ("!", " ! "),
         ("?", " ? "), (";", " "), (":", " "))  # fmt: skip


def words_of(text: str) -> list[str]:
    text = text.lower()
    for mark, apart in MARKS:
        text = text.replace(mark, apart)
    return text.split()


def as_numbers(texts: Sequence[Sequence[str]], words: int) -> tuple[NDArray[np.int64], int]:
    """The first words of each text as numbers, the most frequent first, from 1 on, 0 for filling up; and how many
    numbers there are."""
    counts = Counter(word for text in texts for word in text)
    number = {word: place for place, word in enumerate(sorted(counts, key=lambda w: (-counts[w], w)), 1)}
    x = np.zeros((len(texts), words), np.int64)
    for row, text in zip(x, texts, strict=True):
        found = [number[word] for word in text[:words]]
        row[: len(found)] = found
    return x, len(number) + 1


def read_published(files: Sequence[Path]) -> Iterator[tuple[int, str]]:
    """Labels and texts: rows `"3","title","description"`, labels from 1."""
    for path in files:
        for number, row in rows_of(path, path.read_text(encoding="utf-8")):
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                raise WrongInput(f"{path}, line {number}: {row!r} is no label from 1 to 4, title and description")
            yield int(row[0]) - 1, f"{row[1]} {row[2]}"


def read_copy(path: Path) -> Iterator[tuple[int, str]]:
    """Labels and texts: a header, then rows with `split`, `label` from 0, `source`, `text`."""
    rows = rows_of(path, gzip.decompress(path.read_bytes()).decode("utf-8"))
    _, header = next(rows, (0, []))
    if header != ["split", "label", "source", "text"]:
        raise WrongInput(f"{path}, line 1: the columns are {header}; expected are split, label, source and text")
    for number, row in rows:
        if len(row) != 4 or row[1] not in ("0", "1", "2", "3"):
            raise WrongInput(f"{path}, line {number}: {row!r} is no split, label from 0 to 3, source and text")
        yield int(row[1]), row[3]


def rows_of(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line that each ends on."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise WrongInput(f"{path}, line {reader.line_num}: {error}") from None


@register("data", "ag_news")
def ag_news(words: int = 200) -> Dataset:
    """AG News: 127,600 news in four classes, each as the numbers of its first `words` words."""
    if words < 1:
        raise WrongInput(f"ag_news: words={words} is not possible; give the length of a text, such as 200")
    copy = home() / ORIGINS["ag_news"].compact
    files = first_of("ag_news", [place("ag_news", file.name) for file in ORIGINS["ag_news"].files], [copy])
    labels, texts = zip(*(read_copy(copy) if files[0] == copy else read_published(files)), strict=True)
    x, vocabulary = as_numbers([words_of(text) for text in texts], words)
    return Dataset(
        name="ag_news",
        x=torch.from_numpy(x),
        y=torch.tensor(labels),
        classes=CLASSES,
        model=f"fasttext(vocabulary={vocabulary})",
        partition="dirichlet(alpha=0.1, clients=20, validation=0.0, test=0.25)",
        settings={"rounds": 100, "epochs": 1, "batch": 10, "lr": 0.1},
        licence=ORIGINS["ag_news"].licence,
        about=f"{len(x):,} of 127,600 news; settings and partition of FedALA's experiments, with fewer rounds",
    )
