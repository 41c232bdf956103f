"""Decode through HTTP streaming against mlx-lm's own loop in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.client import chat, session
from bench.models import smollm2_dense
from bench.servers import ours
from bench.table import Figure, Report, ratio

RUNS = 5
NUM_TOKENS = 100
QUESTION = "Tell me a long story about a fox who learns to sail."

_LOOP = """
import json, sys, time
from mlx_lm import load, stream_generate
model, tokenizer = load(sys.argv[1])
chat = [{"role": "user", "content": sys.argv[2]}]
prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
tokenizer._eos_token_ids = set()
print("ready", flush=True)
for line in sys.stdin:
    started = time.perf_counter()
    first = None
    for n, _ in enumerate(stream_generate(model, tokenizer, prompt, max_tokens=int(line))):
        if first is None:
            first = time.perf_counter() - started
    total = time.perf_counter() - started
    print(json.dumps({"first_s": first, "rate": n / (total - first)}), flush=True)
"""


class Loop:
    """mlx-lm's `stream_generate`, in a process that waits while ours is measured."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOP, str(folder), QUESTION],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read()

    def run(self) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{NUM_TOKENS}\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


async def run() -> Report:
    folder = smollm2_dense()
    report = Report("decode", ["", "swiftlm (HTTP stream)", "mlx_lm stream_generate", "ratio"])
    loop = Loop(folder)
    our_rates, loop_rates, our_first, loop_first = [], [], [], []
    with ours(folder, engine_prefix_cache="off") as server:
        async with session() as http:
            for _ in range(RUNS):
                answer = await chat(
                    http,
                    server,
                    [{"role": "user", "content": QUESTION}],
                    max_tokens=NUM_TOKENS,
                    ignore_eos=True,
                )
                peer = loop.run()
                our_rates.append(answer.decode_tokens_per_s)
                our_first.append(answer.first_s * 1000)
                loop_rates.append(peer["rate"])
                loop_first.append(peer["first_s"] * 1000)
    loop.close()
    mine, theirs = Figure(tuple(our_rates), "tok/s"), Figure(tuple(loop_rates), "tok/s")
    report.add("decode", mine, theirs, ratio(mine, theirs), swiftlm=mine, mlx_lm=theirs)
    mine, theirs = Figure(tuple(our_first), "ms"), Figure(tuple(loop_first), "ms")
    report.add("first token", mine, theirs, ratio(mine, theirs), first=mine, peer_first=theirs)
    return report
