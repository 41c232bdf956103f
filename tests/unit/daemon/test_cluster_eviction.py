"""Models of a group make room for each other on every host, and memory that comes back is seen.

Residency, planner and survey are real; two Macs are played by what they would report.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeClock, FakeLauncher, FakeMemory, FakeStore, settle, stored_model
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B, GIB, mac

from swiftlm_engine.brain.calibration import Spread
from swiftlm_engine.brain.plan import MachineLimits
from swiftlm_proto.paths import under
from swiftlmd.calibration import CalibrationStore
from swiftlmd.config.settings import Settings
from swiftlmd.engines.placement import Placement
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.hosts.checks import HostCheck
from swiftlmd.hosts.link_speed import LinkMeasure
from swiftlmd.hosts.registry import Host
from swiftlmd.hosts.report import HostReport
from swiftlmd.hosts.survey import Survey
from swiftlmd.planning.disk_speeds import DiskSpeeds
from swiftlmd.planning.planner import ModelPlanner
from swiftlmd.residency.residency import Residency

LINK = LinkMeasure(7, Spread.of([3e9, 4e9]), Spread.of([2e-5, 4e-5]))
SETTINGS = Settings(
    engine_cluster=True,
    engine_cluster_split="tensor",  # a pipeline would give the other Mac what fits there
    engine_context=4096,
    engine_parallel=1,
    models_swap_hold=0.0,
    cluster_hosts=("localhost", "studio"),
    cluster_agents={"studio": "10.0.0.2:5415"},
)


@dataclass
class Studio:
    """The other Mac: what its ranks hold, and what has ended but is still counted."""

    clock: FakeClock
    free: int = 4 * GIB
    ranks: dict[str, int] = field(default_factory=dict)
    slow: list[tuple[float, int]] = field(default_factory=list)
    delay_s: float = 2.0  # until memory shows

    def examine(self, host: Host, models: Any, *, measure: bool = True) -> HostCheck:
        counted = sum(size for until, size in self.slow if until > self.clock.now())
        free = self.free - sum(self.ranks.values()) - counted
        machine = mac(64, 48.0, reclaimable_bytes=free)
        if host.here:
            return HostCheck(host, report=HostReport("1", "2", mac(64, 48.0)))
        return HostCheck(host, (), HostReport("1", "2", machine), LINK)

    def ended(self, model: str) -> None:
        self.slow.append((self.clock.now() + self.delay_s, self.ranks.pop(model)))


class GroupLauncher(FakeLauncher):
    """Each engine has a rank on the other Mac, which ends after it."""

    def __init__(self, memory: FakeMemory, studio: Studio) -> None:
        super().__init__(memory)
        self.studio = studio

    async def launch(self, placement: Placement, settings: Settings, on_progress: Any) -> Any:
        model = placement.request.model
        self.studio.ranks[model] = placement.elsewhere["studio"]
        engine = await super().launch(placement, settings, on_progress)
        die = engine.die

        def dies(code: int) -> None:
            die(code)
            self.studio.ended(model)

        engine.die = dies
        return engine


@dataclass
class World:
    residency: Residency
    clock: FakeClock
    studio: Studio
    launcher: GroupLauncher

    async def load(self, name: str) -> None:
        async def load() -> None:
            async for _ in self.residency.load(name):
                pass

        task = asyncio.create_task(load())
        for _ in range(200):
            if task.done():
                break
            await asyncio.sleep(0.005)  # the planner works in a thread
            await self.clock.advance(0.1)
        await task
        await self.clock.advance(2.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("dense"), DENSE_8B, decoder(DENSE_8B, Quant(4)))


@pytest.fixture
def world(folder: Path, tmp_path: Path) -> World:
    clock, memory = FakeClock(), FakeMemory(total=64 * GIB)
    studio = Studio(clock)
    launcher = GroupLauncher(memory, studio)

    def limits(*, committed_bytes: int, returning_bytes: int) -> MachineLimits:
        return replace(mac(64, 48.0), committed_bytes=committed_bytes)

    planner = ModelPlanner(
        under(tmp_path),
        limits,
        DiskSpeeds(tmp_path / "disks.json"),
        CalibrationStore(tmp_path),
        Survey(studio, clock.now),  # type: ignore[arg-type] # a fake
    )
    names = ("a", "b")
    residency = Residency(
        clock=clock,
        store=FakeStore(*(replace(stored_model(name), path=folder) for name in names)),
        planner=planner,
        launcher=launcher,
        footprint=memory.footprint_bytes,
        settings=lambda: SETTINGS,
    )
    return World(residency, clock, studio, launcher)


async def test_an_idle_model_of_the_group_makes_room_on_the_other_host(world: World) -> None:
    async with world.residency:
        await world.load("a")
        await world.load("b")
        assert world.launcher.launched == ["a", "b"]
        assert list(world.studio.ranks) == ["b"]
        await settle()


async def test_memory_that_another_host_gives_back_is_waited_for(world: World) -> None:
    world.studio.delay_s = 6.0
    async with world.residency:
        await world.load("a")
        await world.residency.unload("a")
        await world.load("b")
        assert list(world.studio.ranks) == ["b"]


async def test_a_pinned_model_elsewhere_is_in_the_way_and_said_to_be(world: World) -> None:
    async with world.residency:
        await world.load("a")
        world.residency.pin("a", True)
        with pytest.raises(ServiceError, match="studio needs") as refused:
            await world.load("b")
        assert refused.value.kind is Kind.NOT_ENOUGH_MEMORY
        assert refused.value.retry_after_s > 0  # it would fit alone
        assert list(world.studio.ranks) == ["a"]
