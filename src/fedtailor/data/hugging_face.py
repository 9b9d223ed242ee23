"""Data sets of the Hugging Face hub, or saved by its library: pictures, texts or numbers, by the kind of their columns.

Nothing that comes with such a set is ever executed: from version 4 on `datasets` reads files and knows no scripts, and
an older one is refused. Pickle is no format of its tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.data.decoding import check_side, once
from fedtailor.data.federation import Dataset
from fedtailor.data.files import numbered
from fedtailor.data.tables import Numbers, Sheet, labels_of, scale_of
from fedtailor.data.text import as_numbers, words_of
from fedtailor.registry import WrongInput, brief, register

OLDEST = 4  # of the library: the first that runs no code of a data set
INSTALL = "pip install 'fedtailor[huggingface]'"
SAVED = ("dataset_info.json", "dataset_dict.json")  # in a folder that save_to_disk wrote
ORDER = ("train", "validation", "test")
NUMBERS = ("int", "uint", "float", "double", "bool")
READ = ("picture", "text", "number")


@register("data", "huggingface", "hf")
def huggingface(
    path: str,
    label: str = "label",
    site: str | None = None,
    take: tuple[str, ...] = (),
    config: str | None = None,
    revision: str | None = None,
    splits: tuple[str, ...] = (),
    size: int = 64,
    words: int = 200,
) -> Dataset:
    """A data set of the Hugging Face hub, or a folder that its library saved; `site` is the column of the clients."""
    check_side("huggingface", size)
    library = the_library()
    rows = in_one(library, path, chosen(path, opened(library, path, config, revision), splits))
    for column in filter(None, (label, site, *take)):
        if column not in rows.column_names:
            raise WrongInput(f"{path} has no column {column!r}; it has {', '.join(rows.column_names)}")
    columns = list(take) or [name for name in rows.column_names if name not in (label, site)]
    kind = one_kind(path, {name: kind_of(rows.features[name]) for name in columns})
    sheet = Sheet(Path(path), values(rows, [name for name in (label, site) if name]), range(1, len(rows) + 1))
    y, classes, task = targets(path, label, rows.features[label], sheet)
    owner, sites = numbered(sheet.words(site)) if site else (None, ())
    model = "dnn"
    if kind == "picture":
        x = pictures(library, path, rows, columns, size)
        model = "resnet18" if size >= 32 else "cnn4" if size >= 16 else "dnn"
    elif kind == "text":
        x, vocabulary = texts(path, values(rows, columns), words)
        model = f"fasttext(vocabulary={vocabulary})"
    else:
        x = scaled(numbers(path, values(rows, columns)))
    return Dataset(
        name=Path(path).name,
        x=x,
        y=y,
        classes=classes,
        task=task,
        owner=None if owner is None else torch.from_numpy(owner),
        owner_names=sites,
        model=model,
        partition="iid(clients=10)" if owner is None else "natural",
        settings={"rounds": 50, "epochs": 1, "batch": 16, "lr": 0.1 if kind == "text" else 0.01},
        licence=str(rows.info.license or "") or "see its page on the hub",
        about=f"{kind}s of {', '.join(columns)}" + (f" at {len(sites)} sites" if sites else ""),
    )


def the_library() -> ModuleType:
    try:
        import datasets
    except ImportError:
        raise WrongInput(f"huggingface needs the package `datasets`; install it with: {INSTALL}") from None
    version = str(datasets.__version__)
    if int(version.partition(".")[0]) < OLDEST:
        raise WrongInput(
            f"huggingface needs `datasets` of version {OLDEST} or later, and {version} is here, which may run code "
            f"that comes with a data set; install it with: {INSTALL}"
        )
    library: ModuleType = datasets
    return library


def opened(library: ModuleType, path: str, config: str | None, revision: str | None) -> dict[str, Any]:
    """The splits by name, out of a folder that was saved, or as the library finds and fetches them."""
    saved = any((Path(path) / name).is_file() for name in SAVED)
    try:
        found = library.load_from_disk(path) if saved else library.load_dataset(path, config, revision=revision)
    except Exception as error:  # whatever stands between us and the hub
        why = " ".join(str(error).split()) or type(error).__name__
        raise WrongInput(
            f"{path!r} cannot be loaded as a Hugging Face data set ({brief(why)}); give a name on the hub that is held "
            "in plain files, with its config if it has several, or a folder that save_to_disk wrote"
        ) from None
    return dict(found) if isinstance(found, dict) else {"train": found}


def chosen(path: str, found: dict[str, Any], splits: Sequence[str]) -> list[Any]:
    """The splits that are asked for, or all: those to train on first."""
    lacking = next((name for name in splits if name not in found), None)
    if lacking is not None:
        raise WrongInput(f"{path} has no split {lacking!r}; it has {', '.join(found)}")
    place = {name: number for number, name in enumerate(ORDER)}
    return [found[name] for name in splits or sorted(found, key=lambda name: (place.get(name, len(place)), name))]


def in_one(library: ModuleType, path: str, parts: list[Any]) -> Any:
    try:
        rows = library.concatenate_datasets(parts)
    except (ValueError, TypeError) as error:
        raise WrongInput(
            f"the splits of {path} have different columns ({brief(' '.join(str(error).split()))}); choose some that "
            "fit together, such as splits=('train',)"
        ) from None
    if not len(rows):
        raise WrongInput(f"{path} holds no rows; choose another data set, or other splits")
    return rows


def kind_of(feature: Any) -> str:
    """`picture`, `text`, `number`, or what else the library calls it."""
    name, held = type(feature).__name__, str(getattr(feature, "dtype", ""))
    if name == "Image":
        return "picture"
    if name == "Value" and held.endswith("string"):
        return "text"
    return "number" if name == "Value" and held.startswith(NUMBERS) else held if name == "Value" else name


def one_kind(path: str, kinds: dict[str, str]) -> str:
    """What there is to learn from: columns of one kind, and of pictures one."""
    several = set(kinds.values())
    if len(several) == 1 and several <= set(READ) and ("picture" not in several or len(kinds) == 1):
        return several.pop()
    told = ", ".join(f"{name} ({kind})" for name, kind in kinds.items()) or "none beside the label"
    example = next((name for name, kind in kinds.items() if kind in READ), "image")
    raise WrongInput(
        f"the columns to learn from in {path} are {told}; name one picture, or columns of texts or of numbers, such as "
        f"take=({example!r},)"
    )


def values(rows: Any, columns: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Columns as they are held, by name."""
    held: dict[str, Sequence[Any]] = rows.select_columns(list(columns))[:]
    return held


def targets(path: str, label: str, feature: Any, sheet: Sheet) -> tuple[Tensor, tuple[str, ...], str]:
    """Numbers of classes with their names, or the values of a regression."""
    if type(feature).__name__ == "ClassLabel":
        numbers = [-1 if value is None else int(value) for value in sheet.column(label)]
        if min(numbers) < 0:
            raise WrongInput(
                f"{path}, row {numbers.index(min(numbers)) + 1}: {label} is not told; leave out the split that has no "
                "labels, such as with splits=('train', 'validation')"
            )
        return torch.tensor(numbers), tuple(feature.names), "classification"
    held = str(getattr(feature, "dtype", ""))
    task = "regression" if held.startswith(("float", "double")) else "classification"
    return *labels_of([sheet], label, task), task


def numbers(path: str, columns: dict[str, Sequence[Any]]) -> Numbers:
    """One column for each, none of them with a gap."""
    found = {name: np.array([np.nan if v is None else v for v in held], np.float64) for name, held in columns.items()}
    for name, column in found.items():
        gaps = np.flatnonzero(~np.isfinite(column))
        if len(gaps):
            raise WrongInput(
                f"{path}, row {gaps[0] + 1}: {name} is missing or no finite number, as in {len(gaps)} of {len(column)} "
                "rows; name the columns without gaps in take=(...)"
            )
    return np.stack(list(found.values()), 1)


def scaled(x: Numbers) -> Tensor:
    """Each column with mean 0 and deviation 1, as in tables."""
    mean, deviation = scale_of(x, None)
    return torch.from_numpy(((x - mean) / deviation).astype(np.float32))


def pictures(library: ModuleType, path: str, rows: Any, columns: Sequence[str], size: int) -> Tensor:
    """The files as they are held, decoded as any others: the library decodes nothing."""
    [column] = columns
    held = values(rows.cast_column(column, library.Image(decode=False)), columns)[column]
    contents = list(files_of(path, column, held))
    stamps = [hashlib.sha256(content).hexdigest() for content in contents]
    return once("huggingface", stamps, contents, [f"{path}, row {n}" for n in range(1, len(contents) + 1)], size)


def files_of(path: str, column: str, held: Sequence[Any]) -> Iterator[bytes]:
    for number, entry in enumerate(held, start=1):
        try:
            yield entry["bytes"] if entry["bytes"] is not None else Path(entry["path"]).read_bytes()
        except (TypeError, OSError):
            raise WrongInput(f"{path}, row {number}: {column} holds no picture; take the row out") from None


def texts(path: str, columns: dict[str, Sequence[Any]], words: int) -> tuple[Tensor, int]:
    """Texts as the numbers of their words, and how many numbers there are; several columns one after the other."""
    if words < 1:
        raise WrongInput(f"huggingface: words={words} is not possible; give the length of a text, such as 200")
    sheet = Sheet(Path(path), columns, range(1, 1 + len(next(iter(columns.values())))))
    whole = [" ".join(parts) for parts in zip(*map(sheet.words, columns), strict=True)]
    x, vocabulary = as_numbers([words_of(text) for text in whole], words)
    return torch.from_numpy(np.ascontiguousarray(x)), vocabulary
