"""Memory that a step frees is kept for the next one.

By default the C library gives what is freed at the end of its memory back to the system, which clears it anew, page by
page, when the next step asks for it: up to a fifth of the time of a step with large activations.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

KEPT = 1 << 30  # bytes that may lie unused
LARGE = 1 << 25  # bytes; a larger tensor is asked of the system by itself, as by default
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt


@cache
def library() -> Any:
    """The C library, where it is the GNU one."""
    found = ctypes.CDLL(None) if sys.platform == "linux" else None
    return found if hasattr(found, "mallopt") and hasattr(found, "malloc_trim") else None


@cache
def keep_freed() -> None:
    """From now on in this process, and in those forked from it."""
    if library():
        library().mallopt(TRIM_THRESHOLD, KEPT)
        library().mallopt(MMAP_THRESHOLD, LARGE)


def give_back() -> None:
    """What lies unused goes back to the system."""
    if library():
        library().malloc_trim(0)
