"""A residency whose clock, memory, store and engines a test holds in its hands."""

from __future__ import annotations

from dataclasses import dataclass

from fakes import FakeClock, FakeLauncher, FakeMemory, FakePlanner, FakeStore, stored_model

from swiftlmd.config.settings import Settings
from swiftlmd.engines.signs import Doing
from swiftlmd.residency.residency import Residency
from swiftlmd.residency.resident import State

GB = 10**9


@dataclass(slots=True)
class World:
    clock: FakeClock
    memory: FakeMemory
    store: FakeStore
    planner: FakePlanner
    launcher: FakeLauncher
    residency: Residency
    settings: Settings
    memory_is_short: bool = False
    doing: Doing = Doing.COMPUTING  # what the system says of every engine

    def state(self, name: str) -> State | None:
        return next((r.state for r in self.residency.residents if r.name == name), None)

    def loaded(self) -> set[str]:
        return {r.name for r in self.residency.residents if r.state is State.READY}

    async def use(self, name: str) -> None:
        async with self.residency.lease(name):
            pass


def make_world() -> World:
    """Three models of 6 GB and room for two of them."""
    clock, memory = FakeClock(), FakeMemory(total=16 * GB, others=2 * GB)
    store = FakeStore(
        stored_model("a", 6 * GB), stored_model("b", 6 * GB), stored_model("c", 6 * GB)
    )
    planner, launcher = FakePlanner(memory, budget=13 * GB), FakeLauncher(memory)
    residency = Residency(
        clock=clock,
        store=store,
        planner=planner,
        launcher=launcher,
        footprint=memory.footprint_bytes,
        settings=lambda: world.settings,
        memory_is_short=lambda: world.memory_is_short,
        observe=lambda pid: world.doing,
    )
    world = World(clock, memory, store, planner, launcher, residency, Settings())
    return world
