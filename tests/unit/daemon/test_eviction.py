"""Who leaves when room is needed: the fewest, the least missed, and never one that is in use."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from fakes import settle, stored_model
from residency_world import GB, World

from swiftlmd.config.settings import Settings
from swiftlmd.faults import Kind, ServiceError


async def test_a_leased_model_is_not_evicted_until_its_lease_ends(world: World) -> None:
    await world.use("b")
    await world.clock.advance(10)
    async with world.residency.lease("a"), world.residency.lease("b"):
        waiting = asyncio.create_task(world.use("c"))
        await world.clock.advance(30)
        assert world.loaded() == {"a", "b"}
        assert not waiting.done()
    await waiting
    assert "c" in world.loaded()


async def test_a_busy_victim_that_stays_busy_gives_busy_not_eviction(world: World) -> None:
    async with world.residency.lease("a"), world.residency.lease("b"):
        waiting = asyncio.create_task(world.use("c"))
        await world.clock.advance(70)
        with pytest.raises(ServiceError) as caught:
            await waiting
        assert caught.value.kind is Kind.BUSY
        assert world.loaded() == {"a", "b"}
    await world.use("a")


async def test_a_request_for_a_draining_victim_waits_and_loads_it_again(world: World) -> None:
    async with AsyncExitStack() as b_is_used:
        await b_is_used.enter_async_context(world.residency.lease("b"))
        await world.clock.advance(10)
        async with world.residency.lease("a"):
            wants_c = asyncio.create_task(world.use("c"))
            await world.clock.advance(1)
            wants_b = asyncio.create_task(world.use("b"))
            await settle()
            assert not wants_b.done()
            await b_is_used.aclose()
            await wants_c
    await world.clock.advance(10)
    await wants_b
    assert world.launcher.launched.count("b") == 2


@pytest.mark.parametrize(
    ("settings", "second"),
    [(Settings(models_max_loaded=1), "b"), (Settings(), "large")],
    ids=["one may be loaded", "memory for one"],
)
async def test_two_first_requests_at_once_are_served_one_after_the_other(
    world: World, settings: Settings, second: str
) -> None:
    world.store.models["large"] = stored_model("large", 12 * GB)
    world.settings = settings
    world.launcher.gate.clear()
    both = [asyncio.create_task(world.use(name)) for name in ("a", second)]
    await world.clock.advance(1)
    assert world.launcher.launched == ["a"]
    world.launcher.gate.set()
    await world.clock.advance(10)
    await asyncio.gather(*both)
    assert world.launcher.launched == ["a", second]
    assert world.loaded() == {second}


async def test_the_load_of_a_pinned_model_is_not_waited_for(world: World) -> None:
    world.settings = Settings(models_max_loaded=1, models_pinned=["a"])
    world.launcher.gate.clear()
    first = asyncio.create_task(world.use("a"))
    await settle()
    with pytest.raises(ServiceError):
        await world.use("b")
    world.launcher.gate.set()
    await first


async def test_nobody_is_evicted_for_a_model_that_cannot_fit(world: World) -> None:
    world.store.models["huge"] = stored_model("huge", 40 * GB)
    await world.use("a")
    with pytest.raises(ServiceError) as caught:
        await world.use("huge")
    assert caught.value.kind is Kind.NOT_ENOUGH_MEMORY
    assert str(40 * GB) in caught.value.message
    assert world.loaded() == {"a"}


async def test_two_that_must_both_leave_are_not_waited_for_one_by_one(world: World) -> None:
    world.store.models["large"] = stored_model("large", 12 * GB)
    await world.use("a")
    await world.use("b")
    await world.clock.advance(10)
    started_at = world.clock.now()
    await world.use("large")
    assert world.loaded() == {"large"}
    assert world.clock.now() == started_at


async def test_a_load_waits_for_evicted_memory_to_come_back(world: World) -> None:
    await world.use("a")
    await world.clock.advance(10)
    await world.use("b")
    await world.clock.advance(10)
    async with world.residency.lease("b"):
        async with world.residency.lease("a"):
            swap = asyncio.create_task(world.use("c"))
            await settle()
            world.memory.others += 6 * GB  # what "a" holds will not be given back at once
        await world.clock.advance(1)
    assert world.loaded() == {"b"}
    assert not swap.done()
    world.memory.others -= 6 * GB
    await world.clock.advance(1)
    await swap
    assert world.loaded() == {"b", "c"}
