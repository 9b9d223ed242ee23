"""Clients trained together: the clients of a chunk as one, in tensors with a leading dimension for them.

What runs is the method's own hooks and the network's own `forward`, on `Lanes`, by the same function as for one client
(`site.play`). Clients need not be equal: the longest come first, those that are done are sliced off, and short last
batches are exact. A method that looks at what lanes cannot show runs its clients one by one, and the run says so.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedtailor import schedule, tree
from fedtailor.lanes import OneByOne, drawing_from, is_lanes, lanes, raw, selected
from fedtailor.local import Client, Meter
from fedtailor.method import Fitted, Received
from fedtailor.runners import Exams, Work, memory
from fedtailor.runners.lane_client import LaneClient
from fedtailor.runners.lane_losses import LaneMeter, Unequal
from fedtailor.runners.sequential import Sequential, chosen, working
from fedtailor.site import EXPLODED, Common, Exam, Reply, Site, Statistics, finished, finite, model_of, play
from fedtailor.tree import State, Tree

MOST = 64  # clients in a chunk
ROOM = 1 << 30  # bytes of models, states and messages in a chunk
WIDE = 256  # rows of each client that are examined at a time

T = TypeVar("T")
Done = Callable[[Sequence[Work]], Iterable[T]]


@dataclass(frozen=True)
class LaneSite(Site):
    """Several clients as one site."""

    sites: tuple[Site, ...] = ()

    @classmethod
    def of(cls, sites: Sequence[Site]) -> LaneSite:
        first = sites[0]
        return cls(first.common, -1, first.x, first.y, first.rows, {}, tuple(sites))

    def client(self, round: int, purpose: str = "") -> Client:
        return LaneClient.of([site.client(round, purpose) for site in self.sites])

    def randomness(self, purpose: str, round: int) -> AbstractContextManager[None]:
        def seeds() -> list[int]:
            return [schedule.torch_seed(self.common.seed, "torch", purpose, round, s.number) for s in self.sites]

        return drawing_from(seeds)

    def diverged(self, meter: Meter, fitted: Fitted) -> bool:
        """Told client by client, when the lanes are parted."""
        return False


class Stacked:
    """Trains clients of a chunk in one stack of tensors, and alone what cannot be stacked."""

    def __init__(self, threads: int, room: int = ROOM, chunk: int = 0, products: str = ""):
        self.threads, self.room, self.chunk, self.products = threads, room, chunk, products
        self.alone = Sequential(threads, products=products)
        self.refused = ""  # why clients of this method run one by one

    def plan(self) -> dict[str, Any]:
        return {"runner": "stacked", "threads": self.threads, **chosen(chunk=self.chunk, products=self.products)}

    @property
    def most(self) -> int:
        """Clients in a chunk."""
        return self.chunk or MOST

    def begin(self, sites: Sequence[Site]) -> None:
        pass

    def end(self) -> None:
        memory.give_back()

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        def one_by_one(chunk: Sequence[Work]) -> Iterator[Reply]:
            return self.alone.train(chunk, round, examine)

        return self.in_chunks(work, lambda chunk: together(chunk, round, examine), one_by_one)

    def examine(self, work: Iterable[Work], round: int, final: bool = False) -> Iterator[tuple[int, Exams]]:
        def one_by_one(chunk: Sequence[Work]) -> Iterator[tuple[int, Exams]]:
            return self.alone.examine(chunk, round, final)

        return self.in_chunks(work, lambda chunk: examined(chunk, round, final), one_by_one)

    def in_chunks(self, work: Iterable[Work], stacked: Done[T], one_by_one: Done[T]) -> Iterator[T]:
        with working(self.threads, self.products):
            for chunk in self.chunks(list(work)):
                yield from self.carried_out(chunk, stacked, one_by_one)

    def chunks(self, parts: Sequence[Work]) -> Iterator[list[Work]]:
        """Clients that can be stacked, those with most rows first."""
        alike: dict[Hashable, list[Work]] = {}
        for part in sorted(parts, key=lambda part: len(part.site.rows), reverse=True):
            alike.setdefault(part.kind, []).append(part)
        for group in alike.values():
            message = () if (got := group[0].got) is None else contents(got)
            size = sum(map(tree.nbytes, (group[0].kept, *message)))
            most = max(1, min(self.most, self.room // max(1, 4 * size)))
            for start in range(0, len(group), most):
                yield group[start : start + most]

    def carried_out(self, chunk: list[Work], stacked: Done[T], one_by_one: Done[T]) -> Iterable[T]:
        if self.refused or len(chunk) == 1:
            return one_by_one(chunk)
        try:
            return stacked(chunk)
        except Unequal:
            return [done for equal in by_size(chunk) for done in self.carried_out(equal, stacked, one_by_one)]
        except Exception as error:  # one by one, where a fault of the method shows with the client's name
            done = list(one_by_one(chunk))
            self.refused = str(error) if isinstance(error, OneByOne) else f"{type(error).__name__}: {error}"
            method = chunk[0].site.common.method
            warnings.warn(f"{method!r} runs its clients one by one: {self.refused}", UserWarning, stacklevel=2)
            return done


def by_size(chunk: Sequence[Work]) -> list[list[Work]]:
    groups: dict[int, list[Work]] = {}
    for part in chunk:
        groups.setdefault(len(part.site.rows), []).append(part)
    return list(groups.values())


def contents(got: Received) -> tuple[State, ...]:
    return got.model, got.extra, got.peers


def together(chunk: Sequence[Work], round: int, examine: bool) -> list[Reply]:
    """A round of several clients at once."""
    began = time.perf_counter()
    site = LaneSite.of([part.site for part in chunk])
    kept = stacked([part.kept for part in chunk])
    messages = [got for part in chunk if (got := part.got) is not None]
    played, meter = play(site, kept, received(messages) if messages else None, round, examine)
    assert played is not None and isinstance(meter, LaneMeter)
    trained_in = (time.perf_counter() - began) / len(chunk)
    began = time.perf_counter()
    exams = take_exams(site, played.tested) if examine else [{} for _ in chunk]
    examined_in = (time.perf_counter() - began) / len(chunk)
    lost = diverged(meter, played.fitted, len(chunk))
    uploads, after, explain = (parted(part, len(chunk)) for part in (played.upload, played.kept, played.explain))
    steps, losses = meter.totals(len(chunk))
    return [
        Reply(part.site.number, None, None, steps[i], None, {}, train_seconds=trained_in) if lost[i] else
        Reply(
            part.site.number, uploads[i], after[i], steps[i], losses[i], exams[i], explain[i], trained_in, examined_in
        )
        for i, part in enumerate(chunk)
    ]  # fmt: skip


def examined(chunk: Sequence[Work], round: int, final: bool) -> list[tuple[int, Exams]]:
    """Exams of several clients at once."""
    site = LaneSite.of([part.site for part in chunk])
    kept = stacked([part.kept for part in chunk])
    messages = [message for part in chunk if (message := part.got) is not None]
    got = received(messages) if messages else None
    if final:
        assert got is not None, "every site gets its last model"
        model = finished(site, kept, got)
    else:
        model = model_of(site, kept, got, round)
    return [(part.site.number, exams) for part, exams in zip(chunk, take_exams(site, model), strict=True)]


def stacked(states: Sequence[State]) -> State:
    """States of several clients as one of lanes; what is one tensor for all takes no memory."""

    def one(parts: Sequence[Tensor]) -> Tensor:
        first = parts[0]
        if all(part is first for part in parts):
            return lanes(first.detach().expand(len(parts), *first.shape))
        return lanes(torch.stack([part.detach() for part in parts]))

    return {
        key: stacked([state[key] for state in states]) if isinstance(value, Mapping) else one([s[key] for s in states])
        for key, value in states[0].items()
    }


def parted(state: Mapping[str, Any], count: int) -> list[State]:
    """The state of each lane; what has no lanes is everybody's."""
    parts: list[State] = [{} for _ in range(count)]
    for key, value in state.items():
        if isinstance(value, Mapping):
            values: Sequence[Any] = parted(value, count)
        elif is_lanes(value):
            values = raw(value).unbind(0)
        else:
            values = [value] * count
        for part, own in zip(parts, values, strict=True):
            part[key] = own
    return parts


def received(messages: Sequence[Received]) -> Received:
    first = messages[0]
    ids = None
    if first.peer_ids is not None:
        ids = lanes(torch.stack([got.peer_ids for got in messages if got.peer_ids is not None]))
    return Received(
        model=stacked([got.model for got in messages]), extra=stacked([got.extra for got in messages]),
        peers=stacked([got.peers for got in messages]), peer_ids=ids,
        me=lanes(torch.tensor([got.me for got in messages])), static=first.static,  # type: ignore[arg-type]
    )  # fmt: skip


def diverged(meter: LaneMeter, fitted: Fitted, count: int) -> list[bool]:
    """As `site.diverged` tells it of one client."""
    lost = torch.zeros(count, dtype=torch.bool)
    for tensor in tree.flatten({"model": fitted.model, "extra": fitted.extra}).values():
        if tensor.is_floating_point():
            lost |= ~finite(raw(tensor) if is_lanes(tensor) else tensor[None]).cpu()
    first, last, sound = meter.extremes(count)
    return (lost | ~sound | (last > EXPLODED * (1 + first.abs()))).tolist()


@torch.no_grad()
def take_exams(site: LaneSite, model: Tree) -> list[dict[int, Exam]]:
    """Each client's model on its own rows, some rows of all clients at a time."""
    common, sites = site.common, site.sites
    found: list[dict[int, Exam]] = [{number: {} for number in one.exams} for one in sites]
    alike = all(not is_lanes(t) or raw(t).stride(0) == 0 for t in model.values())
    one_model = {n: raw(t)[0] if is_lanes(t) else t for n, t in model.items()} if alike else {}
    for part in ("test", "validation"):
        asked = [(i, number, rows[part]) for i, one in enumerate(sites) for number, rows in one.exams.items()]
        asked = [each for each in asked if len(each[2])]
        outputs = of_one(common, site, one_model, asked) if alike else of_each(common, site, model, asked)
        for (i, number, _), counted in zip(asked, statistics(common, site, asked, outputs), strict=True):
            found[i][number][part] = counted
    return found


def statistics(common: Common, site: LaneSite, asked: Asked, outputs: Sequence[Tensor]) -> Sequence[Statistics]:
    """Of each list of rows by itself, counted together where the task can."""
    if common.task.of_each is None or not asked:
        pairs = zip(outputs, asked, strict=True)
        return [common.task.statistics(out, site.y[rows]) for out, (_, _, rows) in pairs]
    y = site.y[torch.cat([rows for _, _, rows in asked])]
    owner = torch.arange(len(asked)).repeat_interleave(torch.tensor([len(rows) for _, _, rows in asked])).to(y.device)
    counted = common.task.of_each(torch.cat(list(outputs)), y, owner, len(asked))
    columns = {name: value.unbind(0) for name, value in counted.items()}
    return [{name: column[place] for name, column in columns.items()} for place in range(len(asked))]


Asked = Sequence[tuple[int, int, Tensor]]  # lane, number of the site that is told of, rows


def of_one(common: Common, site: LaneSite, model: Tree, asked: Asked) -> list[Tensor]:
    """The outputs of one model on everybody's rows."""
    if not asked:
        return []
    rows = torch.cat([rows for _, _, rows in asked])
    parts = (site.x.index_select(0, some) for some in torch.split(rows, MOST * WIDE))
    out = torch.cat([common.arch.apply(model, part, train=False)[0] for part in parts])
    return list(torch.split(out, [len(rows) for _, _, rows in asked]))


def of_each(common: Common, site: LaneSite, model: Tree, asked: Asked) -> list[Tensor]:
    """The outputs of each client's model on its rows: row by row alike, so that shorter lists can be filled up."""
    outputs: list[list[Tensor]] = [[] for _ in asked]
    longest = max((len(rows) for _, _, rows in asked), default=0)
    for start in range(0, longest, WIDE):
        places = [place for place, (_, _, rows) in enumerate(asked) if len(rows) > start]
        pieces = [asked[place][2][start : start + WIDE] for place in places]
        width = max(map(len, pieces))
        index = torch.stack([torch.cat([p, p[:1].expand(width - len(p))]) for p in pieces])
        which = torch.tensor([asked[place][0] for place in places])
        some = {n: lanes(raw(t)[which]) if is_lanes(t) else t for n, t in model.items()}
        with selected(len(which), which):
            x = site.x.index_select(0, index.flatten()).view(*index.shape, *site.x.shape[1:])
            out = raw(common.arch.apply(some, lanes(x), train=False)[0])
        for row, place, piece in zip(out, places, pieces, strict=True):
            outputs[place].append(row[: len(piece)])
    return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in outputs]

