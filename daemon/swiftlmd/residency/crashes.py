"""How often one model's engine may crash: back-off between restarts, then no more of them."""

from __future__ import annotations

from collections import deque

from swiftlmd.clock import Clock

_WINDOW_S = 600.0
_BUDGET = 5
_LONGEST_WAIT_S = 30.0


class CrashRecord:
    """The crashes of the last ten minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: deque[float] = deque()
        self.total = 0

    def add(self) -> None:
        self._times.append(self._clock.now())
        self.total += 1

    def clear(self) -> None:
        """An operator asked for the model: it gets a whole budget again."""
        self._times.clear()

    @property
    def exhausted(self) -> bool:
        return self._recent() >= _BUDGET

    def wait_s(self) -> float:
        """What is left of the back-off: none after one crash, then 1, 2, 4 ... 30 s."""
        recent = self._recent()
        if recent < 2:
            return 0.0
        wait_s = min(2.0 ** (recent - 2), _LONGEST_WAIT_S)
        return max(0.0, self._times[-1] + wait_s - self._clock.now())

    def _recent(self) -> int:
        while self._times and self._times[0] < self._clock.now() - _WINDOW_S:
            self._times.popleft()
        return len(self._times)
