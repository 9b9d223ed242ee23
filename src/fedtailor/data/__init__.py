"""Data: sources of rows, partitions over clients, and `load`, which puts one and the other together."""

from __future__ import annotations

import dataclasses

from fedtailor import registry
from fedtailor.data.air import air, air_beijing, air_cities
from fedtailor.data.arrays import arrays
from fedtailor.data.by_class import class_pairs, dirichlet, pathological
from fedtailor.data.cifar import cifar10, cifar100
from fedtailor.data.digits import digits
from fedtailor.data.federation import Dataset, Federation
from fedtailor.data.five_digits import five_digits
from fedtailor.data.folders import domainnet, office31, office_home, pacs, pictures
from fedtailor.data.hugging_face import huggingface
from fedtailor.data.idx import fashion_mnist, mnist
from fedtailor.data.mnist_m import mnist_m
from fedtailor.data.partition import Partition, Parts, as_given, by_size, domain, iid, natural
from fedtailor.data.shapes import shapes
from fedtailor.data.stations import stations
from fedtailor.data.svhn import svhn
from fedtailor.data.synth_digits import synth_digits
from fedtailor.data.synthetic import synthetic
from fedtailor.data.tables import table
from fedtailor.data.text import ag_news
from fedtailor.data.tiny import tiny_imagenet
from fedtailor.data.usps import usps
from fedtailor.data.v_mnist import v_mnist
from fedtailor.registry import WrongInput

__all__ = [
    "Dataset",
    "Federation",
    "Partition",
    "Parts",
    "ag_news",
    "again",
    "air",
    "air_beijing",
    "air_cities",
    "arrays",
    "as_given",
    "by_size",
    "cifar10",
    "cifar100",
    "class_pairs",
    "digits",
    "dirichlet",
    "domain",
    "domainnet",
    "fashion_mnist",
    "five_digits",
    "huggingface",
    "iid",
    "load",
    "mnist",
    "mnist_m",
    "natural",
    "office31",
    "office_home",
    "pacs",
    "pathological",
    "pictures",
    "shapes",
    "stations",
    "svhn",
    "synth_digits",
    "synthetic",
    "table",
    "tiny_imagenet",
    "usps",
    "v_mnist",
]


def load(
    data: str | Dataset,
    partition: str | Partition | None = None,
    clients: int | None = None,
    seed: int = 0,
) -> Federation:
    """The federation of a dataset: `load("digits")`, `load("digits", "dirichlet(alpha=0.1)", clients=10)`.

    Without a partition the dataset's own is used. `clients` overrides the number that the partition states.
    `seed` is that of the partition: which rows go where. A run has a seed of its own.
    """
    dataset = registry.parse("data", data) if isinstance(data, str) else data
    if not isinstance(dataset, Dataset):
        raise WrongInput(f"the data {data!r} is a {type(dataset).__name__}; give a name such as 'digits' or a Dataset")
    chosen = dataset.partition if partition is None else partition
    cutter = registry.parse("partition", chosen) if isinstance(chosen, str) else chosen
    if not hasattr(cutter, "cut"):
        raise WrongInput(f"the partition {chosen!r} cannot cut; give a name such as 'iid' or an object with `cut`")
    if clients is not None:
        cutter = _with_clients(cutter, clients)
    parts: Parts = cutter.cut(dataset, seed)
    written = " ".join(data.split()) if isinstance(data, str) else dataset.name
    return Federation(
        name=dataset.name,
        x=dataset.x,
        y=dataset.y,
        **{part.name: getattr(parts, part.name) for part in dataclasses.fields(Parts)},
        classes=dataset.classes,
        task=dataset.task,
        model=dataset.model,
        settings=dataset.settings,
        licence=dataset.licence,
        about=dataset.about,
        columns=dataset.columns,
        source=f"{written} | {cutter!r} | seed={seed}",
    )


def again(source: str) -> Federation:
    """The federation that says `source` of itself: `again("digits | domain(sites=2) | seed=0")`."""
    data, *rest = source.rsplit(" | ", 2)
    if len(rest) != 2 or not rest[1].startswith("seed=") or not rest[1][5:].lstrip("-").isdecimal():
        raise WrongInput(f"{source!r} is not the source of a federation; write 'data | partition | seed=0'")
    return load(data, rest[0], seed=int(rest[1][5:]))


def _with_clients(cutter: Partition, clients: int) -> Partition:
    if not dataclasses.is_dataclass(cutter) or not hasattr(cutter, "clients"):
        hint = "set its sites" if isinstance(cutter, domain) else "use one that has, such as iid or dirichlet"
        raise WrongInput(f"the partition {cutter!r} takes no number of clients ({clients} asked for); {hint}")
    return dataclasses.replace(cutter, clients=clients)
