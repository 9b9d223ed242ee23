"""Data sets of Hugging Face's library: with the library itself where it is installed, else with a stub of it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import stub_datasets
import torch
from PIL import Image

from fedtailor import FedAvg, RunSpec, federate, load
from fedtailor.data import huggingface
from fedtailor.registry import WrongInput


@pytest.fixture
def library(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, without a network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    try:
        import datasets
    except ImportError:
        monkeypatch.setitem(sys.modules, "datasets", stub_datasets)
        return stub_datasets
    return datasets


def save(library: Any, folder: Path, features: dict[str, Any], **splits: dict[str, list[Any]]) -> str:
    """A data set of these splits, as save_to_disk writes it."""
    made = {
        split: library.Dataset.from_dict(columns, features=library.Features(features))
        for split, columns in splits.items()
    }
    library.DatasetDict(made).save_to_disk(str(folder))
    return str(folder)


def png(grey: int) -> dict[str, Any]:
    held = io.BytesIO()
    Image.new("L", (12, 12), grey).save(held, "PNG")
    return {"bytes": held.getvalue(), "path": None}


def test_pictures_with_sites_and_named_classes(library: Any, tmp_path: Path) -> None:
    features = {"image": library.Image(), "label": library.ClassLabel(names=["cat", "dog"]),
                "who": library.Value("string")}  # fmt: skip
    folder = save(
        library, tmp_path / "pets", features,
        test={"image": [png(7)], "label": [0], "who": ["ann"]},
        train={"image": [png(10), png(20), png(30)], "label": [0, 1, 1], "who": ["bob", "ann", "ann"]},
    )  # fmt: skip
    found = huggingface(folder, site="who", size=8)
    assert found.x.dtype is torch.uint8 and found.x.shape == (4, 3, 8, 8)
    assert found.x[:, 0, 4, 4].tolist() == [10, 20, 30, 7], "those to train on first"
    assert found.classes == ("cat", "dog") and found.y.tolist() == [0, 1, 1, 0]
    assert found.owner_names == ("ann", "bob") and found.owner is not None and found.owner.tolist() == [1, 0, 0, 0]
    assert load(f"hf({folder!r}, site='who', size=8)").clients == ("ann", "bob")
    assert huggingface(folder, take=("image",), splits=("test",), size=8).y.tolist() == [0]
    again = huggingface(folder, site="who", size=8)
    assert torch.equal(again.x, found.x), "out of the cache"


def test_texts_of_several_columns(library: Any, tmp_path: Path) -> None:
    """By hand: `rain` is three times there, `more` and `sun` once, and equals go by the alphabet."""
    text = library.Value("string")
    features = {"head": text, "body": text, "label": library.Value("int64")}
    held = {"head": ["Rain", "sun"], "body": ["rain rain", "more"], "label": [9, 10]}
    found = huggingface(save(library, tmp_path / "news", features, train=held), words=3)
    assert found.x.tolist() == [[1, 1, 1], [3, 2, 0]] and found.x.dtype is torch.int64
    assert found.model == "fasttext(vocabulary=4)"
    assert found.classes == ("9", "10") and found.y.tolist() == [0, 1], "in the order of numbers"


def test_numbers_and_a_value_to_predict(library: Any, tmp_path: Path) -> None:
    """By hand: 1 and 3 have mean 2 and deviation 1."""
    features = {name: library.Value(kind) for name, kind in (("a", "int32"), ("b", "float32"), ("y", "float64"))}
    held = {"a": [1, 3], "b": [0.5, 0.5], "y": [0.25, 4.0]}
    found = huggingface(save(library, tmp_path / "t", features, train=held), label="y")
    assert found.x.tolist() == [[-1, 0], [1, 0]] and found.x.dtype is torch.float32
    assert found.task == "regression" and found.y.tolist() == [0.25, 4.0]


def test_it_goes_all_the_way_through_a_run(library: Any, tmp_path: Path) -> None:
    features = {"a": library.Value("float32"), "label": library.Value("string"), "s": library.Value("int64")}
    held = {"a": [i / 10 for i in range(60)], "label": ["low" if i < 30 else "high" for i in range(60)],
            "s": [i % 3 for i in range(60)]}  # fmt: skip
    federation = load(f"huggingface({save(library, tmp_path / 't', features, train=held)!r}, site='s')")
    assert federation.clients == ("0", "1", "2")
    run = federate(RunSpec.of(federation, FedAvg(), model="mlr", rounds=30, lr=0.5), federation)
    assert min(run.driver.rows[-1]["test"]["accuracy"]) > 0.8


def test_what_does_not_fit_is_named(library: Any, tmp_path: Path) -> None:
    kinds = {"image": library.Image(), "note": library.Value("string"), "label": library.ClassLabel(names=["a", "b"])}
    held = {"image": [png(1), png(2)], "note": ["x", "y"], "label": [0, -1]}
    mixed = save(library, tmp_path / "mixed", kinds, train=held)
    with pytest.raises(WrongInput, match=r"are image \(picture\), note \(text\); .* such as take=\('image',\)"):
        huggingface(mixed)
    with pytest.raises(WrongInput, match=r"row 2: label is not told; .*splits=\('train', 'validation'\)"):
        huggingface(mixed, take=("image",))
    with pytest.raises(WrongInput, match=r"has no column 'age'; it has image, note, label"):
        huggingface(mixed, take=("age",))
    with pytest.raises(WrongInput, match=r"has no split 'dev'; it has train"):
        huggingface(mixed, splits=("dev",))
    with pytest.raises(WrongInput, match=r"the columns to learn from .* are none beside the label"):
        huggingface(save(library, tmp_path / "bare", {"label": library.Value("string")}, train={"label": ["a", "b"]}))
    gaps = save(library, tmp_path / "gaps", {"a": library.Value("float32"), "label": library.Value("string")},
                train={"a": [1.0, None], "label": ["a", "b"]})  # fmt: skip
    with pytest.raises(WrongInput, match=r"row 2: a is missing or no finite number, as in 1 of 2 rows"):
        huggingface(gaps)
    none = save(library, tmp_path / "none", kinds, train={**held, "image": [png(1), None], "label": [0, 1]})
    with pytest.raises(WrongInput, match=r"row 2: image holds no picture"):
        huggingface(none, take=("image",))


def test_splits_that_do_not_fit_together(library: Any, tmp_path: Path) -> None:
    one = library.Dataset.from_dict(
        {"a": [1], "label": ["p"]},
        features=library.Features({"a": library.Value("int64"), "label": library.Value("string")}),
    )
    other = library.Dataset.from_dict(
        {"a": ["one"], "label": ["q"]},
        features=library.Features({"a": library.Value("string"), "label": library.Value("string")}),
    )
    library.DatasetDict({"train": one, "test": other}).save_to_disk(str(tmp_path / "odd"))
    with pytest.raises(WrongInput, match=r"the splits of .* have different columns .*splits=\('train',\)"):
        huggingface(str(tmp_path / "odd"))


def test_no_code_of_a_data_set_is_run(library: Any, tmp_path: Path) -> None:
    """A folder with a script of the old kind is refused, and the script leaves no trace."""
    folder = tmp_path / "tricky"
    folder.mkdir()
    (folder / "tricky.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w').close()", encoding="utf-8")
    for path in (str(folder / "tricky.py"), str(folder)):
        with pytest.raises(WrongInput, match="cannot be loaded as a Hugging Face data set"):
            huggingface(path)
    assert not (tmp_path / "trace").exists()


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(WrongInput, match=r"install it with: pip install 'fedtailor\[huggingface\]'"):
        huggingface("ag_news")


def test_a_library_that_could_run_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("datasets")
    old.__version__ = "3.6.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", old)
    with pytest.raises(WrongInput, match=r"version 4 or later, and 3.6.0 is here, which may run code"):
        huggingface("ag_news")
