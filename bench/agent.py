"""A six-turn tool loop: what each turn prefills, and how long until its first token."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bench.client import Message, chat, session
from bench.options import OPTIONS
from bench.servers import Server, ours
from bench.table import Report

TURNS = 6
SYSTEM = "You are a coding agent with tools. " + " ".join(
    f"Rule {i}: never edit file{i}.py without reading it." for i in range(350)
)


async def run() -> Report:
    folder = OPTIONS.folder
    report = Report("agent", ["turn", "prompt", "cached", "prefilled", "first token s"])
    home = Path(tempfile.mkdtemp(prefix="sb", dir="/tmp"))
    with ours(folder, home) as server:
        async with session() as http:
            history = await _loop(report, http, server)
            cold = await chat(http, server, history, max_tokens=1, cache_salt="cold")
    report.add("same prompt, cold", cold.prompt_tokens, cold.cached_tokens, "", _s(cold.first_s))
    with ours(folder, home) as server:
        async with session() as http:
            again = await chat(http, server, history, max_tokens=1)
    new = again.prompt_tokens - again.cached_tokens
    report.add("after a restart", again.prompt_tokens, again.cached_tokens, new, _s(again.first_s))
    report.notes.append(f"restart / cold = {again.first_s / cold.first_s:.2f}")
    shutil.rmtree(home, ignore_errors=True)
    return report


async def _loop(report: Report, http, server: Server) -> list[Message]:
    history: list[Message] = [{"role": "system", "content": SYSTEM}]
    for turn in range(1, TURNS + 1):
        content = f"Turn {turn}: " + " ".join(f"result{turn}x{i}" for i in range(12))
        history.append({"role": "user", "content": content})
        answer = await chat(http, server, history, max_tokens=16)
        history.append({"role": "assistant", "content": answer.text})
        new = answer.prompt_tokens - answer.cached_tokens
        report.add(turn, answer.prompt_tokens, answer.cached_tokens, new, _s(answer.first_s))
    return history[:-1]


def _s(seconds: float) -> str:
    return f"{seconds:.3f}"
