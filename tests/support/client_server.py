"""The scripted server in a thread, as the user of a client library would reach it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scripted_backend import ScriptedBackend, serve

from swiftlmd.config.http import HttpOptions

KEY = "sk-test-1"


@dataclass(frozen=True, slots=True)
class ClientServer:
    url: str
    backend: ScriptedBackend
    loop: asyncio.AbstractEventLoop

    @property
    def v1(self) -> str:
        return self.url + "/v1"

    def settle(self) -> None:
        """Waits until nothing runs; raises TimeoutError when something still does."""
        idle = self.backend.wait_until(lambda: self.backend.running == 0)
        asyncio.run_coroutine_threadsafe(idle, self.loop).result(10)


@contextmanager
def running(
    options: HttpOptions | None = None, backend: ScriptedBackend | None = None
) -> Iterator[ClientServer]:
    loop = asyncio.new_event_loop()
    stop, started = asyncio.Event(), threading.Event()
    served: list[ClientServer] = []

    async def run() -> None:
        async with serve(backend or ScriptedBackend(), options) as server:
            served.append(ClientServer(server.url, server.backend, loop))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert started.wait(10), "the scripted server did not start"
        yield served[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
