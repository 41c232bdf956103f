"""A tiny model in several weight files, as large ones come: a layer or so in each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import mlx.core as mx

_LAYER = re.compile(r"\.layers\.(\d+)\.")


def shard(folder: Path, layers_per_file: int = 1) -> Path:
    """Cuts the one weight file of a model; what is in no layer goes into the first of the new."""
    whole = folder / "model.safetensors"
    parts: dict[int, dict[str, mx.array]] = {}
    for name, array in mx.load(str(whole)).items():
        found = _LAYER.search(name)
        number = int(found[1]) // layers_per_file if found else 0
        parts.setdefault(number, {})[name] = array
    weight_map = {}
    for number, arrays in parts.items():
        file = f"model-{number + 1:05d}-of-{len(parts):05d}.safetensors"
        mx.save_safetensors(str(folder / file), arrays, {"format": "mlx"})
        weight_map |= dict.fromkeys(arrays, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    whole.unlink()
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """As a hub serves them."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
