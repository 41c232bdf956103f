"""The end of residency: every engine is gone, and none comes."""

from __future__ import annotations

import asyncio
import contextlib

from fakes import settle
from residency_world import make_world

from swiftlmd.faults import ServiceError


async def test_leaving_residency_ends_every_engine() -> None:
    world = make_world()
    async with world.residency:
        await world.use("a")
        await world.use("b")
        assert len(world.memory.held) == 2
    assert world.memory.held == {}


async def test_nothing_is_loaded_once_the_daemon_stops() -> None:
    world = make_world()
    world.launcher.gate.clear()

    async def preload() -> None:
        for name in ("a", "b"):
            with contextlib.suppress(ServiceError):
                async for _ in world.residency.load(name):
                    pass

    async with asyncio.timeout(5):
        async with world.residency:
            task = asyncio.create_task(preload())
            await settle()
        await task
    assert world.launcher.launched == ["a"]
