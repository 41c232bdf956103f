"""Children: the few processes of one kind, started when asked and shared by all requests."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from threading import Condition

from swiftlm_engine.isolation.child import Child
from swiftlm_engine.isolation.work import current

MAX_CHILDREN = 4
PATIENCE_S = 0.02  # in which no question was answered, until busy processes get another one
IDLE_S = 60.0  # that a second one is kept
_POLL_S = 0.05


class Children:
    """`first` makes the first question of each; without `keep` each answers one more and ends.

    Any thread may ask.
    """

    def __init__(
        self,
        module: str,
        first: Callable[[], bytes],
        *,
        most: int = MAX_CHILDREN,
        keep: bool = True,
    ) -> None:
        self._module, self._first = module, first
        self._most = most
        self._keep = keep
        self._changed = Condition()  # guards the three fields below; nothing waits while it is held
        self._idle: list[tuple[float, Child]] = []  # since when; the one used last is the last
        self._num_busy = 0
        self._answered_at = 0.0  # by whichever of them
        weakref.finalize(self, _close_all, self._idle)

    def ask(self, content: bytes, deadline_s: float, limit_bytes: int) -> bytes:
        """Raises ChildFailed, Cancelled, and OSError where no process can be started."""
        with current().waiting():
            child = self._borrowed()
            try:
                answer = child.ask(content, deadline_s, limit_bytes)
            except BaseException:
                self._give_back(None)
                raise
            self._give_back(child)
            return answer

    def warm(self) -> None:
        """Starts the first of them."""
        self._give_back(self._borrowed())

    def _borrowed(self) -> Child:
        child = self._idle_or_room()
        if child is not None:
            return child
        try:
            return Child(self._module, self._first())
        except BaseException:
            self._give_back(None)
            raise

    def _idle_or_room(self) -> Child | None:
        """An idle one, or None where one more may start; it counts as busy from now on."""
        work, asked = current(), time.monotonic()
        with self._changed:
            while True:
                while self._idle:
                    _, child = self._idle.pop()
                    if child.alive:
                        self._num_busy += 1
                        return child
                    child.close()
                patient = time.monotonic() - max(asked, self._answered_at) < PATIENCE_S
                if self._num_busy == 0 or (self._num_busy < self._most and not patient):
                    self._num_busy += 1
                    return None
                self._changed.wait(PATIENCE_S if patient else _POLL_S)
                work.check()

    def _give_back(self, child: Child | None) -> None:
        now = time.monotonic()
        with self._changed:
            self._num_busy -= 1
            self._answered_at = now
            if child is not None and self._keep:
                self._idle.append((now, child))
            elif child is not None:
                child.close()
            while len(self._idle) > 1 and now - self._idle[0][0] > IDLE_S:
                self._idle.pop(0)[1].close()
            self._changed.notify()


def _close_all(idle: list[tuple[float, Child]]) -> None:
    for _, child in idle:
        child.close()
