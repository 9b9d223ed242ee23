"""Sites that are late, away, damaged or odd: the round goes on without them, and their state stands still.

The reference is the simulator with the same client left out of the same round.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import memory_link as memory
import numpy as np
import pytest
import torch
from small import SmallNet, method_named, small_federation, small_spec

from fedtailor import Driver, registry, tree
from fedtailor.deploy import coordinator as coordinators
from fedtailor.deploy import mail as mails
from fedtailor.deploy.coordinator import Coordinator
from fedtailor.deploy.envelope import Letter, Seal, Sealed
from fedtailor.deploy.link import Lost
from fedtailor.deploy.settings import SERVER
from fedtailor.deploy.wire import BadMessage
from fedtailor.runners import Work
from fedtailor.runners.sequential import Sequential
from fedtailor.site import Reply
from fedtailor.tree import leaves

pytestmark = pytest.mark.filterwarnings("ignore::fedtailor.driver.MethodNote")
EVERYBODY = 1.0


class Leaving(Sequential):
    """Loses the replies of some clients in some rounds, and their exams with them."""

    def __init__(self, lost: set[tuple[int, int]]):
        super().__init__(1)
        self.lost = lost

    def train(self, work: Iterable[Work], round: int, examine: bool) -> Iterator[Reply]:
        return (reply for reply in super().train(work, round, examine) if (round, reply.number) not in self.lost)


@pytest.fixture(autouse=True)
def known(fresh: None) -> None:
    registry.register("model", "SmallNet")(SmallNet)


def spec_of(name: str, **options: Any) -> Any:
    return small_spec(method_named(name), rounds=4, model="SmallNet", cohort=EVERYBODY, eval_every=9, **options)


def simulated(name: str, lost: set[tuple[int, int]], rounds: int = 4) -> Driver:
    driver = Driver(spec_of(name), small_federation(), Leaving(lost))
    for _ in range(rounds):
        driver.step()
    return driver


def same(one: Any, other: Any) -> None:
    assert [path for path, _ in leaves(one)] == [path for path, _ in leaves(other)]
    for (path, a), (_, b) in zip(leaves(one), leaves(other), strict=True):
        assert a is None or b is None or tree.raw(a) == tree.raw(b), path


def assert_same(
    driver: Driver, server: Coordinator, link: memory.MemoryLink, but: frozenset[str] = frozenset()
) -> None:
    same(driver.server, server.server)
    for i, name in enumerate(driver.data.clients):
        same(driver.kept[i], link.members[name].kept(server.base(i)))


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def reasons(folder: Path, site: str) -> str:
    return " | ".join(f"{e['event']}: {e.get('reason', '')}" for e in events(folder) if e.get("site") == site)


Between = Callable[[str, Sealed, Callable[[Sealed], Sealed | None]], Any]


@pytest.mark.parametrize("name", ["Ditto", "FedMCSA", "SCAFFOLD", "FedALA"])
def test_a_lost_answer_does_not_step_the_site(name: str, tmp_path: Path) -> None:
    """Site c trains in round 2 and its answer gets lost: its round 3 goes on from round 1."""
    server, link = memory.coordinate(spec_of(name), small_federation(), tmp_path)

    def lose(site: str, sealed: Sealed, answer: Callable[[Sealed], Sealed | None]) -> Any:
        given = answer(sealed)
        asked = Seal(memory.FEDERATION, memory.secret(site)).open(sealed, sender=SERVER, to=site)
        lost = site == "c" and asked.kind == "train" and asked.about["round"] == 2
        return Lost("it did not answer in time") if lost else given

    link.between = lose
    for _ in range(4):
        server.step()
    driver = simulated(name, {(2, 2)})
    assert driver.rows[1]["steps"][2] == server.rows[1]["steps"][2] == 0
    assert_same(driver, server, link)
    assert "no answer: it did not answer in time" in reasons(tmp_path, "c")


def spoilt(change: Callable[[dict[str, Any]], None]) -> Between:
    """What a site that seals its own letters can send: in round 2, site b sends this."""

    def between(site: str, sealed: Sealed, answer: Callable[[Sealed], Sealed | None]) -> Any:
        given = answer(sealed)
        seal = Seal(memory.FEDERATION, memory.secret(site))
        asked = seal.open(sealed, sender=SERVER, to=site)
        if site != "b" or asked.kind != "train" or asked.about["round"] != 2 or given is None:
            return given
        letter = seal.open(given, sender=site, to=SERVER)
        content = {"about": dict(letter.about), "state": letter.state}
        change(content)
        return seal.close(Letter(site, SERVER, letter.number, letter.kind, content["about"], content["state"]))

    return between


def set_head(value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        head = content["state"]["upload"]["model"]["head.weight"]
        content["state"]["upload"]["model"]["head.weight"] = value(head)

    return change


def in_state(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["state"].update(values)


BAD = {
    "NaN": (set_head(lambda head: head * math.nan), "'model/head.weight' holds a value that is not a finite number"),
    "shape": (set_head(lambda head: head[:1]), r"'head.weight' is float32 (1, 8) and should be float32 (3, 8)"),
    "type": (set_head(lambda head: head.double()), "should be float32"),
    "absurd": (set_head(lambda head: head * 1e9), "above the limit"),
    "not a model": (in_state(upload={"model": torch.ones(2)}), "not a model with extras"),
    "missing": (lambda content: content["state"]["upload"]["model"].pop("head.bias"), "lacks 'head.bias'"),
    "none": (lambda content: content["state"].pop("upload"), "sent no upload"),
    "steps": (lambda content: content["about"].update(steps="3"), "number of steps"),
    "loss": (in_state(loss=torch.ones(2)), "loss is not a number"),
    "exam": (in_state(exam={"test": {"count": torch.ones(())}}), "exam lacks"),
    "extras": (
        lambda content: content["state"]["upload"].update(extra={"odd": torch.ones(1)}),
        "not like those of the others",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_upload_is_dropped_with_the_reason(kind: str, tmp_path: Path) -> None:
    change, why = BAD[kind]
    server, link = memory.coordinate(spec_of("FedAvg"), small_federation(), tmp_path)
    link.between = spoilt(change)
    for _ in range(4):
        server.step()
    assert_same(simulated("FedAvg", {(2, 1)}), server, link)
    assert "dropped: " in reasons(tmp_path, "b") and why in reasons(tmp_path, "b")


def test_a_personal_tensor_in_the_extras_is_dropped(tmp_path: Path) -> None:
    """Law 3 holds against a site as well."""
    server, link = memory.coordinate(spec_of("FedBN"), small_federation(), tmp_path)
    link.between = spoilt(lambda c: c["state"]["upload"].update(extra={"norm.weight": torch.ones(4)}))
    for _ in range(4):
        server.step()
    assert_same(simulated("FedBN", {(2, 1)}), server, link)
    assert "holds the personal 'norm.weight'" in reasons(tmp_path, "b")


def test_replayed_letters_and_answers_are_refused(tmp_path: Path) -> None:
    server, link = memory.coordinate(spec_of("FedAvg"), small_federation(), tmp_path)
    server.step()
    _, letter, answer = next(passed for passed in link.passed if passed[0] == "a")
    before = link.members["a"].store.rounds()
    said: list[str] = []
    link.members["a"].say = said.append
    assert link.members["a"].answer(letter) is None and "was sent before" in said[-1]
    assert link.members["a"].store.rounds() == before

    link.between = lambda site, sealed, ask: answer if site == "a" else ask(sealed)
    server.step()
    assert server.rows[-1]["steps"][0] == 0
    assert "it was sent before" in reasons(tmp_path, "a")
    link.between = None
    server.step()
    driver = Driver(spec_of("FedAvg"), small_federation(), Leaving({(2, 0)}))
    for _ in range(3):
        driver.step()
    assert_same(driver, server, link)


def test_misdirected_and_changed_letters_are_refused(tmp_path: Path) -> None:
    server, link = memory.coordinate(spec_of("FedAvg"), small_federation(), tmp_path)
    server.step()
    _, of_a, answer_of_a = [passed for passed in link.passed if passed[0] == "a"][-1]
    said: list[str] = []
    link.members["b"].say = said.append
    assert link.members["b"].answer(of_a) is None and "wrong" in said[-1]  # sealed for a
    assert link.members["b"].answer(replace(of_a, body=of_a.body + b"x")) is None
    link.between = lambda site, sealed, ask: answer_of_a if site == "b" else ask(sealed)
    server.step()
    assert server.rows[-1]["steps"][1] == 0 and "its code is wrong" in reasons(tmp_path, "b")


def test_a_site_that_comes_late_and_one_that_leaves(tmp_path: Path) -> None:
    server, link = memory.coordinate(spec_of("Ditto"), small_federation(), tmp_path)
    late = link.members.pop("d")
    server.step()
    server.step()
    link.members["d"] = late
    gone = link.members.pop("a")
    server.step()
    link.members["a"] = gone
    server.step()
    driver = simulated("Ditto", {(1, 3), (2, 3), (3, 0)})
    assert_same(driver, server, link)


def test_how_many_rows_a_late_site_has_counts_from_when_it_says_so(tmp_path: Path) -> None:
    federation = small_federation()
    members = {name: memory.member_of(federation, name, tmp_path / "state") for name in federation.clients}
    late = members.pop("d")
    link = memory.MemoryLink(members)
    mail = memory.mail_of(federation, link, tmp_path)
    mail.greet()
    server = Coordinator(spec_of("FedAvg"), mail, tmp_path / "rows.json")
    assert server.data.sizes.tolist() == [9, 4, 12, 1, 10]
    link.members["d"] = late
    server.step()
    assert server.data.sizes.tolist() == federation.sizes.tolist()
    assert_same(simulated("FedAvg", set(), 1), server, link)


@pytest.mark.parametrize("name", ["Ditto", "FedMCSA"])
def test_sites_and_server_that_are_started_again_go_on(name: str, tmp_path: Path) -> None:
    """All of memory is lost between the rounds: what is on disk is enough."""
    federation, spec = small_federation(), spec_of(name)
    server, link = memory.coordinate(spec, federation, tmp_path)
    for _ in range(4):
        server.step()
        state, rows = server.state, server.rows
        server, link = memory.coordinate(spec, federation, tmp_path)
        server.restore(len(rows), state, rows)
    assert_same(simulated(name, set()), server, link)


def test_a_round_that_is_made_again_is_the_same(tmp_path: Path) -> None:
    """The server dies before it has noted round 3: the sites go back with it."""
    federation, spec = small_federation(), spec_of("Ditto")
    server, link = memory.coordinate(spec, federation, tmp_path)
    server.step()
    server.step()
    state, rows = server.state, list(server.rows)
    server.step()
    server, link = memory.coordinate(spec, federation, tmp_path)
    server.restore(2, state, rows)
    server.step()
    server.step()
    assert_same(simulated("Ditto", set()), server, link)


def test_a_site_that_lost_its_states_starts_anew_and_it_is_told(tmp_path: Path) -> None:
    federation = small_federation()
    server, link = memory.coordinate(spec_of("Ditto"), federation, tmp_path)
    server.step()
    shutil.rmtree(tmp_path / "state" / "e")
    link.members["e"] = memory.member_of(federation, "e", tmp_path / "state")
    link.marks["e"] = "came back"
    server.step()
    assert "it has no state of round 1 and goes on from that of round 0" in reasons(tmp_path, "e")
    assert server.rows[-1]["steps"][4] > 0 and server.base(4) == 2


def test_a_damaged_state_costs_the_site_one_round(tmp_path: Path) -> None:
    server, link = memory.coordinate(spec_of("Ditto"), small_federation(), tmp_path)
    server.step()
    server.step()
    member = link.members["c"]
    (member.store.path / "round-000002.safetensors").write_bytes(b"rubbish")
    server.step()
    assert server.rows[-1]["steps"][2] == 0 and "StoreError with its stored state" in reasons(tmp_path, "c")
    server.step()
    assert "it has no state of round 2 and goes on from that of round 1" in reasons(tmp_path, "c")
    assert server.rows[-1]["steps"][2] > 0 and server.base(2) == 4


def test_fewer_than_the_quorum_are_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, link = memory.coordinate(spec_of("Ditto"), small_federation(), tmp_path, quorum=5)
    monkeypatch.setattr(coordinators.time, "sleep", lambda seconds: None)
    lost: list[str] = []

    def lose_twice(site: str, sealed: Sealed, answer: Callable[[Sealed], Sealed | None]) -> Any:
        given = answer(sealed)
        asked = Seal(memory.FEDERATION, memory.secret(site)).open(sealed, sender=SERVER, to=site)
        if site == "c" and asked.kind == "train" and len(lost) < 2:
            lost.append(site)
            return Lost("it did not answer in time")
        return given

    link.between = lose_twice
    server.mail.events.say = lambda text: None
    for _ in range(4):
        server.step()
    assert lost == ["c", "c"]
    assert_same(simulated("Ditto", set()), server, link)
    asked = [e["reason"] for e in events(tmp_path) if e["event"] == "asking again"]
    assert asked == ["4 of 5 answers needed have come"] * 2


def test_what_a_method_explains_leaves_only_if_the_site_lets_it(tmp_path: Path) -> None:
    spec = small_spec(method_named("FedALA"), rounds=2, model="SmallNet", cohort=EVERYBODY)
    server, link = memory.coordinate(spec, small_federation(), tmp_path)
    for name, member in link.members.items():
        member.explain = name == "b"
    server.step()
    row = server.step()
    assert set(row["explain"]["clients"]) == {"1"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fedtailor": "9.9"}, "the server has fedtailor 9.9 and site a has"),
        ({"form": {"task": "classification", "classes": ["x"], "shape": [1, 6, 6]}}, "their classes is"),
    ],
)
def test_a_server_that_does_not_fit_is_refused_by_the_site(change: Any, why: str, tmp_path: Path) -> None:
    federation = small_federation()
    member = memory.member_of(federation, "a", tmp_path)
    about = {"form": memory.form_of(federation).to_dict(), "name": "test", "fedtailor": "0.1.0", **change}
    seal = Seal(memory.FEDERATION, memory.secret("a"))
    answer = member.answer(seal.close(Letter(SERVER, "a", 1, "hello", about)))
    assert answer is not None
    letter = seal.open(answer, sender="a", to=SERVER)
    assert letter.kind == "refused" and why in letter.about["reason"]


def test_a_site_of_another_version_is_refused_by_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mails, "__version__", "9.9")
    hello = Letter("a", SERVER, 1, "hello", {"fedtailor": "0.1.0", "rows": [1, 0, 0], "have": []})
    with pytest.raises(BadMessage, match=r"it has fedtailor 0\.1\.0, the server 9\.9"):
        mails.read_guest(hello, "1")


def test_another_model_under_the_same_name_is_refused(tmp_path: Path) -> None:
    server, link = memory.coordinate(spec_of("FedAvg"), small_federation(), tmp_path)
    welcome, _ = server.welcome("a")
    welcome = {**welcome, "tensors": {**welcome["tensors"], "head.weight": "float32 (3, 9)"}}
    seal = Seal(memory.FEDERATION, memory.secret("a"))
    answer = link.members["a"].answer(seal.close(Letter(SERVER, "a", 10**6, "welcome", welcome)))
    assert answer is not None
    reason = seal.open(answer, sender="a", to=SERVER).about["reason"]
    assert "its 'head.weight' is float32 (3, 8), at the server float32 (3, 9)" in reason


def test_what_goes_wrong_in_training_stays_at_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error's words may hold data: the server is told its kind only."""
    server, link = memory.coordinate(spec_of("FedAvg"), small_federation(), tmp_path)
    said: list[str] = []
    link.members["b"].say = said.append
    real = memory.Member.train

    def fail(self: Any, about: Any, state: Any) -> Any:
        if self.name == "b":
            raise RuntimeError("patient 4711")
        return real(self, about, state)

    monkeypatch.setattr(memory.Member, "train", fail)
    server.step()
    assert "RuntimeError in its training" in reasons(tmp_path, "b") and "4711" not in reasons(tmp_path, "b")
    assert any("4711" in line for line in said)


def test_a_letter_given_again_is_answered_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection broke while the answer was on its way: the site does not train a second time."""
    server, link = memory.coordinate(spec_of("Ditto"), small_federation(), tmp_path)
    trained: list[int] = []
    real = memory.Member.train
    monkeypatch.setattr(
        memory.Member, "train", lambda self, about, state: trained.append(about["round"]) or real(self, about, state)
    )
    link.between = lambda site, sealed, ask: (ask(sealed), ask(sealed))[1]
    server.step()
    assert trained == [1] * 5
    assert_same(simulated("Ditto", set(), 1), server, link)


class Median(Driver):
    """The simulation of FedAvg with the median in the place of the mean, in NumPy."""

    def aggregate(self, fed: Any, server: Any, uploads: Any) -> Any:
        models = [uploads[i]["model"] for i in sorted(uploads)]
        model = {}
        for name, tensor in models[0].items():
            values = np.stack([one[name].double().numpy() for one in models])
            middle = np.median(values, axis=0) if tensor.is_floating_point() else values.max(0)
            model[name] = torch.from_numpy(np.asarray(middle)).to(tensor.dtype)
        return {**server, "model": model}


def test_a_median_bears_an_odd_site(tmp_path: Path) -> None:
    server, link = memory.coordinate(spec_of("FedAvg"), small_federation(), tmp_path, combine="median")
    link.between = spoilt(set_head(lambda head: head + 50.0))  # loud, and below norm_limit
    for _ in range(4):
        server.step()

    class Loud(Sequential):
        def train(self, work: Any, round: int, examine: bool) -> Any:
            for reply in super().train(work, round, examine):
                if (round, reply.number) == (2, 1) and reply.upload is not None:
                    model = reply.upload["model"]
                    loud = {**model, "head.weight": model["head.weight"] + 50.0}
                    reply = replace(reply, upload={**reply.upload, "model": loud})
                yield reply

    driver = Median(spec_of("FedAvg"), small_federation(), Loud(1))
    for _ in range(4):
        driver.step()
    for name, tensor in driver.server["model"].items():
        torch.testing.assert_close(server.server["model"][name], tensor)
    assert float(server.server["model"]["head.weight"].abs().max()) < 5
