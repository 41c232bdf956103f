"""Background tasks wake an idle machine together, and seldom; in use they keep their own pace."""

from __future__ import annotations

import asyncio

import pytest
from fakes import FakeClock, settle

from swiftlmd.clock import BackgroundClock, shared_end


class CountingClock(FakeClock):
    """A fake clock that notes when a timer of it ended: each is a wake-up of the machine."""

    def __init__(self, now: float = 1000.0) -> None:
        super().__init__(now)
        self.woken_at: list[float] = []

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        self.woken_at.append(self.now())


async def look_again(clock: BackgroundClock, every_s: float, looks: list[float]) -> None:
    while True:
        await clock.sleep(every_s)
        looks.append(clock.now())


@pytest.mark.parametrize(
    ("now", "seconds", "end"),
    [(1000.0, 5.0, 1005), (1000.02, 5.0, 1005), (1003.1, 5.0, 1010), (1000.4, 1.0, 1001),
     (1000.9, 1.0, 1002), (1000.0, 60.0, 1080), (1020.3, 60.0, 1080), (7.2, 10.0, 15)],
)  # fmt: skip
def test_pauses_end_at_the_multiple_next_to_their_end(now: float, seconds: float, end: int) -> None:
    assert shared_end(now, seconds) == end


async def test_tasks_that_began_at_odd_moments_share_their_wake_ups() -> None:
    timer = CountingClock()
    clock = BackgroundClock(timer, lambda: 5.0)
    looks: list[float] = []
    tasks = []
    for pause_s in (1.0, 1.0, 2.0, 5.0, 5.0):
        tasks.append(asyncio.create_task(look_again(clock, pause_s, looks)))
        await timer.advance(0.3)
    await timer.advance(60)
    assert len(timer.woken_at) <= 13
    assert len(looks) >= 50
    for task in tasks:
        task.cancel()
    await clock.close()


async def test_an_unused_service_without_a_model_is_woken_once_a_minute() -> None:
    timer = CountingClock()
    clock = BackgroundClock(timer, lambda: 60.0)
    looks: list[float] = []
    tasks = [asyncio.create_task(look_again(clock, s, looks)) for s in (1.0, 2.0, 5.0, 10.0)]
    await timer.advance(600)
    assert len(timer.woken_at) <= 10
    for task in tasks:
        task.cancel()
    await clock.close()


async def test_in_use_a_pause_of_a_second_stays_one() -> None:
    timer = CountingClock()
    clock = BackgroundClock(timer, lambda: 0.0)
    looks: list[float] = []
    task = asyncio.create_task(look_again(clock, 1.0, looks))
    await timer.advance(10)
    assert len(looks) == 10
    task.cancel()
    await clock.close()


async def test_use_ends_the_longer_pauses_at_once_and_leaves_the_others() -> None:
    timer, quiet_s = CountingClock(), [60.0]
    clock = BackgroundClock(timer, lambda: quiet_s[0])
    short: list[float] = []
    long: list[float] = []
    tasks = [
        asyncio.create_task(look_again(clock, 1.0, short)),
        asyncio.create_task(look_again(clock, 600.0, long)),
    ]
    await timer.advance(3)
    assert short == []
    quiet_s[0] = 0.0
    clock.wake()
    await settle()
    assert (len(short), long) == (1, [])
    await timer.advance(5)
    assert len(short) == 6
    for task in tasks:
        task.cancel()
    await clock.close()


async def test_a_cancelled_pause_leaves_those_that_share_its_end() -> None:
    timer = CountingClock()
    clock = BackgroundClock(timer, lambda: 0.0)
    first, second = (asyncio.create_task(clock.sleep(5)) for _ in range(2))
    await settle()
    first.cancel()
    await timer.advance(6)
    assert second.done()
    assert not second.cancelled()
    await clock.close()
