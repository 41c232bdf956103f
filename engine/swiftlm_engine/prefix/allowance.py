"""How many bytes may be written: a day's worth at most at once, regained evenly over a day.

Flash wears out by volume; a cache that rewrites itself all day has cost users terabytes.
"""

from collections.abc import Callable

_DAY_S = 86_400.0


class WriteAllowance:
    def __init__(self, bytes_per_day: int, clock: Callable[[], float]) -> None:
        self._bytes_per_day = bytes_per_day
        self._clock = clock
        self._left = float(bytes_per_day)
        self._as_of = clock()

    def covers(self, nbytes: int) -> bool:
        now = self._clock()
        elapsed = max(0.0, now - self._as_of)  # a wall clock may be set back
        regained = elapsed / _DAY_S * self._bytes_per_day
        self._left = min(self._bytes_per_day, self._left + regained)
        self._as_of = now
        return nbytes <= self._left

    def spend(self, nbytes: int) -> None:
        self._left -= nbytes
