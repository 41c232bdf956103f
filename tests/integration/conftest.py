"""What the tests of HTTP dialects share: a scripted server, a client, a dialect's two verbs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from scripted_backend import Server, serve


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serve() as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@dataclass(frozen=True, slots=True)
class NamedEvents:
    """A dialect whose streams are events with a name, which their data repeats as `type`."""

    http: aiohttp.ClientSession
    path: str

    async def post(self, server: Server, body: dict[str, Any], status: int = 200) -> Any:
        async with self.http.post(server.url + self.path, json=body) as reply:
            answer = await reply.json()
            assert reply.status == status, answer
            return answer

    async def stream(self, server: Server, body: dict[str, Any]) -> list[dict[str, Any]]:
        url = server.url + self.path
        async with self.http.post(url, json={**body, "stream": True}) as reply:
            assert reply.status == 200
            raw = (await reply.read()).decode()
        events = []
        for block in filter(None, raw.split("\n\n")):
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert event["type"] == name.removeprefix("event: ")
            events.append(event)
        return events


@pytest.fixture
def dialect(http: aiohttp.ClientSession, request: pytest.FixtureRequest) -> NamedEvents:
    """At the `PATH` of the test's module."""
    return NamedEvents(http, request.module.PATH)
