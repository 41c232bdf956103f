"""Quantized weights on a CPU, as they are and as float32: load, first token, decode.

    LD_PRELOAD=libopenblas.so.0 python bench/cpu_weights.py MODEL

Each way is measured in processes of its own; the best of all rounds counts,
since other programs only ever add to it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 19
STEPS = 24


def measure(folder: Path, way: str) -> dict[str, float | str]:
    """In this process, with mlx-lm's own loop."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from swiftlm_engine.expansion.options import ExpandOptions
    from swiftlm_engine.load.device import Device
    from swiftlm_engine.load.weights import load_weights

    expand = ExpandOptions(head=True, attention_layers=10_000, mlp_layers=10_000)
    options = expand if way == "expand" else ExpandOptions()
    started = time.perf_counter()
    weights = load_weights(folder, "", Device.CPU, lambda *_: None, expand=options)
    loaded_s = time.perf_counter() - started
    firsts, steps = [], []
    for _ in range(3):
        cache: Any = make_prompt_cache(weights.model)
        token = mx.array([list(range(200, 200 + PROMPT_TOKENS))])
        for step in range(STEPS + 1):
            started = time.perf_counter()
            token = mx.argmax(weights.model(token, cache=cache)[:, -1:], -1)
            mx.eval(token)
            (steps if step else firsts).append(time.perf_counter() - started)
    return {
        "load_s": loaded_s,
        "first_token_s": min(firsts),
        "decode_tokens_s": 1 / (sorted(steps)[len(steps) // 2]),
        "bytes": weights.weight_bytes,
        "note": weights.expanded.note if weights.expanded else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=("keep", "expand"))
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.model, options.way)))
        return
    for way in ("keep", "expand"):
        runs = []
        for _ in range(options.rounds):
            command = [sys.executable, __file__, str(options.model), "--way", way]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        print(
            f"{way}: {runs[0]['bytes'] / 1e6:.0f} MB, "
            f"load {min(run['load_s'] for run in runs):.1f} s, "
            f"first token {1e3 * min(run['first_token_s'] for run in runs):.0f} ms, "
            f"decode {max(run['decode_tokens_s'] for run in runs):.1f} tok/s; {runs[0]['note']}"
        )


if __name__ == "__main__":
    main()
