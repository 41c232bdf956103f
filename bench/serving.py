"""Concurrent chat clients, with and without a shared prefix, beside mlx_lm.server."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum

import aiohttp

from bench.client import Message, chat, session
from bench.options import OPTIONS
from bench.servers import Server, mlx_lm_server, ours
from bench.table import Figure, Report, ratio

ROUNDS = 3
WIDTHS = (1, 4, 8, 16)
NUM_TOKENS = 24
APART_S, WARM_UP = 0.05, -2  # between the clients of the warm-up; the number of that round
SHARED = "You are a careful assistant who answers in one short sentence. " * 12
TOPICS = ("rain", "iron", "moss", "salt", "wind", "clay", "rust", "snow")


class Prefix(StrEnum):
    """What the prompts of one burst have in common."""

    NONE = ""
    KNOWN = ", shared prefix"  # the same in all rounds: both have it by the first that counts
    NEW = ", new shared prefix"  # as agents start that were handed the same task together


async def run() -> Report:
    report = Report("serving", ["clients", "swiftlm tok/s", "mlx_lm.server tok/s", "ratio"])
    with ours(OPTIONS.folder) as mine, mlx_lm_server(OPTIONS.folder) as theirs:
        async with session() as http:
            for server in (mine, theirs):
                await _warm_up(http, server)
            for prefix in Prefix:
                for width in OPTIONS.widths or WIDTHS:
                    await _compare(report, http, (mine, theirs), width, prefix)
    return report


async def _warm_up(http: aiohttp.ClientSession, server: Server) -> None:
    """Clients who come one by one and leave one by one: every width compiles its kernels here."""
    width = max(OPTIONS.widths or WIDTHS)

    async def one(client: int) -> None:
        await asyncio.sleep(APART_S * client)
        prompt = _prompt(client, width, Prefix.NONE, WARM_UP)
        await chat(http, server, prompt, max_tokens=8 + 2 * client)

    for _ in range(2):  # the first one waits for compilers, so that its clients meet
        await asyncio.gather(*(one(client) for client in range(width)))


async def _compare(
    report: Report,
    http: aiohttp.ClientSession,
    servers: tuple[Server, Server],
    width: int,
    prefix: Prefix,
) -> None:
    rates: dict[str, list[float]] = {server.name: [] for server in servers}
    for number in range(-1, OPTIONS.rounds or ROUNDS):  # the first may find what is still cold
        for server in servers if number % 2 == 0 else reversed(servers):
            rate = await _burst(http, server, width, prefix, number)
            if number >= 0:
                rates[server.name].append(rate)
    mine, theirs = (Figure(tuple(rates[server.name])) for server in servers)
    label = f"{width}{prefix}"
    report.add(label, mine, theirs, ratio(mine, theirs))
    report.figures |= {f"{label} swiftlm": list(mine.values), f"{label} peer": list(theirs.values)}


async def _burst(
    http: aiohttp.ClientSession, server: Server, width: int, prefix: Prefix, number: int
) -> float:
    """Aggregate tokens per second of `width` clients that ask at once."""
    started = time.perf_counter()
    prompts = [_prompt(client, width, prefix, number) for client in range(width)]
    num_tokens = OPTIONS.num_tokens or NUM_TOKENS
    answers = await asyncio.gather(
        *(chat(http, server, prompt, max_tokens=num_tokens) for prompt in prompts)
    )
    return sum(a.num_tokens for a in answers) / (time.perf_counter() - started)


def _prompt(client: int, width: int, prefix: Prefix, number: int) -> list[Message]:
    topic = TOPICS[client % len(TOPICS)]
    question = f"Round {number}, client {client}: what is {topic}?"
    messages: list[Message] = [{"role": "user", "content": question}]
    if prefix is Prefix.KNOWN:
        messages.insert(0, {"role": "system", "content": SHARED})
    if prefix is Prefix.NEW:
        system = f"Task {number} of {width} clients. {SHARED}"
        messages.insert(0, {"role": "system", "content": system})
    return messages
