"""Groups of a network's tensors, from coarse to fine, and the sets of them that PartialFed's tables name.

A *block* is a module with several parts of its own inside a container (a residual block in `layer1`), a *stage* is such
a container. What comes before the first block is the stem, which belongs to the first stage. A network without blocks
has its layers, each with the norm that follows it, as stages and as blocks. At the finest level every convolution,
norm and linear module is a group.
"""

from __future__ import annotations

import re
from typing import Literal

from torch import nn

from fedtailor.arch import NORMS, Arch
from fedtailor.registry import WrongInput

Level = Literal["stage", "block", "layer"]
Groups = list[tuple[str, frozenset[str]]]


def groups(arch: Arch, level: Level) -> Groups:
    """The groups of a level in the order of the network, each with its name."""
    modules = dict(arch.net.named_modules())
    found: dict[str, set[str]] = {}
    blocks, last, first_stage = blocks_of(arch.net), "", ""
    for name in owners_first(arch):
        path = name.rpartition(".")[0]
        block = next((b for b in blocks if path == b or path.startswith(b + ".")), "")
        if level == "layer":
            group = path
        elif block:
            group = block if level == "block" else block.rpartition(".")[0]
            first_stage = first_stage or group
        elif blocks and not first_stage:
            group = "stem"
        elif isinstance(modules[path], NORMS) and last and last not in ("stem", block):
            group = last
        else:
            group = path
        last = group
        found.setdefault(group or "net", set()).add(name)
    if level == "stage" and "stem" in found:  # the stem belongs to s1, so that s1-fc is the whole model
        found[first_stage] |= found.pop("stem")
    return [(group, frozenset(names)) for group, names in found.items()]


def owners_first(arch: Arch) -> list[str]:
    """All names, those of one module together, in the order of the modules."""
    by_module: dict[str, list[str]] = {path: [] for path, _ in arch.net.named_modules()}
    for name in arch.names:
        by_module[name.rpartition(".")[0]].append(name)
    return [name for names in by_module.values() for name in names]


def blocks_of(net: nn.Module) -> list[str]:
    """Paths of the outermost modules with several parts inside a container."""
    found: list[str] = []
    for path, container in net.named_modules():
        if not path or not isinstance(container, nn.Sequential | nn.ModuleList):
            continue
        if any(path.startswith(block + ".") for block in found):
            continue
        for child, module in container.named_children():
            if sum(1 for part in module.modules() if any(True for _ in part.parameters(recurse=False))) > 1:
                found.append(f"{path}.{child}")
    return found


def loaded_by(strategy: str, arch: Arch) -> frozenset[str]:
    """The names that a strategy of the paper loads from the global model.

    Stages: `s1`, `s1-s3`, `s3-fc`, `fc`, `full`. Without a role: `w/o BN`, `w/o BN&fc`, `w/o se`, `w/o se&BN`.
    Blocks: `w/o fb` (the first of each stage local), `w/o fb+tb` (first and third), or letters for those that are
    global (`ABCD`: the first block of four stages; `abcd`: the second; stem and fc are global too).
    """
    everything = frozenset(arch.names)
    stages = groups(arch, "stage")
    last = len(stages) - 1  # fc
    span = re.fullmatch(r"(fc|s(\d+))(?:-(fc|s(\d+)))?", strategy)
    if strategy == "full":
        return everything
    if span:
        begin = last if span[1] == "fc" else int(span[2]) - 1
        end = begin if span[3] is None else last if span[3] == "fc" else int(span[4]) - 1
        if not 0 <= begin <= end <= last:
            raise WrongInput(f"the strategy {strategy!r} goes beyond the model, whose stages are s1 to s{last} and fc")
        return frozenset().union(*(names for _, names in stages[begin : end + 1]))
    if strategy.startswith("w/o "):
        parts = [left_out(part, arch) for part in re.split(r"[&+]", strategy.removeprefix("w/o "))]
        return everything - frozenset().union(*parts)
    by_stage = blocks_by_stage(arch)
    letters = {
        chr(ord("A" if place == 0 else "a") + number): names
        for number, blocks in enumerate(by_stage)
        for place, names in enumerate(blocks[:2])
    }
    if by_stage and strategy and set(strategy) <= letters.keys():
        return everything - frozenset().union(*(names for letter, names in letters.items() if letter not in strategy))
    raise WrongInput(
        f"there is no strategy {strategy!r}; write stages (s1-s2, fc, full), 'w/o BN', 'w/o BN&fc', 'w/o fb', "
        "or, for a model with blocks, letters such as AaBb"
    )


def left_out(part: str, arch: Arch) -> frozenset[str]:
    """The names of a role that a `w/o` strategy keeps local."""
    from fedtailor.nn.attention import AttentionBlock

    ordinal = {"fb": 0, "tb": 2}
    if part in ordinal:
        chosen = [blocks[ordinal[part]] for blocks in blocks_by_stage(arch) if len(blocks) > ordinal[part]]
        names = frozenset().union(*chosen)
    else:
        roles = {"BN": arch.norm, "fc": arch.head, "se": arch.of_type(AttentionBlock)}
        if part not in roles:
            raise WrongInput(
                f"there is no role {part!r} in a 'w/o' strategy; known are {', '.join((*roles, *ordinal))}"
            )
        names = roles[part]
    if not names:
        raise WrongInput(
            f"the model has no {part}, so 'w/o {part}' would leave nothing out; choose a model that has some"
        )
    return names


def blocks_by_stage(arch: Arch) -> list[list[frozenset[str]]]:
    """The blocks of each stage that has any, in order."""
    stages: dict[str, list[frozenset[str]]] = {}
    inside = blocks_of(arch.net)
    for block, names in groups(arch, "block"):
        if block in inside:
            stages.setdefault(block.rpartition(".")[0], []).append(names)
    return list(stages.values())
