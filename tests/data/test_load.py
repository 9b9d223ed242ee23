from __future__ import annotations

import pytest
import torch

from fedtailor import registry
from fedtailor.data import Dataset, again, dirichlet, domain, load, natural
from fedtailor.registry import WrongInput


@pytest.mark.parametrize(
    ("data", "partition", "clients", "seed"),
    [
        ("digits", None, None, 0),
        ("digits", "dirichlet(alpha=0.5)", 8, 3),
        (" digits( ) ", "domain(sites=1, train=None, validation=0.1, test=0.25)", None, -2),
        ("synthetic(alpha=0.1,  beta=1)", None, None, 1),
    ],
)
def test_the_source_makes_the_federation_again(
    data: str, partition: str | None, clients: int | None, seed: int
) -> None:
    made = load(data, partition, clients, seed)
    assert again(made.source).fingerprint() == made.fingerprint()
    assert again(made.source).source == made.source
    assert again(made.pooled().source).fingerprint() == made.fingerprint()


def test_texts_and_objects_are_one_thing(dataset: Dataset) -> None:
    text = load("digits", "dirichlet(alpha=0.5, clients=8)")
    assert load(load_dataset("digits"), dirichlet(alpha=0.5), clients=8).fingerprint() == text.fingerprint()
    assert load("digits", " DIRICHLET( 0.5, 8 )").fingerprint() == text.fingerprint()
    assert load("digits", dirichlet(alpha=0.5, clients=8)).source == text.source


def load_dataset(text: str) -> Dataset:
    found = registry.parse("data", text)
    assert isinstance(found, Dataset)
    return found


def test_everything_the_dataset_states_goes_into_the_federation(dataset: Dataset) -> None:
    full = Dataset(
        "full", dataset.x, dataset.y, dataset.classes, model="mlr", settings={"lr": 0.3}, licence="none", about="me"
    )
    made = load(full)
    assert (made.name, made.model, made.licence, made.about) == ("full", "mlr", "none", "me")
    assert made.settings == {"lr": 0.3}
    assert made.classes == dataset.classes
    assert made.source.startswith("full | iid(clients=20")


def test_clients_overrides_the_number_of_the_partition(dataset: Dataset) -> None:
    assert load(dataset, clients=4).n == 4
    assert load(dataset, "pathological(classes=3, clients=9)", clients=5).n == 5
    with pytest.raises(WrongInput, match="clients=0"):
        load(dataset, clients=0)


@pytest.mark.parametrize("partition", [natural(), domain(train=10, validation=5)])
def test_clients_is_refused_where_the_partition_has_no_such_number(partition: object, dataset: Dataset) -> None:
    with pytest.raises(WrongInput, match="takes no number of clients \\(4 asked for\\)"):
        load(dataset, partition, clients=4)  # type: ignore[arg-type]


@pytest.mark.usefixtures("fresh")
def test_a_source_of_ones_own_can_be_registered_and_named(dataset: Dataset) -> None:
    def mine(rows: int = 100) -> Dataset:
        """My data."""
        return Dataset("mine", dataset.x[:rows], dataset.y[:rows], dataset.classes)

    registry.register("data", "mine")(mine)
    made = load("mine(rows=60)", "iid", clients=3)
    assert sum(len(rows) for part in (made.train, made.validation, made.test) for rows in part) == 60
    assert again(made.source).fingerprint() == made.fingerprint()


def test_a_partition_of_ones_own_needs_only_cut(dataset: Dataset) -> None:
    class First:
        def cut(self, dataset: Dataset, seed: int) -> object:
            return natural(validation=0, test=0.5).cut(dataset, seed)

    assert load(dataset, First()).n == 8  # type: ignore[arg-type]
    with pytest.raises(WrongInput, match="takes no number of clients"):
        load(dataset, First(), clients=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["digits", "digits | iid", "digits | iid | 3", "digits | iid | seed=", "digits | iid | seed=x", "", " | | "],
)
def test_what_is_not_a_source_is_refused(text: str) -> None:
    with pytest.raises(WrongInput, match="data \\| partition \\| seed=0"):
        again(text)


def test_what_is_neither_name_nor_dataset_is_refused(dataset: Dataset) -> None:
    with pytest.raises(WrongInput, match="Dataset"):
        load(torch.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(WrongInput, match="cannot cut"):
        load(dataset, 3)  # type: ignore[arg-type]
    with pytest.raises(WrongInput, match=r"no data 'digit'.*digits"):
        load("digit")
    with pytest.raises(WrongInput, match="alpha"):
        load("digits", "dirichlet(alpha='small')")
