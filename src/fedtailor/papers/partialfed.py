"""PartialFed's tables 1 to 4 and its figure 3: which part of the global model is loaded.

The paper trains a ResNet-18 that was pretrained on ImageNet on the four domains of Office-Home; its rates, rounds and
batches are in an appendix that is not in its text. Ours: SGD at 0.01 with momentum 0.9 and weight decay 5e-4, batches
of 32, one epoch a round, five epochs of tuning at the end for every method. Smaller scales take PACS, four domains of
seven classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from fedtailor.papers.drawing import Courses, Learned, PerClient, together
from fedtailor.papers.preset import Cell, Claim, Number, Problem, Reading, Scale, Table, chain
from fedtailor.papers.published import Key

ROUNDS: Mapping[Scale, int] = {"quick": 3, "reduced": 20, "full": 100}
SPLIT = "domain(sites=1, train=0.8, validation=0.0, test=None)"
UNTRAINED = "trained from random values; the paper's network was pretrained on ImageNet"
UNSTATED = "rates, batch, rounds and tuning are ours: the paper's are in an appendix that is not in the text"

HOME = Problem(
    "Office-Home", "ResNet-18", "office_home(size=224)", SPLIT, "resnet18", clients=4, rows=12_470, tests=3_118,
    differences=(UNTRAINED, UNSTATED),
)  # fmt: skip
PACS = Problem(
    "PACS", "ResNet-18", "pacs(size=32)", SPLIT, "resnet18", clients=4, rows=7_993, tests=1_998,
    instead_of="Office-Home",
    differences=("PACS, seven classes at 32 x 32 pixels, in place of Office-Home's 65 at 224", UNTRAINED, UNSTATED),
)  # fmt: skip
FEW = replace(
    PACS, partition="domain(sites=1, train=200, validation=0, test=200)", rows=800, tests=800,
    differences=("PACS, seven classes at 32 x 32 pixels, 200 pictures a domain to train on, in place of Office-Home",
                 UNTRAINED, UNSTATED),
)  # fmt: skip
PROBLEMS: Mapping[Scale, Problem] = {"quick": FEW, "reduced": PACS, "full": HOME}
DOMAINS = {"Product": "Product", "Art": "Art", "Clipart": "Clipart", "Real-World": "Real World"}


def cell(
    row: str, method: str, scale: Scale, printed: tuple[str, str] | None = None, learned: tuple[Number, ...] = (),
    differences: tuple[str, ...] = (),
) -> Cell:  # fmt: skip
    """Numbers of the models that the clients end with, tuned; `printed` is method and variant in the paper."""
    problem = PROBLEMS[scale]
    key = {column: Key(printed[0], column, printed[1]) for column in (*DOMAINS, "mean")} if printed else {}
    each = [Number(c, Reading(over=name), key.get(c)) for c, name in DOMAINS.items()] if scale == "full" else []
    settings = {
        "rounds": ROUNDS[scale], "epochs": 1, "batch": 32, "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0005,
        "finish_epochs": 5, "eval_every": 1 if scale == "quick" else 5, "checkpoint_every": 5,
    }  # fmt: skip
    return Cell(
        row, problem, method, settings, learned or (*each, Number("mean", Reading(), key.get("mean"))),
        differences=(*differences, f"{ROUNDS[scale]} rounds"), comparable=False,
        learned=LEARNED if learned else "",
    )  # fmt: skip


def fixed(strategy: str, scale: Scale, printed: str) -> Cell:
    return cell(strategy, f"PartialFedFix(strategy='{strategy}')", scale, ("PartialFed-Fix", printed))


def local(scale: Scale, printed: tuple[str, str] | None = None) -> Cell:
    return cell("Single", "Local()", scale, printed)


BOTTOM_UP = ("s1", "s1-s2", "s1-s3", "s1-s4")
TOP_DOWN = ("fc", "s4-fc", "s3-fc", "s2-fc")
ADJACENT = ("AaBb", "AaCc", "BbCc", "BbDd", "CcDd")
SKIP = ("ABCD", "abcd")


def table1(scale: Scale) -> Iterator[Cell]:
    yield local(scale)
    yield fixed("full", scale, "bottom-up, global: Full")
    for strategy in BOTTOM_UP:
        yield fixed(strategy, scale, f"bottom-up, global: {strategy}")
    for strategy in TOP_DOWN:
        yield fixed(strategy, scale, f"top-down, global: {strategy}")


def table2(scale: Scale) -> Iterator[Cell]:
    yield local(scale)
    for strategy, printed in {"full": "Full", "w/o BN": "w/o BN", "w/o BN&fc": "w/o BN&fc"}.items():
        yield cell(strategy, f"PartialFedFix(strategy='{strategy}')", scale, ("PartialFed-Fix", printed))


def table3(scale: Scale) -> Iterator[Cell]:
    yield local(scale)
    for strategy in ADJACENT:
        yield fixed(strategy, scale, f"global blocks: {strategy}")
    for strategy in SKIP:
        yield fixed(strategy, scale, f"global blocks: {strategy} (skip)")


LEVELS = ("stage", "block", "layer")


def adaptive(level: str) -> str:
    return f"PartialFedAdaptive(level='{level}')"


def table4(scale: Scale) -> Iterator[Cell]:
    yield local(scale, ("Single", "-"))
    yield cell("All", "Centralised()", scale, ("All", "-"))
    yield cell("FedAvg", "FedAvg()", scale, ("FedAvg", "-"))
    yield cell("FedProx", "FedProx(mu=0.01)", scale, ("FedProx", "-"), differences=("mu 0.01, which is not stated",))
    yield cell("pFedMe", "pFedMe(lam=15.0, K=5, beta=1.0, eta=0.005)", scale, ("pFedMe", "-"),
               differences=("lambda 15, K 5, eta 0.005, which are not stated",))  # fmt: skip
    yield cell("FedBN", "FedBN()", scale, ("FedBN", "-"))
    for strategy, printed in {"s1-s4": "s1-s4", "w/o BN&fc": "w/o BN&fc", "ABCD": "ABCD (skip)"}.items():
        yield cell(strategy, f"PartialFedFix(strategy='{strategy}')", scale, ("PartialFed-Fix", printed))
    for level in LEVELS:
        yield cell(level, adaptive(level), scale, ("PartialFed-Adaptive", level))


LEARNED = "probability of loading globally/"
STAGES = {"s1": "layer1", "s2": "layer2", "s3": "layer3", "s4": "layer4", "fc": "fc"}


def figure3(scale: Scale) -> Iterator[Cell]:
    numbers = tuple(Number(stage, Reading(metric=f"learned/{group}")) for stage, group in STAGES.items())
    yield cell("stage", adaptive("stage"), scale, learned=numbers)


PRETRAINED = "To be compared it needs Office-Home and weights from ImageNet; smaller scales show an order, on PACS."
CELLS = "PartialFed's"
TABLES = (
    Table(
        "partialfed", "table1", f"Loading from below and from above, {CELLS} table 1", table1, alone="Single",
        claims=(
            Claim("Loading the lower stages is better than loading all", tuple((s, "full") for s in BOTTOM_UP)),
            Claim("Loading the upper stages is better than loading all", tuple((s, "full") for s in TOP_DOWN)),
            Claim("From below is better than from above, at equal numbers of groups",
                  (("s1-s2", "s4-fc"), ("s1-s3", "s3-fc"), ("s1-s4", "s2-fc"))),
            Claim("The lower four stages are better than training alone", chain("s1-s4", "Single"), whose="ours"),
        ),
        about=PRETRAINED,
        drawings=(
            Courses(panels=(together("from below", "full", *BOTTOM_UP), together("from above", "full", *TOP_DOWN))),
            PerClient(),
        ),
    ),
    Table(
        "partialfed", "table2", f"Batch norm and the last layer kept at home, {CELLS} table 2", table2, alone="Single",
        claims=(
            Claim("Best without batch norm and last layer, then without batch norm",
                  chain("w/o BN&fc", "w/o BN", "full")),
            Claim("Without both is better than training alone", chain("w/o BN&fc", "Single"), whose="ours"),
        ),
        about=PRETRAINED,
    ),
    Table(
        "partialfed", "table3", f"Four of eight blocks loaded, {CELLS} table 3", table3, alone="Single",
        claims=(
            Claim("Skipping blocks is better than adjacent ones", tuple((s, a) for s in SKIP for a in ADJACENT)),
            Claim("Skipping blocks is better than training alone", tuple((s, "Single") for s in SKIP), whose="ours"),
        ),
        about=PRETRAINED,
    ),
    Table(
        "partialfed", "table4", f"Learned strategies against others, {CELLS} table 4", table4, alone="Single",
        claims=(
            Claim("Learned strategies are better than FedAvg, FedProx, pFedMe and FedBN",
                  tuple((a, b) for a in LEVELS for b in ("FedAvg", "FedProx", "pFedMe", "FedBN"))),
            Claim("Layer by layer is best", (("layer", "stage"), ("layer", "block"))),
            Claim("Learned strategies are better than training alone", tuple((a, "Single") for a in LEVELS)),
        ),
        about=PRETRAINED,
        drawings=(
            Courses(panels=(
                together("other methods", "layer", "All", "FedAvg", "FedProx", "pFedMe", "FedBN"),
                together("fixed and learned", "layer", "block", "stage", "s1-s4", "w/o BN&fc", "ABCD"),
            )),
            PerClient(),
        ),
    ),
    Table(
        "partialfed", "figure3", f"Probability of loading a stage globally, {CELLS} figure 3", figure3, alone="Single",
        claims=(Claim("Lower stages are loaded more than higher ones", chain("s1", "s2", "s3", "s4"), ("stage",),
                      along="columns"),),
        about=PRETRAINED, drawings=(Learned("probability of loading globally"),),
    ),
)  # fmt: skip
