"""A day in twenty minutes (`make soak`): 5,000 requests, 40 loads and unloads over three models."""

from __future__ import annotations

import pytest
from endurance import Endurance
from live_daemon import daemon, home
from tiny_models import make_model

MODELS = ["llama", "gemma3_text", "qwen3_next"]  # plain, windowed and recurrent caches
REQUESTS, CYCLES = 5000, 40
# A price near what such small models take: the usual allowances would hide any overrun.
TIGHT = {"engine__prefix_cache": "16MB", "engine__buffer_cache": "16MB", "engine__context": 512}


@pytest.mark.slow
@pytest.mark.timeout(5400)
async def test_a_day_of_requests_and_loads_leaves_memory_where_it_was() -> None:
    async with home() as place:
        for name in MODELS:
            make_model(name, place.paths.models / name, max_position_embeddings=2048)
        async with daemon(place, real=True, **TIGHT) as live:
            report = await Endurance(live, MODELS, seed=5).run(REQUESTS, CYCLES)
            left = [await live.model(name) for name in MODELS]
    slope, active = report.daemon_mb_per_hour(), report.drift(lambda held: held.active)
    print(f"{report.requests} requests {dict(report.endings)} in {report.seconds:.0f} s")
    print(f"daemon {slope:+.4f} MB per hour of the day; active bytes off by {active:.2%}")
    process = report.drift(lambda held: held.process)
    print(f"processes off by {process:.2%}")
    print(f"worst share of the price {report.shares}")
    print(f"{report.limited} engines held to their limit by the kernel, {report.killed} killed")
    assert not report.unexpected, report.unexpected[:5]
    assert set(report.endings) == {"answer", "left"}
    assert len(report.lives) == CYCLES + len(MODELS)
    assert left == [None] * len(MODELS)
    assert slope < 1.0
    assert active < 0.02
    assert process < 0.03  # 0.02 is wanted; one step of 2 MB is 0.018 of so small a process
    assert report.killed == 0
    assert max(report.shares.values()) < 1.08
