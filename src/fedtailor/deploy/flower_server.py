"""The server's end of the link, made of Flower: its HTTPS routes for sites, and its database of messages.

Of Flower's routes only those that sites need exist here: control and run-time routes are never mounted, so there is
nothing to protect them with. The round loop is another process that works on the same database, so it needs no token.
All names of Flower that are used here are those of the version that `fedtailor[federation]` pins.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread
import flwr
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, Status, SubStatus
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from sqlalchemy import event
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from fedtailor.deploy.envelope import Sealed
from fedtailor.deploy.flower_letters import array, sealed_of
from fedtailor.deploy.link import Lost
from fedtailor.deploy.store import held

ROUTES = "/v1/fleet/"  # all that sites may reach
MOST_REQUEST = 8 << 20  # bytes; Flower cuts messages into objects of 5 MB
OBJECT = 5 << 20
WORKERS = 4  # requests that are worked on at a time: each has a connection to the database with its own cache
POLL = 0.05  # seconds
ALIVE = 10.0  # seconds between signs of life of the round loop
GIVE_AGAIN = (
    "DELETE FROM message_res WHERE reply_to_message_id = :sent",
    "UPDATE message_ins SET delivered_at = '' WHERE message_id = :sent",
)
WAL = 64 << 20  # bytes of the database's journal above which it is written back


def open_state(database: Path) -> tuple[Any, Any]:
    """Flower's state on the database; with small caches, for messages are read once."""
    _, factory = get_objectstore_linkstate_factories(str(database), get_federation_manager(is_simulation=False))
    with held(database.with_suffix(".lock"), "", wait=True):  # two processes would both make the tables
        state = factory.state()

    def lean(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA cache_size = -4000")
        connection.execute("PRAGMA mmap_size = 0")
        connection.execute("PRAGMA busy_timeout = 60000")

    for part in (state, state.object_store):
        event.listen(part._engine, "connect", lean)
        part._engine.dispose()  # connections made before have large caches
    return factory, state


def serve_routes(
    database: Path,
    host: str,
    port: int,
    certificate: Path,
    key: Path,
    known: Callable[[], Mapping[str, str]],
    largest: int,
) -> None:
    """Serve the routes for sites, whose public keys `known` gives, until the certificate changes."""  # fmt: skip
    factory, state = open_state(database)
    app = FastAPI(
        docs_url=None, redoc_url=None, openapi_url=None,
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator), Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware), Middleware(BaseHTTPMiddleware, dispatch=bound(largest)),
        ],
    )  # fmt: skip
    app.state.linkstate_factory = factory
    app.state.enable_supernode_auth = True
    app.include_router(fleet_router)
    config = uvicorn.Config(
        gate(app), host=host, port=port, ssl_certfile=certificate, ssl_keyfile=key, log_level="warning",
        access_log=False, lifespan="off", timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = uvicorn.Server(config)
    threading.Thread(target=_follow, args=(state, known, certificate, server), daemon=True).start()

    async def run() -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = WORKERS
        await server.serve()

    anyio.run(run)


def gate(app: Any) -> Any:
    """Lets only the routes for sites through, and no request that is larger than one can be."""

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        length = dict(scope.get("headers", ())).get(b"content-length", b"")
        fits = length.isdigit() and int(length) <= MOST_REQUEST
        if scope["type"] == "http" and scope["path"].startswith(ROUTES) and scope["method"] == "POST" and fits:
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body"})

    return inner


def bound(largest: int) -> Callable[[Request, Any], Any]:
    """Refuses messages of more objects than the largest letter has."""

    async def dispatch(request: Request, call_next: Any) -> Any:
        asked = getattr(request.state, "protobuf_request", None)
        if isinstance(asked, PushMessagesRequest):
            objects = sum(1 for tree in asked.message_object_trees for _ in iterate_object_tree(tree))
            if objects > largest // OBJECT + 16 or len(asked.messages_list) != 1:
                raise HTTPException(413, "the letter is too large")
        return await call_next(request)

    return dispatch


def _follow(state: Any, known: Callable[[], Mapping[str, str]], certificate: Path, server: Any) -> None:
    """Keep Flower's list of nodes equal to the sites that are invited; end when the certificate is a new one."""
    made = certificate.stat().st_mtime_ns
    before: Mapping[str, str] | None = None
    while not server.should_exit:
        with contextlib.suppress(OSError, ValueError):  # a file that is just being replaced
            if (now := known()) != before:
                enlist(state, now)
                before = dict(now)
            if certificate.stat().st_mtime_ns != made:
                server.should_exit = True
        time.sleep(0.5)


def enlist(state: Any, known: Mapping[str, str]) -> None:
    """Register the public keys of the sites, and no others."""
    keys = {public.encode() for public in known.values()}
    for node in state.get_node_info():
        if node.status != NodeStatus.UNREGISTERED and bytes(node.public_key) not in keys:
            state.delete_node(NOOP_FLWR_AID, node.node_id)
    for name, public in known.items():
        if state.get_node_id_by_public_key(public.encode()) is None:
            state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public.encode(), 0, name=name)


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
        """The sites that are online, with what Flower knows of them."""
        names = {public.encode(): name for name, public in self.known().items()}
        online = self.state.get_node_info(statuses=[NodeStatus.ONLINE])
        return {names[bytes(node.public_key)]: node for node in online if bytes(node.public_key) in names}

    def online(self) -> Mapping[str, str]:
        return {name: f"{node.node_id} {node.last_activated_at}" for name, node in self.nodes().items()}

    def exchange(
        self, letters: Mapping[str, Callable[[], Sealed]], deadline: float
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
            for name, letter in letters.items():
                if name in nodes and (sent := self.send(nodes[name].node_id, letter(), deadline)):
                    waiting[sent] = name
                else:
                    yield name, Lost("it is away")
            while waiting and time.monotonic() < end:
                came = False
                for answer in self.state.get_message_res(waiting.keys() - arriving.keys(), self.run):
                    sent = answer.metadata.reply_to_message_id
                    if answer.has_error():
                        yield waiting.pop(sent), Lost(reason_of(answer.error))
                    else:
                        arriving[sent] = waiting[sent], answer.metadata.message_id
                for sent, (name, answer_id) in list(arriving.items()):
                    if (sealed := self.fetch(answer_id)) is not None:
                        del arriving[sent], waiting[sent]
                        came = True
                        yield name, sealed
                self.give_again(waiting, arriving, marks)
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

    def fetch(self, answer: str) -> Sealed | Lost | None:
        """An answer, once all its objects have come."""
        store = self.state.object_store
        try:
            names = [tree.object_id for tree in iterate_object_tree(store.get_object_tree(answer))]
        except NoObjectInStoreError:
            return None
        contents: dict[str, bytes] = {}
        size = 0
        for name in dict.fromkeys(names):
            content = store.get(name)
            if not content:
                return None
            contents[name] = content
            size += len(content)
            if size > self.largest:
                return Lost(f"its answer is larger than {self.largest} bytes (largest_letter)")
        try:
            return sealed_of(inflate_object_from_contents(answer, contents))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
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
