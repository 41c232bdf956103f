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
_MAX_REASON = 500


class StartLimiter:
    """The starts that are not known to have gone well, kept in a file."""

    def __init__(self, file: Path, date: Callable[[], float]) -> None:
        self._file = file
        self._date = date

    @property
    def last_failure(self) -> str:
        """Why the last start ended, as far as it could say."""
        return self._read()[1]

    def start(self) -> bool:
        """Records this start; False when the ones before it say that starting does not help."""
        starts = self._recent()
        if len(starts) >= _MAX_STARTS:
            self.clear()  # whoever starts it next gets a whole budget
            return False
        self._write([*starts, self._date()], self.last_failure)
        return True

    def failed(self, reason: str) -> None:
        """This start has ended for `reason`; it counts."""
        self._write(self._recent(), reason[:_MAX_REASON])

    def take_back(self) -> None:
        """This start ended for something that may pass: it does not count."""
        self._write(self._recent()[:-1], self.last_failure)

    def clear(self) -> None:
        """The daemon is healthy, or leaves in order."""
        self._write([])

    def _recent(self) -> list[float]:
        # A start in the future comes from a clock that was set back: it says nothing.
        return [start for start in self._read()[0] if 0 <= self._date() - start < _WINDOW_S]

    def _read(self) -> tuple[list[float], str]:
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            if isinstance(kept, list):  # as 0.1.0 wrote it
                return [float(start) for start in kept], ""
            return [float(start) for start in kept["starts"]], str(kept["failure"])
        except (OSError, ValueError, TypeError, KeyError):
            return [], ""

    def _write(self, starts: list[float], failure: str = "") -> None:
        try:
            write_atomically(self._file, json.dumps({"starts": starts, "failure": failure}))
        except OSError:
            return  # a full disk must not keep the service down
