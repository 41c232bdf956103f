"""The watch: readings in a thread, acts in order, and no refusal before a reclaim."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from swiftlmd.memory import Action, Governor, Level, Pressure, Reading, Watch
from swiftlmd.memory.governor import Answer

GB = 10**9


class FakeClock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def date(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        return event.is_set()


class FakeMachine:
    """Readings of a service whose memory a reclaim can shrink; `frees` says by how much."""

    def __init__(self, used_gb: float, frees: dict[Action, float] | None = None) -> None:
        self.used = used_gb
        self.frees = frees or {}
        self.pressure = Pressure.NORMAL
        self.done: list[Action] = []
        self.threads: set[str] = set()
        self.asked: list[tuple[int, ...]] = []
        self.loop = asyncio.get_running_loop()
        self.fifth_reading = asyncio.Event()

    def total_bytes(self) -> int:
        return 32 * GB

    def available_bytes(self) -> int:
        return 20 * GB

    def footprint_bytes(self, pid: int) -> int:
        return int(self.used * GB)

    def read(self, pids: Sequence[int]) -> Reading:
        self.threads.add(threading.current_thread().name)
        self.asked.append(tuple(pids))
        if len(self.asked) == 5:
            self.loop.call_soon_threadsafe(self.fifth_reading.set)
        return Reading(32 * GB, 20 * GB, int(self.used * GB), self.pressure)

    async def reclaim(self, action: Action) -> None:
        self.done.append(action)
        self.used -= self.frees.get(action, 0.0)


def watch(machine: FakeMachine, clock: FakeClock | None = None) -> Watch:
    return Watch(Governor(10 * GB), machine, machine, clock or FakeClock(), lambda: (11, 12))


async def test_reading_is_taken_off_the_loop_for_the_processes_of_now() -> None:
    machine = FakeMachine(1)
    await watch(machine).step()
    assert threading.main_thread().name not in machine.threads
    assert machine.asked == [(11, 12)]


async def test_request_that_fits_touches_nothing() -> None:
    machine = FakeMachine(5)
    assert (await watch(machine).admit(2 * GB)).answer is Answer.ADMIT
    assert machine.done == []


async def test_reclaim_stops_as_soon_as_the_request_fits() -> None:
    machine = FakeMachine(9.6, {Action.CLEAR_POOL: 0.5, Action.SHRINK_PREFIX: 4})
    assert (await watch(machine).admit(2 * GB)).answer is Answer.ADMIT
    assert machine.done == [Action.CLEAR_POOL, Action.SHRINK_PREFIX]


async def test_full_footprint_of_freed_buffers_is_no_reason_to_refuse() -> None:
    machine = FakeMachine(9.6, {Action.CLEAR_POOL: 8.6})
    assert (await watch(machine).admit(4 * GB)).answer is Answer.ADMIT
    assert machine.done == [Action.CLEAR_POOL]


async def test_refusal_has_tried_everything_first() -> None:
    machine = FakeMachine(9.6)
    verdict = await watch(machine).admit(2 * GB)
    assert verdict.answer is Answer.REFUSE
    assert machine.done == [
        Action.CLEAR_POOL,
        Action.SHRINK_PREFIX,
        Action.PACK_WEIGHTS,
        Action.SHRINK_SLOTS,
        Action.EVICT_IDLE,
    ]
    assert "needs 2.0 GB beside 9.6 GB" in verdict.reason


async def test_two_requests_share_one_reclaim() -> None:
    machine = FakeMachine(9.6, {Action.CLEAR_POOL: 8})
    governed = watch(machine)
    verdicts = await asyncio.gather(governed.admit(GB), governed.admit(GB))
    assert {v.answer for v in verdicts} == {Answer.ADMIT}
    assert machine.done == [Action.CLEAR_POOL]


async def test_idle_memory_above_the_mark_is_given_back_without_a_request() -> None:
    machine = FakeMachine(9.0, {Action.CLEAR_POOL: 3})
    governed, clock = watch(machine), FakeClock()
    for _ in range(4):
        await governed.step()
        await clock.sleep(1)
    assert machine.done == [Action.CLEAR_POOL]
    assert governed.last is not None
    assert governed.last.footprint_bytes == 6 * GB


async def test_task_reads_every_second_until_it_is_cancelled() -> None:
    machine, clock = FakeMachine(1), FakeClock()
    task = asyncio.create_task(watch(machine, clock).run())
    await machine.fifth_reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.time >= 4.0
    assert len(machine.asked) <= clock.time + 2  # one per second, not as fast as it goes


async def test_changes_of_level_are_logged_with_the_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = FakeMachine(9.7)
    governed = watch(machine)
    with caplog.at_level("INFO"):
        await governed.step()
        assert caplog.messages == []
        await governed.step()
    assert governed.level is Level.HARD
    (message,) = caplog.messages
    assert message == ("memory hard: 9.7 GB of 10.0 GB in use, 20.0 GB available, pressure normal")
