"""A model folder with fewer bits per weight: `python -m swiftlm_engine.convert.quantize`.

mlx-lm decides which modules take part; the weights are quantised and written one shard at a time,
so that the memory needed is that of a shard and its source, however large the model is. Unlike the
rest of this package it runs MLX, in its own process like everything here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from swiftlm_engine.brain.leftovers import remove_leftovers
from swiftlm_engine.convert.errors import ConvertError
from swiftlm_engine.convert.folder import move_into_place, temporary_beside
from swiftlm_engine.convert.lines import die_with_parent, say
from swiftlm_engine.isolation.file_limit import bear_few_files

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
_SHARD_BYTES = 1 << 30
# What a model needs besides its weights. A list of what may come along, not of what may not:
# folders hold packs of experts, states of optimisers and whatever else somebody put there.
_CARRIED = (
    "generation_config.json", "tokenizer*.json", "tokenizer*.model", "sentencepiece*.model",
    "spiece.model", "*.tiktoken", "tiktoken.model", "tekken.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template*",
    "*processor_config.json", "README.md", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantised:
    path: Path
    size_bytes: int
    bits_per_weight: float
    peak_bytes: int  # of MLX's memory, measured


def quantise(source: Path, out: Path, bits: int, group_size: int) -> Quantised:
    """Raises ConvertError. `out` appears whole or not at all."""
    bear_few_files()
    from mlx_lm.utils import compute_bits_per_weight, quantize_model, save_config

    model, config = _loaded(source)
    source_bits = max(8 * w.itemsize for _, w in tree_flatten(model.parameters()))
    model, config = quantize_model(model, config, group_size, bits)
    bits_per_weight = compute_bits_per_weight(model)
    weights = dict(tree_flatten(model.parameters()))
    del model  # the shards must be the only owners: each is freed when it is written
    total = sum(w.nbytes for w in weights.values())
    say(stage="plan", total_bytes=total, peak_bytes=_peak(weights, bits, source_bits))
    with temporary_beside(out) as folder:
        _write_weights(folder, weights, total)
        _carry_over(source, folder)
        save_config(config, config_path=folder / "config.json")
        move_into_place(folder, out)
    size = sum(p.stat().st_size for p in out.iterdir())
    return Quantised(out, size, bits_per_weight, mx.get_peak_memory())


def _loaded(source: Path) -> tuple[Any, dict[str, Any]]:
    from mlx_lm.utils import load_model

    try:
        model, config = load_model(source, lazy=True)
    except (ValueError, FileNotFoundError, KeyError, TypeError) as error:
        raise ConvertError(f"{source} cannot be loaded: {error}") from error
    if config.get("quantization") or config.get("quantization_config"):
        raise ConvertError(f"{source} is quantized already; convert the original instead")
    return model, config


def _peak(weights: dict[str, mx.array], bits: int, source_bits: int) -> int:
    """A shard of packed weights, and the wider ones that it is made of."""
    largest = max(w.nbytes for w in weights.values())
    return max(_SHARD_BYTES, largest) * (1 + -(-source_bits // bits))


def _write_weights(folder: Path, weights: dict[str, mx.array], total: int) -> None:
    shards = list(_shards(weights))
    where: dict[str, str] = {}
    done = 0
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        say(stage="convert", done_bytes=done, total_bytes=total, detail=file)
        part = {name: weights.pop(name) for name in names}
        mx.save_safetensors(str(folder / file), part, metadata={"format": "mlx"})
        done += sum(w.nbytes for w in part.values())
        where |= dict.fromkeys(names, file)
        del part
        mx.clear_cache()
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    say(stage="convert", done_bytes=total, total_bytes=total, detail="")


def _shards(weights: dict[str, mx.array]) -> Iterator[list[str]]:
    """Names in order, in groups of about the size of a shard."""
    names: list[str] = []
    size = 0
    for name, weight in weights.items():
        if names and size + weight.nbytes > _SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += weight.nbytes
    yield names


def _carry_over(source: Path, folder: Path) -> None:
    """Tokenizer, template and generation settings, byte for byte; no weights, no code."""
    for path in source.iterdir():
        if path.name.startswith("."):
            continue  # macOS keeps `._NAME` beside each file of a foreign volume
        if path.is_file() and any(path.match(pattern) for pattern in _CARRIED):
            shutil.copyfile(path, folder / path.name)


def main(argv: list[str] | None = None) -> int:
    die_with_parent()
    parser = argparse.ArgumentParser(prog="swiftlm_engine.convert.quantize", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bits", type=int, choices=BITS, default=4)
    parser.add_argument("--group-size", type=int, choices=GROUPS, default=64)
    args = parser.parse_args(argv)
    try:
        remove_leftovers(args.out.parent, args.out.name)
        result = quantise(args.source, args.out, args.bits, args.group_size)
    except (ConvertError, OSError) as error:
        say(stage="error", message=str(error))
        return 1
    say(
        stage="done",
        path=str(result.path),
        size_bytes=result.size_bytes,
        bits_per_weight=round(result.bits_per_weight, 3),
        peak_bytes=result.peak_bytes,
    )
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
