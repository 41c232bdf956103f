"""Time as the daemon sees it, handed to whoever waits, so that tests need no sleep."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import Protocol

# Pauses that last at least so long end at a multiple of it, all together: one wake-up for all.
_GRIDS_S = (60, 5, 1)


class Clock(Protocol):
    """Seconds, and waiting for them."""

    def now(self) -> float:
        """Monotonic; says nothing about the date. Stands still while a Mac sleeps."""

    def date(self) -> float:
        """Seconds since the epoch, as the machine believes; may jump."""

    async def sleep(self, seconds: float) -> None: ...

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Whether `event` was set within `seconds`."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.monotonic()

    def date(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True


class BackgroundClock:
    """The clock of background tasks. They wake an idle machine together, and seldom.

    `quiet_s` is how long a pause lasts at least, now: 0 while the service is in use. `wake` ends
    the pauses that were made longer. Pauses below a second are kept as they are.
    """

    def __init__(self, clock: Clock, quiet_s: Callable[[], float]) -> None:
        self._clock = clock
        self._quiet_s = quiet_s
        self._woken = asyncio.Event()
        self._ends: dict[int, asyncio.Task[None]] = {}  # by the second of `now`

    def now(self) -> float:
        return self._clock.now()

    def date(self) -> float:
        return self._clock.date()

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        return await self._clock.wait(event, seconds)

    async def sleep(self, seconds: float) -> None:
        quiet_s = self._quiet_s()
        if seconds < _GRIDS_S[-1]:
            await self._clock.sleep(seconds)
        elif seconds >= quiet_s:
            await asyncio.wait({self._end_after(seconds)})
        else:
            woken = asyncio.ensure_future(self._woken.wait())
            try:
                ends = {self._end_after(quiet_s), woken}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()

    def wake(self) -> None:
        self._woken.set()
        self._woken.clear()  # who waits now has been told

    def _end_after(self, seconds: float) -> asyncio.Task[None]:
        """Done where such a pause ends; shared by all that end there."""
        now = self.now()
        due = shared_end(now, seconds)
        if (end := self._ends.get(due)) is None:
            end = self._ends[due] = asyncio.create_task(self._clock.sleep(due - now))
            end.add_done_callback(lambda _: self._ends.pop(due))
        return end

    async def close(self) -> None:
        """Ends every timer; nobody waits for one any more."""
        for end in list(self._ends.values()):
            end.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await end


def shared_end(now: float, seconds: float) -> int:
    """The multiple next to the end of a pause that begins now; always in the future."""
    grid_s = next(step for step in _GRIDS_S if step <= seconds)
    return max(math.floor((now + seconds) / grid_s + 0.5) * grid_s, math.floor(now) + 1)
