"""A real engine process for tests: started, loaded and asked over its socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpclib.client import Channel

from swiftlm_proto import messages as m

START_S = 60.0


@dataclass
class EngineProcess:
    process: subprocess.Popen[bytes]
    stub: m.EngineStub
    requests: asyncio.Queue[m.GenerateRequest] = field(default_factory=asyncio.Queue)
    events: asyncio.Queue[m.SequenceEvent | None] = field(default_factory=asyncio.Queue)

    async def load(self, folder: Path, **fields: object) -> list[m.LoadEvent]:
        request = m.LoadRequest(model="tiny", path=str(folder), **fields)
        return [event async for event in self.stub.load(request)]

    async def read_steps(self) -> None:
        async def pending() -> AsyncIterator[m.GenerateRequest]:
            while True:
                yield await self.requests.get()

        try:
            async for step in self.stub.run(pending()):
                columns = zip(step.text_request_ids, step.text_indexes, step.texts, strict=True)
                for request_id, index, text in columns:
                    delta = m.Delta(content=text)
                    event = m.SequenceEvent(request_id=request_id, index=index, delta=delta)
                    self.events.put_nowait(event)
                for event in step.events:
                    self.events.put_nowait(event)
        finally:
            self.events.put_nowait(None)

    async def ask(self, request: m.GenerateRequest) -> tuple[str, m.Finished]:
        """Text and first terminal event of a request, asked alone."""
        await self.requests.put(request)
        text = ""
        while (event := await asyncio.wait_for(self.events.get(), START_S)) is not None:
            if event.request_id != request.request_id:
                continue  # another choice of the request before
            if event.delta is not None:
                text += event.delta.content
            if event.finished is not None:
                return text, event.finished
        raise ConnectionError("the engine ended the stream")


@contextlib.asynccontextmanager
async def engine_process(
    tmp_path: Path, room_path: str, program: Sequence[str] = ("-m", "swiftlm_engine")
):
    path = tmp_path / "e.sock"
    process = subprocess.Popen(  # noqa: ASYNC220 - a test may block for a fork
        [sys.executable, *program, "--socket", path, "--parent", str(os.getpid())],
        env={**os.environ, "PYTHONPATH": room_path},
        stderr=subprocess.DEVNULL,
    )
    channel = Channel(path=str(path))
    engine = EngineProcess(process, m.EngineStub(channel))
    reading = None
    try:
        async with asyncio.timeout(START_S):
            while not _listens(path):
                assert process.poll() is None, "the engine process ended before it served"
                await asyncio.sleep(0.02)
        reading = asyncio.create_task(engine.read_steps())
        yield engine
    finally:
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reading
        channel.close()
        process.kill()
        process.wait(10)


def _listens(path: Path) -> bool:
    """The file is there a moment before anybody listens on it."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
