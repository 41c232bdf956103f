"""Decode through HTTP streaming against mlx-lm's own loop in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

from bench.client import chat, session
from bench.options import OPTIONS
from bench.servers import ours
from bench.table import Figure, Report, ratio

RUNS = 5
NUM_TOKENS = 100
QUESTION = "Tell me a long story about a fox who learns to sail."

_LOOP = """
import json, sys, time
from mlx_lm import load, stream_generate
model, tokenizer = load(sys.argv[1])
tokenizer._eos_token_ids = set()
print("ready", flush=True)
for line in sys.stdin:
    question, count = json.loads(line)
    chat = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    started = time.perf_counter()
    first, text = None, ""
    for n, part in enumerate(stream_generate(model, tokenizer, prompt, max_tokens=count)):
        text += part.text
        if first is None:
            first = time.perf_counter() - started
    total = time.perf_counter() - started
    print(json.dumps({"first_s": first, "rate": n / (total - first), "text": text}), flush=True)
"""


class Loop:
    """mlx-lm's `stream_generate`, in a process that waits while ours is measured."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOP, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read()

    def run(self, question: str, num_tokens: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([question, num_tokens]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


async def run() -> Report:
    folder = OPTIONS.folder
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
                    max_tokens=OPTIONS.num_tokens or NUM_TOKENS,
                    ignore_eos=True,
                )
                peer = loop.run(QUESTION, OPTIONS.num_tokens or NUM_TOKENS)
                our_rates.append(answer.decode_tokens_per_s)
                our_first.append(answer.first_s * 1000)
                loop_rates.append(peer["rate"])
                loop_first.append(peer["first_s"] * 1000)
    loop.close()
    pairs = zip(answer.text, peer["text"], strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    report.notes.append(f"{same} of {len(answer.text)} characters are mlx-lm's")
    mine, theirs = Figure(tuple(our_rates), "tok/s"), Figure(tuple(loop_rates), "tok/s")
    report.add("decode", mine, theirs, ratio(mine, theirs), swiftlm=mine, mlx_lm=theirs)
    mine, theirs = Figure(tuple(our_first), "ms"), Figure(tuple(loop_first), "ms")
    report.add("first token", mine, theirs, ratio(mine, theirs), first=mine, peer_first=theirs)
    return report
