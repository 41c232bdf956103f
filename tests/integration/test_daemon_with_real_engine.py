"""The whole service with a real engine on a tiny random model: the promises that need MLX."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
from live_daemon import LiveDaemon, daemon, eventually, home, is_alive
from tiny_models import make_model

from swiftlm_proto import messages as m


@pytest.fixture
async def live() -> AsyncIterator[LiveDaemon]:
    async with home() as place:
        make_model("llama", place.paths.models / "tiny")
        async with daemon(place, real=True) as found:
            yield found


async def first_text(chunks: AsyncIterator[dict]) -> None:
    async for chunk in chunks:
        if chunk["choices"][0]["delta"].get("content"):
            return


async def running(live: LiveDaemon) -> int:
    model = await live.model()
    return model.stats.running if model and model.stats else -1


@pytest.mark.timeout(240)
async def test_a_model_answers_stops_when_left_survives_a_kill_and_gives_its_memory_back(
    live: LiveDaemon,
) -> None:
    greedy = {"max_tokens": 8, "temperature": 0}
    status, first = await live.chat(**greedy)
    assert status == 200
    assert first["usage"]["completion_tokens"] == 8

    left = live.stream(max_tokens=100, ignore_eos=True)
    await first_text(left)
    await left.aclose()

    async def nothing_runs() -> bool:
        return await running(live) == 0

    await eventually(nothing_runs, 10)

    cut = live.stream(max_tokens=100, ignore_eos=True)
    await first_text(cut)
    engine = await live.engine_pid()
    os.kill(engine, signal.SIGKILL)
    rest = [chunk async for chunk in cut]
    assert "error" in rest[-1]

    status, again = await live.chat(**greedy)
    assert status == 200
    assert again["choices"] == first["choices"]

    model = await live.model()
    assert model is not None
    assert model.restarts == 1
    assert model.footprint_bytes > 10**7
    reply = await live.admin.unload(m.UnloadModelRequest(model="tiny"))
    assert reply.freed_bytes > 10**7
    assert not is_alive(reply.pid)


@pytest.mark.timeout(240)
async def test_an_engine_leaves_with_a_daemon_that_is_killed_while_it_loads(
    live: LiveDaemon,
) -> None:
    request = asyncio.create_task(live.chat())

    async def loading() -> bool:
        return bool(engine_children(live))

    await eventually(loading, 60)
    children = engine_children(live)
    live.signal(signal.SIGKILL)
    await eventually(lambda: not any(map(is_alive, children)), 3)
    await asyncio.gather(request, return_exceptions=True)


def engine_children(live: LiveDaemon) -> list[int]:
    return [child.pid for child in psutil.Process(live.pid).children()]
