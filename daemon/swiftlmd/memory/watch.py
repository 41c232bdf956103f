"""Run the governor: one reading per second, taken in a thread; acts on the event loop.

`run` is the task of whoever builds the Watch; cancelling it is the way to stop. `admit` is what a
request asks before it starts: it reclaims and measures again before it says no.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from swiftlmd.clock import Clock
from swiftlmd.memory.governor import Action, Answer, Decision, Governor, Level, PressureVerdict
from swiftlmd.memory.readings import MemoryReadings, Reading

log = logging.getLogger(__name__)

_INTERVAL_S = 1.0
# Freed memory leaves a process's footprint within this (measured on macOS: 0.1 to 0.3 s).
_SETTLE_S = 0.4


class Reclaimer(Protocol):
    """Gives memory back; what an action means for engines is the daemon's affair."""

    async def reclaim(self, action: Action) -> None:
        """Returns when the engines have been told. Must not raise for a busy or dead engine."""


class Watch:
    """`pids` names the processes whose footprint counts: the daemon and its engines, right now."""

    def __init__(
        self,
        governor: Governor,
        readings: MemoryReadings,
        reclaimer: Reclaimer,
        clock: Clock,
        pids: Callable[[], Sequence[int]],
    ) -> None:
        self._governor = governor
        self._readings = readings
        self._reclaimer = reclaimer
        self._clock = clock
        self._pids = pids
        self._last: Reading | None = None
        # One reclaim at a time: the second of two requests finds what the first one freed.
        self._judging = asyncio.Lock()

    @property
    def last(self) -> Reading | None:
        """The newest reading, for status."""
        return self._last

    @property
    def level(self) -> Level:
        return self._governor.level

    async def run(self) -> None:
        while True:
            await self.step()
            await self._clock.sleep(_INTERVAL_S)

    async def step(self) -> Decision:
        """One reading and what follows from it."""
        decision = self._governor.observe(await self._read(), self._clock.now())
        if decision.reason:
            report = log.info if decision.level is Level.CALM else log.warning
            report("%s", decision.reason)
        for action in decision.actions:
            await self._reclaimer.reclaim(action)
        return decision

    async def admit(self, num_bytes: int) -> PressureVerdict:
        """ADMIT or REFUSE. A refusal always comes after a reclaim and a fresh reading."""
        async with self._judging:
            verdict = self._governor.judge(num_bytes, await self._read())
            if verdict.answer is not Answer.RECLAIM:
                return verdict
            log.info("reclaiming before refusing: %s", verdict.reason)
            for action in verdict.actions:
                await self._reclaimer.reclaim(action)
                await self._clock.sleep(_SETTLE_S)
                verdict = self._governor.judge(num_bytes, await self._read(), reclaimed=True)
                if verdict.answer is Answer.ADMIT:
                    return verdict
            return verdict

    async def _read(self) -> Reading:
        self._last = await asyncio.to_thread(self._readings.read, tuple(self._pids()))
        return self._last
