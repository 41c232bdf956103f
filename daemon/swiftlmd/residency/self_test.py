"""After the machine has slept: does the GPU still answer? Steps of running requests are an answer;
an idle model is asked for one token."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import aclosing

from swiftlm_proto import messages as m
from swiftlmd.clock import Clock
from swiftlmd.engines.engine import Engine
from swiftlmd.faults import ServiceError
from swiftlmd.residency.residency import Residency
from swiftlmd.residency.resident import State

log = logging.getLogger(__name__)

_ANSWER_S = 60.0
_LOOK_S = 1.0
_STATS_S = 5.0


async def test_engines(residency: Residency, clock: Clock) -> None:
    """An engine that does not answer is ended; residency starts it again."""
    ready = [r for r in residency.residents if r.state is State.READY and not r.leaving]
    async with asyncio.TaskGroup() as tests:
        for resident in ready:
            if resident.engine is not None:
                tests.create_task(_test(resident.engine, clock))


async def _test(engine: Engine, clock: Clock) -> None:
    deadline = clock.now() + _ANSWER_S
    if await _steps_while_busy(engine, clock, deadline):
        log.info("steps after waking model=%s", engine.loaded.model)
    elif await _gives_a_token(engine, clock, deadline - clock.now()):
        log.info("answers after waking model=%s", engine.loaded.model)
    elif not engine.ended and not await _moves(engine):
        engine.kill(f"it gave no token within {_ANSWER_S:g} s after the machine woke")


async def _gives_a_token(engine: Engine, clock: Clock, patience_s: float) -> bool:
    if patience_s <= 0:
        return False
    done = asyncio.Event()
    answer = asyncio.create_task(_one_token(engine, done))
    try:
        return await clock.wait(done, patience_s) and answer.done() and answer.result()
    finally:
        answer.cancel()
        await asyncio.wait({answer})


async def _steps_while_busy(engine: Engine, clock: Clock, deadline: float) -> bool:
    """Whether it was seen to step; False once it is idle, or the time is over."""
    before = await _stats(engine)
    while clock.now() < deadline and not engine.ended:
        stats = await _stats(engine)
        if stats is not None and before is not None and stats.steps > before.steps:
            return True
        if stats is not None and not _is_busy(engine, stats):
            return False
        before = before or stats
        await clock.sleep(_LOOK_S)
    return False


async def _moves(engine: Engine) -> bool:
    """Requests of others came before the one token, and the engine does not keep them waiting."""
    stats = await _stats(engine)
    return stats is not None and _is_busy(engine, stats) and stats.step_age_s < _ANSWER_S / 2


async def _stats(engine: Engine) -> m.EngineStats | None:
    try:
        return await engine.client.stats(_STATS_S)
    except ServiceError:
        return None


def _is_busy(engine: Engine, stats: m.EngineStats) -> bool:
    return engine.client.busy.is_set() or stats.running + stats.waiting > 0


async def _one_token(engine: Engine, done: asyncio.Event) -> bool:
    """Whether it answers: a device that fails each pass ends the request, too, with a fault."""
    request = m.GenerateRequest(
        request_id=f"self-test-{uuid.uuid4().hex}", text="1", max_tokens=1, no_cache=True
    )
    try:
        async with aclosing(engine.client.generate(request)) as events:
            async for event in events:
                if event.finished is not None or event.delta is not None:
                    fault = event.finished.fault if event.finished is not None else None
                    return fault is None or fault.kind is not m.FaultKind.INTERNAL
    except ServiceError as error:
        log.warning("self-test failed model=%s: %s", engine.loaded.model, error)
    finally:
        done.set()
    return True  # it is gone already, or ends its stream: nobody needs to end it here
