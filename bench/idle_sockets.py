"""What two hundred idle connections cost: decode speed of 32 streams with them and without."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

import psutil

from bench.client import chat, session
from bench.models import smollm2_dense
from bench.servers import Server, ours
from bench.table import Figure, Report, ratio

IDLE = 200
STREAMS = 32
ROUNDS = 3
NUM_TOKENS = 16


async def run() -> Report:
    report = Report("idle sockets", ["connections", "tok/s", "daemon CPU per token", "ratio"])
    speeds: dict[bool, list[float]] = {False: [], True: []}
    costs: dict[bool, list[float]] = {False: [], True: []}
    with ours(smollm2_dense(), engine_parallel=STREAMS) as server:
        async with session() as http:
            await _burst(http, server, -1)
            for number in range(ROUNDS):
                for idle in (False, True) if number % 2 == 0 else (True, False):
                    held = await _idle(server) if idle else []
                    speed, cost = await _burst(http, server, number)
                    speeds[idle].append(speed)
                    costs[idle].append(cost)
                    for writer in held:
                        writer.close()
    plain = Figure(tuple(speeds[False]))
    for idle in (False, True):
        speed, cost = Figure(tuple(speeds[idle])), Figure(tuple(costs[idle]), "ms")
        report.add(f"{STREAMS} streams, {IDLE * idle} idle", speed, cost, ratio(speed, plain))
    return report


async def _idle(server: Server) -> list[asyncio.StreamWriter]:
    """Keep-alive connections that have asked once and then say nothing."""
    parts = urlsplit(server.url)
    writers = []
    for _ in range(IDLE):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        writers.append(writer)
    return writers


async def _burst(http, server: Server, number: int) -> tuple[float, float]:
    """Tokens per second of all streams, and the daemon's own CPU in ms per token."""
    daemon = psutil.Process(server.process.pid)
    cpu, started = sum(daemon.cpu_times()[:2]), time.perf_counter()
    question = [{"role": "user", "content": "Count upwards from one."}]
    answers = await asyncio.gather(
        *(
            chat(http, server, question, max_tokens=NUM_TOKENS, seed=(number + 1) * 100 + i)
            for i in range(STREAMS)
        )
    )
    seconds = time.perf_counter() - started
    tokens = sum(answer.num_tokens for answer in answers)
    return tokens / seconds, 1000 * (sum(daemon.cpu_times()[:2]) - cpu) / tokens
