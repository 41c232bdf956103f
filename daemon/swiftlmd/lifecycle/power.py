"""Sleep and waking: keep the machine awake while requests run (if asked to), notice that it slept.

The assertion is taken with the first request and given back half a minute after the last, so
that an agent's pauses between calls do not put the machine to sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Protocol

from swiftlmd.clock import Clock

log = logging.getLogger(__name__)

_LINGER_S = 30.0
_CHECK_S = 5.0
_SLEPT_S = 5.0
_CAFFEINATE = "/usr/bin/caffeinate"


class Assertion(Protocol):
    """Something that keeps the machine awake. Both calls are safe to repeat."""

    async def take(self) -> None: ...

    async def release(self) -> None: ...

    @property
    def lost(self) -> bool:
        """It was taken, and somebody else has ended it."""


class NoAssertion:
    """Where there is nothing to hold."""

    async def take(self) -> None:
        return

    async def release(self) -> None:
        return

    @property
    def lost(self) -> bool:
        return False


class ChildAssertion:
    """Held by a child process that ends with us (`caffeinate -w`, `systemd-inhibit`)."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._child: asyncio.subprocess.Process | None = None

    async def take(self) -> None:
        if self._child is not None and self._child.returncode is None:
            return
        nothing = asyncio.subprocess.DEVNULL
        try:
            self._child = await asyncio.create_subprocess_exec(
                *self._command, stdin=nothing, stdout=nothing, stderr=nothing
            )
        except OSError as error:
            log.warning("cannot keep the machine awake: %s", error)

    @property
    def lost(self) -> bool:
        return self._child is not None and self._child.returncode is not None

    async def release(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            await child.wait()


def find_assertion(platform: str = sys.platform, pid: int | None = None) -> Assertion:
    """What this machine offers. Never keeps the display on: that provokes its GPU watchdog."""
    own = str(pid or os.getpid())
    if platform == "darwin":
        return ChildAssertion([_CAFFEINATE, "-i", "-w", own])
    inhibit = shutil.which("systemd-inhibit")
    if inhibit is None:
        return NoAssertion()
    reason = ["--what=idle:sleep", "--who=swiftlmd", "--why=a request is running"]
    return ChildAssertion([inhibit, *reason, "tail", f"--pid={own}", "-f", "/dev/null"])


class SleepGuard:
    """Holds the assertion while `busy` says so and the settings ask for it."""

    def __init__(
        self,
        clock: Clock,
        assertion: Assertion,
        *,
        wanted: Callable[[], bool],
        busy: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._assertion = assertion
        self._wanted = wanted
        self._busy = busy
        self.held = False

    async def run(self) -> None:
        """Until cancelled; the assertion is gone then."""
        busy_at = -_LINGER_S
        try:
            while True:
                if self._busy():
                    busy_at = self._clock.now()
                recently = self._clock.now() - busy_at < _LINGER_S
                await self._hold(recently and self._wanted())
                await self._clock.sleep(1.0)
        finally:
            await asyncio.shield(self._assertion.release())

    async def _hold(self, hold: bool) -> None:
        if hold and self.held and self._assertion.lost:
            log.warning("what holds sleep off was ended, starting it again")
            await self._assertion.take()
        if hold != self.held:
            await (self._assertion.take() if hold else self._assertion.release())
            self.held = hold
            log.info("sleep is %s", "held off" if hold else "allowed again")


def seconds_with_sleep(platform: str = sys.platform) -> float:
    """A clock that runs on while the machine sleeps, and that no change of the date moves."""
    if platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class WakeWatch:
    """Calls `woken` with the seconds slept, once after each sleep of the machine."""

    def __init__(
        self,
        clock: Clock,
        with_sleep: Callable[[], float],
        woken: Callable[[float], None],
    ) -> None:
        self._clock = clock
        self._with_sleep = with_sleep
        self._woken = woken

    async def run(self) -> None:
        """Until cancelled."""
        lag = self._with_sleep() - self._clock.now()
        while True:
            await self._clock.sleep(_CHECK_S)
            new = self._with_sleep() - self._clock.now()
            if new - lag > _SLEPT_S:
                log.info("the machine slept s=%.0f", new - lag)
                self._woken(new - lag)
            lag = new
