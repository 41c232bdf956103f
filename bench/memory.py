"""What the plan prices beside what is measured: at rest, and after a request fills the context.

Each model in a process of its own (see memory_probe.py): dense in 32 and 16 bits, packed to four.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.models import ROOMS, ROOT, dense_models, four_bit
from bench.table import Report

# Context and chunk; packed and 16-bit products are slow on CPUs, their sizes no matter of length.
_DENSE, _SLOW = ((512, 256), (2048, 512)), ((256, 128),)


async def run() -> Report:
    report = Report(
        "memory",
        ["model", "context / chunk", "weights", "KV", "at rest", "peak", "process after load"],
    )
    for name, folder in dense_models().items():
        for context, chunk in _DENSE:
            _add(report, f"{name} float32", folder, context, chunk)
        for context, chunk in _SLOW:
            _add(report, f"{name} bfloat16", folder, context, chunk, "bfloat16")
            _add(report, f"{name} 4-bit", four_bit(folder), context, chunk)
    report.notes.append(
        "measured / priced. Weights and KV: bytes apart. At rest: weights. Peak: weights, KV of a "
        "full context and scratch against MLX's peak. Process: weights and process against the "
        "kernel's count."
    )
    return report


def _add(
    report: Report, name: str, folder: Path, context: int, chunk: int, dtype: str = ""
) -> None:
    found = _probe(folder, context, chunk, dtype)
    priced = found["weights_priced"] + found["kv_priced"] + found["scratch_priced"]
    resting = found["weights_priced"] + found["process_priced"]
    report.add(
        name,
        f"{context} / {chunk}",
        found["active"] - found["weights_priced"],
        found["kv"] - found["kv_priced"],
        _ratio(found["active"], found["weights_priced"]),
        _ratio(found["peak"], priced),
        _ratio(found["footprint"], resting),
    )
    report.figures[f"{name} {context}"] = [float(found["peak"]), float(priced)]


def _probe(folder: Path, context: int, chunk: int, dtype: str) -> dict[str, Any]:
    words = (str(folder), str(context), str(chunk), dtype)
    command = [sys.executable, "-m", "bench.memory_probe", *words]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOMS, str(ROOT)])}
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _ratio(measured: int, priced: int) -> str:
    return f"{measured / priced:.3f} ({measured / 1e6:.0f} / {priced / 1e6:.0f} MB)"
