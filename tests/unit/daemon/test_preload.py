"""Models loaded at start: one that fails is told until it is loaded, and stops no other."""

from __future__ import annotations

from residency_world import make_world

from swiftlmd.faults import Kind, ServiceError
from swiftlmd.residency.preload import Preload


async def test_a_failed_preload_is_a_warning_until_the_model_is_loaded() -> None:
    world, there = make_world(), {"b"}

    async def named(name: str) -> str:
        if name not in there:
            raise ServiceError(Kind.INVALID, f"no model {name}")
        return name

    async with world.residency:
        preload = Preload(world.residency, named)
        await preload.run(["a", "b", "a"])
        assert world.launcher.launched == ["b"]
        assert preload.warnings() == ["'a' was not loaded at start: no model a"]
        there.add("a")
        await world.use("a")
        assert preload.warnings() == []
        await world.residency.unload("a")
        assert preload.warnings() == []
