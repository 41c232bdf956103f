"""Time as the daemon sees it, handed to whoever waits, so that tests need no sleep."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


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
