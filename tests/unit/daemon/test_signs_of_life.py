"""An engine that says nothing is seen before it is ended, and told apart from a busy one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from fakes import FakeLoadedEngine
from residency_world import World

from swiftlm_proto import messages as m
from swiftlmd.config.settings import Settings
from swiftlmd.engines.signs import Condition, Doing, ProcessObserver


def status(world: World) -> m.ModelStatus:
    (resident,) = world.residency.residents
    return resident.to_status(world.clock)


async def loaded(world: World, stall_s: float = 60.0) -> FakeLoadedEngine:
    world.settings = Settings(engine_stall=stall_s)
    await world.use("a")
    return world.launcher.engines["a"]


async def test_silence_is_counted_told_and_unhealthy_at_half_of_the_limit(world: World) -> None:
    engine = await loaded(world)
    engine.client.stats_reply = None
    engine.client.busy.set()
    await world.clock.advance(2.5)
    found = status(world)
    assert (found.condition, found.unhealthy) == (Condition.SILENT, False)
    assert found.silent_s == pytest.approx(2.5, abs=1.1)
    assert len(world.residency.warnings()) == 1
    assert "'a' has not answered for" in world.residency.warnings()[0]
    await world.clock.advance(29)
    assert status(world).unhealthy
    assert not engine.killed_for
    engine.client.stats_reply = m.EngineStats()
    await world.clock.advance(2)
    found = status(world)
    assert (found.silent_s, found.unhealthy) == (0.0, False)
    assert found.last_sign_s < 2
    assert world.residency.warnings() == []


async def test_an_idle_engine_is_not_silent_between_two_questions(world: World) -> None:
    await loaded(world, 2.0)  # half of it is shorter than the usual pause
    for _ in range(40):
        await world.clock.advance(0.5)
        assert not status(world).unhealthy
        assert status(world).silent_s == 0.0
        assert status(world).condition == Condition.IDLE


async def test_a_long_step_is_told_apart_from_silence_and_from_a_stuck_step(world: World) -> None:
    engine = await loaded(world)
    engine.client.busy.set()
    for age_s, doing, condition in (
        (0.1, Doing.COMPUTING, Condition.BUSY),
        (20.0, Doing.COMPUTING, Condition.LONG_STEP),
        (20.0, Doing.WAITING, Condition.STUCK),
    ):
        engine.client.stats_reply, world.doing = m.EngineStats(step_age_s=age_s), doing
        await world.clock.advance(2)
        assert (status(world).condition, status(world).unhealthy) == (condition, False)
    engine.client.stats_reply = m.EngineStats(step_age_s=40.0)
    await world.clock.advance(2)
    assert status(world).unhealthy


@pytest.mark.parametrize(
    ("doing", "condition"),
    [
        (Doing.STOPPED, Condition.STOPPED),
        (Doing.PAGING, Condition.PAGING),
        (Doing.WAITING, Condition.HUNG),
        (Doing.COMPUTING, Condition.SILENT),
    ],
)
async def test_what_a_silent_engine_does_is_told_also_when_it_is_ended(
    world: World, doing: Doing, condition: Condition
) -> None:
    engine = await loaded(world, 10.0)
    engine.client.stats_reply, world.doing = None, doing
    await world.clock.advance(4)
    assert status(world).condition == condition
    await world.clock.advance(20)
    assert f"({condition})" in engine.killed_for


async def test_a_silent_engine_is_unloaded_at_once(world: World) -> None:
    engine = await loaded(world)
    engine.client.stats_reply = None
    engine.client.busy.set()
    await world.clock.advance(5)
    await world.residency.unload("a")
    assert engine.stop_deadline_s == 0.0


def test_processes_that_compute_wait_or_were_stopped_are_told_apart() -> None:
    def is_seen(expected: Doing, program: str, stopped: bool = False) -> bool:
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        if stopped:
            os.kill(child.pid, signal.SIGSTOP)
        observe = ProcessObserver()
        deadline = time.monotonic() + 10  # a busy machine may give it no time for a while
        try:
            observe(child.pid)
            while time.monotonic() < deadline:
                time.sleep(0.1)
                if observe(child.pid) is expected:
                    return True
            return False
        finally:
            child.kill()
            child.communicate()

    busy = "print(flush=True)\nwhile True: sum(range(10**5))"
    asleep = "print(flush=True); import time; time.sleep(60)"
    assert is_seen(Doing.COMPUTING, busy)
    assert is_seen(Doing.WAITING, asleep)
    assert is_seen(Doing.STOPPED, asleep, stopped=True)
