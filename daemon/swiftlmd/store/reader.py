"""Reads model folders on threads of its own: one that takes long delays no list, and no end.

A thread that hangs in a system call cannot be stopped, only left behind; so each folder has one at
a time, and none keeps the process from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from swiftlmd.store.folder import Inspection

LIMIT_S = 0.9  # for one folder: a list is expected within a second
_LOOK_AGAIN_S = 0.05  # for one that was late before
STILL_READING = "is still being read; ask again in a moment"


@dataclass
class _Reading:
    state: object  # of the folder, when it began
    done: threading.Event = field(default_factory=threading.Event)
    found: Inspection | None = None


class FolderReader:
    """Any thread may ask. `limit_s` is how long a first answer may take."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()  # guards the table alone
        self._readings: dict[Path, _Reading] = {}

    def read(self, folder: Path, state: object, inspect: Callable[[], Inspection]) -> Inspection:
        """What `inspect` finds, or that it is not known yet. Equal `state` joins a reading."""
        with self._lock:
            reading = self._readings.get(folder)
            late = reading is not None and reading.state == state
            if reading is None or not late:
                reading = self._readings[folder] = _Reading(state)
                self._start(folder, reading, inspect)
        if not reading.done.wait(_LOOK_AGAIN_S if late else self._limit_s):
            return Inspection(0, f"{folder} {STILL_READING}")
        with self._lock:
            if self._readings.get(folder) is reading:
                del self._readings[folder]
        assert reading.found is not None, "a reading that is done has found something"
        return reading.found

    def _start(self, folder: Path, reading: _Reading, inspect: Callable[[], Inspection]) -> None:
        def work() -> None:
            try:
                reading.found = inspect()
            except Exception as error:  # the thread's root
                reading.found = Inspection(0, f"{folder} cannot be read: {error!r}")
            finally:
                reading.done.set()

        threading.Thread(target=work, name=f"read {folder.name}", daemon=True).start()
