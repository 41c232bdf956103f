"""Stops a crash loop under launchd, which would restart for ever.

A start counts until the daemon was healthy for a minute or left in order. Needed because each
cold start hammers the disk, and a GPU that hangs leaks driver memory with every try.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from swiftlmd.config.edit import write_atomically

HEALTHY_AFTER_S = 60.0
_WINDOW_S = 600.0
_MAX_STARTS = 5


class StartLimiter:
    """The starts that are not known to have gone well, kept in a file."""

    def __init__(self, file: Path, date: Callable[[], float]) -> None:
        self._file = file
        self._date = date

    def start(self) -> bool:
        """Records this start; False when the ones before it say that starting does not help."""
        starts = self._recent()
        if len(starts) >= _MAX_STARTS:
            self.clear()  # whoever starts it next gets a whole budget
            return False
        self._write([*starts, self._date()])
        return True

    def clear(self) -> None:
        """The daemon is healthy, or leaves in order."""
        self._write([])

    def _recent(self) -> list[float]:
        try:
            starts = json.loads(self._file.read_text(encoding="utf-8"))
            # A start in the future comes from a clock that was set back: it says nothing.
            return [float(s) for s in starts if 0 <= self._date() - s < _WINDOW_S]
        except (OSError, ValueError, TypeError):
            return []

    def _write(self, starts: list[float]) -> None:
        try:
            write_atomically(self._file, json.dumps(starts))
        except OSError:
            return  # a full disk must not keep the service down
