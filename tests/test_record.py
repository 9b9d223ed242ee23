"""What is written is read again, bit for bit; what is damaged is noticed, passed over and said."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from small import assert_same_state, go_on, outline, rows_of, small_federation, small_spec
from torch import Tensor

from fedtailor import Driver, FedAvg, WrongInput, federate, tree
from fedtailor.record import BadCheckpoint, RunFolder, pack, to_json, unpack, write_atomically

TYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip


# ---------- states of every kind ----------


def values(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Any bits at all: infinities and NaNs of every payload are among them."""
    drawn = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=drawn).bool()
    count = math.prod(shape) * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=drawn).view(dtype).reshape(shape)


LAYOUTS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.T if t.dim() == 2 else t,
    "every other row": lambda t: t[::2] if t.dim() else t,
    "without the first row": lambda t: t[1:] if t.dim() else t,
    "expanded": lambda t: t.expand(2, *t.shape),
    "needs a gradient": lambda t: t.clone().requires_grad_() if t.is_floating_point() else t,
}


@st.composite
def states(draw: Any) -> dict[str, Any]:
    """Nested states whose tensors are views of a few: some share their storage, wholly or in part."""
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    storages = [
        values(draw(st.sampled_from(TYPES)), draw(shapes), draw(st.integers(0, 2**32)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    names = st.text("ab.0_é ", max_size=4)
    leaves = st.builds(lambda t, layout: LAYOUTS[layout](t), st.sampled_from(storages), st.sampled_from(list(LAYOUTS)))
    nested = st.recursive(leaves, lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=8)
    state: dict[str, Any] = draw(st.dictionaries(names, nested, max_size=4))
    return state


def bits(state: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """Each tensor's values as NumPy lays them out, by path."""
    flat = tree.flatten(state)
    return [
        (path, (t.view(torch.int16) if t.dtype is torch.bfloat16 else t).detach().numpy().tobytes())
        for path, t in flat.items()
    ]


STRIDED = {"one": torch.ones(2, dtype=torch.float16)[::2], "of": torch.ones(2, 2)[:1, 1:]}


@settings(max_examples=150)
@given(states(), st.integers(0, 10**6))
@example(STRIDED, 1)
def test_a_checkpoint_gives_back_the_state(state: dict[str, Any], round: int) -> None:
    """Types, shapes, values, empty sub-states and the order of names, which sums depend on."""
    again_round, again = unpack(pack(round, state))
    assert again_round == round
    assert outline(again) == outline(state)
    assert bits(again) == bits(state)


def without_empty(state: Mapping[str, Any]) -> dict[str, Any]:
    """As it travels: a sub-state without tensors is not sent."""
    pruned = {k: without_empty(v) if isinstance(v, Mapping) else v for k, v in state.items()}
    return {k: v for k, v in pruned.items() if isinstance(v, Tensor) or v}


@settings(max_examples=150)
@given(states())
@example(STRIDED)
def test_a_message_gives_back_the_state(state: dict[str, Any]) -> None:
    buffer, schema = tree.encode(state)
    assert len(buffer) == tree.nbytes(state)
    schema_as_json = json.loads(json.dumps(schema))  # how it travels
    again = tree.decode(buffer, schema_as_json)
    assert outline(again) == outline(without_empty(state))
    assert bits(again) == bits(without_empty(state))


def test_shared_tensors_are_written_once() -> None:
    """A site often keeps one model in several slots."""
    model = torch.zeros(1000)
    once, thrice = pack(1, {"a": model}), pack(1, {"a": model, "b": {"c": model, "d": model.detach()}})
    assert len(thrice) < len(once) + 500
    assert outline(unpack(thrice)[1]) == outline({"a": model, "b": {"c": model, "d": model}})


def test_what_is_packed_is_a_value() -> None:
    weight = torch.zeros(3)
    data = pack(1, {"w": weight})
    weight += 1
    assert torch.equal(unpack(data)[1]["w"], torch.zeros(3))


def test_a_checkpoint_is_readable_without_this_package() -> None:
    """Format 1, read by hand: a length, a JSON header, raw values. Nothing is pickled."""
    state = {"server": {"w": torch.tensor([[1.5, -2.0]])}, "clients": {"00000": {"t": torch.tensor(7)}}}
    data = pack(12, state)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    about = header.pop("__metadata__")
    assert about["format"] == "1" and about["round"] == "12" and len(about["digest"]) == 64
    found = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        dtype = {"F32": "<f4", "I64": "<i8"}[entry["dtype"]]
        found[name] = np.frombuffer(data[8 + length :][start:end], dtype).reshape(entry["shape"]).tolist()
    assert found == {"server/w": [[1.5, -2.0]], "clients/00000/t": 7}


def test_nothing_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refused)
    monkeypatch.setattr(torch, "save", refused)
    monkeypatch.setattr(torch, "load", refused)
    folder = RunFolder.create(tmp_path / "run", {})
    folder.save(3, {"server": {"w": torch.ones(2)}, "clients": {}})
    assert folder.load()[0] == 3


# ---------- damaged checkpoints ----------


SMALL = {"server": {"w": torch.tensor([1.0, 2.0, 3.0])}, "clients": {"00000": {"n": torch.tensor(5), "none": {}}}}


def test_no_flipped_bit_goes_unnoticed() -> None:
    """Whatever bit of the file is flipped: it is refused, or means the same (white space at the header's end)."""
    data = pack(4, SMALL)
    harmless = 0
    for place in range(len(data)):
        damaged = flip(data, place, 1 << place % 8)
        try:
            round, state = unpack(damaged)
        except BadCheckpoint:
            continue
        harmless += 1
        assert (round, outline(state), bits(state)) == (4, outline(SMALL), bits(SMALL))
    assert harmless < 8


def test_no_cut_goes_unnoticed() -> None:
    data = pack(4, SMALL)
    for length in range(len(data)):
        with pytest.raises(BadCheckpoint):
            unpack(data[:length])
    with pytest.raises(BadCheckpoint):
        unpack(data + b"\0")


def test_another_states_digest_is_refused() -> None:
    """The same names and shapes, one value changed, everything else in order."""
    other = {"server": {"w": torch.tensor([1.0, 2.0, 3.5])}, "clients": SMALL["clients"]}
    digest, wrong = (json.loads(d[8 : 8 + int.from_bytes(d[:8], "little")])["__metadata__"]["digest"].encode()
                     for d in (pack(4, SMALL), pack(4, other)))  # fmt: skip
    with pytest.raises(BadCheckpoint, match="digest"):
        unpack(pack(4, SMALL).replace(digest, wrong))


def cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def flip(data: bytes, place: int, mask: int = 0x10) -> bytes:
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


def flip_value(data: bytes) -> bytes:
    return flip(data, len(data) - 5)


def flip_header(data: bytes) -> bytes:
    return flip(data, 30)


def flip_length(data: bytes) -> bytes:
    return flip(data, 1)


def empty(data: bytes) -> bytes:
    return b""


def not_a_checkpoint(data: bytes) -> bytes:
    return b"PK\x03\x04" + data


DAMAGES = [cut, flip_value, flip_header, flip_length, empty, not_a_checkpoint]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    federate(small_spec(FedAvg()), small_federation(), out=tmp_path / "whole")
    return tmp_path / "whole"


def damage_files(paths: list[Path], damage: Any) -> None:
    for path in paths:
        path.write_bytes(damage(path.read_bytes()))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(damage: Any, whole: Path) -> None:
    rows, state = rows_of(whole), RunFolder(whole).load()
    newest = RunFolder(whole).checkpoints()[0]
    damage_files([newest], damage)
    assert RunFolder(whole).load()[0] == 5
    with pytest.warns(UserWarning, match=rf"{newest.name} is damaged .* one before") as said:
        go_on(whole)
    assert len(said) == 1
    assert rows_of(whole) == rows
    assert_same_state(RunFolder(whole).load(), state)


def test_with_all_checkpoints_damaged_nothing_is_touched(whole: Path) -> None:
    damage_files(RunFolder(whole).checkpoints(), flip_value)
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    with pytest.raises(WrongInput, match=r"no checkpoint of .* another folder"):
        go_on(whole)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_checkpoints_made_after_a_damaged_one_are_kept(tmp_path: Path) -> None:
    """A run that goes on from an earlier one passes smaller numbers than the damaged one has."""
    folder = RunFolder.create(tmp_path / "run", {})
    for round in (1, 9):
        folder.save(round, {"server": {"w": torch.tensor(round)}, "clients": {}})
    damage_files(folder.checkpoints()[:1], empty)
    round, _, _ = folder.load()
    folder.forget_after(round)
    for round in (2, 3, 4):
        folder.save(round, {"server": {"w": torch.tensor(round)}, "clients": {}})
    assert folder.load()[0] == 4


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    for round in (8, 9, 10, 11):
        folder.save(round, {"server": {"w": torch.tensor(round)}, "clients": {}})
    assert [path.name for path in folder.checkpoints()] == ["round-000011.safetensors", "round-000010.safetensors"]
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2
    assert folder.load()[0] == 11


# ---------- rows ----------


ROWS = [
    {"round": 1, "test": {"accuracy": [0.1 + 0.2, None]}, "explain": {}},
    {"round": 2, "test": None, "explain": {"λ of clients": [1e-300, 5e-324]}},
]


def test_rows_come_back_exactly(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    assert folder.rows() == []
    for row in ROWS:
        folder.append(row)
    assert folder.rows() == ROWS
    folder.keep_rows(ROWS[:1])
    assert folder.rows() == ROWS[:1]


def test_a_last_row_cut_anywhere_is_left_out(tmp_path: Path) -> None:
    """Inside a character of several bytes, too."""
    folder = RunFolder.create(tmp_path / "run", {})
    whole = to_json(ROWS[0])
    last = to_json(ROWS[1])
    for length in range(len(last) - 1):
        (tmp_path / "run" / "rows.jsonl").write_bytes(whole + last[:length])
        assert folder.rows() == ROWS[:1], length


def test_a_line_separator_inside_a_text_ends_no_row(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    rows = [{"round": 1, "explain": {f"a{separator}b": 1}} for separator in "\u2028\x85\x0c\x1e"]
    for row in rows:
        folder.append(row)
    assert folder.rows() == rows


@pytest.mark.parametrize("damage", [b'{"round": 1, "te\n', b"\xff\xfe\x00\n"])
def test_a_damaged_row_before_the_last_is_an_error(damage: bytes, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    (tmp_path / "run" / "rows.jsonl").write_bytes(to_json(ROWS[0]) + damage + to_json(ROWS[1]))
    with pytest.raises(WrongInput, match=r"rows\.jsonl is damaged in line 2"):
        folder.rows()


def test_json_of_what_rows_hold() -> None:
    row = {
        "t": torch.tensor([[1.0, math.nan], [math.inf, -2.5]]), "none": None, "n": (1, 2.5, -math.inf),
        3: {"path": Path("a") / "b"}, "flag": torch.tensor(True), "text": "É\n",
    }  # fmt: skip
    data = to_json(row)
    assert data.count(b"\n") == 1 and data.endswith(b"\n")
    assert json.loads(data) == {
        "t": [[1.0, None], [None, -2.5]], "none": None, "n": [1, 2.5, None], "3": {"path": "a/b"}, "flag": True,
        "text": "É\n",
    }  # fmt: skip


# ---------- the folder ----------


def test_facts_are_added(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {"status": "running", "method": "FedAvg()"})
    folder.note(status="complete")
    assert RunFolder.open(tmp_path / "run").info() == {"format": 1, "status": "complete", "method": "FedAvg()"}


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_is_refused(version: Any, whole: Path) -> None:
    before = (whole / "rows.jsonl").read_bytes()
    info = json.loads((whole / "run.json").read_text())
    (whole / "run.json").write_text(json.dumps({**info, "format": version, "fedtailor": "9.9"}))
    with pytest.raises(WrongInput, match=rf"format {version!r}, written by fedtailor 9\.9; .* reads format 1"):
        go_on(whole)
    assert (whole / "rows.jsonl").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b'{"format": 1', b"\xff\xfe", b"[]", b"1"])
def test_a_damaged_description_is_refused(content: bytes, whole: Path) -> None:
    (whole / "run.json").write_bytes(content)
    with pytest.raises(WrongInput, match=r"run\.json cannot be read"):
        go_on(whole)


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match="is not a run folder"):
        RunFolder.open(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongInput, match=r"is not a run folder|cannot be read"):
        RunFolder.open(tmp_path / "file")
    with pytest.raises(WrongInput, match="cannot write into"):
        RunFolder.create(tmp_path / "file", {})
    with pytest.raises(WrongInput, match="cannot write into"):
        RunFolder.create(tmp_path / "file" / "below", {})


@pytest.mark.parametrize("leftover", ["rows.jsonl", "checkpoints/round-000004.safetensors"])
def test_a_run_does_not_begin_on_what_another_left(leftover: str, whole: Path) -> None:
    """Its rows would come before ours, and its checkpoint be taken for ours when we are resumed."""
    keep = (whole / "rows.jsonl").read_bytes() if leftover == "rows.jsonl" else pack(4, SMALL)
    for path in [*RunFolder(whole).checkpoints(), whole / "run.json", whole / "rows.jsonl"]:
        path.unlink()
    (whole / leftover).write_bytes(keep)
    with pytest.raises(WrongInput, match="choose another folder"):
        federate(small_spec(FedAvg()), small_federation(), out=whole)
    assert (whole / leftover).read_bytes() == keep


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_file_has_its_old_contents_or_the_new(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, full)
        with pytest.raises(OSError, match="No space"):
            write_atomically(path, b"new")
        assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_documented_keys_are_those_that_are_written() -> None:
    text = (Path(__file__).parents[1] / "docs" / "reference" / "run-folder.md").read_text(encoding="utf-8")
    info = Driver(small_spec(FedAvg()), small_federation()).info()
    tables = [re.findall(r"^\| (`.+?`) \|", part, re.MULTILINE) for part in re.split("`data` holds|## `rows", text)[:2]]
    said, of_data = ({name for cell in table for name in re.findall(r"`(\w+)`", cell)} for table in tables)
    assert said - {"format"} == set(info)  # the folder adds its format
    assert of_data == set(info["data"])
    assert set(info["spec"]) <= set(re.findall(r"`(\w+)`", text))
