"""Whether calibration pays: a server that plans by its record beside one that plans by defaults.

Both run at once and answer in turn; then what the plan predicted is held against what was measured.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.client import chat, session
from bench.models import ROOMS, smollm2_dense
from bench.servers import Server, ours
from bench.table import Figure, Report, ratio

RUNS = 5
ANSWER = 48
WORDS = 480  # about a thousand tokens
_OPTIONS = {"engine_prefix_cache": "off", "calibration_auto": "false", "engine_prefix_disk": "off"}


@dataclass(slots=True)
class Speeds:
    prefill: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)  # prompt over the wait for a token
    decode: list[float] = field(default_factory=list)
    depth: int = 0


async def run() -> Report:
    folder = smollm2_dense()
    home = Path(tempfile.mkdtemp(prefix="sb", dir="/tmp"))
    with ours(folder, home, **_OPTIONS) as server:
        _ctl(server, "calibrate", "bench", "--json")
    report = Report("calibration", ["", "calibrated", "defaults", "ratio", "predicted / measured"])
    with ours(folder, home, **_OPTIONS) as mine, ours(folder, **_OPTIONS) as plain:
        plan = json.loads(_ctl(mine, "plan", "bench", "--json"))
        assert plan["speed"]["calibrated"], "the plan did not take the record"
        with_record, defaults = await _in_turn(mine, plain)
    shutil.rmtree(home, ignore_errors=True)
    _add(report, "prefill", with_record.prefill, defaults.prefill, _prefill(plan))
    first, first0 = Figure(tuple(with_record.first)), Figure(tuple(defaults.first))
    report.add("prompt / first token", first, first0, ratio(first, first0), "")
    _add(report, "decode", with_record.decode, defaults.decode, _decode(plan, with_record.depth))
    report.notes.append(
        f"prompts of {with_record.depth} tokens, {ANSWER} decoded; chunk {plan['prefill_chunk']}, "
        f"parallel {plan['parallel']} by the record"
    )
    return report


async def _in_turn(*servers: Server) -> list[Speeds]:
    found = {server.url: Speeds() for server in servers}
    async with session() as http:
        for number in range(RUNS + 1):
            for server in servers if number % 2 else servers[::-1]:
                text = " ".join(f"word{number}-{i}" for i in range(WORDS // 3))
                messages = [{"role": "user", "content": text}]
                answer = await chat(http, server, messages, max_tokens=ANSWER, ignore_eos=True)
                speeds = found[server.url]
                speeds.depth = answer.prompt_tokens
                if number:  # the first warms up
                    speeds.prefill.append(answer.prompt_tokens / answer.prefill_s)
                    speeds.first.append(answer.prompt_tokens / answer.first_s)
                    speeds.decode.append(answer.decode_tokens_per_s)
    return list(found.values())


def _add(
    report: Report, name: str, mine: list[float], plain: list[float], predicted: float
) -> None:
    ours_, theirs = Figure(tuple(mine), "tok/s"), Figure(tuple(plain), "tok/s")
    off = f"{predicted:.3g} / {ours_.median:.3g} = {predicted / ours_.median:.2f}"
    report.add(name, ours_, theirs, ratio(ours_, theirs), off, **{name: ours_, f"{name}0": theirs})


def _prefill(plan: dict[str, Any]) -> float:
    return sum(plan["speed"]["prefill_tokens_s"]) / 2


def _decode(plan: dict[str, Any], depth: int) -> float:
    """Between an empty and a full context a step's time grows evenly."""
    empty, full = (
        2 / sum(plan["speed"][key]) for key in ("decode_tokens_s", "decode_full_context_tokens_s")
    )
    return 1 / (empty + (full - empty) * depth / plan["context"])


def _ctl(server: Server, *words: str) -> str:
    environ = {**os.environ, "SWIFTLM_HOME": str(server.home), "PYTHONPATH": ROOMS}
    command = [sys.executable, "-m", "swiftlmctl", *words]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    return done.stdout
