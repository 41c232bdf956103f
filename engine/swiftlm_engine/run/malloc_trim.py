"""Memory that was freed and that the C library keeps: given back to the system in pauses.

Without this an idle engine ends each pause at another size, 15 MB apart with a model of 1 MB.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable


def trim() -> None:
    """Some milliseconds. Does nothing where the C library has no such call (musl)."""
    libc = ctypes.CDLL(None)
    try:
        if sys.platform == "darwin":
            libc.malloc_zone_pressure_relief(None, ctypes.c_size_t(0))  # all zones, all it can
        else:
            libc.malloc_trim(ctypes.c_size_t(0))
    except AttributeError:
        return


class MallocTrim:
    """Trims once per pause, and not in one so short that a look at it saw none."""

    def __init__(self, trim: Callable[[], None] = trim) -> None:
        self._trim = trim
        self._seen = self._trimmed = 0

    def idle(self, steps: int) -> None:
        """Call it whenever there is nothing to do, with the number of steps made so far."""
        if steps == self._seen != self._trimmed:
            self._trim()
            self._trimmed = steps
        self._seen = steps
