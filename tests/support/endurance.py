"""A long day in short: requests to several real models, clients that leave, models that go.

Measures what must not grow: the daemon's memory, what MLX holds in an idle engine, and every
engine's share of physical memory against the price its plan named. Where control groups can be
made (see cages.py) the kernel kills an engine that takes 8 % more than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil
from cages import Cages, children
from live_daemon import LiveDaemon

from swiftlm_proto import messages as m

_CLIENTS = 4
_WARM_UP = 40  # requests until a process has made what it makes once
_ANSWER_S = 120.0
_SAMPLE_S, _CAGE_S = 0.5, 0.05
_LIMIT = 1.08  # of the price
_LEAVES = 0.15  # share of the streams that are dropped on the way
_DAY_H = 24.0


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of an idle engine: MLX's arrays, and the process without MLX's free buffers."""

    active: int
    process: int


@dataclass(slots=True)
class Life:
    """One stay of a model in memory: what it held at rest, warm and before its unload."""

    model: str
    first: Held
    last: Held
    freed: int = 0


@dataclass(slots=True)
class Report:
    """`daemon` holds (seconds, bytes); `shares` the worst part of its price each model took."""

    endings: Counter[str] = field(default_factory=Counter)
    lives: list[Life] = field(default_factory=list)
    daemon: list[tuple[float, int]] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    seconds: float = 0.0
    limited: int = 0  # engines that the kernel held to their limit
    killed: int = 0

    @property
    def requests(self) -> int:
        return self.endings.total()

    def daemon_mb_per_hour(self) -> float:
        """Slope of the daemon's memory once warm, the run taken for a day."""
        warm = [one for one in self.daemon if one[0] > self.seconds / 4]
        times, sizes = zip(*warm, strict=True)
        slope = statistics.linear_regression(times, sizes).slope  # bytes per second of the run
        return slope * self.seconds / _DAY_H / 1e6

    def drift(self, measure: Callable[[Held], int]) -> float:
        """The largest change against a model's first figure, within its stays and between them."""
        base: dict[str, int] = {}
        worst = 0.0
        for life in self.lives:
            first = base.setdefault(life.model, measure(life.first))
            worst = max(worst, *(abs(measure(h) / first - 1) for h in (life.first, life.last)))
        return worst


class Endurance:
    """`run` asks, lets go, unloads and loads again; it raises only where the test itself broke."""

    def __init__(self, live: LiveDaemon, models: list[str], seed: int) -> None:
        self._live = live
        self._models = models
        self._dice = random.Random(seed)
        self._started = time.monotonic()
        self._cages = Cages()
        self.report = Report()

    async def run(self, requests: int, cycles: int) -> Report:
        """`cycles` rounds of requests, each of which ends with one model's unload.

        In each third of the rounds one model stays; the others take turns to leave.
        """
        watches = [asyncio.create_task(each) for each in (self._watch(), self._cage())]
        try:
            with self._cages:
                await self._rounds(requests, cycles)
        finally:
            for watch in watches:
                watch.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watch
        self.report.seconds = time.monotonic() - self._started
        self.report.limited, self.report.killed = self._cages.num_limited, self._cages.kills
        return self.report

    async def _rounds(self, requests: int, cycles: int) -> None:
        lives = {name: await self._begin(name) for name in self._models}
        for number in range(cycles):
            await self._round(requests * (number + 1) // cycles - self.report.requests)
            stays = number * len(self._models) // cycles
            leave = [n for i, n in enumerate(self._models) if i != stays]
            name = leave[number % len(leave)]
            await self._end(lives[name])
            lives[name] = await self._begin(name)
            self._say(number + 1, cycles)
        for life in lives.values():
            await self._end(life)

    def _say(self, number: int, cycles: int) -> None:
        report, life = self.report, self.report.lives[-1]
        print(
            f"{time.monotonic() - self._started:5.0f} s  cycle {number} of {cycles}, "
            f"{report.requests} requests {dict(report.endings)}, "
            f"daemon {report.daemon[-1][1] / 1e6:.1f} MB, {life.model} "
            f"active {life.first.active / 1e6:.3f} -> {life.last.active / 1e6:.3f} MB, "
            f"process {life.first.process / 1e6:.1f} -> {life.last.process / 1e6:.1f} MB, "
            f"freed {life.freed / 1e6:.0f} MB, "
            f"worst share of price {max(report.shares.values()):.2f}",
            flush=True,
        )

    # -- requests

    async def _round(self, requests: int, model: str | None = None) -> None:
        left = iter(range(requests))

        async def client() -> None:
            for _ in left:
                await self._one(model or self._dice.choice(self._models))

        async with asyncio.TaskGroup() as clients:
            for _ in range(_CLIENTS):
                clients.create_task(client())

    async def _one(self, model: str) -> None:
        body = self._body(model)
        try:
            async with asyncio.timeout(_ANSWER_S):
                ending = await (
                    self._stream(body) if self._dice.random() < 0.7 else self._ask(body)
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            ending = "broken"
            self.report.unexpected.append(repr(error))
        self.report.endings[ending] += 1

    def _body(self, model: str) -> dict[str, Any]:
        """Few different beginnings, so that prefixes are found again; endings of any length."""
        dice = self._dice
        begin = f"system {dice.randrange(5)} " * 20
        end = " ".join(f"word{dice.randrange(1000)}" for _ in range(dice.randrange(1, 60)))
        body = {
            "model": model,
            "messages": [{"role": "system", "content": begin}, {"role": "user", "content": end}],
            "max_tokens": dice.randrange(1, 32),
        }
        return body | dice.choice(
            ({"temperature": 0}, {"temperature": 1, "seed": 1}, {"frequency_penalty": 0.5})
        )

    async def _ask(self, body: dict[str, Any]) -> str:
        async with self._live.http.post("/v1/chat/completions", json=body) as reply:
            return "answer" if reply.status == 200 else await self._refused(reply)

    async def _stream(self, body: dict[str, Any]) -> str:
        lines = self._dice.randrange(8) if self._dice.random() < _LEAVES / 0.7 else None
        finished = 0
        body = body | {"stream": True}
        async with self._live.http.post("/v1/chat/completions", json=body) as reply:
            if reply.status != 200:
                return await self._refused(reply)
            async for line in reply.content:
                if lines is not None and (lines := lines - 1) < 0:
                    reply.close()
                    return "left"
                finished += b'"finish_reason":"' in line
                if b'"error"' in line:
                    self.report.unexpected.append(line.decode())
        return "answer" if finished == 1 else f"{finished} endings"

    async def _refused(self, reply: aiohttp.ClientResponse) -> str:
        self.report.unexpected.append(await reply.text())
        return f"status {reply.status}"

    # -- models

    async def _begin(self, name: str) -> Life:
        """Loads the model by asking it, and notes what it holds once it is warm."""
        await self._round(_WARM_UP, name)
        held = await self._at_rest(name)
        return Life(name, held, held)

    async def _end(self, life: Life) -> None:
        life.last = await self._at_rest(life.model)
        reply = await self._live.admin.unload(m.UnloadModelRequest(model=life.model))
        assert reply.fault is None, reply.fault
        assert reply.was_loaded
        assert not psutil.pid_exists(reply.pid)
        life.freed = reply.freed_bytes
        self.report.lives.append(life)

    async def _at_rest(self, name: str) -> Held:
        """The model's figures with nothing running and its prefix cache empty."""
        async with asyncio.timeout(120):
            before: Held | None = None
            while True:
                await self._live.http.post("/v1/chat/completions", json=_nudge(name))
                await self._live.admin.cache_control(m.CacheControlRequest(model=name, clear=True))
                await asyncio.sleep(1.5)  # the figures follow the last request by a second
                status = await self._live.model(name)
                assert status is not None, f"{name} left by itself"
                stats = status.stats
                if stats is None or stats.running or stats.prefix_cache_bytes:
                    continue
                held = Held(stats.active_bytes, stats.footprint_bytes - stats.pool_bytes)
                if before is not None and held.active == before.active:
                    return held
                before = held

    # -- memory

    async def _watch(self) -> None:
        while True:
            elapsed = time.monotonic() - self._started
            self.report.daemon.append((elapsed, psutil.Process(self._live.pid).memory_info().rss))
            status = await self._live.admin.status(m.StatusRequest())
            for model in status.models:
                if model.pid and model.priced_bytes:
                    share = _physical_bytes(model.pid) / model.priced_bytes
                    worst = self.report.shares.get(model.model, 0.0)
                    self.report.shares[model.model] = max(worst, share)
                    self._cages.limit(model.pid, int(_LIMIT * model.priced_bytes))
            await asyncio.sleep(_SAMPLE_S)

    async def _cage(self) -> None:
        """An engine's own group, from before it has imported anything."""
        while True:
            for pid in children(self._live.pid):
                self._cages.enter(pid)
            await asyncio.sleep(_CAGE_S)


def _nudge(name: str) -> dict[str, Any]:
    return {"model": name, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


def _physical_bytes(pid: int) -> int:
    """What the kernel charges the process: its proportional share, where that is counted."""
    try:
        info = psutil.Process(pid).memory_full_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
    return int(getattr(info, "pss", info.uss))
