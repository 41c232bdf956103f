"""Carries what other threads have to tell to the event loop.

To wake an event loop is a write to a socket, which gives the interpreter's lock away; the MLX
thread would wait for the woken one to give it back. To put something into a queue does not, so a
thread of its own does the waking.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Courier(Generic[T]):
    """`deliver` is called on the loop's thread, in the order of `send`. None is the last."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[T | None], object]
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._sent: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        threading.Thread(target=self._carry, name="courier", daemon=True).start()

    def send(self, news: T | None) -> None:
        """From any thread."""
        self._sent.put(news)

    def _carry(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            while True:
                news = self._sent.get()
                self._loop.call_soon_threadsafe(self._deliver, news)
                if news is None:
                    return
