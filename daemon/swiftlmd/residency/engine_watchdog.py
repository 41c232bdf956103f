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
from swiftlmd.engines.signs import FEW_QUESTIONS, LONG_STEP_S, Doing, Observe, Signs, unobserved
from swiftlmd.faults import ServiceError

log = logging.getLogger(__name__)

_BUSY_S = 1.0
_IDLE_S = 10.0
_ANSWER_S = 5.0


async def watch_engine(
    engine: Engine,
    settings: Callable[[], Settings],
    clock: Clock,
    signs: Signs,
    observe: Observe = unobserved,
) -> ProcessEnd:
    """Runs the engine until its process is gone, and says how it ended.

    `settings` are asked for at each look: a limit may be changed while the engine runs. `signs`
    are kept here, for others to read.
    """
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(_watch(engine, settings, clock, signs, observe))
        try:
            return await engine.run()
        finally:
            watch.cancel()


async def _watch(
    engine: Engine,
    settings: Callable[[], Settings],
    clock: Clock,
    signs: Signs,
    observe: Observe,
) -> None:
    while True:
        was_busy, patience_s = engine.client.busy.is_set(), settings().engine_stall / 4
        signs.asked(clock.now())  # silence begins with a question, not with our pause
        try:
            engine.stats = await engine.client.stats(min(_ANSWER_S, patience_s))
            age_s, doing = engine.stats.step_age_s, Doing.COMPUTING
            if age_s > LONG_STEP_S and engine.loaded.device == "cpu":  # a GPU computes unseen
                doing = observe(engine.pid)
            signs.answered(clock.now(), age_s, is_busy=was_busy, doing=doing)
        except ServiceError as error:
            log.debug("engine does not answer model=%s: %s", engine.loaded.model, error)
            signs.unanswered(observe(engine.pid))
            if signs.num_unanswered == FEW_QUESTIONS:
                log.warning("%s", signs.warning(engine.loaded.model, clock.now()))
        now = settings()
        if reason := _stuck(engine.stats.step_age_s, signs.silent_s(clock.now()), now):
            reason += f" ({signs.condition(clock.now())})"
            log.error("engine is stuck, ending it model=%s: %s", engine.loaded.model, reason)
            engine.kill(reason)
            return
        # Once more after the last request, so that the figures come to rest.
        if was_busy or signs.num_unanswered:
            await clock.sleep(_BUSY_S)
        else:
            await clock.wait(engine.client.busy, min(_IDLE_S, patience_s))


def _stuck(step_age_s: float, silent_s: float, settings: Settings) -> str:
    """Why an engine must go, if it must."""
    if settings.engine_cluster and silent_s > settings.cluster_lost_after:
        return f"rank 0 on this machine did not answer for {silent_s:.0f} s"
    stuck_s = max(step_age_s, silent_s)
    if stuck_s > settings.engine_stall:
        return f"no step of the model finished for {stuck_s:.0f} s"
    return ""
