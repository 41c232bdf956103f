"""Random kills under load: the loop behind the short test and the long soak.

After every kill the service answers again in time, no process is left behind, and every request
has ended: with an answer, an error, or a broken connection when the daemon itself was killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil
from live_daemon import Home, LiveDaemon, eventually, is_alive, start

HEALTH_S = 10.0
_CLIENTS = 4
_ANSWER_S = 30.0


@dataclass(slots=True)
class Report:
    """What happened to kills and requests; `slowest_s` is the longest way back to health."""

    kills: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0


async def chaos(
    home: Home,
    script: dict[str, Any],
    kills: int,
    seed: int,
    *,
    longest_s: float = 1.5,
    **settings: Any,
) -> Report:
    """Kills engine, daemon or both, `kills` times, each after at most `longest_s` of load.

    Raises AssertionError where a promise breaks.
    """
    choice, report = random.Random(seed), Report()
    live = await _started(home, script, settings)
    try:
        for _ in range(kills):
            load = [asyncio.create_task(_client(live, report)) for _ in range(_CLIENTS)]
            await asyncio.sleep(choice.random() * longest_s)
            target = choice.choice(("engine", "daemon", "both"))
            report.kills[target] += 1
            children = _engines(live)
            killed_at = time.monotonic()
            _kill(live, target, children)
            if target != "engine":
                await live.child.wait()
                await eventually(lambda c=children: not any(map(is_alive, c)), HEALTH_S)
                await _end(load)
                await live.close()
                live = await _started(home, script, settings)
            await _answers(live)
            report.slowest_s = max(report.slowest_s, time.monotonic() - killed_at)
            await _end(load)
        return report
    finally:
        engines = _engines(live)
        await live.close()
        await eventually(lambda: not any(map(is_alive, engines)), HEALTH_S)


async def _end(load: list[asyncio.Task[None]]) -> None:
    """Stops the clients; raises what one of them found wrong."""
    for task in load:
        task.cancel()
    for result in await asyncio.gather(*load, return_exceptions=True):
        broken = isinstance(result, BaseException)
        if broken and not isinstance(result, asyncio.CancelledError):
            raise result


async def _started(home: Home, script: dict[str, Any], settings: dict[str, Any]) -> LiveDaemon:
    live = await start(home, script, **settings)
    await live.ready(HEALTH_S)
    return live


async def _answers(live: LiveDaemon) -> None:
    async with asyncio.timeout(HEALTH_S):
        while True:
            async with live.http.get("/health") as reply:
                if reply.status == 200:
                    return
            await asyncio.sleep(0.05)


async def _client(live: LiveDaemon, report: Report) -> None:
    while True:
        try:
            async with asyncio.timeout(_ANSWER_S):
                ending = await _ending(live)
            report.endings[ending] += 1
            if ending != "answer":
                await asyncio.sleep(0.1)
        except aiohttp.ClientError:
            report.endings["connection"] += 1
            return
        except TimeoutError:
            raise AssertionError(f"a request had no end within {_ANSWER_S:g} s") from None


async def _ending(live: LiveDaemon) -> str:
    """The one terminal event of a streamed answer; an end without one is a broken promise."""
    found: list[str] = []
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with live.http.post("/v1/chat/completions", json=body | {"max_tokens": 40}) as reply:
        if reply.status != 200:
            return f"status {reply.status}"
        async for line in reply.content:
            if b'"error"' in line:
                found.append("error")
            elif b'"finish_reason":"' in line:
                found.append("answer")
    assert len(found) == 1, f"a stream ended {len(found)} times"
    return found[0]


def _engines(live: LiveDaemon) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(live.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(live: LiveDaemon, target: str, engines: list[int]) -> None:
    victims = engines if target == "engine" else [live.pid]
    if target == "both":
        victims = [live.pid, *engines]
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
