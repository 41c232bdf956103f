"""Work of seconds that a loaded model can put off: it waits for the first pause.

A model is mostly loaded because somebody asked for it. Listing a vocabulary for grammars holds the
interpreter's lock for half a second (152,000 tokens), and that request would wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class RunWhenIdle:
    """Runs `work` once on a thread of its own, in the first pause that two looks have seen."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._seen = -1

    def idle(self, steps: int) -> None:
        """Call it whenever there is nothing to do, with the number of steps made so far."""
        if self._work is not None and steps == self._seen:
            threading.Thread(target=self._work, name="first-pause", daemon=True).start()
            self._work = None
        self._seen = steps
