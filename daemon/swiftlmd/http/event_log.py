"""The events of one stream, by number: all that fit into a bound, the oldest can be forgotten.

An event of a chat is 240 bytes around 5 bytes of text, and every one looks like the last: closed
stretches are kept compressed, which makes the bound about 20 times as long an answer.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

END = b"\n\n"
_STRETCH_BYTES = 1 << 16
_LEVEL = 1  # 0.4 ms per stretch on the event loop; a higher level gains little here


class Forgotten(Exception):
    """The events that were asked for are no longer kept."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    first: int
    packed: bytes


class EventLog:
    """Server-sent events, whole ones; nobody counts the comments between them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._stretches: list[_Stretch] = []
        self._packed_bytes = 0
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._open_first = 0

    @property
    def first(self) -> int:
        """The number of the oldest event that is kept."""
        return self._stretches[0].first if self._stretches else self._open_first

    @property
    def num_events(self) -> int:
        """Of all that came, kept or not."""
        return self._open_first + len(self._open)

    @property
    def num_bytes(self) -> int:
        """What they take in memory."""
        return self._packed_bytes + self._open_bytes

    @property
    def is_over(self) -> bool:
        """More is kept than the bound; the caller decides when the oldest go."""
        return self._packed_bytes > self._max_bytes

    @property
    def oldest_end(self) -> int:
        """The number of the first event behind those that `forget_oldest` drops."""
        return self._stretches[1].first if len(self._stretches) > 1 else self._open_first

    def forget_oldest(self) -> None:
        self._packed_bytes -= len(self._stretches.pop(0).packed)

    def append(self, data: bytes) -> None:
        self._open += [part + END for part in data.split(END) if part]
        self._open_bytes += len(data)
        if self._open_bytes >= _STRETCH_BYTES:
            self._close_stretch()

    def read(self, start: int) -> tuple[bytes, int]:
        """A stretch of events from `start`, and the number of the next one; empty at the end.

        Raises `Forgotten`."""
        if start < self.first:
            raise Forgotten
        if start >= self._open_first:
            return b"".join(self._open[start - self._open_first :]), max(start, self.num_events)
        at = max(i for i, stretch in enumerate(self._stretches) if stretch.first <= start)
        stretch = self._stretches[at]
        events = zlib.decompress(stretch.packed).split(END)[:-1]
        wanted = events[start - stretch.first :]
        return END.join([*wanted, b""]), stretch.first + len(events)

    def _close_stretch(self) -> None:
        packed = zlib.compress(b"".join(self._open), _LEVEL)
        self._stretches.append(_Stretch(self._open_first, packed))
        self._packed_bytes += len(packed)
        self._open_first += len(self._open)
        self._open, self._open_bytes = [], 0
