"""Looks after one running engine: keeps its figures fresh and ends it when it no longer steps.

A port that answers while the loop behind it is dead must not happen: an engine whose step (or
whose answer to Stats) takes longer than the limit is killed, and its owner sees a crash. The other
ranks of a group end when their leader is silent for `cluster.lost_after`: so does the leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from swiftlmd.clock import Clock
from swiftlmd.config.settings import Settings
from swiftlmd.engines.engine import Engine
from swiftlmd.engines.process import ProcessEnd
from swiftlmd.faults import ServiceError

log = logging.getLogger(__name__)

_BUSY_S = 1.0
_IDLE_S = 10.0
_ANSWER_S = 5.0


async def watch_engine(
    engine: Engine, settings: Callable[[], Settings], clock: Clock
) -> ProcessEnd:
    """Runs the engine until its process is gone, and says how it ended.

    `settings` are asked for at each look: a limit may be changed while the engine runs.
    """
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(_watch(engine, settings, clock))
        try:
            return await engine.run()
        finally:
            watch.cancel()


async def _watch(engine: Engine, settings: Callable[[], Settings], clock: Clock) -> None:
    unanswered_at: float | None = None  # silence begins with a question, not with our pause
    while True:
        was_busy = engine.client.busy.is_set()
        unanswered_at = clock.now() if unanswered_at is None else unanswered_at
        try:
            engine.stats = await engine.client.stats(_ANSWER_S)
            unanswered_at = None
        except ServiceError as error:
            log.debug("engine does not answer model=%s: %s", engine.loaded.model, error)
        silent_s = 0.0 if unanswered_at is None else clock.now() - unanswered_at
        if reason := _stuck(engine.stats.step_age_s, silent_s, settings()):
            log.error("engine is stuck, ending it model=%s: %s", engine.loaded.model, reason)
            engine.kill(reason)
            return
        # Once more after the last request, so that the figures come to rest.
        if was_busy or unanswered_at is not None:
            await clock.sleep(_BUSY_S)
        else:
            await clock.wait(engine.client.busy, _IDLE_S)


def _stuck(step_age_s: float, silent_s: float, settings: Settings) -> str:
    """Why an engine must go, if it must."""
    if settings.engine_cluster and silent_s > settings.cluster_lost_after:
        return f"rank 0 on this machine did not answer for {silent_s:.0f} s"
    stuck_s = max(step_age_s, silent_s)
    if stuck_s > settings.engine_stall:
        return f"no step of the model finished for {stuck_s:.0f} s"
    return ""
