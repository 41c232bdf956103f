"""Events on their way from the MLX thread to the event loop.

To wake the event loop while the MLX thread builds a step makes both fight for the interpreter's
lock, and the step loses: 60 us of work took 1 to 5 ms of waiting. So the events of a step are
held until the MLX thread gives that lock away anyway, to compute, and a thread of its own does
the waking: a write to the loop's socket gives the lock away, too. First and last events do not
wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from swiftlm_engine.messages import Event


class EventBuffer:
    """Owned by the MLX thread."""

    def __init__(self, send: Callable[[list[Event]], None]) -> None:
        self._send = send
        self._held: list[Event] = []

    def buffer(self, events: list[Event]) -> None:
        """Until the next `flush`, which the next decode step calls."""
        self._held += events

    def emit(self, events: list[Event]) -> None:
        """At once, behind what is held, in one message."""
        self._held += events
        self.flush()

    def flush(self) -> None:
        if self._held:
            events, self._held = self._held, []
            self._send(events)


T = TypeVar("T")


class LoopThread(Generic[T]):
    """`deliver` is called on the loop's thread, in the order of `send`. None is the last."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[T | None], object]
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._sent: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        threading.Thread(target=self._carry, name="event-bridge", daemon=True).start()

    def send(self, item: T | None) -> None:
        """From any thread."""
        self._sent.put(item)

    def _carry(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            while True:
                item = self._sent.get()
                self._loop.call_soon_threadsafe(self._deliver, item)
                if item is None:
                    return
