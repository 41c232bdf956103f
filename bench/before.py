"""Streams of a tiny model from this checkout beside an earlier one, in turns.

    BENCH_BEFORE=REVISION python -m bench before

The model decodes in no time, so that what is around it shows: guards, budgets, registries, the
road of a token. What has more than one client is counted over all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import aiohttp

from bench.client import chat, session
from bench.models import ROOT, tiny_llama
from bench.options import OPTIONS
from bench.servers import Server, ours
from bench.table import Figure, Report, ratio

ROUNDS = 7
WIDTHS = (1, 8, 32)
NUM_TOKENS = 64


async def run() -> Report:
    revision = os.environ.get("BENCH_BEFORE", "HEAD~1")
    title = f"this checkout beside {revision}"
    report = Report(title, ["streams", "now tok/s", "before tok/s", "ratio of medians"])
    folder = OPTIONS.model or tiny_llama()
    with tempfile.TemporaryDirectory(prefix="bench-before") as place, contextlib.ExitStack() as up:
        checkout = _unpacked(revision, Path(place))
        servers = [up.enter_context(ours(folder)), up.enter_context(ours(folder, root=checkout))]
        async with session() as http:
            for width in OPTIONS.widths or WIDTHS:
                await _compare(report, http, servers, width)
    return report


def _unpacked(revision: str, place: Path) -> Path:
    """The revision's files, without its history."""
    archive = place / "before.tar"
    command = ["git", "-C", str(ROOT), "archive", "-o", str(archive), revision]
    subprocess.run(command, check=True)
    with tarfile.open(archive) as files:
        files.extractall(place / "before", filter="data")
    return place / "before"


async def _compare(
    report: Report, http: aiohttp.ClientSession, servers: list[Server], width: int
) -> None:
    rates: list[list[float]] = [[], []]
    for turn in range(-1, OPTIONS.rounds or ROUNDS):  # the first is a warm-up
        order = (0, 1) if turn % 2 else (1, 0)
        for which in order:
            rate = await _rate(http, servers[which], width, turn)
            if turn >= 0:
                rates[which].append(rate)
    now, before = (Figure(tuple(found)) for found in rates)
    report.add(width, now, before, ratio(now, before), **{f"now {width}": now})


async def _rate(http: aiohttp.ClientSession, server: Server, width: int, turn: int) -> float:
    """Tokens a second of all streams together."""
    num_tokens = OPTIONS.num_tokens or NUM_TOKENS
    started = time.perf_counter()
    answers = await asyncio.gather(
        *(
            chat(
                http,
                server,
                [{"role": "user", "content": f"turn {turn} of client {client}"}],
                max_tokens=num_tokens,
                ignore_eos=True,
            )
            for client in range(width)
        )
    )
    return sum(answer.num_tokens for answer in answers) / (time.perf_counter() - started)
