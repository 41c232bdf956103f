"""How fast this machine prefills and decodes, learned from the steps themselves."""

from __future__ import annotations

from collections import deque


class Rate:
    """Tokens per second as an exponential average; recent steps weigh most."""

    def __init__(self, initial: float, weight: float = 0.3) -> None:
        self._value = initial
        self._weight = weight
        self._measured = False

    @property
    def tokens_per_s(self) -> float:
        return self._value

    @property
    def measured(self) -> bool:
        return self._measured

    def observe(self, tokens: int, seconds: float) -> None:
        if tokens <= 0 or seconds <= 0:
            return
        rate = tokens / seconds
        # The first measurement replaces the prior: a prior can be off by two orders of magnitude.
        self._value = (
            rate if not self._measured else self._value + self._weight * (rate - self._value)
        )
        self._measured = True


class MeasuredRate:
    """Tokens per second over the last `window_s`, for people to read."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._counts: deque[tuple[float, int]] = deque()

    def count(self, tokens: int, now: float) -> None:
        if tokens:
            self._counts.append((now, tokens))
        self._forget(now)

    def tokens_per_s(self, now: float) -> float:
        self._forget(now)
        if not self._counts:
            return 0.0
        # The first count ended an interval that lies before the window.
        tokens = sum(count for _, count in self._counts) - self._counts[0][1]
        elapsed = self._counts[-1][0] - self._counts[0][0]
        return tokens / elapsed if elapsed > 0 else 0.0

    def _forget(self, now: float) -> None:
        while self._counts and now - self._counts[0][0] > self._window_s:
            self._counts.popleft()
