"""Loads, stops and uses of one model that meet: one engine per model, none unknown, no one waits
for ever, and what has begun is finished though its caller leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace

import pytest
from fakes import settle
from residency_world import GB, World, make_world

from swiftlm_proto import messages as m
from swiftlmd.config.settings import Settings
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.residency.resident import State


async def load(world: World, name: str, settings: Settings | None = None, **how: bool) -> None:
    async for _ in world.residency.load(name, settings, **how):
        pass


def leave_slowly(world: World, name: str) -> asyncio.Event:
    """The engine's end waits for the event that this returns."""
    held = world.launcher.engines[name].hold_stop
    held.clear()
    return held


async def both(*coroutines: Coroutine[object, object, object]) -> list[asyncio.Task[object]]:
    tasks = [asyncio.create_task(each) for each in coroutines]
    await settle()
    return tasks


@pytest.mark.parametrize("how", ["unload", "expiry", "eviction", "memory is short"])
async def test_a_load_that_meets_a_leaving_model_waits_and_loads_it_once(
    world: World, how: str
) -> None:
    world.settings = Settings(models_keep_alive=10.0, models_max_loaded=1)
    await world.use("a")
    await world.clock.advance(6)
    end = leave_slowly(world, "a")
    if how == "expiry":
        await world.clock.advance(6)
    elif how == "unload":
        await both(world.residency.unload("a"))
    elif how == "eviction":
        await both(world.use("b"))
    else:
        await both(world.residency.evict_idle())
    assert world.state("a") is State.UNLOADING
    (loading,) = await both(load(world, "a"))
    await world.clock.advance(1)
    assert world.launcher.launched.count("a") == 1
    end.set()
    await world.clock.advance(8)
    await loading
    assert world.launcher.launched.count("a") == 2
    assert world.loaded() == {"a"}
    assert list(world.memory.held) == [world.launcher.engines["a"].pid]


async def test_a_load_with_other_options_meets_a_leaving_model(world: World) -> None:
    await world.use("a")
    end = leave_slowly(world, "a")
    tasks = await both(
        world.residency.unload("a"), load(world, "a", replace(world.settings, engine_context=512))
    )
    end.set()
    await asyncio.gather(*tasks)
    assert world.loaded() == {"a"}
    assert world.residency.residents[0].loaded_as.engine_context == 512
    assert len(world.memory.held) == 1


async def test_of_two_loads_with_different_options_the_last_counts_and_the_first_is_told(
    world: World,
) -> None:
    world.launcher.gate.clear()
    first, second = await both(
        load(world, "a", replace(world.settings, engine_context=512)),
        load(world, "a", replace(world.settings, engine_context=1024)),
    )
    world.launcher.gate.set()
    await second
    with pytest.raises(ServiceError, match="cancelled"):
        await first
    assert world.residency.residents[0].loaded_as.engine_context == 1024
    assert len(world.memory.held) == 1


async def test_the_end_that_was_asked_for_is_no_crash(world: World) -> None:
    await world.use("a")
    end = leave_slowly(world, "a")
    await both(world.residency.unload("a"), load(world, "a"))
    end.set()
    await settle()
    assert world.loaded() == {"a"}
    assert world.residency.residents[0].crashes.total == 0


@pytest.mark.parametrize("phase", ["footprint", "stop"])
@pytest.mark.parametrize("who", ["unload", "eviction", "memory is short"])
async def test_a_stop_is_finished_though_its_caller_leaves(phase: str, who: str) -> None:
    world = make_world()
    asked, answer = asyncio.Event(), asyncio.Event()

    async def footprint(pid: int) -> int:
        asked.set()
        await answer.wait()
        return world.memory.held.get(pid, 0)

    world.residency._footprint = footprint
    world.settings = Settings(models_max_loaded=1)
    async with asyncio.timeout(5), world.residency:
        await world.use("a")
        await world.clock.advance(6)
        end = leave_slowly(world, "a")
        callers = {
            "unload": world.residency.unload("a"),
            "eviction": world.use("b"),
            "memory is short": world.residency.evict_idle(),
        }
        (caller,) = await both(callers.pop(who))
        for unused in callers.values():
            unused.close()
        await asked.wait()
        if phase == "stop":
            answer.set()
            await settle()
        caller.cancel()
        await settle()
        answer.set()
        end.set()
        await world.clock.advance(5)
        assert world.state("a") is None
        assert world.launcher.engines["a"].ended
        await world.use("a")


async def test_an_unload_joins_the_stop_that_is_under_way(world: World) -> None:
    await world.use("a")
    end = leave_slowly(world, "a")
    first, second = await both(world.residency.unload("a"), world.residency.unload("a", force=True))
    first.cancel()
    await settle()
    assert not second.done()
    end.set()
    assert (await second).freed_bytes == 6 * GB


async def test_a_process_that_cannot_be_ended_hangs_nobody() -> None:
    world = make_world()
    async with asyncio.timeout(5), world.residency:
        await world.use("a")

        async def survive(deadline_s: float, reason: m.Fault) -> None:
            raise ServiceError(Kind.INTERNAL, "engine process 100 survives SIGKILL")

        world.launcher.engines["a"].stop = survive
        for ask in (world.residency.unload("a"), world.use("a"), load(world, "a")):
            with pytest.raises(ServiceError, match="survives SIGKILL"):
                await ask
        await world.use("b")  # the others are served
        assert world.launcher.launched == ["a", "b"]  # and there is no second engine of it


async def test_a_footprint_that_cannot_be_read_stops_no_unload(world: World) -> None:
    async def footprint(pid: int) -> int:
        raise OSError("no such process")

    world.residency._footprint = footprint
    await world.use("a")
    assert (await world.residency.unload("a")).was_loaded
    assert world.residency.residents == []


async def test_a_load_that_is_cancelled_before_its_first_step_is_told_to_who_waits(
    world: World,
) -> None:
    results = await asyncio.gather(
        load(world, "a"), world.residency.unload("a"), return_exceptions=True
    )
    assert isinstance(results[0], ServiceError)
    assert world.residency.residents == []
    await world.use("a")


async def test_an_unload_that_meets_another_ends_no_later_load(world: World) -> None:
    world.launcher.gate.clear()
    waiting = asyncio.create_task(world.use("a"))
    await settle()
    await asyncio.gather(
        world.residency.unload("a"),
        world.residency.unload("a"),
        waiting,
        return_exceptions=True,
    )
    world.launcher.gate.set()
    await world.use("a")
    assert list(world.memory.held) == [world.launcher.engines["a"].pid]


async def test_a_refused_load_with_other_options_leaves_the_model_that_serves(
    world: World,
) -> None:
    await world.use("a")
    pid = world.launcher.engines["a"].pid
    for fault in (ServiceError(Kind.INVALID, "gpu_layers '-5'"), None):
        if fault is not None:
            world.planner.faults.append(fault)
        else:
            world.planner.budget = 5 * GB
        with pytest.raises(ServiceError):
            await load(world, "a", replace(world.settings, engine_context=10**6))
        assert world.loaded() == {"a"}
        assert list(world.memory.held) == [pid]


async def test_a_load_with_other_options_may_use_its_own_memory_and_evict(world: World) -> None:
    await world.use("a")
    await world.use("b")
    await world.clock.advance(6)
    await load(world, "a", replace(world.settings, engine_context=512))
    assert world.loaded() == {"a", "b"}


async def test_a_pin_outlives_a_load_with_other_options(world: World) -> None:
    await load(world, "a", pin=True)
    await load(world, "a", replace(world.settings, engine_context=512))
    assert world.residency.residents[0].pinned


async def test_a_request_that_joins_a_restart_may_evict_idle_models(world: World) -> None:
    world.settings = Settings(models_max_loaded=1)
    await world.use("a")
    for _ in range(2):
        world.launcher.engines["a"].die(-9)
        await settle()
    assert world.state("a") is State.LOADING  # back-off
    await world.use("b")
    await world.clock.advance(0.1)
    using = asyncio.create_task(world.use("a"))
    await world.clock.advance(10)
    await using
    assert world.loaded() == {"a"}


async def test_a_forced_load_that_joins_another_forces_it(world: World) -> None:
    await world.use("b")
    await world.use("c")
    async with world.residency.lease("b"), world.residency.lease("c"):
        plain, forced = await both(world.use("a"), load(world, "a", force=True))
        await world.clock.advance(120)
        with pytest.raises(ServiceError):  # both are busy, so nobody leaves for either
            await plain
        with pytest.raises(ServiceError):
            await forced
    world.memory.others += 12 * GB
    plain, forced = await both(world.use("a"), load(world, "a", force=True))
    await world.clock.advance(30)
    await asyncio.gather(plain, forced)
    assert "a" in world.loaded()


async def test_limits_that_need_no_new_load_reach_a_loaded_engine(world: World) -> None:
    world.settings = Settings(engine_stall=30.0)
    await world.use("a")
    engine = world.launcher.engines["a"]
    before, world.settings = world.settings, Settings(engine_stall=3600.0)
    world.residency.take_over(before, world.settings)
    engine.client.stats_reply = m.EngineStats(step_age_s=60.0)
    engine.client.busy.set()
    await world.clock.advance(10)
    assert not engine.killed_for
    await load(world, "a", replace(world.settings, engine_stall=40.0))
    await world.clock.advance(10)
    assert engine.killed_for
    assert world.launcher.engines["a"] is not engine


async def test_a_restart_takes_the_configuration_of_its_day_and_keeps_what_was_asked_for(
    world: World,
) -> None:
    await load(world, "a", replace(world.settings, engine_kv="turbo"))
    before, world.settings = world.settings, Settings(engine_context=2048)
    world.residency.take_over(before, world.settings)
    (resident,) = world.residency.residents
    assert resident.loaded_as.engine_context == 0
    world.launcher.engines["a"].die(-9)
    await settle()
    assert resident.state is State.READY
    assert resident.loaded_as.engine_context == 2048
    assert resident.loaded_as.engine_kv == "turbo"


async def test_a_lone_model_is_not_judged_as_a_group_because_the_configuration_changed(
    world: World,
) -> None:
    await world.use("a")
    engine = world.launcher.engines["a"]
    before, world.settings = world.settings, Settings(engine_cluster=True, cluster_lost_after=1.0)
    world.residency.take_over(before, world.settings)
    engine.client.stats_reply = None
    await world.clock.advance(60)
    assert not engine.killed_for


async def test_no_model_is_loaded_while_its_files_go(world: World) -> None:
    await world.use("a")
    async with world.residency.removing("a"):
        assert world.loaded() == set()
        with pytest.raises(ServiceError, match="'a' is being removed"):
            await world.use("a")
        with pytest.raises(ServiceError, match="'a' is being removed"):
            async with world.residency.removing("a"):
                pass
        await world.use("b")
    await world.use("a")  # it was refused, or is there again
    async with world.residency.lease("a"):
        with pytest.raises(ServiceError, match="is answering 1 request"):
            async with world.residency.removing("a"):
                pass
    assert "a" in world.loaded()
    await world.use("a")
