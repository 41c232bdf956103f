"""Generated requests over our OpenAPI document against a live daemon whose engine is killed again
and again; what the daemon holds at rest is measured before and after."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

import aiohttp
import psutil
from generated_requests import Generator, without_placeholders
from live_daemon import LiveDaemon, eventually
from yarl import URL

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.http.app import make_app
from swiftlmd.http.openapi import ROUTE_TABLE, document
from swiftlmd.http.routes import Route

_CLIENTS = 8
_ANSWER_S = 120.0  # also on a busy machine
_ENDLESS_S = 0.2  # of a stream that only its reader ends


@dataclass(frozen=True, slots=True)
class Holding:
    """What the daemon's process holds at rest."""

    rss: int
    files: int
    tasks: int
    threads: int


@dataclass(slots=True)
class FuzzReport:
    statuses: Counter[int] = field(default_factory=Counter)
    kills: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; `endless` is its answer where only the reader ends it."""

    method: str
    path: str
    body: str
    endless: bool


def generated(routes: tuple[Route, ...], seed: int) -> Iterator[Asked]:
    """For ever, by the generator of our own; three of four are dialects."""
    dialects = [route for route in routes if route.body is not None]
    schemas = document(routes)["components"]["schemas"]
    generator = Generator(Random(seed), schemas, ("tiny",) * 6)
    for number in count():
        table = routes if number % 4 == 0 else dialects
        route = table[number // 4 % len(table)]
        kind = route.body or route.message
        body = json.dumps(generator.value({"$ref": f"#/{kind.__name__}"})) if kind else ""
        path = without_placeholders(route.path, generator)
        yield Asked(route.method, path, body, _is_endless(route.name))


def by_schemathesis(routes: tuple[Route, ...], num: int, seed: int) -> Iterator[Asked]:
    """At most about `num`."""
    from schemathesis_cases import cases

    for case in cases(document(routes), num, seed, "tiny"):
        yield Asked(case.method, case.path, case.body, _is_endless(case.route))


def _is_endless(name: str) -> bool:
    return any(word in name for word in ("watch", "logs"))


class KilledFuzz:
    def __init__(self, live: LiveDaemon, asked: Iterator[Asked]) -> None:
        self._live = live
        self._asked = asked
        self.report = FuzzReport()

    async def run(self, requests: int, kills: int) -> None:
        """So many requests, with the kills spread over them."""
        numbers = iter(range(requests))
        every = max(1, requests // max(1, kills))
        clients = [self._client(numbers, every if kills else 0) for _ in range(_CLIENTS)]
        await asyncio.gather(*clients)

    async def holding(self) -> Holding:
        """At rest: nothing is answered, the model is loaded."""
        await self._load()
        process, counted = psutil.Process(self._live.pid), self._live.home.paths.state / "tasks"
        await asyncio.sleep(1.0)  # what closes behind an answer
        counted.unlink(missing_ok=True)
        self._live.signal(signal.SIGUSR2)
        await eventually(lambda: counted.exists() and counted.read_text())
        rss = process.memory_info().rss
        return Holding(rss, process.num_fds(), int(counted.read_text()), process.num_threads())

    async def _client(self, numbers: Iterator[int], every: int) -> None:
        for number in numbers:  # one iterator for all clients
            if every and number % every == every // 2:
                await self._kill()
            await self._ask(next(self._asked))

    async def _ask(self, asked: Asked) -> None:
        said = f"{asked.method} {asked.path} {asked.body[:300]}"
        try:
            async with asyncio.timeout(_ANSWER_S):
                status, text = await self._exchange(asked)
        except (TimeoutError, aiohttp.ClientError) as error:
            self.report.wrong.append(f"{said}: {error!r}")
            return
        self.report.statuses[status] += 1
        if "the daemon failed" in text or (status == 500 and "engine" not in text):
            self.report.wrong.append(f"{said}: {status} {text[:300]}")

    async def _exchange(self, asked: Asked) -> tuple[int, str]:
        headers, url = {"Content-Type": "application/json"}, URL(asked.path, encoded=True)
        http = self._live.http
        async with http.request(asked.method, url, data=asked.body, headers=headers) as reply:
            if not asked.endless:
                return reply.status, (await reply.read()).decode(errors="replace")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ENDLESS_S):
                    await reply.read()
            return reply.status, ""

    async def _kill(self) -> None:
        """Kills the engine, loaded anew if need be: by name, which clears its crash budget."""
        async with asyncio.timeout(_ANSWER_S):
            while True:
                await self._load()
                with contextlib.suppress(ProcessLookupError):
                    if pid := await self._live.engine_pid():
                        os.kill(pid, signal.SIGKILL)
                        self.report.kills += 1
                        return

    async def _load(self) -> None:
        async with asyncio.timeout(_ANSWER_S):
            async for _ in self._live.admin.load(m.LoadModelRequest(model="tiny")):
                pass


def all_routes() -> tuple[Route, ...]:
    """Those of a daemon with every service; none of them is asked here."""
    app = make_app(None, HttpOptions(port=0), admin=m.AdminBase(), store=m.StoreBase())  # type: ignore[arg-type]
    return app[ROUTE_TABLE]
