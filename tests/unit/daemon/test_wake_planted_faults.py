"""Faults planted into an engine that wakes with its machine are found; healthy ones stay."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from fakes import FakeClock, FakeLoadedEngine, FakeMemory

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.residency.resident import State
from swiftlmd.residency.self_test import test_engines as ask_each_engine

END = m.Finished(reason=m.FinishedReason.LENGTH)
STARTED = m.SequenceEvent(started=m.Started(prompt_tokens=1))
FINISHED = m.SequenceEvent(finished=END)
IDLE = m.EngineStats()
BUSY = m.EngineStats(running=1)

Says = Callable[[float], m.EngineStats | None]  # by the seconds since the machine woke


def failed(kind: m.FaultKind) -> m.SequenceEvent:
    fault = m.Fault(kind=kind, message="planted")
    return m.SequenceEvent(finished=m.Finished(reason=m.FinishedReason.ERROR, fault=fault))


def token(logprob: float, *top: float) -> m.SequenceEvent:
    others = [m.TokenLogprob(token_id=i, logprob=p) for i, p in enumerate(top)]
    chosen = m.TokenLogprob(token_id=7, token=b"x", logprob=logprob, top=others)
    return m.SequenceEvent(delta=m.Delta(content="x", logprobs=[chosen]))


@dataclass(slots=True)
class Life:
    """What an engine does from waking on."""

    says: Says = lambda s: IDLE
    answer: tuple[m.SequenceEvent | ServiceError, ...] = ()
    takes_s: float = 0.0  # the answer's first event
    others: Callable[[float], bool] = lambda s: False  # requests of others are under way
    dies: Callable[[float], bool] = field(default=lambda s: False)


class WakingClient:
    def __init__(self, life: Life, clock: FakeClock) -> None:
        self._life, self._clock = life, clock
        self._woke_at = clock.now()
        self.busy = asyncio.Event()

    @property
    def age_s(self) -> float:
        return self._clock.now() - self._woke_at

    async def stats(self, timeout_s: float) -> m.EngineStats:
        stats = self._life.says(self.age_s)
        if stats is None:
            await self._clock.sleep(timeout_s)
            raise ServiceError(Kind.DEADLINE, "the engine did not answer in time")
        return stats

    async def generate(self, request: m.GenerateRequest) -> AsyncGenerator[m.SequenceEvent, None]:
        await self._clock.sleep(self._life.takes_s)
        for event in self._life.answer:
            if isinstance(event, ServiceError):
                raise event
            yield event
            if event.finished is not None:
                return
        await asyncio.Event().wait()


async def why_ended(life: Life) -> str:
    clock = FakeClock()
    engine = FakeLoadedEngine("m", 1, FakeMemory(), 0)
    client = WakingClient(life, clock)
    engine.client = client  # type: ignore[assignment]  # what the self-test asks of it
    resident = SimpleNamespace(state=State.READY, leaving=False, engine=engine)
    task = asyncio.create_task(
        ask_each_engine(SimpleNamespace(residents=[resident]), clock)  # type: ignore[arg-type]
    )
    for _ in range(400):
        (client.busy.set if life.others(client.age_s) else client.busy.clear)()
        if life.dies(client.age_s) and not engine.ended:
            engine.die(-11)
        await clock.advance(1)
        if task.done():
            break
    await asyncio.wait_for(task, 30)
    return engine.killed_for


def busy(**fields: Callable[[float], float]) -> Says:
    return lambda s: replace(BUSY, **{name: value(s) for name, value in fields.items()})


def until(limit_s: float, first: m.EngineStats | None, then: Says) -> Says:
    return lambda s: first if s < limit_s else then(s)


def after(limit_s: float) -> Callable[[float], bool]:
    return lambda s: s >= limit_s


def whole(seconds: float) -> int:
    return int(seconds)


def since_step(every_s: float) -> Callable[[float], float]:
    return lambda s: 0.1 + s % every_s


FAULTS: dict[str, Life] = {
    "idle: it says nothing": Life(),
    "idle: it starts and gives no token": Life(answer=(STARTED,)),
    "idle: its pass fails": Life(answer=(STARTED, failed(m.FaultKind.INTERNAL))),
    "idle: its device is gone": Life(answer=(failed(m.FaultKind.NO_DEVICE),)),
    "idle: its weights are gone": Life(answer=(failed(m.FaultKind.MODEL_BROKEN),)),
    "idle: a fault of a kind that nobody knows": Life(
        answer=(failed(m.FaultKind.KIND_UNSPECIFIED),)
    ),
    "idle: an error without a fault": Life(
        answer=(m.SequenceEvent(finished=m.Finished(reason=m.FinishedReason.ERROR)),)
    ),
    "idle: a token that is no number": Life(answer=(STARTED, token(math.nan), FINISHED)),
    "idle: a token without a chance": Life(answer=(STARTED, token(-math.inf), FINISHED)),
    "idle: all tokens are the same": Life(answer=(token(-5.0, *[-5.0] * 8), FINISHED)),
    "idle: its token comes after a minute": Life(answer=(token(-1.0), FINISHED), takes_s=61),
    "idle: its connection broke, its process stays": Life(
        answer=(ServiceError(Kind.INTERNAL, "the engine is gone: reset"),)
    ),
    "idle: its loop turns and gives no token": Life(
        says=lambda s: replace(IDLE if s < 1 else BUSY, steps=int(s), step_age_s=0.0)
    ),
    "idle: its loop hangs as soon as it has work": Life(
        says=until(1, IDLE, busy(step_age_s=lambda s: s))
    ),
    "idle: others come behind the token, and nothing moves": Life(
        says=until(1, IDLE, busy(step_age_s=lambda s: s)), others=after(3)
    ),
    "idle: others come behind the token, and all fail": Life(
        says=until(1, IDLE, busy(steps=whole, failed=whole)), others=after(3)
    ),
    "preparing: prompts never reach the loop": Life(others=after(0)),
    "busy: no step ends": Life(says=busy(step_age_s=lambda s: s + 3)),
    "busy: no step ends, and it counts none": Life(says=lambda s: BUSY),
    "busy: it says nothing": Life(says=lambda s: None, others=after(0)),
    "busy: it says nothing at first, then that no step ends": Life(
        says=until(30, None, busy(step_age_s=lambda s: s))
    ),
    "busy: it ends what was computed before the sleep, and then hangs": Life(
        says=busy(steps=lambda s: int(s > 2), step_age_s=lambda s: s if s <= 2 else s - 2)
    ),
    "busy: each step fails its requests, and more come": Life(
        says=busy(failed=whole, step_age_s=since_step(2)), others=after(0)
    ),
    "busy: prompts are read, each first token fails": Life(
        says=busy(steps=whole, failed=lambda s: int(s / 2)), others=after(0)
    ),
    "busy: all wait, nobody is let in, the loop turns": Life(
        says=lambda s: replace(IDLE, waiting=3, steps=int(s)), others=after(0)
    ),
    "busy: it becomes idle, and then says nothing": Life(
        says=until(20, replace(BUSY, step_age_s=1.0), lambda s: IDLE)
    ),
    "busy: it becomes idle, and then its pass fails": Life(
        says=until(20, BUSY, lambda s: IDLE), answer=(failed(m.FaultKind.INTERNAL),)
    ),
}

HEALTHY: dict[str, Life] = {
    "idle: a token": Life(answer=(STARTED, token(-1.0, *range(-8, 0)), FINISHED)),
    "idle: the end at once": Life(answer=(STARTED, FINISHED)),
    "idle: two tokens that are equally likely": Life(
        answer=(token(-1.0, -1.0, -1.0, *range(-8, -2)), FINISHED)
    ),
    "idle: the only tokens of a small vocabulary": Life(answer=(token(-0.7, -0.7, -0.7), FINISHED)),
    "idle: tokens that it does not have": Life(
        answer=(token(-1.0, -1.0, *[-math.inf] * 7), FINISHED)
    ),
    "idle: it reads its weights for most of a minute": Life(answer=(FINISHED,), takes_s=55),
    "idle: its process ends meanwhile": Life(dies=after(5)),
    "idle: it is about to leave": Life(answer=(failed(m.FaultKind.SHUTTING_DOWN),)),
    "idle: its line is full": Life(answer=(failed(m.FaultKind.BUSY),)),
    "idle: memory is short": Life(answer=(failed(m.FaultKind.NOT_ENOUGH_MEMORY),)),
    "idle: it embeds texts only": Life(answer=(failed(m.FaultKind.UNSUPPORTED),)),
    "idle: others come before the token, and it steps": Life(
        says=until(1, IDLE, busy(steps=whole)), others=after(2), takes_s=150
    ),
    "preparing: a long prompt of somebody": Life(others=after(0), answer=(FINISHED,)),
    "busy: a step each second": Life(says=busy(steps=whole)),
    "busy: steps of half a minute that it has no time to count": Life(
        says=busy(step_age_s=since_step(31))
    ),
    "busy: steps of most of a minute": Life(says=busy(step_age_s=since_step(57))),
    "busy: paged out, and back": Life(says=until(40, None, busy(steps=whole))),
    "busy: one of several requests fails": Life(
        says=busy(steps=whole, failed=lambda s: int(s > 3), completion_tokens=lambda s: int(s) * 4)
    ),
    "busy: short requests that are never seen running": Life(
        says=lambda s: replace(IDLE, waiting=2, steps=int(s), completion_tokens=int(s))
    ),
    "busy: idle just before its time is over, and then a slow token": Life(
        says=until(58, replace(BUSY, step_age_s=9.0), lambda s: IDLE), answer=(FINISHED,), takes_s=9
    ),
    "busy: its process ends meanwhile": Life(says=busy(step_age_s=lambda s: s), dies=after(30)),
}


def test_there_are_twenty_faults_and_as_many_healthy_engines() -> None:
    assert len(FAULTS) >= 20
    assert len(HEALTHY) >= 20


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_fault_is_found_after_waking(fault: str) -> None:
    assert "woke" in await why_ended(FAULTS[fault])


@pytest.mark.parametrize("life", HEALTHY)
async def test_a_healthy_engine_is_left_alone_after_waking(life: str) -> None:
    assert await why_ended(HEALTHY[life]) == ""
