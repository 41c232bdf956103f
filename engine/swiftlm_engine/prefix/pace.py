"""When stored prefixes are copied out to the SSD: in pauses, and where none comes in thin slices.

Copying takes the time of the MLX thread and writing takes a core, on two cores together a tenth of
decode speed while they last. A pause comes soon after most answers, so what was stored waits for
one. A clean stop writes all that still waits, a crash loses it: so the wait has a bound.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Waiting(Protocol):
    """What a `PrefixCache` says of the prefixes that are not on their way yet."""

    @property
    def waiting_since(self) -> float | None: ...
    @property
    def waiting_bytes(self) -> int: ...
    @property
    def is_writing(self) -> bool: ...
    def pump(self, max_bytes: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """While sequences run, nothing is written for `patience_s`, then for `share` of the time, and
    past `max_wait_s` or `max_bytes` with every step: a clean stop has but seconds for the rest."""

    patience_s: float = 10.0
    share: float = 0.03
    max_wait_s: float = 60.0
    max_bytes: int = 512 << 20
    slice_bytes: int = 8 << 20
    urgent_bytes: int = 32 << 20


class Pace:
    """Owned by the MLX thread. `clock` is the cache's own."""

    def __init__(
        self,
        cache: Waiting,
        bounds: Bounds = Bounds(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._bounds = bounds
        self._clock = clock
        self._rests_until = float("-inf")

    def between_steps(self) -> None:
        """Call it after a step while sequences run."""
        since = self._cache.waiting_since
        if since is None:
            return
        bounds, now = self._bounds, self._clock()
        if now - since >= bounds.max_wait_s or self._cache.waiting_bytes > bounds.max_bytes:
            self._cache.pump(bounds.urgent_bytes)
        elif now - since >= bounds.patience_s and now >= self._rests_until:
            self._slice(now)

    def idle(self) -> bool:
        """Call it while there is nothing else to do, soon again when True.

        A request that comes then waits for one slice and shares the cores with another one.
        """
        if self._cache.waiting_since is None:
            return False
        self._slice(self._clock())
        return self._cache.waiting_since is not None

    def _slice(self, started: float) -> None:
        if self._cache.is_writing:  # one at a time, for the sake of cores and buffers
            return
        self._cache.pump(self._bounds.slice_bytes)
        now = self._clock()
        self._rests_until = now + (now - started) / self._bounds.share
