"""What the daemon does beside serving, until it stops; a chore that fails is begun again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from swiftlmd.clock import Clock
from swiftlmd.engines.process import MAX_LOG_BYTES, shorten
from swiftlmd.lifecycle.start_limiter import HEALTHY_AFTER_S, StartLimiter
from swiftlmd.residency.residency import Residency
from swiftlmd.residency.self_test import test_engines

log = logging.getLogger(__name__)

_PAUSE_S = 5.0
_CALM_S = 60.0
_LOG_CARE_S = 600.0
_FOLDERS_S, _ASKED_S = 60.0, 5.0


async def restart_on_error(name: str, chore: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Root of a chore's task: one that fails is logged, never the daemon's end."""
    while True:
        try:
            await chore()
            return
        except Exception:
            log.exception("chore failed, starting it again name=%s", name)
            await clock.sleep(_PAUSE_S)


async def test_after_waking(residency: Residency, woken: asyncio.Event, clock: Clock) -> None:
    while True:
        await woken.wait()
        woken.clear()
        await test_engines(residency, clock)


async def prove_health(breaker: StartLimiter, fatal_file: Path, clock: Clock) -> None:
    """A minute without trouble: earlier failed starts no longer count."""
    await clock.sleep(HEALTHY_AFTER_S)
    breaker.clear()
    await asyncio.to_thread(fatal_file.unlink, missing_ok=True)


async def restore_when_calm(
    is_calm: Callable[[], bool], restore: Callable[[], Awaitable[None]], clock: Clock
) -> None:
    """What was shrunk grows back after a minute in which memory was not short."""
    calm_s = 0.0
    while True:
        await clock.sleep(_PAUSE_S)
        calm_s = calm_s + _PAUSE_S if is_calm() else 0.0
        if calm_s >= _CALM_S:
            await restore()


async def shorten_logs(folder: Path, clock: Clock) -> None:
    """Logs that other processes append to cannot be rotated, only cut."""

    def cut() -> None:
        for path in (*folder.glob("engine-*.log"), folder / "launchd.log"):
            shorten(path, MAX_LOG_BYTES)

    while True:
        await clock.sleep(_LOG_CARE_S)
        await asyncio.to_thread(cut)


async def list_what_was_late(
    is_late: Callable[[], bool], list_models: Callable[[], Awaitable[object]], clock: Clock
) -> None:
    """A folder that was still being read when the models were listed has been read since; a status
    would go on to call its model broken until somebody lists them."""
    while True:
        await clock.sleep(_PAUSE_S)
        if is_late():
            await list_models()


async def watch_folders(
    look: Callable[[], Awaitable[None]], asked: asyncio.Event, clock: Clock
) -> None:
    """Disks come and go. `asked`: somebody wants to know of it."""
    while True:
        asked.clear()
        await look()
        await clock.sleep(_ASKED_S)
        await clock.wait(asked, _FOLDERS_S - _ASKED_S)
