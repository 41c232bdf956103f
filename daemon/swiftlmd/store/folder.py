"""Whether a folder holds a whole model, told from names, sizes and headers; no weight is read.

A model is listed as ready only after this, so a half-finished download is a reason to show and
never a crash in the loader.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAX_JSON_BYTES = 64 << 20  # the largest tokenizer and index files are below 40 MB
_MAX_HEADER_BYTES = 100 << 20  # the safetensors format's own limit
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_VISION_KEYS = ("vision_config", "vision_tower", "image_token_id", "image_token_index")

Json = dict[str, Any]  # files of others: any JSON


class BrokenFolder(Exception):
    """The folder is no loadable model; the message names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a listing shows of one folder."""

    size_bytes: int
    reason: str  # empty: complete
    model_type: str = ""
    context: int = 0
    quantization: str = ""
    vision: bool = False


def inspect(folder: Path) -> Facts:
    """Never raises for a bad folder: the reason is part of the answer."""
    size = folder_bytes(folder)
    try:
        config = read_json(folder / "config.json")
    except BrokenFolder as broken:
        return Facts(size, str(broken))
    return Facts(
        size,
        _reason(folder),
        model_type=_text(config, "model_type"),
        context=_context(config),
        quantization=_quantization(config),
        vision=any(key in config for key in _VISION_KEYS),
    )


def folder_bytes(folder: Path) -> int:
    """Sizes of the files that a load would open, links followed."""
    try:
        return sum(p.stat().st_size for p in folder.iterdir() if p.is_file())
    except OSError:
        return 0


def check_weights(folder: Path) -> None:
    """Every weight file that the index names is here and as long as its header says."""
    for name in _weight_names(folder):
        check_safetensors(folder / name)


def check_safetensors(path: Path) -> None:
    """The header can be read and the file ends where its last tensor does."""
    name = path.name
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            if length > min(_MAX_HEADER_BYTES, size):
                raise BrokenFolder(f"{name} is damaged: its header claims {length} bytes")
            header = json.loads(f.read(length))
        end = max((entry["data_offsets"][1] for entry in _tensors(header)), default=0)
    except FileNotFoundError as error:
        raise BrokenFolder(f"{name} is missing") from error
    except (OSError, struct.error, ValueError, KeyError, TypeError, IndexError) as error:
        raise BrokenFolder(f"{name} is damaged: its header cannot be read") from error
    expected = 8 + length + end
    if size != expected:
        raise BrokenFolder(f"{name} has {size} of {expected} bytes")


def read_json(path: Path) -> Json:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise BrokenFolder(f"{path.name} is larger than {_MAX_JSON_BYTES >> 20} MiB")
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BrokenFolder(f"{path.name} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BrokenFolder(f"{path.name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise BrokenFolder(f"{path.name} is not a JSON object")
    return content


def _reason(folder: Path) -> str:
    try:
        check_weights(folder)
    except BrokenFolder as broken:
        return str(broken)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        return f"no tokenizer; looked for {', '.join(_TOKENIZERS)}"
    return ""


def _weight_names(folder: Path) -> list[str]:
    """By the index where there is one, else every model*.safetensors, as mlx-lm loads them."""
    if (folder / _INDEX).is_file():
        files = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(files, dict) or not files:
            raise BrokenFolder(f"{_INDEX} names no files")
        names = sorted({str(name) for name in files.values()})
        if unsafe := [n for n in names if "/" in n or n.startswith(".")]:
            raise BrokenFolder(f"{_INDEX} points outside the folder: {unsafe[0]}")
        return names
    names = sorted(p.name for p in folder.glob("model*.safetensors"))
    if names:
        return names
    if any(next(folder.glob(pattern), None) for pattern in _PICKLES):
        raise BrokenFolder("only pickled weights; swiftlm loads safetensors and nothing else")
    raise BrokenFolder(f"no weights; looked for {_INDEX} and model*.safetensors")


def _tensors(header: Json) -> list[Json]:
    return [entry for name, entry in header.items() if name != "__metadata__"]


def _text(config: Json, key: str) -> str:
    value = config.get(key)
    return value if isinstance(value, str) else ""


def _context(config: Json) -> int:
    """The longest position the model was made for; vision models keep it one level down."""
    inner = config.get("text_config")
    for level in (config, inner if isinstance(inner, dict) else {}):
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
            if isinstance(value := level.get(key), int) and value > 0:
                return value
    return 0


def _quantization(config: Json) -> str:
    settings = config.get("quantization") or config.get("quantization_config")
    if isinstance(settings, dict):
        if isinstance(bits := settings.get("bits"), int):
            return f"{bits}-bit g{settings.get('group_size', 64)}"
        return str(settings.get("quant_method") or settings.get("mode") or "quantised")
    return _text(config, "torch_dtype") or _text(config, "dtype")
