"""Names a user may write, and what they stand for: `Ditto(lam=0.1)`, `dirichlet(alpha=0.1)`, `cnn4`.

A text is read as a Python expression and *interpreted*, never evaluated: names, calls with literal or nested
arguments, and nothing else. What it may name is what was registered under its kind.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import sys
import typing
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

LONGEST = 2000  # characters of what may be written
ROOM = 100  # characters of it that a message repeats

F = TypeVar("F", bound=Callable[..., Any])


class WrongInput(ValueError):
    """Something the user wrote cannot be used; the message says what, what is allowed, and the fix."""


@dataclass(frozen=True)
class Entry:
    """One registered name."""

    name: str
    factory: Callable[..., Any]
    aliases: tuple[str, ...]

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.factory) or "").split("\n", 1)[0]


_entries: dict[str, dict[str, Entry]] = {"method": {}, "model": {}, "data": {}, "partition": {}}
# where the package's own names are registered; imported when names of a kind are first asked for
_HOMES = {
    "method": "fedtailor.methods", "model": "fedtailor.nn", "data": "fedtailor.data", "partition": "fedtailor.data",
}  # fmt: skip


def _known(kind: str) -> dict[str, Entry]:
    importlib.import_module(_HOMES[kind])
    return _entries[kind]


def is_plugged(entry: Entry) -> bool:
    """Whether a name comes from outside this package."""
    return entry.factory.__module__.partition(".")[0] != __package__


def key(name: str) -> str:
    """Spelling does not matter: `FedBN`, `fedbn`, `fed-bn` and `fed_bn` are one name."""
    return name.replace("-", "").replace("_", "").lower()


def _origin(factory: Callable[..., Any]) -> tuple[str, str]:
    """The same for a plugin that is read again."""
    return factory.__module__, factory.__qualname__


def register(kind: str, name: str, *aliases: str) -> Callable[[F], F]:
    """Make `factory` known under `name`: `@register("method", "FedBN")`."""

    if kind not in _entries:
        raise WrongInput(f"nothing can be registered as {kind!r}; choose {', '.join(_entries)}")

    def add(factory: F) -> F:
        entry = Entry(name, factory, aliases)
        # the package's own come first, so that no plugin takes their names
        taken = _known(kind) if is_plugged(entry) else _entries[kind]
        for written in (name, *aliases):
            known = taken.get(key(written))
            if known is not None and _origin(known.factory) != _origin(factory):
                raise WrongInput(
                    f"the {kind} name {written!r} is taken by {known.factory.__qualname__}; choose another"
                )
        for written in (name, *aliases):
            taken[key(written)] = entry
        return factory

    return add


def names(kind: str) -> list[str]:
    """The registered names of a kind, in alphabetical order."""
    return sorted({entry.name for entry in _known(kind).values()}, key=str.lower)


def entry(kind: str, name: str) -> Entry:
    """The entry of a name, or an error that lists the nearest ones."""
    known = _known(kind)
    found = known.get(key(name))
    if found is None:
        near = difflib.get_close_matches(key(name), list(known), n=3, cutoff=0.5)
        close = dict.fromkeys(known[one].name for one in near)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names(kind))}"
        raise WrongInput(
            f"there is no {kind} {brief(name)}; {hint} (`fedtailor list {kind if kind == 'data' else kind + 's'}`)"
        )
    return found


def load_plugin(path: Path) -> None:
    """Run the user's own Python file, so that what it registers can be named."""
    if not path.is_file():
        raise WrongInput(
            f"there is no plugin file {path}; give the path of a Python file that registers a method, model or data"
        )
    name = f"fedtailor_plugin_{zlib.crc32(str(path.resolve()).encode())}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WrongInput(f"the plugin {path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except WrongInput:
        raise
    except Exception as error:
        raise WrongInput(f"the plugin {path} fails while it is read: {type(error).__name__}: {error}") from error


def brief(value: object) -> str:
    """A value as it is written, cut to what a message has room for."""
    text = repr(value)
    return text if len(text) <= ROOM else f"{text[: ROOM - 4]} ..."


def parse(kind: str, text: str) -> Any:
    """The object that `text` spells: a registered name, called with literal or nested arguments."""
    if len(text) > LONGEST:
        raise WrongInput(f"the {kind} {brief(text)} is {len(text)} characters long; write at most {LONGEST}")
    try:
        return _interpret(kind, _expression(text), brief(text))
    except (SyntaxError, RecursionError, MemoryError):
        pass
    except ValueError as error:
        if isinstance(error, WrongInput):
            raise
    raise WrongInput(f"cannot read the {kind} {brief(text)}; write a name or a call such as {_example(kind)}")


def tidy(kind: str, text: str) -> str:
    """A text that can be parsed, with the names as they are registered: `ala(fedbn())` is told as
    `AdaptiveLocalAggregation(FedBN)`."""
    return _tidied(kind, _expression(text))


def _tidied(kind: str, node: ast.expr) -> str:
    if isinstance(node, ast.Name) and node.id not in ("inf", "nan"):
        return entry(kind, node.id).name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        given = [(f"{k.arg}=", k.value) for k in node.keywords]
        inside = ", ".join(name + _tidied(kind, value) for name, value in [*(("", a) for a in node.args), *given])
        return f"{entry(kind, node.func.id).name}({inside})".removesuffix("()")
    return ast.unparse(node)


def _expression(text: str) -> ast.expr:
    written = text.strip()
    if written.replace("-", "_").isidentifier():  # fed-bn, which Python would read as a difference
        written = written.replace("-", "_")
    return ast.parse(written, mode="eval").body


_EXAMPLES = {
    "method": "Proximal(FedAvg(), mu=0.1)",
    "model": "dnn(hidden=32)",
    "data": "synthetic(alpha=0.5, beta=0.5)",
    "partition": "dirichlet(alpha=0.1)",
}


def _example(kind: str) -> str:
    return f"{_EXAMPLES[kind]!r}"


def _interpret(kind: str, node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        return _call(kind, node.id, [], {})
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if any(isinstance(argument, ast.Starred) for argument in node.args) or any(
            k.arg is None for k in node.keywords
        ):
            raise WrongInput(f"stars are not allowed in the {kind} {text}; write each argument by name")
        positional = [_argument(kind, argument, text) for argument in node.args]
        named = {str(keyword.arg): _argument(kind, keyword.value, text) for keyword in node.keywords}
        if len(named) < len(node.keywords):
            raise WrongInput(f"an argument stands twice in the {kind} {text}; write each once")
        return _call(kind, node.func.id, positional, named)
    raise WrongInput(
        f"{brief(ast.unparse(node))} in the {kind} {text} is not a name or a call of one; "
        f"write something like {_example(kind)}"
    )


def _argument(kind: str, node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if isinstance(node, ast.Name | ast.Call):
        return _interpret(kind, node, text)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise WrongInput(
            f"{brief(ast.unparse(node))} in the {kind} {text} is not a plain value; "
            f"allowed are numbers, texts, True, False, None, tuples of them and other {kind}s"
        ) from None


def _call(kind: str, name: str, positional: list[Any], named: Mapping[str, Any]) -> Any:
    found = entry(kind, name)
    signature = inspect.signature(found.factory)
    accepted = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in accepted)
    usage = f"{found.name}({options})"
    if kind == "model":  # classes and shape come from the data, later
        return found.factory, check_arguments(found.name, found.factory, positional, named, usage)
    return found.factory(**check_arguments(found.name, found.factory, positional, named, usage))


def check_arguments(
    name: str, factory: Callable[..., Any], positional: list[Any], named: Mapping[str, Any], usage: str
) -> dict[str, Any]:
    """Arguments by name, each of its annotated type; a wrong one is an error that shows the usage."""
    signature = inspect.signature(factory)
    try:
        bound = signature.bind_partial(*positional, **named).arguments
        if "classes" not in signature.parameters or "shape" not in signature.parameters:
            signature.bind(*positional, **named)
    except TypeError as error:
        raise WrongInput(f"{name}: {error}; usage: {usage}") from None
    hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    for argument, value in bound.items():
        if argument in hints and not fits(value, hints[argument]):
            raise WrongInput(f"{name}: {argument}={brief(value)} is not {spell(hints[argument])}; usage: {usage}")
        if isinstance(value, float) and value != value:
            raise WrongInput(f"{name}: {argument} is not a number (nan); usage: {usage}")
    return dict(bound)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value read from text is of an annotated type; an int serves as a float."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if origin is typing.Literal:
        return value in arguments
    if arguments and (origin is typing.Union or type(hint).__name__ == "UnionType"):
        return any(fits(value, option) for option in arguments)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(fits(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(fits(i, a) for i, a in zip(value, arguments, strict=True))
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    kind = origin or hint
    return isinstance(value, kind) if isinstance(kind, type) else True


def spell(hint: Any) -> str:
    """A type in words, for an error message."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(repr(argument) for argument in arguments)
    if arguments and typing.get_origin(hint) is not tuple:
        return " or ".join(spell(argument) for argument in arguments)
    words = {float: "a number", int: "a whole number", str: "a text", bool: "True or False", type(None): "None"}
    return words.get(hint) or str(getattr(hint, "__name__", hint))
