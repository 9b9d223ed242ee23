"""The link: Flower's HTTPS routes for sites, on its database of messages.

Of Flower's routes only those that sites need exist here: control and run-time routes are never mounted, so there is
nothing to protect them with. Nothing here needs PyTorch, so that the process is small.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import NodeStatus
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from fedtailor.deploy.flower_state import online, open_state

ROUTES = "/v1/fleet/"  # all that sites may reach
MOST_REQUEST = CHUNK + (1 << 20)  # bytes
TELL = 5.0  # seconds between two words on who is there, if it is always the same
WORKERS = 4  # requests that are worked on at a time: each has a connection to the database with its own cache


def serve_routes(
    database: Path,
    host: str,
    port: int,
    certificate: Path,
    key: Path,
    known: Callable[[], Mapping[str, str]],
    largest: int,
    tell: Callable[[Sequence[str]], None],
) -> None:
    """Serve the routes for the sites that `known` gives, and `tell` who is there, until the certificate is new."""
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
    threading.Thread(target=_follow, args=(state, known, certificate, server, tell), daemon=True).start()

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
            if objects > largest // CHUNK + 16 or len(asked.messages_list) != 1:
                raise HTTPException(413, "the letter is too large")
        return await call_next(request)

    return dispatch


def _follow(
    state: Any, known: Callable[[], Mapping[str, str]], certificate: Path, server: Any,
    tell: Callable[[Sequence[str]], None],
) -> None:  # fmt: skip
    """Keep Flower's list of nodes equal to the sites that are invited; end when the certificate is a new one."""
    made = certificate.stat().st_mtime_ns
    before: Mapping[str, str] | None = None
    told, until = list[str](), 0.0
    while not server.should_exit:
        try:
            if (now := known()) != before:
                enlist(state, now)
                before = dict(now)
            if (here := sorted(online(state, now))) != told or time.monotonic() > until:
                tell(here)
                told, until = here, time.monotonic() + TELL
            if certificate.stat().st_mtime_ns != made:
                server.should_exit = True
        except Exception:  # a file that is just being replaced, a database that is busy: the next time will do
            traceback.print_exc()
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
