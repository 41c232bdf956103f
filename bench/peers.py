"""Ours beside the peers: same weights, same machine, one run, turn about.

mlx_lm.server, vllm-mlx, llama.cpp's server and raw `mlx_lm.generate` (one client only, no HTTP). A
server whose answers are nonsense gets no speed, one that does not run gets its reason printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.client import Answer, chat, session
from bench.decode import Loop
from bench.models import gguf_files
from bench.options import OPTIONS
from bench.peer_servers import llama_cpp, vllm_mlx
from bench.scratch import Unavailable
from bench.servers import Server, mlx_lm_server, ours
from bench.table import Figure, Report
from swiftlmctl.bench.bar_chart import bars
from swiftlmctl.bench.coherence import complaint

ROUNDS = 5  # each is first once, the raw loop included
WIDTHS = (1, 4, 8)
NUM_TOKENS = 32
RAW = "mlx_lm.generate"
SUBJECTS = ("a fox who sails", "an old clock", "two bakers", "the last train", "a paper boat")
COLUMNS = ("clients", "", "first token s", "decode tok/s", "all tok/s")
RATIOS = ("first token, ours faster by", "decode, ours / it", "all, ours / it")


@dataclass(frozen=True, slots=True)
class Burst:
    """What the clients of one server got who asked at once: medians over them, and their sum."""

    first_s: float
    decode_rate: float
    rate: float
    complaint: str


Bursts = dict[str, list[Burst]]


async def run() -> Report:
    report = Report("peers", [*COLUMNS, *RATIOS])
    rates: dict[str, Figure] = {}
    folder = OPTIONS.folder
    with contextlib.ExitStack() as stack:
        servers = _start(stack, report, folder)
        loop = stack.enter_context(contextlib.closing(Loop(folder)))
        async with session() as http:
            for server in servers:
                await chat(http, server, _question(-1, 0), max_tokens=4)
            for width in WIDTHS:
                bursts = await _rounds(http, servers, loop, width)
                _rows(report, rates, width, bursts)
    mine = [label for label in rates if label.endswith("swiftlm")]
    report.pictures["peers"] = bars(
        "tokens/s of all clients; their number, the server", rates, mine
    )
    report.notes.append(f"{folder.name}, {_num_tokens()} tokens an answer, {ROUNDS} rounds")
    return report


def _start(stack: contextlib.ExitStack, report: Report, folder: Path) -> list[Server]:
    starts: dict[str, Callable[[], contextlib.AbstractContextManager[Server]]] = {
        "swiftlm": lambda: ours(folder),
        "mlx_lm.server": lambda: mlx_lm_server(folder),
        "vllm-mlx": lambda: vllm_mlx(folder),
        "llama.cpp server": lambda: llama_cpp(_gguf_of(folder)),
    }
    servers = []
    for name, start in starts.items():
        try:
            servers.append(stack.enter_context(start()))
        except Unavailable as reason:
            report.notes.append(f"{name} does not run here: {reason}")
            print(report.notes[-1], file=sys.stderr)
    return servers


def _gguf_of(folder: Path) -> Path:
    name = folder.name.removesuffix("-dense")
    for known, file in gguf_files().items():
        if known.lower() == name:
            return file
    raise Unavailable(f"no GGUF file of {folder.name} is known")


async def _rounds(http, servers: list[Server], loop: Loop, width: int) -> Bursts:
    for server in servers:  # the first burst of a width pays for what the width needs
        await _ask(http, server, width, ROUNDS)
    bursts: Bursts = {server.name: [] for server in servers}
    if width == 1:
        bursts[RAW] = []
    for number in range(ROUNDS):
        names = list(bursts)
        turn = number % len(names)  # whoever comes first has the coolest machine
        for name in names[turn:] + names[:turn]:
            if name == RAW:
                bursts[name].append(await asyncio.to_thread(_raw, loop, number))
                continue
            server = next(server for server in servers if server.name == name)
            bursts[name].append(await _ask(http, server, width, number))
    return bursts


async def _ask(http, server: Server, width: int, number: int) -> Burst:
    started = time.perf_counter()
    answers = await asyncio.gather(
        *(
            chat(http, server, _question(number * width + client, width), max_tokens=_num_tokens())
            for client in range(width)
        )
    )
    return _burst(answers, time.perf_counter() - started)


def _raw(loop: Loop, number: int) -> Burst:
    started = time.perf_counter()
    said = loop.run(_question(number, 1)[0]["content"], _num_tokens())
    total = time.perf_counter() - started
    return Burst(said["first_s"], said["rate"], _num_tokens() / total, complaint(said["text"]))


def _burst(answers: list[Answer], total_s: float) -> Burst:
    return Burst(
        statistics.median(answer.first_s for answer in answers),
        statistics.median(answer.decode_tokens_per_s for answer in answers),
        sum(answer.num_tokens for answer in answers) / total_s,
        next((wrong for answer in answers if (wrong := complaint(answer.text))), ""),
    )


def _num_tokens() -> int:
    return OPTIONS.num_tokens or NUM_TOKENS


def _question(number: int, width: int) -> list[dict[str, str]]:
    """Another one for every client and round, so that no cache of prefixes knows its end."""
    subject = SUBJECTS[number % len(SUBJECTS)]
    content = f"Story {width}.{number}: tell me a long story about {subject}."
    return [{"role": "user", "content": content}]


def _rows(report: Report, rates: dict[str, Figure], width: int, bursts: Bursts) -> None:
    mine = bursts["swiftlm"]
    for name, theirs in bursts.items():
        wrong = next((burst.complaint for burst in theirs if burst.complaint), "")
        if wrong:
            report.add(width, name, f"no speed: {wrong}", *["-"] * (len(report.columns) - 3))
            continue
        first, decode, rate = (
            Figure(tuple(getattr(burst, part) for burst in theirs))
            for part in ("first_s", "decode_rate", "rate")
        )
        ratios = ("", "", "") if name == "swiftlm" else _ratios(mine, theirs)
        label = f"{width} {name}"
        report.add(width, name, first, decode, rate, *ratios, **{f"{label} tok/s": rate})
        rates[label] = rate


def _ratios(mine: list[Burst], theirs: list[Burst]) -> tuple[Figure, ...]:
    """Of each round's pair; above 1 ours is faster."""
    pairs = list(zip(mine, theirs, strict=True))
    return (
        Figure(tuple(it.first_s / we.first_s for we, it in pairs), "x"),
        Figure(tuple(we.decode_rate / it.decode_rate for we, it in pairs), "x"),
        Figure(tuple(we.rate / it.rate for we, it in pairs), "x"),
    )
