"""Flower's database of messages, on which the link and the round loop both work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.supercore.constant import NodeStatus
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from sqlalchemy import event

from fedtailor.deploy.lock import held


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


def online(state: Any, known: Mapping[str, str]) -> dict[str, Any]:
    """The sites that are there, of those whose public keys are `known`, with what Flower knows of them."""
    names = {public.encode(): name for name, public in known.items()}
    found = state.get_node_info(statuses=[NodeStatus.ONLINE])
    return {names[bytes(node.public_key)]: node for node in found if bytes(node.public_key) in names}
