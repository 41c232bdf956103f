"""What writing stored prefixes to the SSD costs the sequence that decodes meanwhile.

Two servers, one of them without the SSD tier, answer turn about: each reads a long prompt that no
cache knows and then decodes. The short answers end before a busy engine begins to write, the long
ones do not. A small model with much KV: with a large one the prompts take minutes.
"""

from __future__ import annotations

import random

import aiohttp

from bench.client import chat, session
from bench.models import wide_llama
from bench.options import OPTIONS
from bench.servers import Server, ours
from bench.table import Figure, Report

PROMPT_WORDS = 300
ANSWERS = {48: 12, 1500: 3}  # tokens, and rounds of them


async def run() -> Report:
    folder = OPTIONS.model or wide_llama()
    columns = ["answer", "with SSD tok/s", "without tok/s", "ratio in a pair", "written meanwhile"]
    report = Report("prefix writes", columns)
    with ours(folder) as writing, ours(folder, engine_prefix_disk="0") as plain:
        async with session() as http:
            for num_tokens, rounds in ANSWERS.items():
                await _compare(report, http, (writing, plain), num_tokens, rounds)
    return report


async def _compare(
    report: Report,
    http: aiohttp.ClientSession,
    servers: tuple[Server, Server],
    num_tokens: int,
    rounds: int,
) -> None:
    speeds: dict[str, list[float]] = {server.url: [] for server in servers}
    written = []
    for number in range(rounds + 1):
        prompt = _words(f"{num_tokens}.{number}")
        for server in servers if number % 2 else servers[::-1]:
            await chat(http, server, _asking(prompt), max_tokens=1)
            before = _bytes_on_disk(server)
            answer = await chat(
                http, server, _asking("Count upwards."), max_tokens=num_tokens, ignore_eos=True
            )
            if number:  # the first round warms up
                speeds[server.url].append(answer.decode_tokens_per_s)
            if number and server is servers[0]:
                written.append((_bytes_on_disk(server) - before) / 1e6)
    ours_, peer = (Figure(tuple(speeds[server.url])) for server in servers)
    pairs = Figure(tuple(a / b for a, b in zip(ours_.values, peer.values, strict=True)), "x")
    report.add(
        f"{num_tokens} tokens", ours_, peer, pairs, Figure(tuple(written), "MB"),
        **{f"pairs {num_tokens}": pairs},
    )  # fmt: skip


def _asking(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def _words(seed: str) -> str:
    words = random.Random(seed)
    return " ".join(f"word{words.randrange(1000)}" for _ in range(PROMPT_WORDS))


def _bytes_on_disk(server: Server) -> int:
    assert server.home is not None
    return sum(path.stat().st_size for path in server.home.rglob("*.kv"))
