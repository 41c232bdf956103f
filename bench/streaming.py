"""Streaming: SwiftLM's four cells, prefill, reads of real records, a layer's cost, a large model.

    make bench-stream                      about seven minutes, 2.7 GB in a temporary folder
    python -m bench.streaming --full       and a checkpoint of 17 GB under a limit of 6 GB

The large checkpoint has the shapes of Qwen3-30B-A3B with random weights; its router asks for
experts evenly, which is the worst case. `--keep DIR` keeps what was written for the next run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from tiny_models import make_model  # `tests` is on the path of `make bench-stream`

from bench.gpu_streaming import BASE, write_checkpoint
from bench.stream_prefill import prefill
from bench.stream_reads import reads
from bench.stream_served import cells, large

LAYERS, FULL_LAYERS = 6, 48
FULL_FREE_BYTES = 40 * 10**9
TINY = {
    "hidden_size": 512, "num_hidden_layers": 4, "head_dim": 128, "num_experts": 32,
    "num_experts_per_tok": 4, "moe_intermediate_size": 512, "max_position_embeddings": 8192,
}  # fmt: skip

# A prompt wants nearly all of its experts and computes little: what a large mixture is to a GPU.
MANY_EXPERTS = TINY | {
    "hidden_size": 256, "num_hidden_layers": 3, "num_experts": 128, "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="also the checkpoint of 17 GB")
    parser.add_argument("--keep", type=Path, help="folder for checkpoints")
    parser.add_argument("--tokens", type=int, default=5, help="of the large model")
    arguments = parser.parse_args()
    root = arguments.keep or Path(tempfile.mkdtemp(prefix="swiftlm-streaming-"))
    try:
        _run(root, arguments.full, arguments.tokens)
    finally:
        if arguments.keep is None:
            shutil.rmtree(root, ignore_errors=True)


def _run(root: Path, full: bool, tokens: int) -> None:
    tiny = _once(root / "tiny", lambda folder: _write_tiny(folder, TINY))
    print(cells(tiny), flush=True)
    many = _once(root / "many-experts", lambda folder: _write_tiny(folder, MANY_EXPERTS))
    print(prefill(many, MANY_EXPERTS["num_experts"]), flush=True)
    print(reads(_checkpoint(root, LAYERS, tiny)), flush=True)
    overhead = [sys.executable, "-m", "bench.streaming_overhead", str(tiny)]
    subprocess.run(overhead, check=True)  # a process of its own: it loads three models
    if full:
        if shutil.disk_usage(root).free < FULL_FREE_BYTES:
            raise SystemExit(f"--full needs {FULL_FREE_BYTES / 1e9:.0f} GB free in {root}")
        print(large(_checkpoint(root, FULL_LAYERS, tiny), tokens=tokens))


def _write_tiny(folder: Path, config: dict[str, int]) -> None:
    """Its logits are small: large random ones would fail the self-test of compressed KV."""
    file = make_model("qwen3_moe", folder, **config) / "model.safetensors"
    weights = mx.load(str(file))
    weights["lm_head.weight"] = 0.1 * weights["lm_head.weight"]
    mx.eval(weights)
    mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})


def _checkpoint(root: Path, layers: int, tiny: Path) -> Path:
    """Random weights of real shapes, with the tiny model's tokenizer."""

    def write(folder: Path) -> None:
        write_checkpoint(folder, BASE | {"num_hidden_layers": layers})
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(tiny / name, folder / name)

    return _once(root / f"layers-{layers}", write)


def _once(folder: Path, write: Callable[[Path], object]) -> Path:
    if not (folder / "config.json").exists():
        write(folder)
    return folder


if __name__ == "__main__":
    main()
