"""Pictures in folders: one folder for each class, and above them, if at all, one for each site or domain."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import torch

from fedtailor.data import compact
from fedtailor.data.decoding import Source, check_side, once
from fedtailor.data.download import ORIGINS, Origin, Remote, originate, place
from fedtailor.data.federation import Dataset
from fedtailor.data.files import below, first_of, home, numbered
from fedtailor.registry import WrongInput, register

PICTURES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
UNREAD = {".avif", ".dcm", ".eps", ".heic", ".heif", ".jp2", ".jxl", ".nii", ".pdf", ".psd", ".raw", ".svg", ".tga"}
BETWEEN = "images"  # a folder between class and site, as in Office-31, or between class and pictures
TEN = ("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra")
VISDA = "http://csr.bu.edu/ftp/visda/2019/multi-source"
SETTINGS = {"rounds": 200, "epochs": 1, "batch": 32, "lr": 0.01}  # pFedLA's


@dataclass(frozen=True)
class Entry:
    """One picture file, on the disk or in a zip archive."""

    parts: tuple[str, ...]  # the folders that it is in, from the top
    name: str
    source: Source
    stamp: object


def entries(root: Path) -> Iterator[Entry]:
    """All picture files below a folder, and in zip archives that lie in it."""
    for path in below(root):
        inside = path.relative_to(root)
        if path.suffix.lower() in PICTURES:
            about = path.stat()
            yield Entry(inside.parent.parts, str(path), path, (about.st_size, about.st_mtime_ns))
        elif path.suffix.lower() == ".zip":
            yield from members(path)


def members(path: Path) -> Iterator[Entry]:
    """The picture files in a zip archive."""
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise WrongInput(f"{path} cannot be opened ({error}); delete it and fetch it again") from None
    about = path.stat()
    for member in archive.namelist():
        file = PurePosixPath(member)
        if file.suffix.lower() in PICTURES and "__MACOSX" not in file.parts:
            source = partial(archive.read, member)
            yield Entry(file.parent.parts, f"{member} in {path}", source, (about.st_size, about.st_mtime_ns))


def plain(word: str) -> str:
    """`Real World`, `Real_World` and `RealWorld` are one name."""
    return "".join(letter for letter in word.lower() if letter.isalnum())


# ---------- any folder ----------


@register("data", "pictures")
def pictures(path: str, size: int = 64) -> Dataset:
    """Your own pictures: a folder with one folder a class, or one a site with folders of classes in it."""
    check_side("pictures", size)
    root = Path(path)
    if not root.is_dir():
        raise WrongInput(f"pictures: there is no folder {path!r}; give one that holds folders of pictures, one a class")
    found = found_below(path, root)
    folders = [tuple(part for part in entry.parts if part != BETWEEN) for entry in found]
    depth = len(folders[0])
    other = next((entry for entry, parts in zip(found, folders, strict=True) if len(parts) != depth), None)
    if depth not in (1, 2) or other is not None:
        wrong = found[0] if other is None else other
        raise WrongInput(
            f"pictures: {wrong.name} is not where {path!r} should hold its pictures: as class/file, or all of them as "
            f"site/class/file" + ("" if other is None else f", as {found[0].name} would have it")
        )
    labels, classes = numbered([parts[-1] for parts in folders])
    if len(classes) < 2:
        raise WrongInput(
            f"pictures: all of {path!r} are in one class, {classes[0]!r}, so there is nothing to tell apart; give each "
            "class a folder"
        )
    owner, sites = numbered([parts[0] for parts in folders]) if depth == 2 else (None, ())
    x = once(f"pictures-{plain(root.name)}", [e.stamp for e in found], [e.source for e in found],
             [e.name for e in found], size)  # fmt: skip
    return Dataset(
        name=root.resolve().name,
        x=x,
        y=torch.from_numpy(labels),
        classes=classes,
        owner=None if owner is None else torch.from_numpy(owner),
        owner_names=sites,
        model="resnet18" if size >= 32 else "cnn4" if size >= 16 else "dnn",
        partition="iid(clients=10)" if owner is None else "natural",
        settings={"rounds": 50, "epochs": 1, "batch": 16, "lr": 0.01},
        licence="your own",
        about=f"pictures in {len(classes)} classes" + (f" at {len(sites)} sites" if sites else ""),
    )


def found_below(path: str, root: Path) -> list[Entry]:
    """All pictures; none is left out in silence for its format, and no folder for being empty."""
    unread = next((file for file in below(root) if file.suffix.lower() in UNREAD), None)
    if unread is not None:
        raise WrongInput(f"pictures: {unread} is of a format that is not read; make it a .png or .jpg, or take it away")
    found = sorted(entries(root), key=lambda entry: entry.name)
    if not found:
        raise WrongInput(f"pictures: no picture file is below {path!r}; known are {', '.join(sorted(PICTURES))}")
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith((".", "__")))
    empty = next((folder for folder in folders if next(entries(folder), None) is None), None)
    if empty is not None:
        raise WrongInput(f"pictures: no picture file is below {empty}; put some there, or take the folder away")
    return found


# ---------- published sets of several domains ----------

originate("office31", Origin(
    "none stated (Saenko et al., 2010), for research",
    by_hand="domain_adaptation_images.tar.gz is linked on the page of Saenko's «Domain Adaptation Project»; unpack it "
    "in {folder}, so that amazon, dslr and webcam are somewhere below it",
))  # fmt: skip
originate("office_home", Origin(
    "for research and education only (Venkateswara et al., 2017)",
    by_hand="its authors ask to be told the use: follow https://www.hemanthdv.org/officeHomeDataset.html and save "
    "OfficeHomeDataset_10072016.zip in {folder}, or unpack it there",
))  # fmt: skip
originate("domainnet", Origin(
    "for research, within fair use (Peng et al., 2019)",
    tuple(Remote(f"{domain}.zip", f"{VISDA}/{cleaned}{domain}.zip") for domain, cleaned in (
        ("clipart", "groundtruth/"), ("infograph", ""), ("painting", "groundtruth/"), ("quickdraw", ""), ("real", ""),
        ("sketch", ""),
    )),
))  # fmt: skip
originate("pacs", Origin(
    "none stated (Li et al., 2017), for research",
    by_hand="PACS.zip (its folder is called kfold) is linked on the page of Li et al., «Deeper, Broader and Artier "
    "Domain Generalization»; save it in {folder}, or unpack it there",
    compact="pacs_96.npz",
))  # fmt: skip


def of_domains(
    name: str, size: int, domains: Sequence[str], partition: str, about: str, classes: Iterable[str] = (),
    model: str = "alexnet_bn",
) -> Dataset:  # fmt: skip
    """The set in its folder: every picture in a folder of its class, below one of its domain, at whatever depth."""
    check_side(name, size)
    root = home() / name
    first_of(name, [root])
    wanted = {plain(word) for word in classes}
    found: list[tuple[str, str, Entry]] = []
    for entry in entries(root):
        inside = [plain(part) for part in entry.parts]
        where = next((i for i, part in enumerate(inside) if part in map(plain, domains)), None)
        parts = [part for part in entry.parts[(where or 0) + 1 :] if part != BETWEEN]
        if where is not None and len(parts) == 1 and (not wanted or plain(parts[0]) in wanted):
            found.append((inside[where], parts[0], entry))
    found.sort(key=lambda one: one[2].name)
    lacking = [domain for domain in domains if plain(domain) not in {one[0] for one in found}]
    if lacking:
        raise WrongInput(
            f"{name}: {root} holds no pictures of the domain {lacking[0]!r} in folders of their classes; "
            f"`fedtailor data get {name}` says what belongs there"
        )
    labels, names = numbered([one[1] for one in found])
    kept = [one[2] for one in found]
    x = once(name, [e.stamp for e in kept], [e.source for e in kept], [e.name for e in kept], size)
    order = [plain(domain) for domain in domains]
    return Dataset(
        name=name,
        x=x,
        y=torch.from_numpy(labels),
        classes=names,
        domain=torch.tensor([order.index(one[0]) for one in found]),
        domain_names=tuple(domains),
        model=model,
        partition=partition,
        settings=SETTINGS,
        licence=ORIGINS[name].licence,
        about=f"{about}, at {size} x {size} pixels",
    )


SHARES = "domain(sites=1, train=0.8, validation=0.0, test=None)"


@register("data", "office31")
def office31(size: int = 224) -> Dataset:
    """Office-31: 4,110 pictures of 31 office objects in three domains: amazon, dslr, webcam."""
    return of_domains("office31", size, ("amazon", "dslr", "webcam"), SHARES, "office objects in three domains")


@register("data", "office_home")
def office_home(size: int = 224) -> Dataset:
    """Office-Home: 15,588 pictures of 65 everyday objects in four domains, from art to photographs."""
    domains = ("Art", "Clipart", "Product", "Real World")
    return of_domains("office_home", size, domains, SHARES, "everyday objects in four domains")


@register("data", "domainnet")
def domainnet(size: int = 256, classes: tuple[str, ...] = TEN) -> Dataset:
    """DomainNet: six domains from clip art to sketches, in the ten classes of FedBN and pFedLA; () for all 345."""
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    few = "domain(sites=1, train=105, validation=0, test=None)"
    dataset = of_domains("domainnet", size, domains, few, "objects in six domains", classes)
    lacking = [word for word in classes if plain(word) not in map(plain, dataset.classes)]
    if lacking:
        raise WrongInput(f"domainnet: there is no class {lacking[0]!r}; give names of its folders, or () for all")
    return dataset


@register("data", "pacs")
def pacs(size: int = 96) -> Dataset:
    """PACS: 9,991 pictures of seven kinds of things in four domains: photo, art painting, cartoon, sketch."""
    copy = home() / ORIGINS["pacs"].compact
    domains = ("photo", "art_painting", "cartoon", "sketch")
    about = "animals and things in four domains"
    if first_of("pacs", [place("pacs", "")], [copy]) != [copy]:
        return of_domains("pacs", size, domains, SHARES, about, model="resnet18")
    check_side("pacs", size)
    blobs, arrays = compact.blobs(copy)
    stamp = (copy.stat().st_size, copy.stat().st_mtime_ns)
    return Dataset(
        name="pacs",
        x=once("pacs", [stamp], blobs, [f"{file} in {copy}" for file in arrays["files"]], size),
        y=torch.from_numpy(arrays["labels"].astype("int64")),
        classes=tuple(str(word) for word in arrays["classes"]),
        domain=torch.from_numpy(arrays["domains"].astype("int64")),
        domain_names=tuple(str(word) for word in arrays["domain_names"]),
        model="resnet18",
        partition=SHARES,
        settings=SETTINGS,
        licence=ORIGINS["pacs"].licence,
        about=f"{about}, at {size} x {size} pixels, from a copy at 96 x 96",
    )
