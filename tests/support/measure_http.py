"""CPU of the daemon's HTTP side per streamed token, with a backend that steps like an engine.

    python tests/support/measure_http.py [--streams 32] [--tokens 400] [--idle 200]
        [--path chat] [--health]

The server runs here, the readers in a child process; the figure is this process's CPU time over
the tokens sent. The backend's own share (making events, its queues) is measured by reading it
without HTTP, and shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import uvloop
from aiohttp import web

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("proto", "engine", "daemon", "tests/support")]

from scripted_backend import ScriptedBackend  # noqa: E402 - the rooms are on the path now

from swiftlm_proto import messages as m  # noqa: E402
from swiftlmd.config.http import HttpOptions  # noqa: E402
from swiftlmd.http.app import make_app, make_runner  # noqa: E402

BODIES: dict[str, tuple[str, dict[str, object]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    "completions": ("/v1/completions", {"prompt": "x"}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}),
    "responses": ("/v1/responses", {"input": "x", "store": False}),
}


class SteppedBackend(ScriptedBackend):
    """Every step gives each running request one token, as a batch of an engine does."""

    def __init__(self, num_tokens: int, num_streams: int, step_s: float) -> None:
        super().__init__()
        self._num_tokens = num_tokens
        self._num_streams = num_streams
        self._step_s = step_s
        self._queues: list[asyncio.Queue[m.SequenceEvent]] = []

    async def generate(
        self, model: str, request: m.GenerateRequest, *, route: str, client: str = ""
    ) -> AsyncGenerator[m.SequenceEvent, None]:
        queue: asyncio.Queue[m.SequenceEvent] = asyncio.Queue()
        self._queues.append(queue)
        if len(self._queues) == self._num_streams:
            self._task = asyncio.create_task(self._step())
        while True:
            event = await queue.get()
            yield event
            if event.finished is not None:
                return

    async def _step(self) -> None:
        for number in range(self._num_tokens):
            for queue in self._queues:
                queue.put_nowait(m.SequenceEvent(delta=m.Delta(content=f" word{number % 10}")))
            await asyncio.sleep(self._step_s)
        for queue in self._queues:
            done = m.Finished(reason=m.FinishedReason.STOP, usage=m.Usage(1, self._num_tokens))
            queue.put_nowait(m.SequenceEvent(finished=done))
        self._queues.clear()


def read(
    port: int, path: str, body: dict[str, object], streams: int, idle: int, health: bool
) -> None:
    """The child: opens idle sockets, reads every stream to its end, asks for health meanwhile."""

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        raw = json.dumps({**body, "stream": True}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(raw)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + raw)
        while await reader.read(1 << 16):
            pass
        writer.close()

    async def ask_for_health() -> None:
        waits: list[float] = []
        try:
            while True:
                started = time.perf_counter()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(
                    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
                )
                await reader.read()
                writer.close()
                waits.append((time.perf_counter() - started) * 1000)
                await asyncio.sleep(0.02)
        finally:
            waits.sort()
            p99 = waits[int(len(waits) * 0.99)]
            print(f"/health: p50 {waits[len(waits) // 2]:.1f} ms, p99 {p99:.1f} ms, n {len(waits)}")

    async def all_of_them() -> None:
        asker = asyncio.create_task(ask_for_health()) if health else None
        idle_sockets = [await asyncio.open_connection("127.0.0.1", port) for _ in range(idle)]
        await asyncio.gather(*(one() for _ in range(streams)))
        for _, writer in idle_sockets:
            writer.close()
        if asker is not None:
            asker.cancel()
            await asyncio.wait({asker})

    asyncio.run(all_of_them())


async def serve(args: argparse.Namespace) -> float:
    """CPU seconds of this process while the child reads."""
    path, body = BODIES[args.path]
    backend = SteppedBackend(args.tokens, args.streams, args.step_ms / 1000)
    runner = make_runner(make_app(backend, HttpOptions(port=0)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    child = multiprocessing.get_context("spawn").Process(
        target=read, args=(port, path, body, args.streams, args.idle, args.health)
    )
    child.start()
    while len(backend._queues) < args.streams and child.is_alive():  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.005)
    started = time.process_time()
    await asyncio.to_thread(child.join)
    used = time.process_time() - started
    await runner.cleanup()
    return used


async def backend_alone(args: argparse.Namespace) -> float:
    backend = SteppedBackend(args.tokens, args.streams, args.step_ms / 1000)
    started = time.process_time()

    async def one() -> None:
        async for _ in backend.generate("", m.GenerateRequest(), route=""):
            pass

    await asyncio.gather(*(one() for _ in range(args.streams)))
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--idle", type=int, default=0)
    parser.add_argument("--health", action="store_true", help="ask /health 50 times a second")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--path", choices=sorted(BODIES), default="chat")
    args = parser.parse_args()
    tokens = args.streams * args.tokens
    alone = uvloop.run(backend_alone(args)) / tokens * 1000
    whole = uvloop.run(serve(args)) / tokens * 1000
    print(
        f"{args.path}: {whole:.4f} ms CPU per token at {args.streams} streams "
        f"({args.idle} idle sockets), of which the scripted backend {alone:.4f}; "
        f"HTTP {whole - alone:.4f}"
    )


if __name__ == "__main__":
    main()
