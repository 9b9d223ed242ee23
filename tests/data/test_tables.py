"""One's own tables and arrays: what is made of them, and what is said of those that are ragged or wrong."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor import FedAvg, RunSpec, federate, load
from fedtailor.data import arrays, table
from fedtailor.data.tables import further_rows
from fedtailor.registry import WrongInput

CSV = """\
site,age,pulse,ill
north,30,60,no
north,50,80,yes
south,40,70,no
south,60,90,yes
"""


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---------- tables ----------


def test_a_column_names_the_site(tmp_path: Path) -> None:
    """By hand: ages have mean 45 and deviation sqrt(125) = 11.1803, so 30 is -1.3416."""
    found = table(write(tmp_path / "patients.csv", CSV), label="ill", site="site")
    assert found.classes == ("no", "yes") and found.y.tolist() == [0, 1, 0, 1]
    assert found.owner_names == ("north", "south") and found.owner is not None
    assert found.owner.tolist() == [0, 0, 1, 1]
    assert found.x[:, 0].tolist() == pytest.approx([-1.3416, 0.4472, -0.4472, 1.3416], abs=1e-4)
    assert found.x[:, 1].mean() == pytest.approx(0, abs=1e-6)
    assert found.name == "patients" and found.x.dtype is torch.float32
    made = load(found, "natural(validation=0.0, test=0.5)")
    assert made.clients == ("north", "south")


def test_a_folder_has_a_file_for_each_site_and_columns_in_any_order(tmp_path: Path) -> None:
    write(tmp_path / "clinics" / "north.csv", "age,pulse,ill\n30,60,no\n50,80,yes\n")
    write(tmp_path / "clinics" / "south.v2.csv", "ill;pulse;age\nno;70;40\nyes;90;60\n")
    write(tmp_path / "clinics" / "readme.txt", "no table")
    whole = table(write(tmp_path / "patients.csv", CSV), label="ill", site="site")
    found = table(str(tmp_path / "clinics"), label="ill")
    assert found.owner_names == ("north", "south")
    torch.testing.assert_close(found.x, whole.x)
    assert found.owner is not None and found.owner.tolist() == [0, 0, 1, 1]


def test_what_is_packed_or_separated_otherwise_is_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "p.csv.gz"
    path.write_bytes(gzip.compress("\ufeff".encode() + CSV.replace(",", "\t").encode()))
    torch.testing.assert_close(
        table(str(path), label="ill", site="site").x, table(write(tmp_path / "q.csv", CSV), label="ill", site="site").x
    )


def test_categories_become_columns_and_columns_can_be_skipped(tmp_path: Path) -> None:
    text = "id,colour,size,y\na,red,1,2\nb,blue,2,10\nc,red,3,9\n"
    found = table(write(tmp_path / "t.csv", text), label="y", skip=("id",), categories=("colour",))
    assert found.x.shape == (3, 3)  # blue, red, size
    assert (found.x[:, 0] > 0).tolist() == [False, True, False]
    assert (found.x[:, 1] > 0).tolist() == [True, False, True]
    assert found.classes == ("2", "9", "10") and found.y.tolist() == [0, 2, 1], "in the order of numbers"


def test_a_column_may_say_what_each_row_is_for_and_only_rows_to_train_on_are_measured(tmp_path: Path) -> None:
    text = "s,x,use,y\na,0,train,0\na,2,train,1\na,100,test,0\nb,0,Train,0\nb,2,train,1\nb,-100,validation,1\n"
    found = table(write(tmp_path / "t.csv", text), label="y", site="s", part="use")
    assert found.x[:, 0].tolist() == [-1, 1, 99, -1, 1, -101]
    made = load(found)
    assert [rows.tolist() for rows in made.train] == [[0, 1], [3, 4]]
    assert [rows.tolist() for rows in made.validation] == [[], [5]]
    assert [rows.tolist() for rows in made.test] == [[2], []]


def test_numbers_can_be_learned_as_well(tmp_path: Path) -> None:
    rows = "".join(f"{i},{2 * i + 1}\n" for i in range(40))
    found = table(write(tmp_path / "t.csv", "x,y\n" + rows), label="y", task="regression")
    assert found.task == "regression" and found.y.tolist() == [2.0 * i + 1 for i in range(40)]
    federation = load(found, clients=2)
    run = federate(RunSpec.of(federation, FedAvg(), rounds=30, lr=0.001, model="mlr"), federation)
    errors = run.driver.rows[-1]["test"]["rmse"]
    assert errors[0] < run.driver.rows[0]["test"]["rmse"][0]


WRONG = {
    "ragged": (CSV + "south,1,2\n", {}, r"t.csv, line 6: 3 values, and the header names 4 columns; write one"),
    "after a value over two lines": (
        'site,note,ill\na,"x\ny",no\nb,z\n', {}, r"t.csv, line 4: 2 values, and the header names 3 columns"
    ),
    "a quotation mark not closed": (
        CSV.replace("30,60", '"30,60'), {},
        r"t.csv, line 2: 2 values, .* \(the row goes on to line 5: is a quotation mark not closed\?\)",
    ),
    "in a row over two lines": (
        'site,x,note,ill\na,oops,"p\nq",no\nb,1,r,yes\n', {"skip": ("note",)}, r"t.csv, line 2: 'oops' under 'x'"
    ),
    "no value to predict": (
        CSV.replace("80", ""), {"label": "pulse", "task": "regression", "skip": ("ill",)},
        r"t.csv, line 3: pulse is missing or no finite number; fill it in or take the row out",
    ),
    "too many cells": (CSV + "south,1,2,no,yes\n", {}, r"t.csv, line 6: 5 values, and the header names 4 columns"),
    "no number": (CSV.replace("70", "7O"), {}, r"t.csv, line 4: '7O' under 'pulse' is no number; .*skip=\('pulse',\)"),
    "no number after a value over two lines": (
        'site,x,note,ill\na,1,"p\nq",no\nb,oops,r,yes\n', {"skip": ("note",)}, r"t.csv, line 4: 'oops' under 'x'"
    ),
    "missing": (CSV.replace("80", "NA"), {}, r"t.csv, line 3: pulse is missing .* 1 of 4 rows; .*skip=\('pulse',\)"),
    "infinite": (CSV.replace("80", "inf"), {}, r"t.csv, line 3: pulse is missing or no finite number"),
    "label missing": (CSV.replace("60,no", "60,"), {}, r"t.csv, line 2: ill is missing; fill it in"),
    "site missing": (CSV.replace("south,40", ",40"), {}, r"t.csv, line 4: site is missing"),
    "one class": (CSV.replace("yes", "no"), {}, r"t.csv: ill is 'no' in every row"),
    "no such label": (CSV, {"label": "well"}, r"t.csv has no column 'well'; it has site, age, pulse, ill"),
    "no such column to skip": (CSV, {"skip": ("weight",)}, r"t.csv has no column 'weight'"),
    "twice": (CSV.replace("pulse", "age"), {}, r"t.csv, line 1: two columns are called 'age'"),
    "empty": ("", {}, r"t.csv holds no rows"),
    "header only": ("site,age,ill\n", {}, r"t.csv holds no rows"),
    "nothing to learn from": ("site,ill\na,0\nb,1\n", {}, r"has no column to learn from beside 'ill'"),
    "part": (CSV.replace("age", "use").replace(",30,", ",train,").replace(",50,", ",testing,"), {"part": "use"},
             r"t.csv, line 3: use is 'testing'; allowed are train, validation, test"),
    "no training": ("site,age,use,ill\na,1,test,0\nb,2,test,1\n", {"part": "use"}, r"no row is to train on"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    text, options, words = WRONG[name]
    with pytest.raises(WrongInput, match=words):
        table(write(tmp_path / "t.csv", text), **{"label": "ill", "site": "site", **options})  # type: ignore[arg-type]


def test_a_class_of_one_site_and_a_site_of_one_row_are_no_errors(tmp_path: Path) -> None:
    """The network has an output for each class all the same; a single row is trained on, none is left to test."""
    write(tmp_path / "sites" / "a.csv", "x,y\n" + "".join(f"{i},{'no' if i % 2 else 'yes'}\n" for i in range(8)))
    write(tmp_path / "sites" / "b.csv", "x,y\n" + "".join(f"{i},{'no' if i % 2 else 'rare'}\n" for i in range(8)))
    write(tmp_path / "sites" / "c.csv", "x,y\n1,no\n")
    made = load(f"table({str(tmp_path / 'sites')!r}, label='y')")
    assert made.classes == ("no", "rare", "yes") and made.label_counts().shape == (3, 3)
    assert made.label_counts()[0, 1] == 0 and made.label_counts()[1, 2] == 0
    assert made.sizes[2] == 1 and len(made.test[2]) == 0


def test_files_and_folders_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match="there is no file"):
        table(str(tmp_path / "t.csv"), label="y")
    with pytest.raises(WrongInput, match=r"there is no file or folder .*nowhere; give a table or a folder of tables"):
        table(str(tmp_path / "nowhere"), label="y")
    with pytest.raises(WrongInput, match=r"is no known table; give a .csv, .csv.gz or .parquet file"):
        table(write(tmp_path / "t.xlsx", ""), label="y")
    with pytest.raises(WrongInput, match=r"holds no .csv"):
        table(str(tmp_path), label="y")
    for content, words in (
        (b"a,y\n1,0\n\xff\xfe,1\n", r"t.csv, line 3: this is no text in UTF-8 \(a byte 0xff .*as CSV in UTF-8"),
        ("a,y\n1,0\n".encode("utf-16"), r"t.csv, line 1: this is text in UTF-16; save it as CSV in UTF-8"),
    ):
        (tmp_path / "t.csv").write_bytes(content)
        with pytest.raises(WrongInput, match=words):
            table(str(tmp_path / "t.csv"), label="y")
    (tmp_path / "t.csv.gz").write_bytes(b"a,y\n1,0\n")
    with pytest.raises(WrongInput, match=r"t.csv.gz cannot be unpacked"):
        table(str(tmp_path / "t.csv.gz"), label="y")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,y\n1,0\n")[:-12] + b"0" * 12)
    with pytest.raises(WrongInput, match=r"t.csv.gz cannot be unpacked"):
        table(str(tmp_path / "t.csv.gz"), label="y")
    (tmp_path / "t.csv.gz").unlink()
    write(tmp_path / "sites" / "a.csv", "x,y\n1,0\n2,1\n")
    write(tmp_path / "sites" / "b.csv", "x,z\n1,0\n")
    with pytest.raises(WrongInput, match=r"b.csv has no column 'y', which .*a.csv has; give all sites the same"):
        table(str(tmp_path / "sites"), label="y")
    write(tmp_path / "sites" / "b.csv", "x,y,z\n1,0,3\n")
    with pytest.raises(WrongInput, match=r"a.csv has no column 'z', which .*b.csv has"):
        table(str(tmp_path / "sites"), label="y")


def test_parquet_is_read_alike(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"site": ["north", "north", "south", "south"], "age": [30, 50, 40, 60], "pulse": [60.0, 80.0, 70.0, 90.0],
               "ill": ["no", "yes", "no", "yes"]}  # fmt: skip
    whole = table(write(tmp_path / "patients.csv", CSV), label="ill", site="site")
    held = pyarrow.table(columns)
    held = held.set_column(0, "site", held.column("site").dictionary_encode())
    parquet.write_table(held, tmp_path / "p.parquet")
    found = table(str(tmp_path / "p.parquet"), label="ill", site="site")
    torch.testing.assert_close(found.x, whole.x)
    assert found.y.tolist() == whole.y.tolist() and found.owner_names == whole.owner_names
    parquet.write_table(pyarrow.table({**columns, "age": [30, None, 40, 60]}), tmp_path / "p.parquet")
    with pytest.raises(WrongInput, match=r"p.parquet, line 2: age is missing"):
        table(str(tmp_path / "p.parquet"), label="ill", site="site")
    parquet.write_table(pyarrow.table({**columns, "age": [[30], [50], [40], [60]]}), tmp_path / "p.parquet")
    with pytest.raises(WrongInput, match=r"p.parquet: the column 'age' holds list<.*> in each row; write single"):
        table(str(tmp_path / "p.parquet"), label="ill", site="site")
    for kind in (pyarrow.decimal128(20, 1), pyarrow.float32(), pyarrow.int8(), pyarrow.string()):
        other = held.set_column(1, "age", held.column("age").cast(kind))
        parquet.write_table(other, tmp_path / "p.parquet")
        torch.testing.assert_close(table(str(tmp_path / "p.parquet"), label="ill", site="site").x, whole.x)
    (tmp_path / "p.parquet").write_bytes(b"PAR1")
    with pytest.raises(WrongInput, match="cannot be read as parquet"):
        table(str(tmp_path / "p.parquet"), label="ill")


def test_without_pyarrow_the_message_names_the_line_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(WrongInput, match=r"pip install 'fedtailor\[tables\]'"):
        table(write(tmp_path / "p.parquet", ""), label="y")


def test_further_rows_become_what_the_first_became(tmp_path: Path) -> None:
    """By hand: the size has mean 2 and deviation 1, one of two is red."""
    found = table(write(tmp_path / "t.csv", "colour,size,y\nred,1,0\nblue,3,1\n"), label="y", categories=("colour",))
    assert found.columns == (("colour", "blue", 0.5, 0.5), ("colour", "red", 0.5, 0.5), ("size", None, 2.0, 1.0))
    assert load(found, clients=1).columns == found.columns
    others = write(tmp_path / "o.csv", "note;size;colour\na;7;red\nb;2;green\n")
    assert further_rows(Path(others), found.columns).tolist() == [[-1, 1, 5], [-1, -1, 0]]
    np.testing.assert_array_equal(further_rows(tmp_path / "t.csv", found.columns), found.x.numpy())
    write(tmp_path / "o.csv", "size,colour\n1,red\n,blue\n")
    with pytest.raises(WrongInput, match=r"o.csv, line 3: size is missing or no finite number; fill it in"):
        further_rows(tmp_path / "o.csv", found.columns)
    write(tmp_path / "o.csv", "colour\nred\n")
    with pytest.raises(WrongInput, match=r"o.csv has no column 'size'; it has colour"):
        further_rows(tmp_path / "o.csv", found.columns)


# ---------- arrays ----------


def save(path: Path, **held: object) -> str:
    np.savez(path, **held)  # type: ignore[arg-type]
    return str(path)


def test_arrays_with_sites_and_classes(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(6, 3))
    path = save(tmp_path / "a.npz", x=x, y=[0, 1, 1, 0, 1, 0], site=["s", "r", "r", "s", "r", "s"], classes=["k", "l"])
    found = arrays(path)
    assert found.classes == ("k", "l") and found.owner_names == ("r", "s")
    assert found.owner is not None and found.owner.tolist() == [1, 0, 0, 1, 0, 1]
    np.testing.assert_allclose(found.x, x.astype(np.float32))
    assert load(found).clients == ("r", "s")


@pytest.mark.parametrize(
    ("shape", "place"), [((5, 8, 9), None), ((5, 8, 9, 3), 3), ((5, 3, 8, 9), 1), ((5, 8, 9, 1), 3)]
)
def test_bytes_are_pictures_with_channels_anywhere(shape: tuple[int, ...], place: int | None, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    found = arrays(save(tmp_path / "a.npz", x=x, y=list("abcab"))).x.numpy()
    expected = x[:, None] if place is None else np.moveaxis(x, place, 1)
    assert found.dtype == np.uint8 and np.array_equal(found, expected)


def test_split_arrays_are_put_together(tmp_path: Path) -> None:
    held = {"x_train": np.zeros((4, 2)), "y_train": [3, 5, 3, 5], "x_test": np.ones((2, 2)), "y_test": [5, 3]}
    found = arrays(save(tmp_path / "a.npz", **held))
    assert found.classes == ("3", "5") and found.y.tolist() == [0, 1, 0, 1, 1, 0]
    assert found.part is not None and found.part.tolist() == [0, 0, 0, 0, 2, 2]


def test_whole_numbers_are_words_and_y_with_a_point_is_a_value(tmp_path: Path) -> None:
    found = arrays(save(tmp_path / "a.npz", x=np.ones((3, 4), int), y=[0.5, 1.5, 2.5]))
    assert found.x.dtype is torch.int64 and found.task == "regression"


@pytest.mark.parametrize(("held", "words"), [
    ({"x": np.zeros((3, 2))}, r"a.npz must hold x and y, or x_train, .*; it holds x"),
    ({"x": np.zeros((3, 2)), "y": [0, 1]}, r"a.npz: y has 2 rows and x has 3"),
    ({"x": np.zeros((3, 2)), "y": [0, 1, 2], "site": [1]}, r"a.npz: site has 1 rows and x has 3"),
    ({"x": np.zeros((2, 3)), "y": [0, 1], "part": [0, 7]}, r"a.npz: part must be 0, 1 or 2 in each row"),
    ({"x": np.array(["a", "b"]), "y": [0, 1]}, r"a.npz: x is <U1; give numbers, bytes for pictures"),
    ({"x": np.zeros((2, 5, 5, 2), np.uint8), "y": [0, 1]}, r"x is bytes of shape \(2, 5, 5, 2\); pictures are"),
    ({"x": np.zeros((2, 5)), "y": ["a", "b"], "classes": ["a", "b"]}, r"with classes, y must be whole numbers"),
])  # fmt: skip
def test_wrong_arrays_are_named(held: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=words):
        arrays(save(tmp_path / "a.npz", **held))


def test_a_file_that_could_run_something_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", x=np.array([{"a": 1}, None], dtype=object), y=[0, 1])
    with pytest.raises(WrongInput, match=r"a.npz cannot be read as a NumPy file \(Object arrays cannot be loaded"):
        arrays(path)
    (tmp_path / "b.npz").write_text("text")
    with pytest.raises(WrongInput, match=r"b.npz cannot be read as a NumPy file"):
        arrays(str(tmp_path / "b.npz"))
