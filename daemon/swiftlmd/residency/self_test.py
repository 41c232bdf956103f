"""One token from each loaded model: after the machine has slept, does the GPU still answer?"""

from __future__ import annotations

import asyncio
import logging
import uuid

from swiftlm_proto import messages as m
from swiftlmd.clock import Clock
from swiftlmd.engines.engine import Engine
from swiftlmd.faults import ServiceError
from swiftlmd.residency.residency import Residency
from swiftlmd.residency.resident import State

log = logging.getLogger(__name__)

_ANSWER_S = 60.0


async def test_engines(residency: Residency, clock: Clock) -> None:
    """An engine that does not answer is ended; residency starts it again."""
    ready = [r for r in residency.residents if r.state is State.READY and not r.leaving]
    async with asyncio.TaskGroup() as tests:
        for resident in ready:
            if resident.engine is not None:
                tests.create_task(_test(resident.engine, clock))


async def _test(engine: Engine, clock: Clock) -> None:
    done = asyncio.Event()
    answer = asyncio.create_task(_one_token(engine, done))
    try:
        if await clock.wait(done, _ANSWER_S):
            log.info("answers after waking model=%s", engine.loaded.model)
        else:
            engine.kill(f"it gave no token within {_ANSWER_S:g} s after the machine woke")
    finally:
        answer.cancel()
        await asyncio.wait({answer})


async def _one_token(engine: Engine, done: asyncio.Event) -> None:
    request = m.GenerateRequest(
        request_id=f"self-test-{uuid.uuid4().hex}", text="1", max_tokens=1, no_cache=True
    )
    try:
        async for event in engine.client.generate(request):
            if event.delta is not None or event.finished is not None:
                done.set()
    except ServiceError as error:
        log.warning("self-test failed model=%s: %s", engine.loaded.model, error)
        done.set()  # the engine is gone already
