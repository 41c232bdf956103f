"""Concurrent chat clients, with and without a shared prefix, beside mlx_lm.server."""

from __future__ import annotations

import asyncio
import time

from bench.client import Answer, chat, session
from bench.models import smollm2_dense
from bench.servers import Server, mlx_lm_server, ours
from bench.table import Figure, Report, ratio

ROUNDS = 3
WIDTHS = (1, 4, 8, 16)
NUM_TOKENS = 24
SHARED = "You are a careful assistant who answers in one short sentence. " * 12
TOPICS = ("rain", "iron", "moss", "salt", "wind", "clay", "rust", "snow")


async def run() -> Report:
    folder = smollm2_dense()
    report = Report("serving", ["clients", "swiftlm tok/s", "mlx_lm.server tok/s", "ratio"])
    with ours(folder) as mine, mlx_lm_server(folder) as theirs:
        async with session() as http:
            for shared in (False, True):
                for width in WIDTHS:
                    await _compare(report, http, mine, theirs, width, shared)
    return report


async def _compare(report, http, mine: Server, theirs: Server, width: int, shared: bool) -> None:
    rates: dict[str, list[float]] = {mine.name: [], theirs.name: []}
    for number in range(ROUNDS):
        for server in (mine, theirs) if number % 2 == 0 else (theirs, mine):
            rates[server.name].append(await _burst(http, server, width, shared, number))
    ours_rate = Figure(tuple(rates[mine.name]))
    peer_rate = Figure(tuple(rates[theirs.name]))
    label = f"{width}, shared prefix" if shared else str(width)
    report.add(label, ours_rate, peer_rate, ratio(ours_rate, peer_rate))
    report.figures |= {
        f"{label} swiftlm": list(ours_rate.values),
        f"{label} peer": list(peer_rate.values),
    }


async def _burst(http, server: Server, width: int, shared: bool, number: int) -> float:
    """Aggregate tokens per second of `width` clients that ask at once."""
    started = time.perf_counter()
    answers = await asyncio.gather(
        *(_question(http, server, i, shared, number) for i in range(width))
    )
    return sum(a.num_tokens for a in answers) / (time.perf_counter() - started)


async def _question(http, server: Server, client: int, shared: bool, number: int) -> Answer:
    topic = TOPICS[client % len(TOPICS)]
    question = f"Round {number}, client {client}: what is {topic}?"
    messages = [{"role": "user", "content": question}]
    if shared:
        messages.insert(0, {"role": "system", "content": SHARED})
    return await chat(http, server, messages, max_tokens=NUM_TOKENS)
