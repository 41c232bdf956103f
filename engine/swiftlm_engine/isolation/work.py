"""Work: the preparation of one request, which can be cancelled and lets others pass.

One preparation runs at a time, except while it waits for a process or for native code that lets
other threads run: then it gives the turn away.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from threading import Event, Lock

ALLOWED_S = 30.0  # of all templates of one request together


class Cancelled(Exception):
    """The request was aborted while it was prepared."""


class Work:
    """`turn` guards what is done in this process; a work of its own has none."""

    def __init__(self, turn: Lock | None = None) -> None:
        self._turn = turn
        self._cancelled = Event()
        self.allowed_s = ALLOWED_S

    def cancel(self) -> None:
        """From any thread."""
        self._cancelled.set()

    def check(self) -> None:
        """Raises Cancelled."""
        if self._cancelled.is_set():
            raise Cancelled

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Others have their turn meanwhile."""
        if self._turn is None:
            yield
            return
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()
        self.check()

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.allowed_s -= time.monotonic() - began


_current: ContextVar[Work | None] = ContextVar("work", default=None)


def current() -> Work:
    """The work of this thread."""
    return _current.get() or Work()


@contextlib.contextmanager
def doing(work: Work, turn: Lock) -> Iterator[None]:
    """Raises Cancelled where it was cancelled while it waited for its turn."""
    mark = _current.set(work)
    try:
        with turn:
            work.check()
            yield
    finally:
        _current.reset(mark)
