"""Fixtures of more than one file of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from residency_world import World, make_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = make_world()
    async with world.residency:
        yield world
