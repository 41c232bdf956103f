"""Looks after one running engine: keeps its figures fresh and ends it when it no longer steps.

A port that answers while the loop behind it is dead must not happen: an engine whose step (or
whose answer to Stats) takes longer than the limit is killed, and its owner sees a crash.
"""

from __future__ import annotations

import asyncio
import logging

from swiftlmd.clock import Clock
from swiftlmd.engines.engine import Engine
from swiftlmd.engines.process import ProcessEnd
from swiftlmd.faults import ServiceError

log = logging.getLogger(__name__)

_BUSY_S = 1.0
_IDLE_S = 10.0
_ANSWER_S = 5.0


async def attend(engine: Engine, stall_s: float, clock: Clock) -> ProcessEnd:
    """Runs the engine until its process is gone, and says how it ended."""
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(_watch(engine, stall_s, clock))
        try:
            return await engine.run()
        finally:
            watch.cancel()


async def _watch(engine: Engine, stall_s: float, clock: Clock) -> None:
    answered_at = clock.now()
    while True:
        was_busy = engine.client.busy.is_set()
        try:
            engine.stats = await engine.client.stats(_ANSWER_S)
            answered_at = clock.now()
        except ServiceError as error:
            log.debug("engine does not answer model=%s: %s", engine.loaded.model, error)
        silent_s = clock.now() - answered_at
        stuck_s = max(engine.stats.step_age_s, silent_s)
        if stuck_s > stall_s:
            log.error("engine is stuck, ending it model=%s s=%.0f", engine.loaded.model, stuck_s)
            engine.kill(f"no step of the model finished for {stuck_s:.0f} s")
            return
        if was_busy:  # once more after the last request, so that the figures come to rest
            await clock.sleep(_BUSY_S)
        else:
            await clock.wait(engine.client.busy, _IDLE_S)
