"""What a user may write is understood, or refused in one sentence; nothing that is written is ever executed."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, assume, example, given, settings

import fedtailor.data
import fedtailor.nn
from fedtailor import Ditto, FedAvg, FedProx, Method, Proximal, WrongInput
from fedtailor.registry import entry, fits, load_plugin, names, parse, register, spell

KINDS = ("method", "model", "data", "partition")


def required(name: str) -> bool:
    """Whether a method cannot be made without an inner one."""
    parameters = inspect.signature(entry("method", name).factory).parameters.values()
    return any(parameter.default is parameter.empty for parameter in parameters)


def plain(name: str) -> Method:
    method: Method = parse("method", f"{name}(FedAvg())" if required(name) else name)
    return method


# ---------- what is understood ----------


@pytest.mark.parametrize("name", names("method"))
def test_a_method_is_what_it_prints(name: str) -> None:
    method = plain(name)
    assert parse("method", repr(method)) == method
    assert repr(parse("method", repr(method))) == repr(method)
    assert hash(parse("method", repr(method))) == hash(method)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    if typing.get_origin(hint) is Literal:
        return st.sampled_from(typing.get_args(hint))
    numbers = {int: st.integers(0, 9), float: st.integers(0, 9) | st.floats(0, 1) | st.floats(min_value=0)}
    return numbers.get(hint, st.nothing())


@pytest.mark.parametrize("name", names("method"))
@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_a_method_of_any_settings_is_what_it_prints(name: str, data: Any) -> None:
    method = plain(name)
    hints = typing.get_type_hints(type(method))
    drawn = {
        field.name: data.draw(values_of(hints[field.name]) | st.just(getattr(method, field.name)), field.name)
        for field in dataclasses.fields(method)  # type: ignore[arg-type]
    }
    try:
        made = type(method)(**drawn)
    except WrongInput:
        assume(False)
    assert parse("method", repr(made)) == made
    wrapped = Proximal(Proximal(made, mu=0.5))
    assert parse("method", repr(wrapped)) == wrapped


@pytest.mark.parametrize("name", names("partition"))
def test_a_partition_is_what_it_prints(name: str) -> None:
    """A record makes its federation again from this text."""
    partition = parse("partition", name)
    assert parse("partition", repr(partition)) == partition


@pytest.mark.parametrize(
    "text",
    [
        "fedprox", "FedProx()", "FedProx(0.01)", "FedProx(mu=0.01)", "Proximal(FedAvg(), mu=0.01)", "proximal(FedAvg)",
        " Proximal( inner = fedavg , mu = 1e-2 ) ", "Fed_Prox", "(FedProx)", "FedProx(mu=0.01)  # as in the paper",
    ],
)  # fmt: skip
def test_ways_to_write_one_method(text: str) -> None:
    assert parse("method", text) == FedProx(mu=0.01) == Proximal(FedAvg(), mu=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_has_a_summary_and_answers_to_its_aliases(kind: str) -> None:
    assert names(kind) == sorted(names(kind), key=str.lower)
    for name in names(kind):
        found = entry(kind, name)
        assert found.name == name and len(found.summary) > 10
        for written in (*found.aliases, name.upper(), name.lower(), name.replace("_", "-")):
            assert entry(kind, written) is found


def test_a_model_is_parsed_without_what_the_data_give() -> None:
    factory, options = parse("model", "dnn(hidden=32)")
    assert factory is fedtailor.nn.dnn and options == {"hidden": 32}


def test_values_that_can_be_written() -> None:
    assert math.isinf(parse("method", "Ditto(lam=inf)").lam)
    assert parse("method", "Ditto(lam=1_0e-1)").lam == 1.0
    assert parse("method", "Ditto(2)").lam == 2


# ---------- what is refused ----------

ATTACKS = [
    # calls of what was not registered
    "__import__('os')", "eval('1')", "exec('1')", "open('/etc/passwd')", "print()", "breakpoint()", "type()", "vars",
    # attributes and calls of anything but a name
    "os.system('true')", "FedAvg.__class__", "FedAvg().__class__", "FedAvg()()", "FedAvg[0]", "'FedAvg'()",
    "().__class__.__bases__[0].__subclasses__()", "(FedAvg or Ditto)()", "(lambda: FedAvg)()", "{}['FedAvg']()",
    "FedAvg.__init__.__globals__['sys']", "__builtins__", "Ditto.register('method', 'x')",
    # other expressions
    "lambda: FedAvg()", "[FedAvg() for _ in (1,)]", "{FedAvg()}", "f'{FedAvg()}'", "f'{__import__(\"os\")}'",
    "'FedAvg'",
    "FedAvg() if 1 else 2", "FedAvg() or 1", "not FedAvg", "(x := FedAvg())", "await FedAvg()", "(yield)", "-FedAvg()",
    "FedAvg + Ditto", "FedAvg < Ditto", "*FedAvg", "1", "None", "...", "FedAvg,", "FedAvg, Ditto", "{'a': FedAvg}",
    # no expressions
    "", " ", "#", "import os", "FedAvg; Ditto", "FedAvg\nDitto", "x = FedAvg()", "FedAvg(", "FedAvg)", "FedAvg\0", "\\",
    "def f(): pass", "del FedAvg", "raise", "\ud800", "‮FedAvg", "FedAvg()\n\n\timport os", "FedAvg(\n", "'''", "0o8",
    # arguments
    "Ditto(lam=__import__('os'))", "Ditto(lam=().__class__)", "Ditto(lam=[x for x in ()])", "Ditto(lam=lambda: 1)",
    "Ditto(lam=f'{1}')", "Ditto(lam=1 if 1 else 2)", "Ditto(lam=(x := 1))", "Ditto(lam=2**10)", "Ditto(lam='9'*9)",
    "Ditto(lam=1+1)", "Ditto(lam=open)", "Ditto(lam=x)", "Ditto(*[1])", "Ditto(*(1,))", "Ditto(**{'lam': 1})",
    "Ditto(lam=(yield))", "Ditto(lam=FedAvg.x)", "Ditto(x for x in ())", "Ditto(lam=9**9**9**9)", "Ditto(lam=-nan)",
    "Ditto(lam=1e999-1e999)", "Ditto(lam=nan)", "Ditto(lam=not 1)", "Ditto(lam=...)", "Ditto(__class__=1)",
    # arguments of another type, twice, too many, missing, misspelt
    "Ditto(lam=True)", "Ditto(lam='1')", "Ditto(lam=None)", "Ditto(lam=(1,))", "Ditto(lam=[1])", "Ditto(lam={1: 2})",
    "Ditto(lam=1j)", "Ditto(lam=b'1')", "Ditto(lam=FedAvg())", "Ditto(1, lam=2)", "Ditto(lam=1, lam=2)", "Ditto(1, 2)",
    "Ditto(lambda=1)", "Ditto(lamb=1)", "Ditto(self=1)", "FedRep(head_epochs=1.5)", "Proximal", "Proximal()",
    "Proximal(1)", "Proximal('FedAvg')", "Proximal(mu=0.1)", "Proximal(iid())", "Proximal(Proximal)", "lenet_bn",
    # values that a method refuses
    "Ditto(lam=-1)", "FedProx(mu=-0.1)", "FedRep(head_epochs=-1)", "SCAFFOLD(lr_global=0)",
]  # fmt: skip


def refused(kind: str, text: str) -> str:
    """The message, which is one line that fits on a screen."""
    with pytest.raises(WrongInput) as error:
        parse(kind, text)
    message = str(error.value)
    assert "\n" not in message and 20 < len(message) < 1500
    return message


@pytest.mark.parametrize("text", ATTACKS)
def test_what_is_no_method_is_refused(text: str) -> None:
    refused("method", text)


@pytest.mark.parametrize("size", [50, 95, 150, 199, 300, 1000, 3000, 20_000])
@pytest.mark.parametrize(
    "build",
    [
        lambda n: "(" * n + ")" * n,
        lambda n: "(" * n,
        lambda n: "FedAvg" + "()" * n,
        lambda n: "FedAvg" + ".x" * n,
        lambda n: "Ditto(lam=" + "-" * n + "1)",
        lambda n: "Ditto(lam=" + "+".join("1" * n) + ")",
        lambda n: "Ditto(lam=" + "(" * n + "'x'" + ")" * n + ",)",
        lambda n: "Ditto(lam=" + "[" * n + "]" * n + ")",
        lambda n: "Ditto(lam=" + "not " * n + "1)",
        lambda n: "Proximal(" * n + ")" * n,
        lambda n: "Ditto(" * n + "lam=1" + ")" * n,
        lambda n: "Ditto(lam='" + "x" * n + "')",
        lambda n: "x" * n,
        lambda n: "Ditto(" + "1," * n + ")",
        lambda n: "Ditto(lam=1" + "0" * n + "j)",
    ],
    ids=["brackets", "open", "calls", "attributes", "minus", "sum", "value", "list", "not", "wrappers", "arguments",
         "text", "name", "many", "digits"],
)  # fmt: skip
def test_what_is_huge_is_refused(build: Callable[[int], str], size: int) -> None:
    refused("method", build(size))


@pytest.mark.parametrize("depth", [10, 60, 199])
def test_wrappers_within_wrappers_are_read_or_refused(depth: int) -> None:
    text = "Proximal(" * depth + "FedAvg()" + ")" * depth
    try:
        assert repr(parse("method", text)).count("Proximal") == depth
    except WrongInput as error:
        assert depth > 10 and len(str(error)) < 1500


PIECES = st.sampled_from(
    [*"()=,.*[]{}:-+'\"\\ \n0.1e9@;~_", "FedAvg", "Ditto", "Proximal", "lam", "mu", "inner", "lambda", "for", "in",
     "if", "__class__", "import", "None", "nan", "f'", "é", "**", ":=", "not"]
)  # fmt: skip


@settings(max_examples=500)
@given(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=20))
@example("Ditto(lam=0x1p)")
def test_any_text_is_a_method_or_is_refused(text: str) -> None:
    try:
        assert isinstance(parse("method", text), Method)
    except WrongInput as error:
        assert "\n" not in str(error)


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    touch = "__import__('pathlib').Path('executed').touch()"
    for text in (touch, f"Ditto(lam={touch})", f"f'{{{touch}}}'", f"[{touch} for _ in (1,)]", f"(lambda: {touch})()"):
        for kind in KINDS:
            refused(kind, text)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("method", "fedbm", "did you mean FedBN"),
        ("method", "Dito(lam=1)", "did you mean Ditto"),
        ("method", "qqqqqqq", "Ditto, "),
        ("model", "lenet-bn2", "lenet_bn"),
        ("partition", "dirichlt(alpha=0.1)", "did you mean dirichlet"),
        ("data", "digit", "did you mean digits"),
        ("method", "Ditto(lamb=1)", "usage: Ditto(lam=1.0)"),
        ("method", "Ditto(lam='x')", "lam='x' is not a number; usage: Ditto(lam=1.0)"),
        ("method", "Proximal(mu=1)", "missing a required argument: 'inner'"),
        ("method", "Proximal(3)", "inner=3 is not Method"),
        ("method", "FedRep(head_epochs=1.5)", "head_epochs=1.5 is not a whole number"),
        ("method", "Ditto(lam=nan)", "lam is not a number (nan)"),
        ("model", "dnn(hidden='x')", "hidden='x' is not a whole number or None"),
        ("method", "Ditto(lam=a.b)", "'a.b'"),
        ("method", "os.system('x')", "Proximal(FedAvg(), mu=0.1)"),
    ],
)
def test_a_refusal_says_what_is_allowed(kind: str, text: str, told: str) -> None:
    assert told in refused(kind, text)


# ---------- types ----------


@pytest.mark.parametrize(
    ("hint", "yes", "no", "words"),
    [
        (int, [0, -3], [1.0, True, "1", None], "a whole number"),
        (float, [0, 1.5, math.inf], [True, "1", None, 1j], "a number"),
        (bool, [True, False], [0, 1, "True", None], "True or False"),
        (str, ["", "x"], [0, None, b"x"], "a text"),
        (int | None, [3, None], [1.5, "x", True], "a whole number or None"),
        (float | int, [3, 1.5], ["x", None], "a number or a whole number"),
        (Literal["fo", "hf"], ["fo", "hf"], ["FO", 1, None], "one of 'fo', 'hf'"),
        (tuple[int, ...], [(), (1, 2), [1]], [(1.5,), 3, "12"], "tuple"),
        (tuple[int, str], [(1, "a")], [(1,), (1, 2), ("a", 1)], "tuple"),
        (Method, [FedAvg(), Ditto()], ["FedAvg", FedAvg, None], "Method"),
        (Any, [1, None, "x"], [], "Any"),
    ],
)
def test_types(hint: Any, yes: list[Any], no: list[Any], words: str) -> None:
    assert [value for value in yes if not fits(value, hint)] == []
    assert [value for value in no if fits(value, hint)] == []
    assert spell(hint) == words


# ---------- registering ----------


PLUGIN = """
from dataclasses import dataclass
from fedtailor import FedAvg, register

@register("method", "Mine", "my-own")
@dataclass(frozen=True, repr=False)
class Mine(FedAvg):
    '''A method of one's own.'''
    strength: float = 0.5
"""


@pytest.mark.usefixtures("fresh")
def test_a_plugin_registers_its_own(tmp_path: Path) -> None:
    path = tmp_path / "my plugin.py"
    path.write_text(PLUGIN)
    load_plugin(path)
    method = parse("method", "Proximal(mine(strength=2), mu=1)")
    assert (repr(method.inner), method.mu) == ("Mine(strength=2)", 1) and parse("method", repr(method)) == method
    assert entry("method", "my_own").summary == "A method of one's own."
    load_plugin(path)  # a command that names it twice
    assert names("method").count("Mine") == 1


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("def f(:\n", "fails while it is read: SyntaxError"),
        ("import nothing_of_that_name", "fails while it is read: ModuleNotFoundError"),
        ("1 / 0", "fails while it is read: ZeroDivisionError: division by zero"),
        (PLUGIN.replace('"Mine"', '"FedBN"'), "the method name 'FedBN' is taken"),
        (PLUGIN.replace("Mine", "FedBN"), "the method name 'FedBN' is taken"),  # the class has the same name, too
        (PLUGIN.replace("my-own", "fed_bn"), "the method name 'fed_bn' is taken"),
        (PLUGIN.replace('"method"', '"methods"'), "method, model, data"),
    ],
)
def test_a_plugin_that_fails_is_named(content: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "plugin.py"
    path.write_text(content)
    before = entry("method", "FedBN").factory
    with pytest.raises(WrongInput) as error:
        load_plugin(path)
    assert told in str(error.value)
    assert entry("method", "FedBN").factory is before


def test_what_is_no_plugin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plugin.txt").write_text("")
    for path, told in [("nowhere.py", "there is no plugin file"), (".", "there is no plugin file"),
                       ("plugin.txt", "must end in .py")]:  # fmt: skip
        with pytest.raises(WrongInput, match=told):
            load_plugin(tmp_path / path)


@pytest.mark.usefixtures("fresh")
def test_a_name_belongs_to_one_factory_of_its_kind() -> None:
    @register("partition", "FedAvg")  # another kind
    def one() -> None:
        """Cuts nothing at all."""

    with pytest.raises(WrongInput, match=r"taken by .*one"):

        @register("partition", "fed-avg")
        def other() -> None: ...
