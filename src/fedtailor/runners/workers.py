"""Processes that share a round's clients, each on one thread.

The processes are forked, so that they have the data, the network and a method of the user's own as they are, without a
copy; models and states pass through shared memory. Each process trains its clients as the runner within does. Whoever
is idle takes the next bundle of clients, the most work first; what is in a bundle does not depend on time, so that one
plan gives the same bits whoever is faster.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from heapq import heapify, heappop, heappush
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedtailor import tree
from fedtailor.method import Received
from fedtailor.registry import WrongInput
from fedtailor.runners import Exams, Work, memory
from fedtailor.runners.arena import Arena
from fedtailor.runners.sequential import Sequential
from fedtailor.runners.stacked import Stacked
from fedtailor.site import Reply, Site

STOPPING = 5.0  # seconds that a process has to end by itself


class WorkerFailed(RuntimeError):
    """What went wrong in a process, in words; its traceback is the cause."""


class Traceback(Exception):
    """The traceback of another process."""


def can_fork() -> bool:
    """Whether processes may be forked here: not where macOS's libraries or an accelerator's threads do not bear it."""
    return hasattr(os, "fork") and sys.platform != "darwin" and not torch.cuda.is_available()


class Workers:
    """Runs the clients of a round in several processes."""

    def __init__(self, within: Sequential | Stacked, count: int):
        if not can_fork():
            raise WrongInput(
                f"workers={count} needs processes that are forked, which cannot be done here; workers=1 always can"
            )
        self.within, self.count = within, count
        self.sites: Sequence[Site] = ()
        self.crew: list[Worker] = []

    def plan(self) -> dict[str, Any]:
        return {**self.within.plan(), "workers": self.count}

    def begin(self, sites: Sequence[Site]) -> None:
        self.end()
        self.sites = sites

    def end(self) -> None:
        crew, self.crew = self.crew, []
        for worker in crew:
            worker.stop()
        self.within.end()

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        return self.shared_out(list(work), {"do": "train", "round": round, "examine": examine})

    def examine(self, work: Iterable[Work], round: int, final: bool = False) -> Iterator[tuple[int, Exams]]:
        return self.shared_out(list(work), {"do": "examine", "round": round, "final": final})

    def shared_out(self, work: Sequence[Work], order: Mapping[str, Any]) -> Iterator[Any]:
        """What the processes answer, in the order in which it comes."""
        if not self.crew:
            self.hire()
        bundles = self.bundles(work)[::-1]  # the last is the next
        busy: dict[Connection, Worker] = {}
        idle = list(self.crew)
        try:
            while bundles or busy:
                while bundles and idle:
                    worker = idle.pop()
                    worker.take(bundles.pop(), order)
                    busy[worker.answers] = worker
                for answers in wait(list(busy)):
                    assert isinstance(answers, Connection)
                    idle.append(worker := busy.pop(answers))
                    yield from worker.answer()
        except BaseException:  # an interrupt, or a fault: nobody goes on with a round that is over
            self.end()
            raise

    def bundles(self, work: Sequence[Work]) -> list[list[Work]]:
        """Clients that go to a process together, the most work first; by the greedy rule of longest first."""
        if isinstance(self.within, Sequential):
            return [[part] for part in sorted(work, key=load, reverse=True)]
        count = self.count * -(-len(work) // (self.count * self.within.most))
        parts: list[list[Work]] = [[] for _ in range(count)]
        loads = [(0, number) for number in range(count)]
        heapify(loads)
        for part in sorted(work, key=load, reverse=True):
            least, number = heappop(loads)
            parts[number].append(part)
            heappush(loads, (least + load(part), number))
        return sorted((part for part in parts if part), key=lambda part: sum(map(load, part)), reverse=True)

    def hire(self) -> None:
        memory.keep_freed()  # here as well: many models come back in each round
        for _ in range(self.count):
            self.crew.append(Worker(self.within, self.sites, self.crew))


def load(part: Work) -> int:
    """Rows that pass in a client's ordinary local work."""
    client = part.site.client(1)
    return client.steps * min(client.batch or client.size, client.size)


# ---------- this process's side ----------


class Worker:
    """One process, as seen by the one that forked it."""

    def __init__(self, within: Sequential | Stacked, sites: Sequence[Site], others: Sequence[Worker]):
        context = multiprocessing.get_context("fork")
        self.orders, theirs_in = context.Pipe()
        self.answers = self.orders
        self.out, self.back = Arena(), Arena()
        foreign = [self.orders, *(other.orders for other in others)]  # that the new process must not hold open
        self.process = context.Process(
            target=serve, args=(within, sites, theirs_in, self.out, self.back, foreign), daemon=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads: see `serve`
            self.process.start()
        theirs_in.close()
        self.doing = ""
        self.gone = weakref.finalize(self, end_process, self.process, self.orders)

    def take(self, bundle: Sequence[Work], order: Mapping[str, Any]) -> None:
        method = bundle[0].site.common.method
        numbers = ", ".join(str(part.site.number) for part in bundle)
        self.doing = f"in round {order['round']}, client{'s' * (len(bundle) > 1)} {numbers}, method {method!r}"
        self.out.clear()
        parts = [
            (
                part.site.number, self.out.put(part.kept),
                None if (got := part.got) is None else sent(got, self.out), repr(part.kind),
            )
            for part in bundle
        ]  # fmt: skip
        self.tell({**order, "parts": parts})

    def tell(self, what: Any) -> None:
        try:
            self.orders.send_bytes(json.dumps(what).encode())
        except (BrokenPipeError, ConnectionError):
            self.fail()

    def answer(self) -> list[Any]:
        try:
            answer = json.loads(self.answers.recv_bytes())
        except (EOFError, ConnectionError):
            self.fail()
        for text in answer["warnings"]:
            warnings.warn(text, UserWarning, stacklevel=2)
        if answer["error"] is not None:
            raise error_of(answer["error"])
        seen: dict[int, torch.Tensor] = {}
        copies: dict[int, torch.Tensor] = {}

        def own(value: torch.Tensor) -> torch.Tensor:
            """A copy, for the memory is written again; what is one tensor stays one."""
            if id(value) not in copies:
                copies[id(value)] = value.clone()
            return copies[id(value)]

        found = [tree.transform(own, self.back.get(each, seen)) for each in answer["states"]]
        if answer["kind"] == "train":
            return [reply_of(facts, state) for facts, state in zip(answer["facts"], found, strict=True)]
        return [(facts["number"], exams_of(state)) for facts, state in zip(answer["facts"], found, strict=True)]

    def fail(self) -> None:
        self.process.join(STOPPING)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        hint = "; is there too little memory? fewer --workers need less" if code == -signal.SIGKILL else ""
        raise WorkerFailed(f"a worker process {how} {self.doing}{hint}") from None

    def stop(self) -> None:
        self.gone()


def end_process(process: BaseProcess, orders: Connection) -> None:
    """At once, whatever it does: it holds nothing that is needed."""
    orders.close()
    if process.is_alive():
        process.terminate()
        process.join(STOPPING)
        if process.is_alive():
            process.kill()
    process.join()


def sent(got: Received, arena: Arena) -> dict[str, Any]:
    tensors = {"model": got.model, "extra": got.extra, "peers": got.peers}
    ids = {} if got.peer_ids is None else {"peer_ids": got.peer_ids}
    return {"tensors": arena.put({**tensors, **ids}), "me": got.me, "static": dict(got.static)}


def received(message: Mapping[str, Any], arena: Arena, seen: dict[int, torch.Tensor]) -> Received:
    tensors = arena.get(message["tensors"], seen)
    return Received(**tensors, me=message["me"], static=message["static"])


def error_of(told: Mapping[str, Any]) -> BaseException:
    """The same kind of error where it says something to the caller, and else its words."""
    known: dict[str, type[BaseException]] = {"KeyboardInterrupt": KeyboardInterrupt, "WrongInput": WrongInput}
    kind = known.get(told["type"], WorkerFailed)
    error = kind(told["text"] if kind is not WorkerFailed else f"{told['type']}: {told['text']}")
    for note in told["notes"]:
        error.add_note(note)
    error.__cause__ = Traceback(f"in a worker process:\n{told['traceback']}")
    return error


# ---------- the other process's side ----------


def serve(
    within: Sequential | Stacked, sites: Sequence[Site], orders: Connection, come: Arena, back: Arena,
    foreign: Sequence[Connection],
) -> None:  # fmt: skip
    """The body of a worker process: orders in, answers out, until there are no more.

    It uses one thread only, for those of the process that forked it are not here; leaves Ctrl-C to that process; and
    ends when that one does, since then nobody holds the other end of the pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for connection in foreign:
        connection.close()
    torch.set_num_threads(1)
    by_number = {site.number: site for site in sites}
    while True:
        try:
            order = json.loads(orders.recv_bytes())
        except (EOFError, ConnectionError):
            return
        back.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            answer = {"kind": order["do"], "facts": [], "states": [], "error": None}
            try:
                carry_out(within, by_number, order, come, back, answer)
            except BaseException as error:
                answer["error"] = in_words(error)
        answer["warnings"] = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
        try:
            orders.send_bytes(json.dumps(answer).encode())
        except (BrokenPipeError, ConnectionError):
            return


def carry_out(
    within: Sequential | Stacked, sites: Mapping[int, Site], order: Mapping[str, Any], come: Arena, back: Arena,
    answer: dict[str, Any],
) -> None:  # fmt: skip
    seen: dict[int, torch.Tensor] = {}
    states = {number: come.get(kept, seen) for number, kept, *_ in order["parts"]}
    work = [
        Work(sites[number], states, None if got is None else partial(received, got, come, seen), kind)
        for number, _, got, kind in order["parts"]
    ]
    if order["do"] == "train":
        for reply in within.train(work, order["round"], order["examine"]):
            answer["facts"].append({name: getattr(reply, name) for name in FACTS})
            answer["states"].append(back.put(tensors_of(reply)))
        return
    for number, exams in within.examine(work, order["round"], order["final"]):
        answer["facts"].append({"number": number})
        answer["states"].append(back.put({str(site): exam for site, exam in exams.items()}))


def in_words(error: BaseException) -> dict[str, Any]:
    return {
        "type": type(error).__name__, "text": str(error), "notes": getattr(error, "__notes__", []),
        "traceback": "".join(traceback.format_exception(error)),
    }  # fmt: skip


TENSORS = ("upload", "kept", "explain")  # of a reply; its exam as well
FACTS = tuple(field.name for field in fields(Reply) if field.name not in (*TENSORS, "exam"))


def tensors_of(reply: Reply) -> tree.State:
    found = {name: getattr(reply, name) for name in TENSORS if getattr(reply, name) is not None}
    return {**found, "exam": {str(site): exam for site, exam in reply.exam.items()}}


def reply_of(facts: Mapping[str, Any], state: tree.State) -> Reply:
    tensors = {name: state.get(name) for name in TENSORS}
    return Reply(**facts, **tensors, exam=exams_of(state["exam"]))  # type: ignore[arg-type]


def exams_of(state: tree.State) -> dict[int, Any]:
    return {int(site): exam for site, exam in state.items()}
