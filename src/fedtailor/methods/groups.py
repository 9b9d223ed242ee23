"""Groups of a network's tensors, from coarse to fine, and the sets of them that PartialFed's tables name.

A *block* is a module with several parts of its own inside a container (a residual block in `layer1`), a *stage* is such
a container. What comes before the first block is the stem, which belongs to the first stage. A network without blocks
has its layers as stages and as blocks. Norms and attention go with what they follow. At the finest level every
convolution, norm and linear module is a group.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from fedtailor.arch import NORMS, Arch
from fedtailor.nn.attention import AttentionBlock
from fedtailor.registry import WrongInput

Level = Literal["stage", "block", "layer"]
Groups = list[tuple[str, frozenset[str]]]

STEM = "stem"
FOLLOWERS = (*NORMS, AttentionBlock)  # no stage or block of their own
LACKING = {
    "BN": "norms; choose one that has some, such as lenet_bn",
    "fc": "trained head of its own; choose one that has, such as dnn",
    "se": "attention blocks; choose one that has, or put some in with LocalAttention(..., private=False)",
    "fb": "blocks inside stages; choose one that has, as residual networks do",
    "tb": "third block in any stage; choose a deeper one, or 'w/o fb'",
}


def groups(arch: Arch, level: Level, stem_apart: bool = False) -> Groups:
    """The groups of a level in the order of the network, each with its name.

    The stem belongs to the first stage, so that s1-fc is the whole model, unless it is asked for as one more stage.
    """
    found: dict[str, set[str]] = {}
    blocks = blocks_of(arch.net)
    followers = [path for path, module in arch.net.named_modules() if isinstance(module, FOLLOWERS)]
    group = ""
    for name in owners_first(arch):
        path = name.rpartition(".")[0]
        block = around(path, blocks)
        if level == "layer":
            group = path
        elif block:
            group = block if level == "block" else block.rpartition(".")[0]
        elif blocks and found.keys() <= {STEM}:
            group = STEM
        elif not found or not around(path, followers):
            group = path
        found.setdefault(group or "net", set()).add(name)
    if level == "stage" and STEM in found and not stem_apart:
        stem = found.pop(STEM)
        found[next(iter(found))] |= stem
    return [(group, frozenset(names)) for group, names in found.items()]


def owners_first(arch: Arch) -> list[str]:
    """All names, those of one module together, in the order of the modules."""
    by_module: dict[str, list[str]] = {path: [] for path, _ in arch.net.named_modules()}
    for name in arch.names:
        by_module[name.rpartition(".")[0]].append(name)
    return [name for names in by_module.values() for name in names]


def around(path: str, modules: Collection[str]) -> str:
    """The first of the modules that a path is or lies in, or nothing."""
    return next((module for module in modules if path == module or path.startswith(module + ".")), "")


def blocks_of(net: nn.Module) -> list[str]:
    """Paths of the outermost modules with several parts inside a container."""
    found: list[str] = []
    for path, container in net.named_modules():
        if not path or not isinstance(container, nn.Sequential | nn.ModuleList) or around(path, found):
            continue
        for child, module in container.named_children():
            parts = [part for part in module.modules() if any(True for _ in part.parameters(recurse=False))]
            if len(parts) > 1 and not isinstance(module, FOLLOWERS):
                found.append(f"{path}.{child}")
    return found


def blocks_by_stage(arch: Arch) -> list[list[frozenset[str]]]:
    """The blocks of each stage that has any, in order."""
    stages: dict[str, list[frozenset[str]]] = {}
    inside = blocks_of(arch.net)
    for block, names in groups(arch, "block"):
        if block in inside:
            stages.setdefault(block.rpartition(".")[0], []).append(names)
    return list(stages.values())


def loaded_by(strategy: str, arch: Arch) -> frozenset[str]:
    """The names that a strategy loads from the global model, written as in the paper's tables.

    Stages: `s1`, `s1-s3`, `s3-fc`, `fc`, `full`. Without a role: `w/o BN`, `w/o BN&fc`, `w/o se`, `w/o se&BN`.
    Blocks: `w/o fb` (the first of each stage local), `w/o fb+tb` (first and third), or letters for those that are
    global (`ABCD`: the first block of four stages; `abcd`: the second; stem and fc are global too).
    Names: patterns, `conv1.*&layer1.*`; after `w/o` they stand for what is not loaded.
    """
    everything = frozenset(arch.names)
    if strategy == "full":
        return everything
    if strategy.startswith("w/o "):
        parts = [left_out(part, arch) for part in re.split("[&+]", strategy.removeprefix("w/o "))]
        return everything.difference(*parts)
    if "*" in strategy:
        return frozenset().union(*(matching(pattern, arch) for pattern in strategy.split("&")))
    if re.fullmatch(r"(fc|s\d+)(-(fc|s\d+))?", strategy):
        return span(strategy, arch)
    by_stage = blocks_by_stage(arch)
    letters = {
        letter: names
        for number, blocks in enumerate(by_stage)
        for letter, names in zip((chr(ord("A") + number), chr(ord("a") + number)), blocks, strict=False)
    }
    if strategy and letters.keys() >= set(strategy):
        if max(map(len, by_stage)) > 2:
            raise WrongInput(
                f"letters as in the strategy {strategy!r} name the first two blocks of a stage, and the model has a "
                "stage with more; write patterns of names, such as 'w/o layer1.2.*'"
            )
        return everything.difference(*(names for letter, names in letters.items() if letter not in strategy))
    raise WrongInput(
        f"there is no strategy {strategy!r} for this model; write stages (s1-s2, fc, full), 'w/o BN', 'w/o BN&fc', "
        "patterns of names ('conv1.*&layer1.*') or, for a model with blocks, 'w/o fb' or letters such as AaBb"
    )


def span(strategy: str, arch: Arch) -> frozenset[str]:
    """The names of one stage, or of all from one to another."""
    stages = [names for _, names in groups(arch, "stage")]
    labels = [*(f"s{number}" for number in range(1, len(stages))), "fc"]
    first, _, last = strategy.partition("-")
    ends = [labels.index(label) for label in (first, last or first) if label in labels]
    if len(ends) < 2 or ends[0] > ends[1]:
        raise WrongInput(
            f"the strategy {strategy!r} does not fit the model, whose stages are {', '.join(labels)} in this order"
        )
    return frozenset().union(*stages[ends[0] : ends[1] + 1])


def left_out(part: str, arch: Arch) -> frozenset[str]:
    """The names that a part of a `w/o` strategy keeps local."""
    if "*" in part:
        return matching(part, arch)
    by_stage = blocks_by_stage(arch)
    parts: dict[str, frozenset[str]] = {
        "BN": arch.norm,
        "fc": arch.head,
        "se": arch.of_type(AttentionBlock),
        "fb": frozenset().union(*(blocks[0] for blocks in by_stage)),
        "tb": frozenset().union(*(blocks[2] for blocks in by_stage if len(blocks) > 2)),
    }
    if part not in parts:
        raise WrongInput(f"a 'w/o' strategy knows {', '.join(parts)} and patterns such as 'layer1.*', not {part!r}")
    if not parts[part]:
        raise WrongInput(f"'w/o {part}' leaves nothing out, for the model has no {LACKING[part]}")
    return parts[part]


def matching(pattern: str, arch: Arch) -> frozenset[str]:
    """The names that a pattern with stars stands for."""
    names = frozenset(name for name in arch.names if fnmatchcase(name, pattern))
    if not names:
        raise WrongInput(f"the pattern {pattern!r} matches no tensor of the model, such as {arch.names[0]!r}")
    return names
