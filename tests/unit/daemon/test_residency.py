"""Residency as timelines. Invariants: a leased model is never ended; what is priced never
exceeds the budget unless forced; every model has at most one load under way.
"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import replace

import pytest
from fakes import (
    settle,
    stored_model,
)
from residency_world import GB, World

from swiftlm_proto import messages as m
from swiftlmd.config.settings import NEVER, Settings
from swiftlmd.engines.process import EngineDied
from swiftlmd.faults import Kind, ModelNotFound, ServiceError
from swiftlmd.residency.resident import State


async def test_ten_first_requests_at_once_load_a_model_once(world: World) -> None:
    world.launcher.gate.clear()
    leases = [asyncio.create_task(world.use("a")) for _ in range(10)]
    await settle()
    world.launcher.gate.set()
    await asyncio.gather(*leases)
    assert world.launcher.launched == ["a"]


async def test_a_waiter_that_leaves_does_not_stop_the_load(world: World) -> None:
    world.launcher.gate.clear()
    first = asyncio.create_task(world.use("a"))
    second = asyncio.create_task(world.use("a"))
    await settle()
    first.cancel()
    world.launcher.gate.set()
    await second
    assert world.launcher.launched == ["a"]


async def test_the_least_recently_used_model_makes_room(world: World) -> None:
    await world.use("a")
    await world.clock.advance(10)
    await world.use("b")
    await world.clock.advance(10)
    await world.use("a")
    await world.use("c")
    assert world.loaded() == {"a", "c"}


async def test_a_crashed_model_does_not_push_others_out_when_it_starts_again(
    world: World,
) -> None:
    await world.use("a")
    await world.clock.advance(10)
    await world.use("b")
    await world.clock.advance(10)
    world.memory.others += 5 * GB
    world.launcher.engines["a"].die(-9)
    await world.clock.advance(5)
    assert world.loaded() == {"b"}
    assert world.state("a") is State.FAILED
    await world.use("a")  # a request may
    assert world.loaded() == {"a"}


async def test_a_pinned_model_is_neither_evicted_nor_expired(world: World) -> None:
    async for _ in world.residency.load("a", pin=True):
        pass
    await world.clock.advance(5000)
    await world.use("b")
    await world.clock.advance(10)
    await world.use("c")
    assert world.loaded() == {"a", "c"}


async def test_a_fresh_model_is_held_before_another_takes_its_place(world: World) -> None:
    await world.use("a")
    await world.clock.advance(20)
    await world.use("b")
    await world.clock.advance(1)
    await world.use("a")
    swap = asyncio.create_task(world.use("c"))
    await world.clock.advance(2)
    assert "b" in world.loaded()
    assert not swap.done()
    await world.clock.advance(10)
    await swap
    assert world.loaded() == {"a", "c"}


async def test_an_idle_model_leaves_after_its_keep_alive(world: World) -> None:
    world.settings = Settings(models_keep_alive=60.0)
    await world.use("a")
    await world.clock.advance(59)
    assert world.loaded() == {"a"}
    await world.clock.advance(3)
    assert world.loaded() == set()
    assert world.memory.held == {}


async def test_a_request_may_say_how_long_its_model_stays(world: World) -> None:
    async with world.residency.lease("a", 5.0):
        await world.clock.advance(100)
        assert world.loaded() == {"a"}
    await world.clock.advance(7)
    assert world.loaded() == set()
    async with world.residency.lease("a", NEVER):
        pass
    await world.clock.advance(5000)
    assert world.loaded() == {"a"}


async def test_a_changed_configuration_counts_for_models_that_are_loaded(world: World) -> None:
    def change(now: Settings) -> None:
        before, world.settings = world.settings, now
        world.residency.take_over(before, now)

    await world.use("a")
    await world.use("b")
    change(Settings(models_keep_alive=60.0, models_pinned=("b",)))
    await world.clock.advance(62)
    assert world.loaded() == {"b"}
    async with world.residency.lease("b", 900.0):
        pass
    change(replace(world.settings, models_pinned=()))  # leaves alone what a request said
    await world.clock.advance(800)
    assert world.loaded() == {"b"}
    await world.clock.advance(110)
    assert world.loaded() == set()


async def test_a_crashed_engine_is_started_again_with_growing_pauses(world: World) -> None:
    await world.use("a")
    world.launcher.engines["a"].die(-9)
    await settle()
    assert world.loaded() == {"a"}  # the first crash costs no pause
    world.launcher.engines["a"].die(-9)
    await settle()
    assert world.state("a") is State.LOADING
    await world.clock.advance(1.1)
    assert world.loaded() == {"a"}
    assert world.launcher.launched == ["a"] * 3


async def test_a_model_that_keeps_crashing_stays_down_until_it_is_asked_for_by_name(
    world: World,
) -> None:
    await world.use("a")
    for _ in range(5):
        world.launcher.engines["a"].die(-11)
        await world.clock.advance(40)
    assert world.state("a") is State.FAILED
    await world.clock.advance(60)
    with pytest.raises(ServiceError) as caught:
        await world.use("a")
    assert caught.value.kind is Kind.MODEL_BROKEN
    async for _ in world.residency.load("a"):
        pass
    assert world.loaded() == {"a"}


async def test_a_failed_load_is_told_to_every_waiter_and_not_repeated_at_once(
    world: World,
) -> None:
    world.launcher.faults.append(ServiceError(Kind.MODEL_BROKEN, "shard 2 is cut short"))
    results = await asyncio.gather(*(world.use("a") for _ in range(4)), return_exceptions=True)
    assert [str(result) for result in results] == ["shard 2 is cut short"] * 4
    with pytest.raises(ServiceError):
        await world.use("a")
    assert world.launcher.launched == ["a"]
    await world.clock.advance(6)
    await world.use("a")
    assert world.loaded() == {"a"}


async def test_a_load_that_could_not_be_planned_is_tried_again_at_once(world: World) -> None:
    world.planner.faults.append(ServiceError(Kind.UNSUPPORTED, "host 'studio' lacks its files"))
    with pytest.raises(ServiceError, match="studio"):
        await world.use("a")
    await world.use("a")
    assert world.loaded() == {"a"}


async def test_an_engine_that_dies_while_loading_is_tried_again_with_pauses_then_no_more(
    world: World,
) -> None:
    world.launcher.faults += [EngineDied("it was killed")] * 5
    for pause_s in (0, 0, 1, 2, 4):
        request = asyncio.create_task(world.use("a"))
        await world.clock.advance(pause_s)
        with pytest.raises(ServiceError, match="it was killed"):
            await request
    with pytest.raises(ServiceError) as caught:
        await world.use("a")
    assert caught.value.kind is Kind.MODEL_BROKEN
    assert len(world.launcher.launched) == 5


async def test_the_next_request_after_an_engines_death_waits_for_the_new_engine(
    world: World,
) -> None:
    await world.use("a")
    dead = world.launcher.engines["a"]
    dead.die(-9)  # its requests know, residency's own task has not run yet
    async with world.residency.lease("a") as lease:
        assert lease.engine is not dead
    assert world.launcher.launched == ["a", "a"]


async def test_a_model_that_failed_is_looked_up_again_before_the_next_try(world: World) -> None:
    world.launcher.faults.append(ServiceError(Kind.INVALID, "context 900 is too much"))
    world.settings = Settings(engine_context=900)
    with pytest.raises(ServiceError):
        await world.use("a")
    await world.clock.advance(6)
    world.settings = Settings(engine_context=100)
    world.store.models["a"] = stored_model("a", 3 * GB)
    await world.use("a")
    resident = world.residency.residents[0]
    assert resident.settings.engine_context == 100
    assert resident.priced_bytes == 3 * GB


async def test_a_load_that_failed_as_asked_does_not_keep_requests_from_the_configured_one(
    world: World,
) -> None:
    world.launcher.faults.append(ServiceError(Kind.INVALID, "kv k4v3 failed its self-test"))
    with pytest.raises(ServiceError):
        async for _ in world.residency.load("a", Settings(engine_kv="k4v3")):
            pass
    await world.use("a")
    assert world.loaded() == {"a"}


async def test_unload_reports_what_the_kernel_counted_and_the_process_is_gone(
    world: World,
) -> None:
    await world.use("a")
    pid = world.launcher.engines["a"].pid
    done = await world.residency.unload("a")
    assert (done.was_loaded, done.freed_bytes, done.pid) == (True, 6 * GB, pid)
    assert pid not in world.memory.held
    assert world.residency.residents == []


async def test_unload_refuses_while_requests_run_unless_forced(world: World) -> None:
    async with world.residency.lease("a"):
        with pytest.raises(ServiceError) as caught:
            await world.residency.unload("a")
        assert caught.value.kind is Kind.BUSY
        assert (await world.residency.unload("a", force=True)).was_loaded


async def test_unload_during_a_load_stops_the_load_and_tells_the_waiter(world: World) -> None:
    world.launcher.gate.clear()
    waiting = asyncio.create_task(world.use("a"))
    await settle()
    await world.residency.unload("a")
    with pytest.raises(ServiceError) as caught:
        await waiting
    assert caught.value.kind is Kind.SHUTTING_DOWN
    assert world.residency.residents == []


async def test_the_deadline_of_an_unload_grows_with_the_model(world: World) -> None:
    world.store.models["big"] = stored_model("big", 12 * GB)
    await world.use("big")
    engine = world.launcher.engines["big"]
    await world.residency.unload("big")
    assert engine.stop_deadline_s is not None
    assert engine.stop_deadline_s >= 10 + 12


async def test_load_shows_progress_and_ends_when_the_model_is_ready(world: World) -> None:
    world.launcher.gate.clear()
    stages = []
    async for event in world.residency.load("a"):
        stages.append(event.stage)
        if event.stage is m.LoadEventStage.WEIGHTS:
            world.launcher.gate.set()
    assert m.LoadEventStage.WEIGHTS in stages
    assert world.loaded() == {"a"}
    assert [event async for event in world.residency.load("a")] == []


async def test_the_time_of_a_load_is_what_somebody_waited_for_it(world: World) -> None:
    world.launcher.gate.clear()
    waiting = asyncio.create_task(world.use("a"))
    await settle()
    await world.clock.advance(27)  # its process starts, and the other ranks of its group
    world.launcher.gate.set()
    await waiting
    assert world.launcher.engines["a"].loaded.load_s == 27


async def test_load_with_other_options_replaces_the_loaded_model(world: World) -> None:
    await world.use("a")
    async for _ in world.residency.load("a", replace(world.settings, engine_context=512)):
        pass
    assert world.launcher.launched == ["a", "a"]
    assert len(world.memory.held) == 1


async def test_a_forced_load_goes_past_the_budget(world: World) -> None:
    world.store.models["huge"] = stored_model("huge", 40 * GB)
    async for _ in world.residency.load("huge", force=True):
        pass
    assert world.loaded() == {"huge"}


async def test_only_a_forced_load_lets_the_engine_take_weights_that_make_no_sense(
    world: World,
) -> None:
    await world.use("a")
    async for _ in world.residency.load("b", force=True):
        pass
    assert world.launcher.forced == {"b"}


async def test_an_engine_without_a_step_for_too_long_is_ended_and_replaced(world: World) -> None:
    world.settings = Settings(engine_stall=30.0)
    await world.use("a")
    engine = world.launcher.engines["a"]
    engine.client.stats_reply = m.EngineStats(step_age_s=31.0)
    engine.client.busy.set()
    await world.clock.advance(3)
    assert "no step" in engine.killed_for
    assert world.launcher.engines["a"] is not engine
    assert world.loaded() == {"a"}


async def test_an_engine_that_does_not_answer_at_all_is_ended_too(world: World) -> None:
    world.settings = Settings(engine_stall=30.0)
    await world.use("a")
    engine = world.launcher.engines["a"]
    engine.client.stats_reply = None
    await world.clock.advance(60)
    assert engine.killed_for


async def test_a_leader_that_its_group_has_given_up_is_ended_long_before_a_stalled_engine(
    world: World,
) -> None:
    world.settings = Settings(engine_cluster=True, cluster_lost_after=10.0, engine_stall=300.0)
    await world.use("a")
    engine = world.launcher.engines["a"]
    engine.client.stats_reply = None
    await world.clock.advance(8)
    assert not engine.killed_for
    await world.clock.advance(15)
    assert "rank 0" in engine.killed_for


async def test_a_leader_is_not_silent_while_nobody_asks_it(world: World) -> None:
    world.settings = Settings(engine_cluster=True, cluster_lost_after=2.0)
    await world.use("a")
    engine = world.launcher.engines["a"]
    await world.clock.advance(30)  # idle: a question each ten seconds
    good, engine.client.stats_reply = engine.client.stats_reply, None
    await world.clock.advance(10)
    engine.client.stats_reply = good
    await world.clock.advance(60)
    assert not engine.killed_for


async def test_alternating_requests_swap_no_faster_than_the_hold(world: World) -> None:
    world.settings = Settings(models_max_loaded=1)

    async def ask(name: str) -> None:
        for _ in range(20):
            await world.use(name)
            await world.clock.sleep(0.5)

    both = asyncio.gather(ask("a"), ask("b"))
    while not both.done():
        await world.clock.advance(0.5)
        assert len(world.loaded()) <= 1
    elapsed = world.clock.now() - 1000
    assert len(world.launcher.launched) <= elapsed / 5 + 2


async def test_unknown_and_broken_models_are_refused_by_name(world: World) -> None:
    with pytest.raises(ModelNotFound) as missing:
        await world.use("nope")
    assert "a, b, c" in missing.value.message
    world.store.models["cut"] = stored_model("cut", reason="model-2.safetensors is missing")
    with pytest.raises(ServiceError) as broken:
        await world.use("cut")
    assert "model-2.safetensors is missing" in broken.value.message
    assert world.launcher.launched == []


async def test_a_loaded_model_is_served_after_its_folder_was_removed(world: World) -> None:
    await world.use("a")
    world.store.models.clear()
    await world.use("a")
    assert world.launcher.launched == ["a"]


async def test_a_fault_that_is_told_again_and_again_keeps_nothing_of_who_heard_it(
    world: World,
) -> None:
    world.launcher.faults.append(ServiceError(Kind.MODEL_BROKEN, "shard 2 is cut short"))
    depths = []
    for _ in range(3):
        with pytest.raises(ServiceError, match="shard 2") as caught:
            await world.use("a")
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert depths[2] == depths[1]


@pytest.mark.parametrize("is_launched", [False, True])
@pytest.mark.parametrize("kind", [Kind.INVALID, Kind.UNSUPPORTED, Kind.NOT_ENOUGH_MEMORY])
async def test_options_that_are_refused_do_not_make_the_model_a_failed_one(
    world: World, kind: Kind, is_launched: bool
) -> None:
    faults = world.launcher.faults if is_launched else world.planner.faults
    faults.append(ServiceError(kind, "not with these options"))
    with pytest.raises(ServiceError, match="not with these options"):
        async for _ in world.residency.load("a", Settings(engine_context=77)):
            pass
    assert world.state("a") is None
    await world.use("a")
    assert world.loaded() == {"a"}


async def test_options_that_are_refused_cost_a_request_that_waits_nothing(world: World) -> None:
    world.launcher.gate.clear()
    world.launcher.faults.append(ServiceError(Kind.UNSUPPORTED, "not with these options"))
    load = asyncio.create_task(_load(world, Settings(engine_context=77)))
    await settle()
    request = asyncio.create_task(world.use("a"))
    await settle()
    world.launcher.gate.set()
    with pytest.raises(ServiceError):
        await load
    await request
    assert world.loaded() == {"a"}


@pytest.mark.parametrize("by", ["load", "request"])
async def test_a_model_for_which_there_is_no_room_is_as_before(world: World, by: str) -> None:
    world.memory.others += 11 * GB
    for _ in range(2):
        with pytest.raises(ServiceError, match="needs") as refused:
            await (_load(world) if by == "load" else world.use("a"))
        assert refused.value.kind is Kind.NOT_ENOUGH_MEMORY
        assert world.state("a") is None
    world.memory.others -= 11 * GB
    await world.use("a")
    assert world.loaded() == {"a"}


async def test_all_who_wait_for_a_model_without_room_are_told(world: World) -> None:
    world.memory.others += 11 * GB
    asked = [world.use("a"), _load(world), world.use("a")]
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert [getattr(error, "kind", None) for error in told] == [Kind.NOT_ENOUGH_MEMORY] * 3
    assert world.state("a") is None


async def test_a_broken_model_is_a_failed_one_also_with_options(world: World) -> None:
    world.launcher.faults.append(ServiceError(Kind.MODEL_BROKEN, "shard 2 is cut short"))
    with pytest.raises(ServiceError):
        await _load(world, Settings(engine_context=77))
    assert world.state("a") is State.FAILED


async def _load(world: World, settings: Settings | None = None) -> None:
    async for _ in world.residency.load("a", settings):
        pass
