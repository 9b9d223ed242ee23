"""`check_method`: the laws that every method keeps, as a test that anybody can run on their own.

    >>> check_method(MyIdea())        # raises BrokenLaw, which names the law and what broke it

Each law runs the method for a few rounds on the toy federation.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor import nn as networks
from fedtailor import record, registry, tree
from fedtailor.arch import Arch
from fedtailor.driver import Driver
from fedtailor.local import Client
from fedtailor.method import Method, Payload, Received, Wrapper
from fedtailor.registry import WrongInput
from fedtailor.runners import Runner, Work
from fedtailor.runners.sequential import Sequential
from fedtailor.runners.stacked import Stacked
from fedtailor.runners.workers import Workers, can_fork
from fedtailor.site import Reply, finished
from fedtailor.toy import SHAPE, ToyNet, double, run, toy_driver, toy_federation, without_norm
from fedtailor.tree import State, Tree

CLIENT_HOOKS = ("start", "fit", "personalised", "explain")
SERVER_HOOKS = ("send", "aggregate", "explain_server")


class BrokenLaw(AssertionError):
    """A method breaks a law of the contract."""


def check_method(method: Method, laws: Iterable[str] = ()) -> list[str]:
    """Check a method against the laws (all, or those named); returns those it keeps, raises BrokenLaw on the first
    that it breaks."""
    chosen = list(laws) or list(LAWS)
    for name in chosen:
        try:
            LAWS[name](method)
        except BrokenLaw as broken:
            raise BrokenLaw(f"{method!r} breaks the law {name!r}: {broken}") from None
        except Exception as error:
            raise BrokenLaw(f"{method!r} breaks the law {name!r}: {type(error).__name__}: {error}") from error
    return chosen


# The laws. Each takes a method and raises BrokenLaw, with what was found.


def is_its_own_configuration(method: Method) -> None:
    """A frozen dataclass; what it prints can be read back, where it is registered."""
    params = getattr(type(method), "__dataclass_params__", None)
    must(params is not None and params.frozen, "the class must be decorated with @dataclass(frozen=True)")
    registered = any(registry.entry("method", name).factory is type(method) for name in registry.names("method"))
    if registered:
        again = registry.parse("method", repr(method))
        must(again == method, f"its text {method!r} is read back as {again!r}")


def has_pure_hooks(method: Method) -> None:
    """No hook changes what it is given, draws global random numbers, or answers differently when asked again."""
    run(toy_driver(watched(method)))


def looks_at_no_data(method: Method) -> None:
    """Client hooks hold no Python that depends on values: a faster runner could not batch them over clients."""
    part: Method | None = method
    while part is not None:
        for hook in CLIENT_HOOKS:
            function = getattr(type(part), hook)
            if function.__module__ == Method.__module__:
                continue
            try:
                source = inspect.getsource(function)
            except OSError:  # defined where there is no file
                continue
            found = re.search(r"\.item\(|\.tolist\(|one_hot\(|\.numpy\(|if bool\(", source)
            where = f"{type(part).__name__}.{hook}"
            must(found is None, f"{where} uses {found and found.group()}...; use torch.where or a mask")
        part = part.inner if isinstance(part, Wrapper) else None


def keeps_the_private(method: Method) -> None:
    """No personal tensor in a message, an upload or the server's state; and bytes counted are bytes encoded."""
    driver = toy_driver(method, kind=Wiretap)
    for _ in range(3):
        driver.step()
        leaked = {path.rsplit("/", 1)[-1] for path in tree.flatten(driver.server)} & driver.private
        must(not leaked, f"the server holds {', '.join(sorted(leaked))}")


def forgets_the_order(method: Method) -> None:
    """The clients' order of arrival changes nothing."""
    backwards = run(toy_driver(method, runner=Backwards(1)))
    must_equal(run(toy_driver(method)), backwards, "with the clients in reverse order")


def is_repeatable(method: Method) -> None:
    """Equal seeds give equal runs, and the initial values are the seed's."""
    first, second, other = toy_driver(method), toy_driver(method), toy_driver(method, seed=1)
    must(differs(first.initial, other.initial), "another seed gives the same initial values")
    must_equal(run(first), run(second), "in a second run of the same seed")


def survives_dropouts(method: Method) -> None:
    """A client whose reply is lost keeps its state; a round without any reply changes nothing."""
    driver = toy_driver(method, runner=Lossy(1), cohort=1.0)
    lost = Lossy.lost(driver.data.n)
    before = driver.kept[lost]
    driver.step()
    must(same(before, driver.kept[lost]), "a client whose reply was lost has moved on")
    silent = toy_driver(method, runner=Silent(1))
    server = tree.transform(torch.clone, silent.server)
    silent.step()
    if method.trains != "all":
        must(same(server, silent.server), "the server has moved in a round without replies")


def takes_a_cohort_of_one(method: Method) -> None:
    """One client a round is enough, and so is a federation of one."""
    run(toy_driver(method, cohort=1))


def takes_models_with_and_without_norm(method: Method) -> None:
    """Runs on a model without batch norm, or refuses it with words that name one that works."""
    try:
        driver = toy_driver(method, model=without_norm)
    except WrongInput as refused:
        must("choose" in str(refused), f"it refuses a model without naming one that works: {refused}")
        return
    run(driver, 2)


def keeps_types(method: Method) -> None:
    """A float64 model stays one, and the names, shapes and types of all states are the same after every round; so are
    the shapes of what is explained."""
    driver = toy_driver(method, model=double, federation=toy_federation(torch.float64))
    shapes = outline(driver.state)
    for _ in range(2):
        driver.step()
        after = outline(driver.state)
        changed = {name for name in shapes.keys() | after.keys() if shapes.get(name) != after.get(name)}
        must(not changed, f"a round changes the outline of {', '.join(sorted(changed)[:5])}")
    shown: dict[str, set[tuple[int, ...]]] = {}
    for name, values in (item for row in driver.rows for item in explained(row)):
        shown.setdefault(name.partition("/")[2], set()).add(np.shape(values))
    uneven = [name for name, found in shown.items() if len(found) > 1]
    must(not uneven, f"what is explained changes its shape: {', '.join(uneven[:5])}")
    model = {name: t.dtype for name, t in driver.initial.items()}
    for kept in driver.kept:
        for name, tensor in kept["personal"].items():
            must(tensor.dtype is model[name], f"{name} has become {tensor.dtype}")


def is_tested_without_trace(method: Method) -> None:
    """Testing every round and testing never lead to the same state."""
    seldom = run(toy_driver(method, eval_every=1000))
    must_equal(run(toy_driver(method)), seldom, "when it is tested less often", rows=False)


def resumes(method: Method) -> None:
    """Two rounds, a checkpoint, and two more are four rounds."""
    whole, half = run(toy_driver(method)), run(toy_driver(method), 2)
    half.finish()
    round, state = record.unpack(record.pack(half.round, half.state))
    rest = toy_driver(method)
    rest.restore(round, state, half.rows)
    must_equal(whole, run(rest, 2), "after a checkpoint")


def runs_alike_in_every_runner(method: Method) -> None:
    """Clients trained together, or in processes, end where they end alone, to the last digits of float64."""
    options: dict[str, Any] = {"model": double, "federation": toy_federation(torch.float64)}
    alone = toy_driver(method, **options)
    ends = {rounds: tree.flatten(run(alone, 2).state) for rounds in (2, 4)}
    runners: list[tuple[Runner, int, str]] = [(Stacked(1), 4, "together")]
    if can_fork():
        runners.append((Workers(Stacked(1), 2), 2, "in processes"))
    for runner, rounds, where in runners:
        try:
            other = run(toy_driver(method, **options, runner=runner), rounds)
        finally:
            runner.end()
        left, right = ends[rounds], tree.flatten(other.state)
        must(left.keys() == right.keys(), f"the states have other tensors when clients are trained {where}")
        far = [n for n in left if not torch.allclose(left[n], right[n], rtol=1e-8, atol=1e-10, equal_nan=True)]
        must(not far, f"{', '.join(far[:5])} differ when clients are trained {where}")
        for first, second in zip(alone.rows, other.rows, strict=False):
            mine, theirs = dict(explained(first)), dict(explained(second))
            must(mine.keys() == theirs.keys(), f"other things are explained when clients are trained {where}")
            for name, values in mine.items():
                left_shown, right_shown = (np.array(found, dtype=np.float64) for found in (values, theirs[name]))
                close = np.allclose(left_shown, right_shown, rtol=1e-6, atol=1e-9, equal_nan=True)
                must(close, f"what is explained as {name} differs when clients are trained {where}")


def leaves_the_base_alone(method: Method) -> None:
    """The base network's tensors start bit-equal with and without the method."""
    driver = toy_driver(method)
    base = Arch(networks.make(ToyNet, classes=3, shape=SHAPE, seed=0)).values()
    moved = [name for name in base if name not in driver.initial or not torch.equal(base[name], driver.initial[name])]
    must(not moved, f"other initial values of {', '.join(moved)}")


def gives_values(method: Method) -> None:
    """States of a finished round are never written to again, and a client's final model is its own."""
    driver = run(toy_driver(method), 1)
    state = tree.flatten(driver.state)
    snapshot = {name: tensor.clone() for name, tensor in state.items()}
    driver.step()
    for site, kept, got in zip(driver.sites, driver.kept, driver.last_delivery(), strict=True):
        for tensor in finished(site, kept, got).values():
            tensor.zero_()
    touched = [name for name in state if not torch.equal(state[name], snapshot[name])]
    must(not touched, f"a later round has written into {', '.join(touched[:5])}")


LAWS: dict[str, Callable[[Method], None]] = {
    law.__name__.replace("_", " "): law
    for law in (
        is_its_own_configuration, has_pure_hooks, looks_at_no_data, keeps_the_private, forgets_the_order,
        is_repeatable, survives_dropouts, takes_a_cohort_of_one, takes_models_with_and_without_norm, keeps_types,
        is_tested_without_trace, resumes, runs_alike_in_every_runner, leaves_the_base_alone, gives_values,
    )
}  # fmt: skip


# What the laws need.


def must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenLaw(otherwise)


def must_equal(a: Driver, b: Driver, when: str, rows: bool = True) -> None:
    left, right = tree.flatten(a.state), tree.flatten(b.state)
    different = [name for name in left if name not in right or not identical(left[name], right[name])]
    must(left.keys() == right.keys() and not different, f"{', '.join(different[:5]) or 'the states'} differ {when}")
    if rows:
        for first, second in zip(a.rows, b.rows, strict=True):
            keys = [key for key in first if key != "seconds" and first[key] != second[key]]
            must(not keys, f"the rows of round {first['round']} differ in {', '.join(keys)} {when}")


def explained(row: record.Row) -> Iterator[tuple[str, Any]]:
    """What a round explains, by where it is shown and its name: `server/attention`, `3/alpha`."""
    shown = row["explain"]
    for where, tensors in [("server", shown.get("server", {})), *shown.get("clients", {}).items()]:
        yield from ((f"{where}/{name}", values) for name, values in tensors.items())


def identical(a: Tensor, b: Tensor) -> bool:
    """Equal in every bit that a number has; NaN equals NaN."""
    return a.dtype is b.dtype and a.shape == b.shape and tree.raw(a) == tree.raw(b)


def same(a: State, b: State) -> bool:
    left, right = tree.flatten(a), tree.flatten(b)
    return left.keys() == right.keys() and all(identical(left[name], right[name]) for name in left)


def differs(a: Tree, b: Tree) -> bool:
    return any(not torch.equal(a[name], b[name]) for name in a)


def outline(state: State) -> dict[str, tuple[Any, ...]]:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tree.flatten(state).items()}


def watched(method: Method) -> Method:
    """A copy of a method whose hooks are checked at each call."""
    copied = copy.copy(method)
    for hook in (*CLIENT_HOOKS, *SERVER_HOOKS, "init_client", "init_server", "personal", "own_init"):
        object.__setattr__(copied, hook, _checked(method, hook))
    return copied


def _checked(method: Method, hook: str) -> Callable[..., Any]:
    function = getattr(method, hook)

    def call(*arguments: Any) -> Any:
        before = [(tensor, tensor.clone()) for tensor in _tensors(arguments)]
        spelled = repr(method)
        answer = function(*arguments)
        must(all(identical(tensor, copied) for tensor, copied in before), f"{hook} changes a tensor it was given")
        must(repr(method) == spelled, f"{hook} changes the method itself")
        generators = _generators()  # at the second call: a first one may import a library that draws
        again = function(*[_fresh(argument) for argument in arguments])
        must(_generators() == generators, f"{hook} draws global random numbers; use client.random or fed.random")
        pairs = zip(_tensors([answer]), _tensors([again]), strict=True)
        must(all(identical(a, b) for a, b in pairs), f"{hook} gives another answer when it is called again")
        return answer

    return call


def _fresh(argument: Any) -> Any:
    """A second call counts its steps elsewhere."""
    return dataclasses.replace(argument, meter=type(argument.meter)()) if isinstance(argument, Client) else argument


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type | Client | Method):
            yield from _tensors(getattr(value, field.name) for field in dataclasses.fields(value))


def _generators() -> tuple[bytes, ...]:
    numpy_state = np.random.get_state()[1].tobytes()  # type: ignore[index]
    return tree.raw(torch.get_rng_state()), numpy_state, repr(random.getstate()).encode()


class Wiretap(Driver):
    """A driver that encodes what passes, and compares with what is counted."""

    def step(self) -> record.Row:
        self.sent: dict[int, int] = {}
        self.came: dict[int, int] = {}
        public = [self.public_due(i) for i in range(self.data.n)]
        row = super().step()
        for i in range(self.data.n):
            for way, encoded in (
                ("down", self.sent[i] + public[i] if i in self.sent else 0),
                ("up", self.came.get(i, 0)),
            ):
                must(row[way][i] == encoded, f"{row[way][i]} bytes {way} counted, {encoded} encoded")
        return row

    def message(self, payload: Payload, place: int, number: int) -> Received:
        got = super().message(payload, place, number)
        self.sent[number] = self.encoded({"model": got.model, "extra": got.extra, "peers": got.peers})
        return got

    def aggregate(self, fed: Any, server: State, uploads: Mapping[int, State]) -> State:
        self.came = {number: self.encoded(upload) for number, upload in uploads.items()}
        return super().aggregate(fed, server, uploads)

    def encoded(self, state: State) -> int:
        names = {path.rsplit("/", 1)[-1] for path in tree.flatten(state)}
        must(not names & self.private, f"{', '.join(sorted(names & self.private))} would leave the client")
        buffer, schema = tree.encode(state)
        must(same(tree.decode(buffer, schema), tree.unflatten(tree.flatten(state))), "a message changes on the wire")
        return len(buffer)


class Backwards(Sequential):
    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        return super().train(list(work)[::-1], round, examine)


class Lossy(Sequential):
    """Loses what one client answers."""

    @staticmethod
    def lost(n: int) -> int:
        return min(2, n - 1)

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        parts = list(work)
        return (r for r in super().train(parts, round, examine) if r.number != self.lost(len(parts)))


class Silent(Sequential):
    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        return iter(())
