"""Pictures in folders: one's own, by class or by site and class; and the published sets of several domains."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtailor.data import decoding, domainnet, load, office31, office_home, pacs, pictures
from fedtailor.data.decoding import DataNote
from fedtailor.registry import WrongInput

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def png(colour: tuple[int, int, int], size: tuple[int, int] = (9, 9), mode: str = "RGB") -> bytes:
    held = io.BytesIO()
    Image.new("RGB", size, colour).convert(mode).save(held, "PNG")
    return held.getvalue()


def put(path: Path, colour: tuple[int, int, int] = RED, **more: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(colour, **more))  # type: ignore[arg-type]


# ---------- one's own ----------


def test_a_folder_for_each_class(home: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    put(root / "cat" / "b.png", RED, size=(20, 10))
    put(root / "cat" / "a.PNG", GREEN, mode="P")
    put(root / "dog" / "x.png", (77, 77, 77), mode="L")
    (root / "notes.txt").write_text("no picture")
    (root / "dog" / ".hidden.png").write_text("no picture either")
    found = pictures(str(root), size=8)
    assert found.classes == ("cat", "dog") and found.y.tolist() == [0, 0, 1]
    assert found.x.shape == (3, 3, 8, 8)
    assert found.x[:, :, 4, 4].tolist() == [list(GREEN), list(RED), [77, 77, 77]]
    assert found.owner is None and found.name == "mine"


def test_a_folder_for_each_site_with_folders_of_classes(home: Path, tmp_path: Path) -> None:
    for site, classes in (("north", ("ill", "well")), ("south", ("ill", "well")), ("coast", ("well",))):
        for kind in classes:
            for number in range(4):
                put(tmp_path / "sites" / site / kind / f"{number}.png")
    made = load(f"pictures({str(tmp_path / 'sites')!r}, size=8)")
    assert made.clients == ("coast", "north", "south")
    assert made.label_counts().sum(0).tolist()[0] > 0
    assert made.label_counts()[0, made.classes.index("ill")] == 0, "the coast has none of them"
    lists = [len(made.train[i]) + len(made.validation[i]) + len(made.test[i]) for i in range(3)]
    assert lists == [4, 8, 8]


def test_a_folder_called_images_between_is_no_class_and_no_site(home: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    put(root / "a" / "images" / "ill" / "1.png")
    put(root / "b" / "well" / "images" / "1.png")
    found = pictures(str(root), size=8)
    assert found.classes == ("ill", "well") and found.owner_names == ("a", "b")


def test_pictures_are_resized_as_a_mean_of_what_they_showed(home: Path, tmp_path: Path) -> None:
    """Left half black, right half white, halved in size: each column is of one colour, the middle may mix."""
    root = tmp_path / "mine"
    root.mkdir()
    image = np.zeros((16, 16, 3), np.uint8)
    image[:, 8:] = 255
    (root / "c").mkdir()
    Image.fromarray(image).save(root / "c" / "1.png")
    (root / "d").mkdir()
    Image.fromarray(image[:, ::-1]).save(root / "d" / "1.png")
    row = pictures(str(root), size=8).x[0, 0, 3].tolist()
    assert row[:3] == [0, 0, 0] and row[5:] == [255, 255, 255] and row == sorted(row)


@pytest.mark.parametrize(("files", "words"), [
    ([], "no picture file is below"),
    (["1.png"], r"1.png is not where .* as class/file, or all of them as site/class/file$"),
    (["a/b/c/1.png"], r"a/b/c/1.png is not where"),
    (["cat/1.png", "north/cat/1.png"], r"north/cat/1.png is not where .*, as .*cat/1.png would have it"),
])  # fmt: skip
def test_files_out_of_place_are_named(files: list[str], words: str, home: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    for file in files:
        put(root / file)
    with pytest.raises(WrongInput, match=words):
        pictures(str(root), size=8)


def test_what_is_no_picture_is_named(home: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    put(root / "cat" / "1.png")
    put(root / "dog" / "1.png")
    (root / "cat" / "2.jpg").write_bytes(png(RED)[:40])
    with pytest.raises(WrongInput, match=r"cat/2.jpg cannot be read as a picture \(.*\); replace it or take it away"):
        pictures(str(root), size=8)
    (root / "cat" / "2.jpg").unlink()
    (root / "cat" / "3.HEIC").write_bytes(b"a telephone's")
    with pytest.raises(WrongInput, match=r"cat/3.HEIC is of a format that is not read; make it a .png or .jpg"):
        pictures(str(root), size=8)
    (root / "cat" / "3.HEIC").unlink()
    (root / "fox").mkdir()
    (root / "fox" / "notes.txt").write_text("still to come")
    with pytest.raises(WrongInput, match=r"no picture file is below .*/fox; put some there, or take the folder away"):
        pictures(str(root), size=8)
    (root / "fox" / "notes.txt").unlink()
    (root / "fox").rmdir()
    (root / "dog" / "1.png").unlink()
    (root / "dog").rmdir()
    with pytest.raises(WrongInput, match=r"are in one class, 'cat', so there is nothing to tell apart"):
        pictures(str(root), size=8)
    with pytest.raises(WrongInput, match=r"there is no folder 'nowhere'"):
        pictures("nowhere")
    with pytest.raises(WrongInput, match=r"size=4 is not possible; .* from 8 to 1024"):
        pictures(str(root), size=4)


def test_without_pillow_the_message_names_the_line_to_install_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    put(root / "cat" / "1.png")
    put(root / "dog" / "1.png")
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(WrongInput, match=r"pip install 'fedtailor\[images\]'"):
        pictures(str(root), size=8)


# ---------- decoded once ----------


def test_pictures_are_decoded_once_until_a_file_changes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    whole = decoding.decoded

    def counting(source: decoding.Source, what: str) -> Image.Image:
        counted.append(Path(what).name)
        return whole(source, what)

    monkeypatch.setattr(decoding, "decoded", counting)
    root = tmp_path / "mine"
    put(root / "cat" / "1.png", RED)
    put(root / "dog" / "2.png", BLUE)
    first = pictures(str(root), size=8)
    again = pictures(str(root), size=8)
    assert sorted(counted) == ["1.png", "2.png"]
    assert (first.x == again.x).all() and (first.y == again.y).all()
    pictures(str(root), size=16)
    assert len(counted) == 4, "another size is another copy"
    put(root / "cat" / "1.png", GREEN, size=(11, 11))
    changed = pictures(str(root), size=8)
    assert len(counted) == 6 and changed.x[0, :, 2, 2].tolist() == list(GREEN)
    expected = changed.x.clone()
    for file in (tmp_path / "cache" / "fedtailor").iterdir():
        file.unlink()
        file.write_bytes(b"cut off")
    assert (pictures(str(root), size=8).x == expected).all() and len(counted) == 8


def test_pictures_that_fill_no_memory(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are decoded a block at a time into a file, and read from there as they are needed."""
    monkeypatch.setattr(decoding, "BLOCK", 2)
    colours = (RED, GREEN, BLUE, RED, GREEN)
    for number, colour in enumerate(colours):
        put(tmp_path / "mine" / ("cat" if number < 3 else "dog") / f"{number}.png", colour)
    found = pictures(str(tmp_path / "mine"), size=8)
    assert [tuple(x[:, 4, 4].tolist()) for x in found.x] == list(colours)
    (kept,) = (tmp_path / "cache" / "fedtailor").iterdir()
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(kept) in maps.read_text(), "the file itself is mapped into memory"
    found.x[:] = 0
    assert tuple(pictures(str(tmp_path / "mine"), size=8).x[0, :, 4, 4].tolist()) == RED, "writing changes no file"
    assert [*(tmp_path / "cache" / "fedtailor").iterdir()] == [kept]


def test_long_decoding_and_a_cache_that_cannot_be_written_are_said(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "mine" / "cat" / "1.png")
    put(tmp_path / "mine" / "dog" / "1.png")
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.warns(DataNote, match="the pictures cannot be kept as"):
        pictures(str(tmp_path / "mine"), size=8)
    (tmp_path / "cache").unlink()
    monkeypatch.setattr(decoding, "MANY", 1)
    with pytest.warns(DataNote, match="pictures-mine: 2 pictures are being decoded, and kept as .*npy"):
        pictures(str(tmp_path / "mine"), size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures(str(tmp_path / "mine"), size=8)


# ---------- published sets ----------


def test_office_31_has_images_between_domain_and_class(home: Path) -> None:
    for domain, colour in (("amazon", RED), ("dslr", GREEN), ("webcam", BLUE)):
        for kind in ("back_pack", "bike"):
            for number in range(5):
                path = home / "office31" / "domain_adaptation_images" / domain / "images" / kind / f"frame_{number}.png"
                put(path, colour)
    found = office31(size=8)
    assert found.domain_names == ("amazon", "dslr", "webcam") and found.classes == ("back_pack", "bike")
    assert found.domain is not None
    for domain, colour in enumerate((RED, GREEN, BLUE)):
        assert (found.x[found.domain == domain][:, :, 3, 3] == np.array(colour)).all()
    made = load(found)
    assert made.clients == ("amazon", "dslr", "webcam") and made.sizes.tolist() == [8, 8, 8], "80 % of ten each"


def zipped(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_office_home_is_read_out_of_its_archive_and_from_the_folder_whatever_the_space_is(home: Path) -> None:
    domains = ("Art", "Clipart", "Product", "Real World")
    members = {f"OfficeHomeDataset_10072016/{d}/{kind}/{n}.png": png(RED)
               for d in domains for kind in ("Alarm_Clock", "Bed") for n in range(2)}  # fmt: skip
    members |= {"OfficeHomeDataset_10072016/ImageInfo.csv": b"", "__MACOSX/Art/Bed/._1.png": b"no picture"}
    zipped(home / "office_home" / "OfficeHomeDataset_10072016.zip", members)
    archived = office_home(size=8)
    assert archived.domain_names == domains and archived.classes == ("Alarm_Clock", "Bed") and len(archived.x) == 16
    (home / "office_home" / "OfficeHomeDataset_10072016.zip").unlink()
    for name in members:
        if name.startswith("Office") and name.endswith("png"):
            put(home / "office_home" / name.replace("Real World", "RealWorld"))
    assert len(office_home(size=8).x) == 16
    for path in (home / "office_home").rglob("RealWorld/*/*.png"):
        path.unlink()
    with pytest.raises(WrongInput, match=r"no pictures of the domain 'Real World'.*`fedtailor data get office_home`"):
        office_home(size=8)


def test_domainnet_is_its_ten_classes_unless_others_are_asked_for(home: Path) -> None:
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    kinds = ("aircraft_carrier", "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill",
             "wine_glass", "zebra")  # fmt: skip
    for domain in domains:
        zipped(home / "domainnet" / f"{domain}.zip", {
            f"{domain}/{kind}/{domain}_{number:03d}_000001.png": png(RED) for number, kind in enumerate(kinds)
        })  # fmt: skip
    found = domainnet(size=8)
    assert found.classes == kinds[1:] and len(found.x) == 60 and found.domain_names == domains
    assert domainnet(size=8, classes=()).classes == kinds
    assert domainnet(size=8, classes=("zebra", "aircraft_carrier")).classes == ("aircraft_carrier", "zebra")
    with pytest.raises(WrongInput, match=r"there is no class 'horse'"):
        domainnet(size=8, classes=("zebra", "horse"))
    (home / "domainnet" / "real.zip").write_bytes(b"<html>")
    with pytest.raises(WrongInput, match=r"real.zip cannot be opened"):
        domainnet(size=8)


def test_pacs_is_read_out_of_its_archive(home: Path) -> None:
    zipped(home / "pacs" / "PACS.zip", {
        f"kfold/{domain}/{kind}/pic_{n}.png": png(BLUE)
        for domain in ("art_painting", "cartoon", "photo", "sketch") for kind in ("dog", "person") for n in range(2)
    })  # fmt: skip
    found = pacs(size=8)
    assert found.domain_names == ("photo", "art_painting", "cartoon", "sketch") and found.classes == ("dog", "person")
    assert found.domain is not None and found.domain.bincount().tolist() == [4, 4, 4, 4]
