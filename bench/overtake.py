"""A short request behind an 8k-token prompt, beside mlx_lm.server."""

from __future__ import annotations

import asyncio
import time

from bench.client import Answer, chat, session
from bench.options import OPTIONS
from bench.servers import Server, mlx_lm_server, ours
from bench.table import Figure, Report

ROUNDS = 3
NUM_WORDS = 1700  # of about 4.5 tokens: the model's context is 8192


async def run() -> Report:
    folder = OPTIONS.folder
    columns = ["server", "long prompt", "short alone s", "short behind s", "ratio", "long took s"]
    report = Report("overtake", columns)
    async with session() as http:
        for start in (ours, mlx_lm_server):
            with start(folder) as server:
                await _overtake(report, http, server)
    return report


async def _overtake(report: Report, http, server: Server) -> None:
    alone = [await _short(http, server, f"alone {i}") for i in range(ROUNDS)]
    # Distinct words, so that no prefix is shared with an earlier prompt.
    words = " ".join(f"word{i}" for i in range(NUM_WORDS))
    started = time.perf_counter()
    long = asyncio.create_task(_ask(http, server, words, max_tokens=1))
    await asyncio.sleep(1.0)
    behind = []
    for i in range(ROUNDS):
        behind.append(await _short(http, server, f"behind {i}"))
        if long.done():
            break
    answer = await long
    base, late = Figure(tuple(alone)), Figure(tuple(behind))
    report.add(
        server.name,
        answer.prompt_tokens,
        base,
        late,
        f"{late.median / base.median:.2f} x",
        f"{time.perf_counter() - started:.1f}",
        **{f"{server.name} alone": base, f"{server.name} behind": late},
    )


async def _short(http, server: Server, label: str) -> float:
    return (await _ask(http, server, f"Say hello, {label}.", max_tokens=2)).first_s


async def _ask(http, server: Server, content: str, max_tokens: int) -> Answer:
    messages = [{"role": "user", "content": content}]
    return await chat(http, server, messages, max_tokens=max_tokens)
