"""Who leaves, how many, and when: bytes, keep-alive, pins, crash budgets, as timelines."""

from __future__ import annotations

import asyncio
import types

import pytest
from fakes import stored_model
from residency_world import GB, World

from swiftlmd.config.settings import Settings
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.residency.resident import State


async def use_in_time(world: World, name: str) -> None:
    """As `use`, with half a minute of the clock for what it waits for."""
    using = asyncio.create_task(world.use(name))
    await world.clock.advance(30)
    await using


async def three_small(world: World) -> None:
    """Models of 4 GB, used in this order; 1 GB of the budget is left."""
    for name in ("old", "middle", "new"):
        world.store.models[name] = stored_model(name, 4 * GB)
        await world.use(name)
        await world.clock.advance(10)


async def test_as_many_models_leave_as_the_bytes_need_the_longest_unused_first(
    world: World,
) -> None:
    await three_small(world)
    await use_in_time(world, "a")  # 6 GB: one of 4 is not enough
    assert world.loaded() == {"new", "a"}


async def test_no_more_models_leave_than_the_bytes_need(world: World) -> None:
    await three_small(world)
    world.store.models["tiny"] = stored_model("tiny", 2 * GB)
    await use_in_time(world, "tiny")
    assert world.loaded() == {"middle", "new", "tiny"}


async def test_memory_that_does_not_come_back_means_a_refusal_not_a_load_on_trust(
    world: World,
) -> None:
    await world.use("a")
    await world.clock.advance(10)
    await world.use("b")
    await world.clock.advance(10)
    before = list(world.launcher.launched)
    world.memory.others += 12 * GB  # what both give back is gone at once
    with pytest.raises(ServiceError) as caught:
        await use_in_time(world, "c")
    assert caught.value.kind is Kind.NOT_ENOUGH_MEMORY
    assert world.launcher.launched == before


async def test_a_models_own_table_says_how_long_it_stays(world: World) -> None:
    own = types.MappingProxyType({"a": {"keep_alive": 5.0}})
    world.settings = Settings(models_keep_alive=600.0, model=own)
    await world.use("a")
    await world.use("b")
    await world.clock.advance(7)
    assert world.loaded() == {"b"}


async def test_keep_alive_zero_lets_the_model_go_after_the_request(world: World) -> None:
    async with world.residency.lease("a", 0.0):
        await world.clock.advance(30)
        assert world.loaded() == {"a"}
    await world.clock.advance(2)
    assert world.loaded() == set()
    assert world.memory.held == {}


async def test_a_model_that_is_pinned_by_configuration_never_makes_room(world: World) -> None:
    world.settings = Settings(models_pinned=("a",))
    await world.use("a")
    await world.clock.advance(10)
    await world.use("b")
    await world.clock.advance(10)
    await world.use("c")
    assert world.loaded() == {"a", "c"}


async def test_under_pressure_idle_models_leave_and_their_bytes_are_reported(
    world: World,
) -> None:
    await world.use("a")
    async with world.residency.lease("b"):
        assert await world.residency.evict_idle() == 6 * GB
        assert world.loaded() == {"b"}
    async for _ in world.residency.load("b", pin=True):
        pass
    assert await world.residency.evict_idle() == 0
    assert world.loaded() == {"b"}


async def test_the_crashes_of_one_model_do_not_count_for_another(world: World) -> None:
    await world.use("b")
    await world.use("a")
    for _ in range(5):
        world.launcher.engines["a"].die(-9)
        await world.clock.advance(31)
    assert world.state("a") is State.FAILED
    world.launcher.engines["b"].die(-9)
    await world.clock.advance(1)
    assert world.loaded() == {"b"}


async def test_crashes_that_lie_long_back_do_not_count(world: World) -> None:
    world.settings = Settings(models_keep_alive=1e6)
    await world.use("a")
    for _ in range(12):
        world.launcher.engines["a"].die(-9)
        await world.clock.advance(301)
    assert world.loaded() == {"a"}


async def test_float32_weights_make_room_before_a_model_leaves(world: World) -> None:
    world.planner.expanded = {"a": 3 * GB, "b": GB}
    await world.use("a")
    await world.use("b")
    world.store.models["small"] = stored_model("small", 2 * GB)
    await use_in_time(world, "small")  # 1 GB is free
    assert world.loaded() == {"a", "b", "small"}
    priced = {r.name: r.priced_bytes for r in world.residency.residents}
    assert priced == {"a": 3 * GB, "b": 6 * GB, "small": 2 * GB}  # the longest unused gave back


async def test_float32_weights_stay_where_giving_them_back_would_not_do(world: World) -> None:
    world.planner.expanded = {"a": GB, "b": GB}
    await world.use("a")
    await world.clock.advance(10)
    await world.use("b")
    await world.clock.advance(10)
    await use_in_time(world, "c")  # 6 GB: a model has to leave, and that is enough
    assert world.loaded() == {"b", "c"}
    assert {r.expanded_bytes for r in world.residency.residents if r.name == "b"} == {GB}


async def test_pinned_models_give_float32_weights_back_before_a_load_is_refused(
    world: World,
) -> None:
    world.planner.expanded = {"a": 3 * GB, "b": 3 * GB}
    for name in ("a", "b"):
        await world.use(name)
        world.residency.pin(name, True)
    world.store.models["big"] = stored_model("big", 7 * GB)
    await use_in_time(world, "big")
    assert world.loaded() == {"a", "b", "big"}


async def test_a_model_that_cannot_fit_leaves_the_others_as_they_are(world: World) -> None:
    world.planner.expanded = {"a": GB}
    await world.use("a")
    world.store.models["huge"] = stored_model("huge", 40 * GB)
    with pytest.raises(ServiceError):
        await use_in_time(world, "huge")
    assert {r.expanded_bytes for r in world.residency.residents if r.name == "a"} == {GB}
