"""News on their way from the MLX thread to the event loop.

To wake the event loop while the MLX thread builds a step makes both fight for the interpreter's
lock, and the step loses: 60 us of work took 1 to 5 ms of waiting. So what a step has to tell is
held until the MLX thread gives that lock away anyway, to compute. First and last words do not wait.
"""

from __future__ import annotations

from collections.abc import Callable

from swiftlm_engine.generation import Event


class Outbox:
    """Owned by the MLX thread."""

    def __init__(self, send: Callable[[list[Event]], None]) -> None:
        self._send = send
        self._held: list[Event] = []

    def hold(self, events: list[Event]) -> None:
        """Until the next `flush`, which the next decode step calls."""
        self._held += events

    def tell(self, events: list[Event]) -> None:
        """At once, behind what is held, in one message."""
        self._held += events
        self.flush()

    def flush(self) -> None:
        if self._held:
            events, self._held = self._held, []
            self._send(events)
