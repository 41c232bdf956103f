"""Kills while a real engine prefills, decodes and writes its prefix cache to disk (`make soak`).

What was stored when a kill came is found again afterwards: every conversation whose KV had
reached the disk is a hit in the next engine, and the configuration is as it was.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import aiohttp
import pytest
from live_daemon import LiveDaemon, eventually, home, is_alive, start
from tiny_models import make_model

from swiftlm_proto import messages as m

KILLS = 60
CONFIG = "# mine\n[engine]\nprefix_disk = '500MB'\n"
PROMPT_WORDS = 120


def _prompt(number: int) -> str:
    words = random.Random(number)
    return " ".join(f"word{words.randrange(10**6)}" for _ in range(PROMPT_WORDS))


async def _ask(live: LiveDaemon, prompt: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 2, "temperature": 0}
    for _ in range(50):
        async with live.http.post("/v1/chat/completions", json=body) as reply:
            told = await reply.text()
            if reply.status == 200:
                usage: dict[str, Any] = (await reply.json())["usage"]
                return usage
            # One that was in the engine when it was killed goes to no other: its client asks again.
            assert reply.status == 500, told
            assert "was killed" in told
        await asyncio.sleep(0.1)
    raise AssertionError(told)


async def _written(live: LiveDaemon) -> bool:
    reply = await live.admin.cache_control(m.CacheControlRequest(model="tiny"))
    books = reply.stats.values()
    return all(one.waiting_bytes == 0 and one.ssd and not one.ssd.queued_bytes for one in books)


async def _load(live: LiveDaemon, seed: int) -> None:
    """Streams until the connection or the answer breaks off."""
    number = seed
    while True:
        number += 1
        try:
            messages = [{"role": "user", "content": _prompt(number)}]
            async for _ in live.stream(messages=messages, max_tokens=40, ignore_eos=True):
                pass
        except (aiohttp.ClientError, AssertionError):  # the kill broke it: what is expected
            await asyncio.sleep(0.1)


async def _killed(live: LiveDaemon, target: str) -> LiveDaemon:
    """Kills; returns the daemon that serves afterwards."""
    engine = await live.engine_pid()
    victims = {"engine": [engine], "daemon": [live.pid], "both": [live.pid, engine]}[target]
    for pid in victims:
        if pid:
            os.kill(pid, signal.SIGKILL)
    if target == "engine":
        return live
    await live.child.wait()
    await eventually(lambda: not engine or not is_alive(engine), 10)
    await live.close()
    again = await start(live.home, real=True)
    await again.ready(30)
    return again


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_kills_lose_no_stored_prefix_and_no_configuration() -> None:
    choice, hits = random.Random(7), 0
    async with home() as place:
        make_model("llama", place.paths.models / "tiny", max_position_embeddings=4096)
        place.paths.config_file.write_text(CONFIG)
        live = await start(place, real=True)
        try:
            await live.ready(30)
            for number in range(KILLS):
                prompt = _prompt(10**6 + number)
                await _ask(live, prompt)
                await eventually(lambda live=live: _written(live), 20)
                load = [
                    asyncio.create_task(_load(live, 10**4 * (3 * number + i))) for i in range(3)
                ]
                await asyncio.sleep(choice.random() * 0.5)
                live = await _killed(live, choice.choice(("engine", "daemon", "both")))
                for task in load:
                    task.cancel()
                await asyncio.gather(*load, return_exceptions=True)
                usage = await _ask(live, prompt)
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                assert cached > 0.8 * usage["prompt_tokens"], f"kill {number}: {usage}"
                hits += 1
                print(f"kill {number + 1} of {KILLS}: {cached} tokens found again", flush=True)
        finally:
            await live.close()
        assert place.paths.config_file.read_text() == CONFIG
    assert hits == KILLS
