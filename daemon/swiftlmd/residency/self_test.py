"""After the machine has slept: does the GPU still answer? Steps of running requests are an answer;
an idle model is asked for one token.

A busy engine has to end two steps: the first may only read what was computed before the sleep.
Steps that end because each pass fails are no answer, and neither is a token without a number.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from contextlib import aclosing
from enum import Enum, auto

from swiftlm_proto import messages as m
from swiftlmd.clock import Clock
from swiftlmd.engines.engine import Engine
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.residency.residency import Residency
from swiftlmd.residency.resident import State

log = logging.getLogger(__name__)

_ANSWER_S = 60.0
_LOOK_S = 1.0
_STATS_S = 5.0
_PROOF_STEPS = 2
_TOP = 8  # log-probabilities of a token: that many are never all the same where something computes
# An engine that refuses a request for one of these reasons may well be able to answer others.
_REFUSALS = frozenset(
    {
        Kind.BUSY,
        Kind.CONTEXT_TOO_LONG,
        Kind.DEADLINE,
        Kind.INVALID,
        Kind.NOT_ENOUGH_MEMORY,
        Kind.SHUTTING_DOWN,
        Kind.UNSUPPORTED,
    }
)


class _Seen(Enum):
    STEPS = auto()
    IDLE = auto()
    NO_STEPS = auto()


async def test_engines(residency: Residency, clock: Clock) -> None:
    """An engine that does not answer is ended; residency starts it again."""
    ready = [r for r in residency.residents if r.state is State.READY and not r.leaving]
    async with asyncio.TaskGroup() as tests:
        for resident in ready:
            if resident.engine is not None:
                tests.create_task(_test(resident.engine, clock))


async def _test(engine: Engine, clock: Clock) -> None:
    seen = await _watch_steps(engine, clock)
    if seen is _Seen.IDLE:
        if await _gives_a_token(engine, clock):
            log.info("answers after waking model=%s", engine.loaded.model)
            return
        # Requests of others may have come before the one token.
        seen = await _watch_steps(engine, clock) if engine.client.busy.is_set() else seen
    if seen is _Seen.STEPS:
        log.info("steps after waking model=%s", engine.loaded.model)
    elif not engine.ended:
        what = "no usable token" if seen is _Seen.IDLE else "no step of use"
        engine.kill(f"there was {what} within {_ANSWER_S:g} s after the machine woke")


class _Steps:
    """Steps that ended since the first look, by what an engine says of itself.

    Its counter stands still while long steps keep it from counting; the age of the step under way
    is always true.
    """

    def __init__(self, first: m.EngineStats) -> None:
        self.num_ended = 0
        self._failed = first.failed
        self._last = first

    def look(self, stats: m.EngineStats) -> bool:
        """Whether a step ended since the last look that was of any use."""
        last, self._last = self._last, stats
        gave_tokens = stats.completion_tokens > last.completion_tokens
        fails = stats.failed > self._failed and not gave_tokens
        counted = stats.steps - last.steps
        ended = max(counted, int(stats.step_age_s < last.step_age_s))
        if ended <= 0 or fails or (stats.waiting > 0 and stats.running == 0 and not gave_tokens):
            return False
        self._failed = stats.failed
        self.num_ended += ended
        return True


async def _watch_steps(engine: Engine, clock: Clock) -> _Seen:
    """What a busy engine does; each step that ends gives it as much time for the next."""
    steps: _Steps | None = None
    deadline = clock.now() + _ANSWER_S
    while clock.now() < deadline and not engine.ended:
        stats = await _stats(engine)
        if stats is not None:
            if stats.running + stats.waiting == 0 and stats.step_age_s == 0:
                return _Seen.IDLE  # also while a prompt is being prepared: that is no step
            if steps is None:
                steps = _Steps(stats)
            elif steps.look(stats):
                deadline = clock.now() + _ANSWER_S
                if steps.num_ended >= _PROOF_STEPS:
                    return _Seen.STEPS
        await clock.sleep(_LOOK_S)
    return _Seen.NO_STEPS


async def _stats(engine: Engine) -> m.EngineStats | None:
    try:
        return await engine.client.stats(_STATS_S)
    except ServiceError:
        return None


async def _gives_a_token(engine: Engine, clock: Clock) -> bool:
    done = asyncio.Event()
    answer = asyncio.create_task(_one_token(engine, done))
    try:
        return await clock.wait(done, _ANSWER_S) and answer.done() and answer.result()
    finally:
        answer.cancel()
        await asyncio.wait({answer})


async def _one_token(engine: Engine, done: asyncio.Event) -> bool:
    """Whether it answers: a device that fails each pass ends the request, too, with a fault."""
    request = m.GenerateRequest(
        request_id=f"self-test-{uuid.uuid4().hex}",
        text="1",
        max_tokens=1,
        no_cache=True,
        raw_text=True,
        top_logprobs=_TOP,
    )
    try:
        async with aclosing(engine.client.generate(request)) as events:
            async for event in events:
                if event.finished is not None:
                    return _is_sound_end(event.finished)
                if event.delta is not None:
                    return _is_computed(event.delta)
    except ServiceError as error:
        log.warning("self-test failed model=%s: %s", engine.loaded.model, error)
        return engine.ended or error.kind in _REFUSALS
    finally:
        done.set()
    return engine.ended


def _is_sound_end(finished: m.Finished) -> bool:
    fault = finished.fault
    if fault is not None:
        return fault.kind in _REFUSALS
    return finished.reason is not m.FinishedReason.ERROR


def _is_computed(delta: m.Delta) -> bool:
    """A lost device predicts what is no number, or the same for every token."""
    for token in delta.logprobs:
        if not math.isfinite(token.logprob):
            return False
        if len(token.top) >= _TOP and len({other.logprob for other in token.top}) == 1:
            return False
    return True
