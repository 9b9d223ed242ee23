"""FedHAM's tables 2, 3 and 4 and its figure 4: attention over other clients' models, learned on the client.

The settings are the paper's: V-MNIST on 18 clients with an AlexNet at the rate 0.02, one epoch of batches of 32, 150
rounds; weather and air quality at 42 stations with a GRU at 0.01, two epochs, 175 rounds. Its stations' records are not
public: those of Beijing (12 stations) and made-up ones are taken. The model is chosen on validation rows, a tenth of
each client's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fedtailor.papers.drawing import Bars, Courses, PerClient, together
from fedtailor.papers.preset import Cell, Claim, Number, Problem, Reading, Scale, Table, chain
from fedtailor.papers.published import Key

ROUNDS: Mapping[Scale, int] = {"quick": 12, "reduced": 30, "full": 150}
CHOSEN = Reading(select="best_on_validation")
PRECISE = replace(CHOSEN, metric="precision")

VMNIST = Problem(
    "V-MNIST(unb)", "AlexNet", "v_mnist", "natural(validation=0.1, test=0.2)", "alexnet_small", clients=18,
    rows=50_957, tests=14_559, differences=("the four derived sets are made by us, as the paper's were",),
)  # fmt: skip
SMALL = replace(
    VMNIST, network="CNN", model="cnn4", partition="natural(validation=0.1, test=0.7)", rows=14_559, tests=50_957,
    differences=("a fifth of the pictures to train on, where the paper has seven tenths, and a smaller network",
                 *VMNIST.differences),
)  # fmt: skip
KINDS = replace(
    SMALL, label="V-MNIST of digits", data="v_mnist(source='digits')", partition="natural(validation=0.1, test=0.3)",
    clients=15, rows=1_078, tests=539, instead_of="V-MNIST",
    differences=("five of the six kinds, made of the package's 1,797 digits at 15 clients, and a smaller network",),
)  # fmt: skip
BEIJING = Problem(
    "W&A China(unb)", "GRU", "air_beijing(every=24)", "as_given", "gru", clients=12, rows=11_800, tests=3_300,
    instead_of="42 stations in China",
    differences=("12 stations in Beijing, a window a day, in place of 42 in four cities, which are not public",),
)  # fmt: skip
MADE_UP = Problem(
    "stations", "GRU", "stations(count=42, windows_each=300)", "as_given", "gru", clients=42, rows=8_820, tests=2_520,
    instead_of="304 stations in China",
    differences=("42 made-up stations in four cities, in place of 304 in 31 cities, which are not public",),
)  # fmt: skip
FEW = replace(
    MADE_UP, data="stations(count=12, windows_each=100)", clients=12, rows=840, tests=240,
    differences=("12 made-up stations in four cities, in place of 304 in 31 cities, which are not public",),
)  # fmt: skip
PICTURES: Mapping[Scale, Problem] = {"quick": KINDS, "reduced": SMALL, "full": VMNIST}
AIR: Mapping[Scale, Problem] = {"quick": FEW, "reduced": BEIJING, "full": BEIJING}
CLUSTERED: Mapping[Scale, Problem] = {"quick": FEW, "reduced": MADE_UP}

METHODS = {
    "Local-Train": "Local()", "FedSGD": "FedSGD()", "FedAvg": "FedAvg()", "FedProx": "FedProx(mu=0.01)",
    "FedPer": "FedPer()", "FedHealth": "FedHealth()", "FTL": "FTL()", "FedBABU": "FedBABU()", "FedAMP": "FedAMP()",
    "FedHAM": "FedHAM(p=10)",
}  # fmt: skip
ABLATION = {"FTL": "FTL()", "AML2": "FedHAM(p=10, layers='second')", "AML1": "FedHAM(p=10, layers='first')",
            "HAM": "FedHAM(p=10)"}  # fmt: skip
STATIONS = ("Local-Train", "FedAvg", "FedPer", "FTL", "FedAMP", "FedHAM")
WARMUP = "ten rounds of warm-up, optimisers of attention and its width are ours: the paper does not state them"


def settings(problem: Problem, scale: Scale) -> dict[str, Any]:
    air = problem.network == "GRU"
    rounds = 175 if air and scale == "full" else ROUNDS[scale]
    own = {"epochs": 2, "lr": 0.01} if air else {"epochs": 1, "lr": 0.02}
    every = 3 if problem is SMALL else 1
    return {"rounds": rounds, "batch": 32, **own, "finish_epochs": 0, "eval_every": every, "checkpoint_every": 6}


def shortened(problem: Problem, scale: Scale) -> tuple[str, ...]:
    whole = 175 if problem.network == "GRU" else 150
    return () if scale == "full" else (f"{ROUNDS[scale]} of {whole} rounds",)


def warm(method: str, scale: Scale) -> str:
    """A short run has a short warm-up, or attention would hardly be seen."""
    return method.replace("p=10", "p=4") if scale == "quick" else method


def cell(
    row: str, method: str, problem: Problem, scale: Scale, numbers: tuple[Number, ...],
    differences: tuple[str, ...] = (),
) -> Cell:  # fmt: skip
    own = (WARMUP,) if "FedHAM" in method else ()
    return Cell(
        row, problem, warm(method, scale), settings(problem, scale), numbers,
        differences=(*differences, *own, *shortened(problem, scale)),
        comparable=scale == "full" and not problem.instead_of,
    )  # fmt: skip


def both(column: str, row: str | None) -> tuple[Number, ...]:
    """Accuracy and macro precision."""
    pairs = {"accuracy": CHOSEN, "precision": PRECISE}
    return tuple(
        Number(f"{column}/{metric}", reading, Key(row, f"{column}/{metric}") if row else None)
        for metric, reading in pairs.items()
    )


def table2(scale: Scale) -> Iterator[Cell]:
    for row, method in METHODS.items():
        yield cell(row, method, PICTURES[scale], scale, both("V-MNIST(unb)", row))
    for row in STATIONS:
        yield cell(row, METHODS[row], AIR[scale], scale, both("W&A China(unb)", row))


def figure4(scale: Scale) -> Iterator[Cell]:
    for problem in (PICTURES[scale], AIR[scale]):
        yield cell("Local-Train", "Local()", problem, scale, both(problem.label, None))
        for row, method in ABLATION.items():
            yield cell(row, method, problem, scale, both(problem.label, None))


TARGET = 60.0  # per cent: the paper's 80 is out of reach of the records at hand
GUESSED = (
    f"The target of {TARGET:g} % is a guess of ours at what the stations at hand bear; the paper's are 70 and 80 %."
)


def until(quantity: str, column: str) -> Number:
    return Number(column, Reading(select="when", target=TARGET, quantity=quantity))  # type: ignore[arg-type]


def table3(scale: Scale) -> Iterator[Cell]:
    """Rounds and traffic until an accuracy is reached; numbers of the paper's own target are not held beside them."""
    other = (f"until {TARGET:g} % are reached, where the paper has 80 % at its own stations",)
    numbers = (until("rounds", "rounds"), until("models", "traffic"))
    for row in ("Local-Train", "FedPer", "FedHealth", "FTL", "FedBABU", "FedAMP", "FedHAM"):
        yield cell(row, METHODS[row], CLUSTERED[scale], scale, numbers, other)


CLUSTERS = {
    "k=1": "FedHAM(p=10)", "k=3": "FedHAM(p=10, k=3)", "k=5": "FedHAM(p=10, k=5)",
    "mean-shift": "FedHAM(p=10, grouping='meanshift')",
}  # fmt: skip


def table4(scale: Scale) -> Iterator[Cell]:
    other = (f"until {TARGET:g} % are reached, where the paper has 70 and 80 % at 304 stations",)
    spent = (until("rounds", "rounds"), until("models", "traffic"), until("minutes", "minutes"))
    numbers = (Number("accuracy", CHOSEN), *spent)
    yield cell("Local-Train", "Local()", CLUSTERED[scale], scale, numbers, other)
    for row in ("FedAvg", "FTL", "FedAMP"):
        yield cell(row, METHODS[row], CLUSTERED[scale], scale, numbers, other)
    for row, method in CLUSTERS.items():
        yield cell(row, method, CLUSTERED[scale], scale, numbers, other)


REST = tuple(row for row in METHODS if row not in ("FedHAM", "Local-Train"))
RECORDS = "The paper's records of 42 and 304 stations are not public; Beijing's and made-up stations are taken."
TABLES = (
    Table(
        "fedham", "table2", "FedHAM beside nine methods, FedHAM's table 2", table2, alone="Local-Train",
        claims=(
            Claim("FedHAM is better than every other method", tuple(("FedHAM", other) for other in REST)),
            Claim("FedHAM is better than training alone", chain("FedHAM", "Local-Train")),
        ),
        about=f"The unbalanced columns. {RECORDS}",
        drawings=(
            Courses(panels=(
                together("one model", "FedHAM", "FedSGD", "FedAvg", "FedProx", "FedBABU"),
                together("own models", "FedHAM", "FedPer", "FedHealth", "FTL", "FedAMP"),
            )),
            PerClient(),
        ),
    ),
    Table(
        "fedham", "figure4", "FedHAM without its layers of attention, FedHAM's figure 4", figure4, alone="Local-Train",
        claims=(
            Claim("FTL < AML2 < AML1 < HAM", chain("HAM", "AML1", "AML2", "FTL")),
            Claim("HAM is better than training alone", chain("HAM", "Local-Train"), whose="ours"),
        ),
        about=f"The paper prints the order of the four, and gains over both data sets together. {RECORDS}",
        drawings=(Bars(), Courses(), PerClient()),
    ),
    Table(
        "fedham", "table3", "Rounds and traffic until an accuracy is reached, FedHAM's table 3", table3,
        alone="Local-Train",
        claims=(
            Claim("FedHAM takes fewer rounds than the others",
                  tuple(("FedHAM", other) for other in ("FTL", "FedBABU", "FedAMP")), ("rounds",), smaller=True),
            Claim("FTL sends the least", tuple(("FTL", other) for other in ("FedBABU", "FedAMP", "FedHAM")),
                  ("traffic",), smaller=True),
        ),
        eligible=("quick", "reduced"), about=f"{GUESSED} {RECORDS}",
        drawings=(Bars(), Courses(), Courses(over="models")),
    ),
    Table(
        "fedham", "table4", "Clusters on the server against traffic and time, FedHAM's table 4", table4,
        alone="Local-Train",
        claims=(
            Claim("More clusters take less traffic", chain("k=5", "k=3", "k=1"), ("traffic",), smaller=True),
            Claim("More clusters take less time", chain("k=5", "k=3", "k=1"), ("minutes",), smaller=True),
            Claim("Three or five clusters are more accurate than one", (("k=3", "k=1"), ("k=5", "k=1")), ("accuracy",)),
        ),
        eligible=("quick", "reduced"), about=f"{GUESSED} {RECORDS}",
        drawings=(Bars(), Courses(over="models"), Courses(over="minutes")),
    ),
)  # fmt: skip
