"""Fakes of the daemon's surroundings: a clock that is told the time, memory that is told sizes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from dataclasses import dataclass, field


class FakeClock:
    """Time moves only when a test says so (`advance`), and then wakes who waited for it."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._date = 1_700_000_000.0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def date(self) -> float:
        return self._date

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._now + seconds, next(self._order), future))
        await future

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        if event.is_set() or seconds <= 0:
            return event.is_set()
        timer = asyncio.ensure_future(self.sleep(seconds))
        waiter = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({timer, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waiter.cancel()
        return event.is_set()

    def jump_date(self, seconds: float) -> None:
        """The machine's date changes; monotonic time does not."""
        self._date += seconds

    async def advance(self, seconds: float) -> None:
        """Lets time pass; everything that becomes due runs before this returns."""
        end = self._now + seconds
        await settle()
        while self._waiting and self._waiting[0][0] <= end:
            due, _, future = heapq.heappop(self._waiting)
            self._date += due - self._now
            self._now = due
            if not future.done():
                future.set_result(None)
                await settle()
        self._date += end - self._now
        self._now = end
        await settle()


async def settle(turns: int = 20) -> None:
    """Lets every task that can run, run."""
    for _ in range(turns):
        await asyncio.sleep(0)


@dataclass(slots=True)
class FakeMemory:
    """A machine whose processes hold what a test says they hold."""

    total: int = 16 * 10**9
    others: int = 2 * 10**9  # held by the rest of the machine
    held: dict[int, int] = field(default_factory=dict)  # pid -> bytes

    def total_bytes(self) -> int:
        return self.total

    def available_bytes(self) -> int:
        return self.total - self.others - sum(self.held.values())

    def footprint_bytes(self, pid: int) -> int:
        return self.held.get(pid, 0)
