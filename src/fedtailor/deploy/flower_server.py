"""The round loop's end of the link, made of Flower: letters into its database, and answers out of it.

The link process serves the same database to the sites, so the loop needs no token and no port. All names of Flower
that are used here are those of the version that `fedtailor[federation]` pins.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import flwr
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, Status, SubStatus
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.task_identity import TaskIdentity

from fedtailor.deploy.envelope import Sealed
from fedtailor.deploy.flower_letters import NO_LETTER, TooLarge, array, letter_of
from fedtailor.deploy.flower_state import online, open_state
from fedtailor.deploy.link import Lost

POLL = 0.05  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks for what became of sites and of answers that have not come: that takes longer
ALIVE = 10.0  # seconds between signs of life of the round loop
MISSING = (
    "WITH RECURSIVE part(id) AS (SELECT :answer UNION "
    "SELECT child_id FROM object_children JOIN part ON parent_id = part.id) "
    "SELECT COUNT(*) AS missing FROM part LEFT JOIN objects ON object_id = part.id WHERE is_available IS NOT 1"
)
ANSWERS = "SELECT COUNT(*) AS new FROM message_res WHERE delivered_at = ''"
GIVE_AGAIN = (
    "DELETE FROM message_res WHERE reply_to_message_id = :sent",
    "UPDATE message_ins SET delivered_at = '' WHERE message_id = :sent",
)
WAL = 64 << 20  # bytes of the database's journal above which it is written back


class FlowerLink:
    """Letters through Flower's database, as the link process serves them to sites."""

    def __init__(self, database: Path, known: Callable[[], Mapping[str, str]], largest: int):
        self.database, self.known, self.largest = database, known, largest
        _, self.state = open_state(database)
        TaskIdentity.node_id, TaskIdentity.task_id = SUPERLINK_NODE_ID, 0
        self.task = self.run = 0
        self.renew()
        threading.Thread(target=self._live, daemon=True).start()

    def plan(self) -> Mapping[str, Any]:
        return {"link": "flower", "flwr": flwr.__version__}

    def renew(self) -> None:
        """A run of Flower's for the messages to belong to; what is left of earlier ones goes."""
        for old in self.state.get_run_info():
            if old.status.status != Status.FINISHED:
                self.state.finish_task(old.primary_task_id, SubStatus.STOPPED, "replaced")
            self.state.cleanup_run(old.run_id)
        self.run = self.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
        self.task = self.state.get_run_info(run_ids=[self.run])[0].primary_task_id
        assert self.state.claim_task(self.task) and self.state.activate_task(self.task)
        TaskIdentity.run_id = self.run

    def _live(self) -> None:
        while True:
            time.sleep(ALIVE)
            with contextlib.suppress(Exception):  # a database that is busy for long; the next sign of life will do
                self.state.acknowledge_task_heartbeat(self.task)

    def nodes(self) -> dict[str, Any]:
        return online(self.state, self.known())

    def online(self) -> Mapping[str, str]:
        return {name: f"{node.node_id} {node.last_activated_at}" for name, node in self.nodes().items()}

    def exchange(
        self, letters: dict[str, Callable[[], Sealed]], deadline: float
    ) -> Iterator[tuple[str, Sealed | Lost]]:
        if not letters:
            return
        if self.state.get_run_status({self.run})[self.run].status != Status.RUNNING:
            self.renew()  # this machine slept, and Flower took the round loop for dead
        end = time.monotonic() + deadline
        nodes = self.nodes()
        waiting: dict[str, str] = {}  # sites by the number of their message
        marks = {name: node.last_activated_at for name, node in nodes.items()}
        arriving: dict[str, tuple[str, str]] = {}  # sites and answers by the number of the message
        try:
            for name in list(letters):
                letter = letters.pop(name)
                if name in nodes and (sent := self.send(nodes[name].node_id, letter(), deadline)):
                    waiting[sent] = name
                else:
                    yield name, Lost("it is away")
                del letter
            look = 0.0
            while waiting and time.monotonic() < end:
                came, due = False, time.monotonic() > look
                if due or self.state.query(ANSWERS)[0]["new"]:
                    for answer in self.state.get_message_res(waiting.keys() - arriving.keys(), self.run):
                        sent = answer.metadata.reply_to_message_id
                        if answer.has_error():
                            yield waiting.pop(sent), Lost(reason_of(answer.error))
                        else:
                            arriving[sent] = waiting[sent], answer.metadata.message_id
                for sent, (name, answer_id) in list(arriving.items()):
                    if self.has_come(answer_id):
                        del arriving[sent], waiting[sent]
                        came = True
                        yield name, self.fetch(answer_id)
                if due:  # after what has come was taken
                    self.give_again(waiting, arriving, marks)
                    look = time.monotonic() + LOOK
                if not came:
                    time.sleep(POLL)
            for name in waiting.values():
                yield name, Lost("it did not answer in time")
        finally:
            self.state.cleanup_run(self.run)
            self.shrink()

    def send(self, node: int, sealed: Sealed, ttl: float) -> str | None:
        """Store a letter, its objects first, so that a site that sees it finds all of it."""
        content = RecordDict({"letter": ArrayRecord({"head": array(sealed.head), "body": array(sealed.body)})})
        with no_object_id_recompute():
            message = Message(content, node, "train", ttl=ttl)
            message.metadata.__dict__["_message_id"] = message.object_id
            objects, tree = get_all_nested_objects(message), get_object_tree(message)
            session = self.state.start_session(self.run)
            for name in self.state.preregister_object_tree(tree, session):
                if not self.state.store_object(self.run, session, name, objects[name].deflate()):
                    raise RuntimeError("the link's database did not take a letter")
            stored: str | None = self.state.store_message_ins(remove_content_from_message(message))
            return stored

    def has_come(self, answer: str) -> bool:
        """Whether all objects of an answer are there."""
        return not self.state.query(MISSING, {"answer": answer})[0]["missing"]

    def fetch(self, answer: str) -> Sealed | Lost:
        store = self.state.object_store
        try:
            return letter_of(store.get_object_tree(answer), store.get, self.largest)
        except TooLarge:
            return Lost(f"its answer is larger than {self.largest} bytes (largest_letter)")
        except (*NO_LETTER, NoObjectInStoreError) as error:
            return Lost(f"its answer is no letter ({type(error).__name__})")

    def give_again(
        self, waiting: Mapping[str, str], arriving: dict[str, tuple[str, str]], marks: dict[str, str]
    ) -> None:
        """Sites that were restarted, or lost the connection, are given their letter again."""
        now = {name: node.last_activated_at for name, node in self.nodes().items()}
        for sent, name in waiting.items():
            if name in now and now[name] != marks.get(name):
                marks[name] = now[name]
                arriving.pop(sent, None)
                with self.state.session():
                    for query in GIVE_AGAIN:
                        self.state.query(query, {"sent": sent})

    def shrink(self) -> None:
        """Keep the database's journal small; the space of messages that are gone is used again."""
        wal = self.database.with_name(f"{self.database.name}-wal")
        with contextlib.suppress(Exception):  # somebody reads just now; the next time will do
            if os.stat(wal).st_size > WAL:
                self.state.query("PRAGMA wal_checkpoint(TRUNCATE)")


def reason_of(error: Any) -> str:
    return "it is gone" if error.code in (3, 5) else str(error.reason or "it could not answer")[:200]
