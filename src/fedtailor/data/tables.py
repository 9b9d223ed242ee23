"""Your own tables: CSV or parquet, one file for all sites or one for each."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedtailor.data.federation import Column, Dataset
from fedtailor.data.files import numbered
from fedtailor.registry import WrongInput, brief, register

MISSING = {"", "na", "nan", "n/a", "null", "none"}
SEPARATORS = ",;\t"
PARTS = ("train", "validation", "test")
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Sheet:
    """The columns of one file as they are written, and the line of each row."""

    path: Path
    columns: dict[str, Sequence[Any]]  # texts, or what a parquet file holds
    lines: Sequence[int]

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, name: str) -> Sequence[Any]:
        if name not in self.columns:
            raise WrongInput(f"{self.path} has no column {name!r}; it has {', '.join(self.columns)}")
        return self.columns[name]

    def words(self, name: str) -> list[str]:
        """A column as texts, none of them missing."""
        found = ["" if value is None else str(value).strip() for value in self.column(name)]
        for line, word in zip(self.lines, found, strict=True):
            if word.lower() in MISSING:
                raise WrongInput(f"{self.path}, line {line}: {name} is missing; fill it in or take the row out")
        return found

    def numbers(self, name: str) -> Numbers:
        """A column as numbers, NaN where one is missing."""
        values = self.column(name)
        if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
            return values.astype(np.float64)
        try:
            return np.array([NAN if value in _EMPTY else value for value in values], np.float64)
        except (ValueError, TypeError):
            lines = zip(self.lines, values, strict=True)
            return np.array([self.number(name, line, value) for line, value in lines], np.float64)

    def number(self, name: str, line: int, value: Any) -> float:
        written = "" if value is None else str(value).strip()
        if written.lower() in MISSING:
            return NAN
        try:
            return float(written)
        except ValueError:
            raise WrongInput(f"{self.path}, line {line}: {brief(written)} under {name!r} is no number") from None


NAN = float("nan")
_EMPTY = ("", None)


def read_sheet(path: Path) -> Sheet:
    """A table of any known format."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".parquet"]:
        return read_parquet(path)
    if ".csv" in suffixes[-2:] or ".tsv" in suffixes[-2:]:
        return read_csv(path)
    if not path.exists():
        raise WrongInput(f"there is no file or folder {path}; give a table or a folder of tables")
    raise WrongInput(f"{path} is no known table; give a .csv, .csv.gz or .parquet file")


def content_of(path: Path) -> str:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise WrongInput(f"there is no file {path}; give a table or a folder of tables") from None
    except (OSError, EOFError, zlib.error) as error:
        raise WrongInput(f"{path} cannot be unpacked ({error}); write it again") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        what = "text in UTF-16" if wide else f"no text in UTF-8 (a byte {content[error.start]:#x} makes no letter)"
        line = content[: error.start].count(b"\n") + 1
        raise WrongInput(f"{path}, line {line}: this is {what}; save it as CSV in UTF-8") from None


def read_csv(path: Path, text: str | None = None) -> Sheet:
    """A table with a header; columns are apart by comma, semicolon or tab, whichever the header has most of."""
    text = content_of(path) if text is None else text
    first = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(SEPARATORS, key=first.count))
    header: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    end = 0
    try:
        for row in reader:
            line, end = end + 1, reader.line_num  # a value in quotation marks may go over several
            if not any(row):
                continue
            if not header:
                header = [word.strip() for word in row]
                continue
            if len(row) != len(header):
                raise WrongInput(
                    f"{path}, line {line}: {len(row)} values, and the header names {len(header)} columns; write one "
                    "value for each, in quotation marks where it holds a comma"
                    + (f" (the row goes on to line {end}: is a quotation mark not closed?)" if end > line else "")
                )
            rows.append(row)
            lines.append(line)
    except csv.Error as error:
        raise WrongInput(f"{path}, line {reader.line_num}: {error}") from None
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise WrongInput(f"{path}, line 1: two columns are called {twice!r}; give each its own name")
    if not rows:
        raise WrongInput(f"{path} holds no rows below a header; write the names of the columns first, then the rows")
    return Sheet(path, dict(zip(header, zip(*rows, strict=True), strict=True)), lines)


def read_parquet(path: Path) -> Sheet:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise WrongInput(f"{path} needs pyarrow; install it with: pip install 'fedtailor[tables]'") from None
    try:
        held = parquet.read_table(path)
    except FileNotFoundError:
        raise WrongInput(f"there is no file {path}; give a table or a folder of tables") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise WrongInput(f"{path} cannot be read as parquet ({error}); write it again") from None
    columns = {}
    for name in held.column_names:
        column, kinds = held.column(name), pyarrow.types
        if kinds.is_dictionary(column.type):
            column = column.cast(pyarrow.string())
        if kinds.is_nested(column.type):
            raise WrongInput(
                f"{path}: the column {name!r} holds {column.type} in each row; write single values, one to a column"
            )
        numeric = any(test(column.type) for test in (kinds.is_floating, kinds.is_integer, kinds.is_temporal))
        values = column.to_numpy()
        columns[name] = values if numeric else values.tolist()
    return Sheet(path, columns, range(1, held.num_rows + 1))


def sheets_at(source: str, path: Path) -> list[Sheet]:
    """The table at a path, or those in a folder, which must have the same columns."""
    if not path.is_dir():
        return [read_sheet(path)]
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")
                   and {s.lower() for s in p.suffixes} & {".csv", ".tsv", ".parquet"})  # fmt: skip
    if not files:
        raise WrongInput(
            f"{source}: the folder {str(path)!r} holds no .csv, .csv.gz or .parquet file; put one for each site there"
        )
    found = [read_sheet(file) for file in files]
    for sheet in found[1:]:
        for one, other in ((sheet, found[0]), (found[0], sheet)):
            lacking = next((name for name in other.columns if name not in one.columns), None)
            if lacking is not None:
                raise WrongInput(
                    f"{one.path} has no column {lacking!r}, which {other.path} has; give all sites the same columns"
                )
    return found


# ---------- a table as a data set ----------


@register("data", "table")
def table(
    path: str,
    label: str,
    site: str | None = None,
    part: str | None = None,
    task: Literal["classification", "regression"] = "classification",
    skip: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
) -> Dataset:
    """Your own table, a CSV or parquet file, or a folder with one for each site; `label` is the column to learn."""
    place = Path(path)
    found = sheets_at("table", place)
    named = {"label": label, "site": site, "part": part}
    for sheet in found:
        for column in (*(name for name in named.values() if name is not None), *skip, *categories):
            sheet.column(column)
    features = [name for name in found[0].columns if name not in {*named.values(), *skip}]
    if not features:
        raise WrongInput(f"table: {path!r} has no column to learn from beside {label!r}")
    owner, sites = owners(found, site, place.is_dir())
    (x, places), parts = features_of(found, features, categories), parts_of(found, part)
    mean, deviation = scale_of(x, parts)
    y, classes = labels_of(found, label, task)
    return Dataset(
        name=place.resolve().name.partition(".")[0],
        x=torch.from_numpy(((x - mean) / deviation).astype(np.float32)),
        y=y,
        classes=classes,
        task=task,
        columns=tuple(Column(*place, float(m), float(d)) for place, m, d in zip(places, mean, deviation, strict=True)),
        owner=owner,
        owner_names=sites,
        part=None if parts is None else torch.from_numpy(parts),
        model="dnn",
        partition="iid(clients=10)" if owner is None else "natural" if parts is None else "as_given",
        settings={"rounds": 50, "epochs": 1, "batch": 16, "lr": 0.05},
        licence="your own",
        about=f"{len(features)} columns" + (f" of {len(sites)} sites" if sites else ""),
    )


def owners(found: Sequence[Sheet], site: str | None, folder: bool) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """The site of each row: what a column says, or the file that it stands in."""
    if site is not None:
        numbers, names = numbered([word for sheet in found for word in sheet.words(site)])
        return torch.from_numpy(numbers), names
    if not folder:
        return None, ()
    names = tuple(sheet.path.name.partition(".")[0] for sheet in found)
    return torch.repeat_interleave(torch.arange(len(found)), torch.tensor([len(sheet) for sheet in found])), names


def features_of(
    found: Sequence[Sheet], features: Sequence[str], categories: Sequence[str]
) -> tuple[Numbers, list[tuple[str, str | None]]]:
    """One column for each number, and one for each value of a category; and where each comes from."""
    columns: list[Numbers] = []
    places: list[tuple[str, str | None]] = []
    for name in features:
        if name in categories:
            words = [word for sheet in found for word in sheet.words(name)]
            for value in sorted(set(words)):
                columns.append(np.array([word == value for word in words], np.float64))
                places.append((name, value))
            continue
        parts = []
        for sheet in found:
            try:
                values = sheet.numbers(name)
            except WrongInput as error:
                raise WrongInput(f"{error}; name it in skip=({name!r},) or categories=({name!r},)") from None
            lines = np.flatnonzero(~np.isfinite(values))
            if len(lines):
                raise WrongInput(
                    f"{sheet.path}, line {sheet.lines[lines[0]]}: {name} is missing or no finite number, as in "
                    f"{len(lines)} of {len(values)} rows; fill it in, or leave the column out with skip=({name!r},)"
                )
            parts.append(values)
        columns.append(np.concatenate(parts))
        places.append((name, None))
    return np.stack(columns, 1), places


def scale_of(x: Numbers, parts: NDArray[np.int64] | None) -> tuple[Numbers, Numbers]:
    """Mean and deviation of each column, over the rows to train on where these are told, else over all."""
    known = x if parts is None else x[parts == 0]
    deviation = known.std(0)
    return known.mean(0), np.where(deviation > 0, deviation, 1)


def further_rows(path: Path, columns: Sequence[Column]) -> NDArray[np.float32]:
    """The rows of another table, as the numbers that those of the first have become."""
    sheet = read_sheet(path)
    made = []
    for name, word, mean, deviation in columns:
        if word is not None:
            values = np.array([found == word for found in sheet.words(name)], np.float64)
        else:
            values = finite(sheet, name)
        made.append((values - mean) / deviation)
    return np.stack(made, 1).astype(np.float32)


def finite(sheet: Sheet, name: str) -> Numbers:
    """A column without gaps."""
    values = sheet.numbers(name)
    gaps = np.flatnonzero(~np.isfinite(values))
    if len(gaps):
        line = sheet.lines[gaps[0]]
        raise WrongInput(
            f"{sheet.path}, line {line}: {name} is missing or no finite number; fill it in or take the row out"
        )
    return values


def parts_of(found: Sequence[Sheet], part: str | None) -> NDArray[np.int64] | None:
    """What each row is for: a column of `train`, `validation` and `test`."""
    if part is None:
        return None
    numbers = []
    for sheet in found:
        for line, word in zip(sheet.lines, sheet.words(part), strict=True):
            if word.lower() not in PARTS:
                raise WrongInput(f"{sheet.path}, line {line}: {part} is {brief(word)}; allowed are {', '.join(PARTS)}")
            numbers.append(PARTS.index(word.lower()))
    if 0 not in numbers:
        raise WrongInput(f"{found[0].path}: no row is to train on; write 'train' in the column {part!r}")
    return np.array(numbers, np.int64)


def labels_of(found: Sequence[Sheet], label: str, task: str) -> tuple[torch.Tensor, tuple[str, ...]]:
    """The number of each row's class, and the classes in order; or the values of a regression."""
    if task == "regression":
        values = np.concatenate([finite(sheet, label) for sheet in found])
        return torch.from_numpy(values.astype(np.float32)), (label,)
    words = [word for sheet in found for word in sheet.words(label)]
    numbers, names = numbered(words)
    if len(names) < 2:
        raise WrongInput(f"{found[0].path}: {label} is {names[0]!r} in every row, so there is nothing to tell apart")
    if all(name.lstrip("-").isdecimal() for name in names):  # 10 comes after 9
        order = sorted(range(len(names)), key=lambda number: int(names[number]))
        numbers, names = np.argsort(order)[numbers], tuple(names[number] for number in order)
    return torch.from_numpy(numbers), names
