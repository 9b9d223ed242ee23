"""The arrows between modules, read off the import statements; and what the package never does."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedtailor

ROOT = Path(fedtailor.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def module_of(path: Path) -> str:
    """`local`, `methods.ditto`, `data` for a package's own file; "" for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path) -> Iterator[str]:
    """The modules of this package that a file imports, wherever in it, as `methods.ditto`; "" for the package."""
    package = module_of(path).split(".") if path.name == "__init__.py" else module_of(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ["fedtailor", *package][: len(package) + 2 - node.level] if node.level else []
            whole = ".".join([*above, *([node.module] if node.module else [])])
            found = [f"{whole}.{alias.name}" if is_module(f"{whole}.{alias.name}") else whole for alias in node.names]
        for name in found:
            if name == "fedtailor" or name.startswith("fedtailor."):
                yield name.removeprefix("fedtailor").removeprefix(".")


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split(".")[1:])
    return name.startswith("fedtailor.") and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


GRAPH = {module_of(path): set(imports(path)) for path in FILES}


def reached(module: str) -> set[str]:
    """All that a module imports, and what that imports in turn; the package's own `__init__` is not gone through."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        for name in GRAPH.get(todo.pop(), set()) - seen:
            if name:
                seen.add(name)
                todo.append(name)
    return seen


def matching(pattern: str) -> set[str]:
    return {module for module in GRAPH if fnmatch.fnmatch(module, pattern)}


def within(name: str, pattern: str) -> bool:
    return name == pattern or name.startswith(f"{pattern}.")


def test_the_graph_is_read() -> None:
    """By hand, in two files; else the tests below prove nothing."""
    assert {"tree", "local", "method", "registry"} <= GRAPH["methods.ditto"]
    assert {"schedule", "tree", "site", "runners.sequential"} <= reached("rounds")
    assert "methods.ditto" in GRAPH["methods"] and "" not in reached("driver")
    assert len(GRAPH) > 25


# the lowest first; each may import what stands before it, and nothing that stands behind
ORDER = [
    "registry",
    "tree",
    "schedule",
    "task",
    "arch",
    "local",
    "method",
    "site",
    "runners",
    "driver",
    "rounds",
    "cli",
]


@pytest.mark.parametrize("module", ORDER)
def test_nothing_imports_what_stands_above_it(module: str) -> None:
    above = ORDER[ORDER.index(module) + 1 :]
    for one in [name for name in GRAPH if within(name, module)]:
        wrong = {name for name in reached(one) for high in above if within(name, high)}
        assert not wrong, f"{one} reaches {sorted(wrong)}"


FORBIDDEN = {
    # the engine knows no method, and a method knows no engine
    "methods.*": ["site", "runners", "driver", "rounds", "record", "report", "data", "cli", "spec", "metrics"],
    "arch": ["methods", "local", "method", "data", "nn"],
    "local": ["methods", "method", "data", "nn", "record"],
    "method": ["methods", "data", "nn", "record"],
    "tree": ["registry", "schedule", "arch"],
    "nn*": ["methods", "method", "local", "arch", "data", "site", "driver", "rounds", "record", "report"],
    "data*": ["methods", "method", "local", "arch", "nn", "site", "driver", "rounds", "record", "report"],
    # what runs on a site
    "site": ["methods", "runners", "driver", "rounds", "record", "report", "data", "spec"],
    "runners*": ["methods", "driver", "rounds", "record", "report", "cli"],
    "driver": ["rounds", "report", "cli"],
    "record": ["methods", "method", "local", "arch", "site", "driver", "rounds", "report", "data", "nn"],
    # a report is made of records, on a machine that need not be able to train
    "report*": ["methods", "method", "local", "arch", "site", "runners", "driver", "rounds", "cli", "nn"],
    "metrics": ["methods", "method", "local", "arch", "site", "driver", "rounds", "report", "data", "nn"],
}


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_what_a_module_never_imports(pattern: str) -> None:
    assert matching(pattern), "the module is gone: mend the table"
    for module in matching(pattern):
        for name in GRAPH[module]:
            wrong = [forbidden for forbidden in FORBIDDEN[pattern] if within(name, forbidden)]
            own = pattern.rstrip(".*")
            assert not wrong or within(name, own), f"{module} imports {name}"


def test_the_network_is_a_leaf() -> None:
    """What runs over a network stands on the rest; only the command line calls it, and only few of it know Flower."""
    users = {module for module, names in GRAPH.items() if any(within(name, "deploy") for name in names)}
    assert users and all(within(module, "cli") or within(module, "deploy") for module in users), users
    transport = {"flwr", "fastapi", "httpx", "sqlalchemy", "starlette", "uvicorn"}
    for path in FILES:
        found = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for name in (
                [alias.name for alias in node.names] if isinstance(node, ast.Import)
                else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            )
        }  # fmt: skip
        assert not found & transport or module_of(path).startswith("deploy.flower_"), path


def test_only_the_command_line_imports_the_command_line() -> None:
    users = {module for module, names in GRAPH.items() if any(within(name, "cli") for name in names)}
    assert all(module == "__main__" or within(module, "cli") for module in users), users


def test_no_module_imports_itself_in_a_circle() -> None:
    """A package and its parts aside: `data` gathers what `data.digits` defines."""
    for module in GRAPH:
        parents = {module.rsplit(".", count)[0] for count in range(1, module.count(".") + 1)}
        circle = {name for name in reached(module) if module in reached(name) and name != module}
        family = {name for name in circle if within(name, module) or name in parents or shares_package(name, module)}
        assert circle == family, f"{module} and {sorted(circle)} import each other"


def shares_package(one: str, other: str) -> bool:
    return "." in one and "." in other and one.split(".")[0] == other.split(".")[0]


def test_names_are_earned() -> None:
    parts = {part for module in GRAPH for part in module.split(".")}
    assert not parts & {"utils", "util", "helpers", "helper", "common", "base", "core", "misc", "tools", "lib", "types"}


def calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


@pytest.mark.parametrize("path", FILES, ids=[module_of(path) or "fedtailor" for path in FILES])
def test_nothing_is_unpickled_or_executed(path: Path) -> None:
    foreign = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        )
    }  # fmt: skip
    assert not foreign & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    made = set(calls(path))
    assert not made & {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "np.load", "numpy.load"}
    # global random states are nobody's to seed or to draw from
    assert not made & {"torch.seed", "np.random.default_rng"}
    drawn = {call for call in made if re.fullmatch(r"(np\.)?random\.[a-z_]+", call)}
    assert not drawn - {"random.getstate", "np.random.get_state"}


def test_every_file_is_small_and_dated_forward() -> None:
    """The house's two rules for files: fewer than 400 lines, annotations unevaluated."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") < 400, path
        only_words = len(ast.parse(text).body) < 2
        assert only_words or "from __future__ import annotations" in text, path
