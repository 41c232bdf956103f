"""What two hundred idle connections cost 32 streams, and what a streamed token costs the daemon.

The whole process of the daemon is counted: HTTP, the way to the engine, its own ticks. With
SmolLM2 the model is what takes the time; a tiny model leaves the daemon's share in plain sight.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil

from bench.client import chat, session
from bench.models import smollm2_dense, tiny_llama
from bench.servers import Server, ours
from bench.table import Figure, Report

IDLE = 200
STREAMS = 32
ROUNDS = 12


async def run() -> Report:
    report = Report(
        "idle sockets", ["model", "idle", "tok/s", "daemon CPU per token", "ratio in a pair"]
    )
    await _measure(report, "SmolLM2-135M", smollm2_dense(), num_tokens=32)
    await _measure(report, "tiny", tiny_llama(), num_tokens=400)
    return report


async def _measure(report: Report, name: str, folder: Path, num_tokens: int) -> None:
    speeds: dict[bool, list[float]] = {False: [], True: []}
    costs: dict[bool, list[float]] = {False: [], True: []}
    with ours(folder, engine_parallel=STREAMS) as server:
        async with session() as http:
            await _burst(http, server, num_tokens)
            for number in range(ROUNDS):
                for idle in (False, True) if number % 2 == 0 else (True, False):
                    held = await _idle(server) if idle else []
                    speed, cost = await _burst(http, server, num_tokens)
                    speeds[idle].append(speed)
                    costs[idle].append(cost)
                    for writer in held:
                        writer.close()
    pairs = zip(speeds[True], speeds[False], strict=True)
    ratios = {False: "1", True: Figure(tuple(held / plain for held, plain in pairs), "x")}
    for idle in (False, True):
        shown = Figure(tuple(speeds[idle])), Figure(tuple(costs[idle]), "ms")
        report.add(name, IDLE * idle, *shown, ratios[idle])


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


async def _burst(
    http: aiohttp.ClientSession, server: Server, num_tokens: int
) -> tuple[float, float]:
    """Tokens per second of all streams, and the daemon's own CPU in ms per token."""
    daemon = psutil.Process(server.process.pid)
    cpu, started = sum(daemon.cpu_times()[:2]), time.perf_counter()
    question = [{"role": "user", "content": "Count upwards from one."}]
    answers = await asyncio.gather(
        *(chat(http, server, question, max_tokens=num_tokens) for _ in range(STREAMS))
    )
    seconds = time.perf_counter() - started
    tokens = sum(answer.num_tokens for answer in answers)
    return tokens / seconds, 1000 * (sum(daemon.cpu_times()[:2]) - cpu) / tokens
