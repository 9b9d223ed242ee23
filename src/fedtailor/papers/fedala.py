"""FedALA's tables 1, 2 and 4 and its figures 3 and 4: learned mixing before local training.

The settings are the paper's: 20 clients, all in every round, one epoch of batches of 10, three quarters of a client's
rows to train on. What its baselines were run with is in a version of the paper that is not at hand: theirs are the
defaults of their own papers, as the pages of the methods state them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fedtailor.papers.drawing import Across, Courses, Losses, Panel, PerClient, Trajectory, together
from fedtailor.papers.preset import Cell, Claim, Count, Follow, Number, Problem, Reading, Scale, Table
from fedtailor.papers.published import Key

ROUNDS: Mapping[Scale, int] = {"quick": 8, "reduced": 40, "full": 2000}
BEST = Reading(over="micro", select="best")
SPLIT = "validation=0.0, test=0.25"
TWO_CLASSES = f"pathological(classes=2, clients=20, {SPLIT})"
SKEWED = f"dirichlet(alpha=0.1, clients=20, {SPLIT})"

MNIST = Problem("MNIST", "CNN", "mnist", TWO_CLASSES, "cnn4", 20, 52_500, 17_500)
CIFAR10 = Problem("CIFAR10", "CNN", "cifar10", SKEWED, "cnn4", 20, 45_000, 15_000)
CIFAR100 = replace(CIFAR10, label="CIFAR100", data="cifar100")
TINY = Problem("TINY", "CNN", "tiny_imagenet", SKEWED, "cnn4", 20, 75_000, 25_000)
TINY_STAR = replace(TINY, label="TINY*", network="ResNet-18", model="resnet18")
NEWS = Problem("AG News", "fastText", "ag_news", SKEWED, "", 20, 95_700, 31_900)  # its words make the network
COLUMNS: Mapping[str, Problem] = {
    "pathological/MNIST": MNIST,
    "pathological/CIFAR10": replace(CIFAR10, partition=TWO_CLASSES),
    "pathological/CIFAR100": replace(CIFAR100, partition=TWO_CLASSES.replace("classes=2", "classes=10")),
    "Dir(0.1)/CIFAR10": CIFAR10, "Dir(0.1)/CIFAR100": CIFAR100, "Dir(0.1)/TINY": TINY, "Dir(0.1)/TINY*": TINY_STAR,
    "Dir(0.1)/AG News": NEWS,
}  # fmt: skip
RATES = {"MNIST": 0.1, "TINY*": 0.1, "AG News": 0.1, "digits": 0.1}  # 0.005 elsewhere

DIGITS = Problem(
    "digits", "CNN", "digits", TWO_CLASSES, "cnn4", 20, 1348, 449, instead_of="MNIST",
    differences=("the 1,797 digits of the package, 28 x 28 in colour and six styles, in place of MNIST's 70,000",),
)  # fmt: skip
QUARTER = replace(
    MNIST, partition=TWO_CLASSES.replace("test=0.25", "test=0.75"), rows=17_500, tests=52_500,
    differences=("a quarter of each client's rows to train on, where the paper has three",),
)  # fmt: skip
REDUCED = {"pathological/MNIST": QUARTER, **{c: COLUMNS[c] for c in ("Dir(0.1)/CIFAR10", "Dir(0.1)/AG News")}}
TABLE2: Mapping[Scale, Mapping[str, Problem]] = {
    "quick": {"pathological/MNIST": DIGITS}, "reduced": REDUCED, "full": COLUMNS
}  # fmt: skip

METHODS = {
    "FedAvg": "FedAvg()", "FedProx": "FedProx(mu=0.001)", "FedAvg-C": "FedAvgC(ft_epochs=10)",
    "FedProx-C": "FedProxC(mu=0.001, ft_epochs=10)", "Per-FedAvg": "PerFedAvg(variant='FO')",
    "FedRep": "FedRep(head_epochs=1)", "pFedMe": "pFedMe(lam=15.0, K=5, beta=1.0, eta=0.005)",
    "Ditto": "Ditto(lam=1.0)",
    "FedAMP": "FedAMP(lam=1.0)", "FedPHP": "FedPHP(mu_max=0.9, lambda_r=0.05)", "FedFomo": "FedFomo(M=20)",
    "APPLE": "APPLE(mu=0.1)", "PartialFed": "PartialFedAdaptive(level='layer')", "FedALA": "FedALA(p=1, s=80.0)",
}  # fmt: skip
FEW = ("FedAvg", "FedRep", "Ditto", "FedALA")  # of the news at the scale reduced
WITHIN = ("FedAvg", "FedProx", "Per-FedAvg", "FedRep", "pFedMe", "Ditto", "FedAMP", "FedPHP", "PartialFed")
UNSTATED = ("options of the baselines from their own papers: those of this one are not at hand",)


def cell(row: str, method: str, column: str, problem: Problem, scale: Scale, key: Key | None) -> Cell:
    """The best round over all test rows, as the paper has it."""
    short = () if scale == "full" else (f"{ROUNDS[scale]} of 2000 rounds",)
    every = {"quick": 1, "reduced": 4, "full": 5}[scale]
    settings = {
        "rounds": ROUNDS[scale], "epochs": 1, "batch": 10, "lr": RATES.get(problem.label, 0.005),
        "finish_epochs": 0, "eval_every": every, "checkpoint_every": 10,
    }  # fmt: skip
    own = UNSTATED if row.removesuffix("+ALA") not in ("Local", "FedAvg", "FedALA") else ()
    return Cell(
        row, problem, method, settings, (Number(column, BEST, key),), differences=(*own, *short),
        comparable=scale == "full" and not problem.instead_of,
    )  # fmt: skip


def table2(scale: Scale) -> Iterator[Cell]:
    for column, problem in TABLE2[scale].items():
        yield cell("Local", "Local()", column, problem, scale, None)
        for row, method in METHODS.items():
            if scale != "reduced" or problem is not NEWS or row in FEW:
                yield cell(row, method, column, problem, scale, Key(row, column))


ADDED = "ALA added/CIFAR100/accuracy"


def table4(scale: Scale) -> Iterator[Cell]:
    """Each method, from table 2, and with ALA in it."""
    problem = DIGITS if scale == "quick" else CIFAR100
    yield cell("Local", "Local()", ADDED, problem, scale, None)
    for row in WITHIN:
        yield cell(row, METHODS[row], ADDED, problem, scale, None)
        key = None if row == "PartialFed" else Key(f"{row}+ALA", ADDED)
        method = f"AdaptiveLocalAggregation({METHODS[row]}, p=1, s=80.0)"
        yield cell(f"{row}+ALA", method, ADDED, problem, scale, key)


LEARNING: Mapping[Scale, int] = {"quick": 5, "reduced": 8, "full": 12}  # rounds: the paper does not say how many
SHORT: Mapping[Scale, str] = {"quick": ", cap=30", "reduced": "", "full": ""}  # the first stage takes most of the time
CAPPED = ("at most 30 epochs of weight learning in a client's first stage",)
LOSSES = "ALA loss"  # as the method calls it


def figure3(scale: Scale) -> Iterator[Cell]:
    """At least six epochs of weight learning in each round."""
    problems = TABLE2[scale]
    if scale != "quick":
        problems = {column: problems[column] for column in ("pathological/MNIST", "Dir(0.1)/CIFAR10")}
    for column, problem in problems.items():
        run = cell("FedALA", f"FedALA(p=1, s=80.0{SHORT[scale]}, later_epochs=6)", column, problem, scale, None)
        settings = {**run.settings, "rounds": LEARNING[scale], "eval_every": 1}
        told = (f"{LEARNING[scale]} rounds", *(CAPPED if SHORT[scale] else ()))
        yield replace(run, settings=settings, differences=told, learned=LOSSES)


# rounds, the first that is followed, and the last without ALA
FOLLOWED: Mapping[Scale, tuple[int, int, int]] = {
    "quick": (16, 8, 11), "reduced": (50, 30, 37), "full": (200, 140, 155)
}  # fmt: skip
TURNING = "FedAvg then FedALA"


def figure4(scale: Scale) -> Iterator[Cell]:
    """FedALA without ALA up to some round; client #4 is followed."""
    rounds, first, turn = FOLLOWED[scale]
    [(column, problem), *_] = TABLE2[scale].items()
    follow = Follow(4, first, turn, "FedAvg", "FedALA")
    methods = {"Local": "Local()", "FedAvg": "FedAvg()", TURNING: f"FedALA(p=1, s=80.0{SHORT[scale]}, after={turn})"}
    for row, method in methods.items():
        run = cell(row, method, column, problem, scale, None)
        capped = CAPPED if SHORT[scale] and row == TURNING else ()
        told = () if scale == "full" else (f"{rounds} of 200 rounds, ALA from {turn + 1} on, not from 156", *capped)
        # one after the other in all three, so that they are one run up to the turn
        settings = {**run.settings, "rounds": rounds, "runner": "sequential"}
        yield replace(run, settings=settings, differences=told, follow=follow if row == TURNING else None)


BETAS = {f"Dir({beta:g})": beta for beta in (0.01, 0.1, 0.5, 1.0)}
COUNTS = {f"{n} clients": float(n) for n in (20, 50, 100)}
SWEPT = ("FedAvg", "FedRep", "Ditto", "FedALA")
# the paper's own data of the two sweeps, and what has their place
WHICH: Mapping[Scale, tuple[Problem, Problem]] = {
    "quick": (DIGITS, DIGITS), "reduced": (CIFAR10, CIFAR10), "full": (TINY, CIFAR100)
}  # fmt: skip
INSTEAD = ("CIFAR10 in place of Tiny-ImageNet and CIFAR100",)


def swept(scale: Scale, partitions: Mapping[str, str], which: Problem, clients: Mapping[str, int]) -> Iterator[Cell]:
    """Each partition with a few methods."""
    for column, partition in partitions.items():
        told = INSTEAD if which is CIFAR10 else ()
        problem = replace(which, partition=partition, clients=clients[column], differences=(*which.differences, *told))
        for row in ("Local", *SWEPT):
            yield cell(row, METHODS.get(row, "Local()"), column, problem, scale, None)


def heterogeneity(scale: Scale) -> Iterator[Cell]:
    partitions = {column: f"dirichlet(alpha={beta}, clients=20, {SPLIT})" for column, beta in BETAS.items()}
    yield from swept(scale, partitions, WHICH[scale][0], dict.fromkeys(BETAS, 20))


def scalability(scale: Scale) -> Iterator[Cell]:
    partitions = {column: f"dirichlet(alpha=0.1, clients={n:.0f}, {SPLIT})" for column, n in COUNTS.items()}
    yield from swept(scale, partitions, WHICH[scale][1], {column: int(n) for column, n in COUNTS.items()})


def weights(values: Sequence[int]) -> tuple[Count, ...]:
    """What ALA learns of the top p stages of a ResNet-18, with ten outputs as the printed counts have it."""
    return tuple(
        Count(f"p={p}", "ala_trainable_params_million", "weights", "resnet18", f"FedALA(p={p}, level='stage')", 10,
              (3, 64, 64), 1_000_000, Key("FedALA", "ala_trainable_params_million", f"p={p},s=80"))
        for p in values
    )  # fmt: skip


LEARNED = "loss of weight learning"
PRINTED = "The paper prints numbers of other data sets for each of its columns; none is held beside these."
SWEPT_CLAIMS = (
    Claim("FedALA is better than the other methods", tuple(("FedALA", row) for row in SWEPT if row != "FedALA")),
    Claim("FedALA is better than training alone", (("FedALA", "Local"),), whose="ours"),
)
REST = tuple(row for row in METHODS if row != "FedALA")
TABLES = (
    Table(
        "fedala", "table1", "Weights that ALA learns, by the number of stages, FedALA's table 1",
        counts=weights(range(1, 7)),
        about="The printed counts are those of ten classes, although Tiny-ImageNet has 200. The accuracies of the "
        "table take 174 hours each on two cores and are not covered.",
    ),
    Table(
        "fedala", "table2", "FedALA beside thirteen methods, FedALA's table 2", table2,
        claims=(
            Claim("FedALA is better than every other method", tuple(("FedALA", other) for other in REST)),
            Claim("FedALA is better than training alone", (("FedALA", "Local"),), whose="ours"),
        ),
        about="At the scale reduced four methods run on AG News.",
        drawings=(
            Courses(panels=(
                together("one model", "FedALA", "FedAvg", "FedProx", "FedAvg-C", "FedProx-C", "Per-FedAvg"),
                together("own models", "FedALA", "FedRep", "pFedMe", "Ditto", "FedPHP", "PartialFed"),
                together("others' models", "FedALA", "FedAMP", "FedFomo", "APPLE"),
            )),
            PerClient(),
        ),
    ),
    Table(
        "fedala", "figure3", "The loss while ALA learns its weights, FedALA's figure 3", figure3,
        about="The paper draws curves of client #8 on MNIST and Cifar10, and prints no numbers.",
        drawings=(Losses(f"{LOSSES}[epoch]", LEARNED, "epoch", client=8),),
    ),
    Table(
        "fedala", "figure4", "The way of a client's model with FedAvg and with FedALA, FedALA's figure 4", figure4,
        claims=(Claim("FedALA is better than FedAvg, from which it goes on", ((TURNING, "FedAvg"),), whose="ours"),),
        about="The paper draws the way of client #4 and prints no numbers.",
        drawings=(Trajectory(), Courses(panels=(Panel("", {"FedAvg": "FedAvg", TURNING: "then FedALA"}),))),
    ),
    Table(
        "fedala", "table4", "ALA added to nine methods, FedALA's table 4", table4,
        claims=(
            Claim("ALA improves the method it is added to", tuple((f"{row}+ALA", row) for row in WITHIN)),
            Claim("FedAvg with ALA is better than training alone", (("FedAvg+ALA", "Local"),), whose="ours"),
        ),
        about="Of the two data sets CIFAR100 is covered; columns with other heterogeneity and more clients are not.",
        drawings=(
            Courses(panels=tuple(Panel(row, {row: "without", f"{row}+ALA": "with ALA"}) for row in WITHIN)),
            PerClient(),
        ),
    ),
    Table(
        "fedala", "heterogeneity", "Few methods over the heterogeneity of labels, after FedALA's table 4",
        heterogeneity, claims=SWEPT_CLAIMS, about=PRINTED, drawings=(Across("β of Dir(β)", BETAS), PerClient()),
    ),
    Table(
        "fedala", "scalability", "Few methods over the number of clients, after FedALA's table 4", scalability,
        claims=SWEPT_CLAIMS, about=PRINTED, drawings=(Across("clients", COUNTS), PerClient()),
    ),
)  # fmt: skip
