"""What pressure takes from loaded models: caches before models; all of it comes back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fakes import FakeClock, FakeLoadedEngine, FakeMemory, stored_model

from swiftlm_proto import messages as m
from swiftlmd.config.settings import Settings
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.memory import Action
from swiftlmd.residency.crashes import CrashRecord
from swiftlmd.residency.reclaim import EngineReclaimer
from swiftlmd.residency.resident import Resident

GB = 10**9


class Caches:
    """The engine's end of the Cache call."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.slots: list[int] = []
        self.cleared = 0
        self.expanded: list[bool] = []

    async def cache(self, request: m.CacheRequest) -> m.CacheReply:
        self.cleared += request.clear_pool
        if request.resize_bytes is not None:
            self.budget_bytes = request.resize_bytes
        if request.expanded is not None:
            self.expanded.append(request.expanded)
        if request.expert_slots is not None:
            self.slots.append(request.expert_slots)
        return m.CacheReply(stats=m.PrefixStats(budget_bytes=self.budget_bytes))


class World:
    def __init__(self) -> None:
        self.evicted = 0
        self.caches = [Caches(40 * GB), Caches(0)]
        self.residents = [self._resident(i, caches) for i, caches in enumerate(self.caches)]
        self.reclaimer = EngineReclaimer(self)  # type: ignore[arg-type]

    def _resident(self, number: int, caches: Caches) -> Resident:
        clock = FakeClock()
        resident = Resident(stored_model(f"m{number}"), Settings(), CrashRecord(clock), 60.0)
        engine = FakeLoadedEngine(f"m{number}", 10 + number, FakeMemory(), GB)
        engine.client = SimpleNamespace(cache=caches.cache)  # type: ignore[assignment]
        resident.became_ready(engine, clock.now())  # type: ignore[arg-type]
        resident.pinned = True
        return resident

    async def evict_idle(self) -> int:
        self.evicted += 1
        return 0

    def stream(self, slots: int, experts_per_token: int = 8) -> None:
        engine = self.residents[0].engine
        assert engine is not None
        engine.stats = m.EngineStats(
            stream=m.StreamCounters(slots=slots, experts_per_token=experts_per_token)
        )


@pytest.fixture
async def world() -> World:
    return World()


async def test_caches_of_pinned_models_shrink_before_any_model_leaves(world: World) -> None:
    for action in (Action.CLEAR_POOL, Action.SHRINK_PREFIX, Action.SHRINK_SLOTS):
        await world.reclaimer.reclaim(action)
    assert [caches.cleared for caches in world.caches] == [1, 1]
    assert [caches.budget_bytes for caches in world.caches] == [20 * GB, 0]
    assert world.evicted == 0
    await world.reclaimer.reclaim(Action.EVICT_IDLE)
    assert world.evicted == 1


async def test_what_was_shrunk_twice_comes_back_whole(world: World) -> None:
    world.stream(slots=100)
    for _ in range(2):
        await world.reclaimer.reclaim(Action.SHRINK_PREFIX)
    await world.reclaimer.reclaim(Action.SHRINK_SLOTS)
    assert world.caches[0].budget_bytes == 10 * GB
    assert world.caches[0].slots == [80]
    world.stream(slots=80)
    await world.reclaimer.reclaim(Action.SHRINK_SLOTS)
    await world.reclaimer.restore()
    assert world.caches[0].budget_bytes == 40 * GB
    assert world.caches[0].slots == [80, 64, 100]


async def test_a_token_keeps_the_slots_it_needs(world: World) -> None:
    world.stream(slots=9, experts_per_token=8)
    await world.reclaimer.reclaim(Action.SHRINK_SLOTS)
    world.stream(slots=8, experts_per_token=8)
    await world.reclaimer.reclaim(Action.SHRINK_SLOTS)
    assert world.caches[0].slots == [8]


async def test_a_cache_that_could_not_grow_back_is_asked_again() -> None:
    world = World()
    await world.reclaimer.reclaim(Action.SHRINK_PREFIX)
    answer = world.caches[0].cache

    async def refuse(request: m.CacheRequest) -> m.CacheReply:
        raise ServiceError(Kind.DEADLINE, "busy")

    world.residents[0].engine.client.cache = refuse
    await world.reclaimer.restore()
    world.residents[0].engine.client.cache = answer
    assert world.caches[0].budget_bytes == 20 * GB
    await world.reclaimer.restore()
    assert world.caches[0].budget_bytes == 40 * GB


async def test_float32_weights_are_packed_before_a_model_leaves_and_expand_again(
    world: World,
) -> None:
    world.residents[0].expanded_bytes = GB
    for action in (Action.CLEAR_POOL, Action.SHRINK_PREFIX, Action.PACK_WEIGHTS):
        await world.reclaimer.reclaim(action)
    assert [caches.expanded for caches in world.caches] == [[False], []]
    assert world.evicted == 0
    await world.reclaimer.restore()
    assert [caches.expanded for caches in world.caches] == [[False, True], []]


async def test_weights_that_made_room_for_another_model_stay_packed(world: World) -> None:
    world.residents[0].expanded_bytes = GB
    await world.reclaimer.reclaim(Action.PACK_WEIGHTS)
    world.residents[0].expanded_bytes = 0  # another model was loaded into their place
    await world.reclaimer.restore()
    assert world.caches[0].expanded == [False]
