"""Speed and time left from byte counts; monotone, never above the total."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from swiftlmd.store.types import PullProgress, Stage

_WINDOW_S = 5.0  # long enough to be steady, short enough to show a stall


class Meter:
    """Turns the raw counts of one stage into reports."""

    def __init__(self, stage: Stage, total_bytes: int, clock: Callable[[], float]) -> None:
        self._stage = stage
        self._total = total_bytes
        self._clock = clock
        self._done = 0
        self._samples: deque[tuple[float, int]] = deque()

    def report(self, done_bytes: int, detail: str = "") -> PullProgress:
        now = self._clock()
        self._done = max(self._done, min(done_bytes, self._total))
        self._samples.append((now, self._done))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        speed = self._speed()
        left = (self._total - self._done) / speed if speed else 0.0
        return PullProgress(self._stage, self._done, self._total, speed, left, detail)

    def _speed(self) -> float:
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        return (last - first) / (end - start) if end > start else 0.0
