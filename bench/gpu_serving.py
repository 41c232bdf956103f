"""The whole service on a CUDA GPU beside mlx-lm: decode, bursts of clients, schemas, a tool loop.

    python bench/gpu_serving.py TOKENIZER [--shapes small 8b] [--benchmarks serving] [--out DIR]

Writes random 4-bit checkpoints with the shapes of Qwen3-0.6B and Qwen3-8B and the tokenizer and
chat template of the folder TOKENIZER, and runs `python -m bench` on them. Random weights are as
fast as trained ones and say nothing of quality; `decode` says how far the text equals mlx-lm's.
Needs mlx with its CUDA back end, mlx-lm and what the daemon needs; about four minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ("decode", "serving", "constrained", "agent", "overtake")
SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    },
    "8b": {
        "hidden_size": 4096, "num_hidden_layers": 36, "intermediate_size": 12288,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    },
    "tiny": {
        "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    },
}  # fmt: skip
COMMON = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "tie_word_embeddings": False, "max_position_embeddings": 40960,
    "torch_dtype": "float16", "quantization": {"group_size": 64, "bits": 4},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["small", "8b"])
    parser.add_argument("--benchmarks", nargs="+", choices=BENCHMARKS, default=BENCHMARKS)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3, help="of `serving`")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for each shape")
    parser.add_argument("--out", type=Path, default=Path(".cache/bench"))
    args = parser.parse_args()
    for shape in args.shapes:
        folder = Path(tempfile.mkdtemp(prefix=f"{shape}-"))
        try:
            _write_model(folder, SHAPES[shape], args.tokenizer)
            deadline = time.monotonic() + args.limit
            for name in args.benchmarks:
                limit = deadline - time.monotonic()
                print(f"# {shape}: {name}", flush=True)
                options = ("--model", folder, "--tokens", args.tokens, "--out", args.out / shape)
                options += ("--rounds", args.rounds, "--widths", *args.widths)
                _python("-m", "bench", name, *options, limit_s=max(limit, 1.0))
        finally:
            shutil.rmtree(folder)


def _write_model(folder: Path, shape: dict[str, Any], tokenizer: Path) -> None:
    words = json.loads((tokenizer / "config.json").read_text())
    ids = {key: words[key] for key in ("vocab_size", "eos_token_id", "bos_token_id")}
    _python("-m", "bench.random_qwen3", folder, json.dumps(COMMON | shape | ids))
    for file in tokenizer.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            shutil.copy(file, folder)


def _python(*arguments: object, limit_s: float = 300.0) -> None:
    """One failure must not cost the rest of the run; servers go with their benchmark."""
    environ = {**os.environ, "PYTHONPATH": _path()}
    command = [sys.executable, *map(str, arguments)]
    process = subprocess.Popen(command, env=environ, cwd=ROOT, start_new_session=True)
    try:
        if code := process.wait(limit_s):
            print(f"failed with {code}", flush=True)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        print(f"cut off after {limit_s:.0f} s", flush=True)


def _path() -> str:
    rooms = [str(ROOT), *(str(ROOT / room) for room in ("proto", "engine", "daemon", "ctl"))]
    return os.pathsep.join([*rooms, os.environ.get("PYTHONPATH", "")])


if __name__ == "__main__":
    main()
