"""The limit of the folder in which all models keep prefixes, as one of their engines sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from swiftlm_engine.brain.prefix_folders import PrefixFolders

LOOK_S = 30.0  # between two looks at what other models keep
FULL = 0.9  # of the limit: what other models have not used for longest goes


class SharedLimit:
    """What other models and other KV formats keep, as of the last look. Of the engine thread."""

    def __init__(self, folders: PrefixFolders, own: Path, max_bytes: int) -> None:
        self._folders, self._own, self._max_bytes = folders, own, max_bytes
        self.others_bytes = 0
        self._looked = time.monotonic()
        self._thread: threading.Thread | None = None
        self._others(0.0)

    def refresh(self, oldest: Callable[[], float]) -> None:
        """Looks again, on a thread of its own, when the last look is old.

        `oldest` is when the own file that would go first was last used.
        """
        busy = self._thread is not None and self._thread.is_alive()
        if busy or time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        self._thread = threading.Thread(
            target=self._others, args=(oldest(),), name="prefix-limit", daemon=True
        )
        self._thread.start()

    def _others(self, older_than: float) -> None:
        limit = int(self._max_bytes * FULL)
        _, others = self._folders.trim(limit, but=self._own, older_than=older_than)
        self.others_bytes = others
