"""Who leaves when room is needed: the fewest, the least missed, and never one that is in use."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

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


async def test_memory_of_a_leaving_model_is_waited_for_and_nobody_else_leaves(
    world: World,
) -> None:
    await world.use("a")
    await world.use("b")
    await world.clock.advance(10)
    end = world.launcher.engines["a"].hold_stop
    end.clear()
    leaving = asyncio.create_task(world.residency.unload("a"))
    await settle()
    wanting = asyncio.create_task(world.use("c"))
    await world.clock.advance(30)
    assert not wanting.done()
    end.set()
    await asyncio.gather(leaving, wanting)
    assert world.loaded() == {"b", "c"}
    assert world.launcher.launched == ["a", "b", "c"]


async def test_memory_of_an_engine_that_has_just_ended_is_waited_for(world: World) -> None:
    await world.use("a")
    await world.use("b")
    await world.clock.advance(10)
    await world.residency.unload("a")
    world.memory.others += 6 * GB  # the kernel still counts it
    wanting = asyncio.create_task(world.use("c"))
    await world.clock.advance(1)
    assert world.loaded() == {"b"}
    world.memory.others -= 6 * GB
    await world.clock.advance(1)
    await wanting
    assert world.loaded() == {"b", "c"}


async def test_a_model_that_fits_does_not_wait_for_an_eviction_of_another_load(
    world: World,
) -> None:
    world.store.models["tiny"] = stored_model("tiny", 1 * GB)
    async with world.residency.lease("a"), world.residency.lease("b"):
        wants_c = asyncio.create_task(world.use("c"))
        await world.clock.advance(1)
        await asyncio.wait_for(world.use("tiny"), 1)
        await world.clock.advance(20)
        assert world.loaded() == {"a", "b", "tiny"}
    await world.clock.advance(1)
    await wants_c
    assert "c" in world.loaded()


async def test_two_loads_never_count_on_the_same_bytes(world: World) -> None:
    world.store.models["tiny"] = stored_model("tiny", 3 * GB)
    await world.use("a")
    await world.use("b")
    world.launcher.gate.clear()
    async with world.residency.lease("a"), world.residency.lease("b"):
        wants_c = asyncio.create_task(world.use("c"))
        await world.clock.advance(1)
        wants_tiny = asyncio.create_task(world.use("tiny"))
        await world.clock.advance(10)
        assert world.launcher.launched == ["a", "b"]
    world.launcher.gate.set()
    for _ in range(100):
        await world.clock.advance(1)
        assert sum(r.priced_bytes for r in world.residency.residents if r.holds_memory) <= 13 * GB
        assert sum(world.memory.held.values()) <= 14 * GB
    await asyncio.gather(wants_c, wants_tiny)


async def test_nobody_leaves_for_a_load_that_a_busy_model_keeps_out(world: World) -> None:
    world.store.models["large"] = stored_model("large", 12 * GB)
    await world.use("a")
    async with world.residency.lease("b"):
        wanting = asyncio.create_task(world.use("large"))
        await world.clock.advance(70)
        with pytest.raises(ServiceError) as caught:
            await wanting
        assert caught.value.kind is Kind.BUSY
        assert world.loaded() == {"a", "b"}
    await world.use("a")
    assert world.launcher.launched == ["a", "b"]


async def test_a_model_whose_bytes_are_not_needed_stays_though_it_is_the_oldest(
    world: World,
) -> None:
    world.store.models |= {
        "old": stored_model("old", 1 * GB),
        "big": stored_model("big", 10 * GB),
        "new": stored_model("new", 9 * GB),
    }
    await world.use("old")
    await world.clock.advance(10)
    await world.use("big")
    await world.clock.advance(10)
    await world.use("new")
    assert world.loaded() == {"old", "new"}


@pytest.mark.parametrize("when", ["held", "draining"])
@pytest.mark.parametrize("by", ["pin", "configuration", "load"])
async def test_a_model_that_is_pinned_in_time_is_not_evicted(
    world: World, when: str, by: str
) -> None:
    world.settings = Settings(models_max_loaded=1)
    async with world.residency.lease("a"):
        wanting = asyncio.create_task(world.use("b"))
        await world.clock.advance(2 if when == "held" else 10)
        if by == "pin":
            world.residency.pin("a", True)
        elif by == "load":
            async with asyncio.timeout(1):
                async for _ in world.residency.load("a", pin=True):
                    pass
        else:
            before, world.settings = world.settings, Settings(models_pinned=("a",))
            world.residency.take_over(before, replace(world.settings, models_max_loaded=1))
        async with asyncio.timeout(1), world.residency.lease("a"):
            pass  # it serves at once
    await world.clock.advance(70)
    with pytest.raises(ServiceError, match="'a' is pinned"):
        await wanting
    assert world.loaded() == {"a"}


async def test_a_model_that_leaves_cannot_be_pinned(world: World) -> None:
    await world.use("a")
    world.launcher.engines["a"].hold_stop.clear()
    leaving = asyncio.create_task(world.residency.unload("a"))
    await settle()
    with pytest.raises(ServiceError, match="not loaded"):
        world.residency.pin("a", True)
    world.launcher.engines["a"].hold_stop.set()
    await leaving


async def test_the_limit_of_models_is_named_when_it_refuses(world: World) -> None:
    world.settings = Settings(models_max_loaded=1)
    async for _ in world.residency.load("a", pin=True):
        pass
    with pytest.raises(ServiceError) as caught:
        await world.use("b")
    assert "models.max_loaded = 1 and 'a' is pinned; unpin" in caught.value.message
    assert caught.value.retry_after_s


async def test_what_never_fits_is_told_apart_from_what_does_not_fit_now(world: World) -> None:
    async for _ in world.residency.load("a", pin=True):
        pass
    async for _ in world.residency.load("b", pin=True):
        pass
    world.store.models["huge"] = stored_model("huge", 40 * GB)
    with pytest.raises(ServiceError) as never:
        await world.use("huge")
    assert (never.value.status, never.value.retry_after_s) == (507, 0)
    with pytest.raises(ServiceError) as not_now:
        await world.use("c")
    assert not_now.value.status == 503
    assert not_now.value.retry_after_s > 0


async def test_nothing_is_loaded_at_the_hard_limit_unless_it_is_forced(world: World) -> None:
    await world.use("a")
    world.memory_is_short = True
    await world.use("a")  # what is loaded serves: its requests are judged one by one
    with pytest.raises(ServiceError) as caught:
        await world.use("b")
    assert (caught.value.status, caught.value.retry_after_s) == (503, 10)
    async for _ in world.residency.load("c", force=True):
        pass
    world.memory_is_short = False
    await world.clock.advance(6)
    await world.use("b")
