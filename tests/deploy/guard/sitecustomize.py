"""Put first on the path of a process under test.

It connects to nobody but the server it was given, or it is noted; and its disk can be made full while it runs.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        address = arguments[1]
        target = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
    elif event == "socket.getaddrinfo":
        target = f"{arguments[0]}:{arguments[1]}"
    else:
        return
    if target != os.environ["FEDTAILOR_ALLOWED"]:
        with open(os.environ["FEDTAILOR_NOTED"], "a") as file:
            file.write(f"{sys.argv} {event} {target}\n")
        raise OSError(f"{event} to {target} is forbidden here")


if "FEDTAILOR_ALLOWED" in os.environ:
    sys.addaudithook(watch)


def full(descriptor: int) -> None:
    """The disk is full for a file below the folder that the file FULL_DISK names, while it is there."""
    name = os.environ["FULL_DISK"]
    if os.path.exists(name):
        with open(name) as file:
            folder = file.read()
        if folder and os.readlink(f"/proc/self/fd/{descriptor}").startswith(folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    synced(descriptor)


if "FULL_DISK" in os.environ:
    synced, os.fsync = os.fsync, full
