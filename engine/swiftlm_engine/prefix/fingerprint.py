"""What KV on disk depends on. Two runs with equal fingerprints may exchange it, no others.

Weights are not hashed whole (minutes for a large model): every tensor's name, type, shape and place
come from the safetensors header, and a few bytes of each tensor stand for its content.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from swiftlm_engine.brain.facts import weight_files
from swiftlm_engine.prefix.block_file import FORMAT_VERSION

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
_SAMPLE_BYTES = 256


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Named parts, so that a report can say what has changed."""

    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        text = json.dumps(dict(sorted(self.parts.items())))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def changes_from(self, other: "Fingerprint") -> tuple[str, ...]:
        names = sorted(self.parts.keys() | other.parts.keys())
        return tuple(n for n in names if self.parts.get(n) != other.parts.get(n))

    def to_json(self) -> str:
        return json.dumps(dict(self.parts), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Fingerprint":
        parts = json.loads(text)
        if not isinstance(parts, dict):
            raise ValueError("a fingerprint is an object")
        return cls({str(name): str(value) for name, value in parts.items()})


def fingerprint_of(
    folder: Path, *, template: str, kv_format: str, adapter_folder: Path | None = None
) -> Fingerprint:
    """The fingerprint of a model folder as it is served: this template, this KV format."""
    parts = {
        "config": _digest([_file_digest(folder / "config.json")]),
        "weights": _digest(map(weights_digest, weight_files(folder))),
        "tokenizer": _digest(_file_digest(folder / name) for name in _TOKENIZER_FILES),
        "template": _digest([template.encode()]),
        "kv_format": kv_format,
        "swiftlm": _version("swiftlm"),  # compressed KV means what our tables say
        "mlx": _version("mlx"),
        "mlx_lm": _version("mlx-lm"),
        "machine": platform.machine(),
        "format": str(FORMAT_VERSION),
    }
    if adapter_folder is not None:
        files = weight_files(adapter_folder)
        parts["adapter"] = _digest(map(weights_digest, files))
    return Fingerprint(parts)


def weights_digest(path: Path) -> bytes:
    """Digest of a safetensors file's header and of samples of every tensor; reads little."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        header_bytes = min(int.from_bytes(file.read(8), "little"), size)
        header = file.read(header_bytes)
        digest.update(size.to_bytes(8, "little") + header)
        for begin, end in _spans(header):
            for place in (begin, (begin + end) // 2, max(begin, end - _SAMPLE_BYTES)):
                file.seek(8 + header_bytes + place)
                digest.update(file.read(min(_SAMPLE_BYTES, end - place)))
    return digest.digest()


def _spans(header: bytes) -> list[tuple[int, int]]:
    tensors = json.loads(header)
    spans = (t["data_offsets"] for name, t in tensors.items() if name != "__metadata__")
    return sorted((int(begin), int(end)) for begin, end in spans)


def _file_digest(path: Path) -> bytes:
    """Digest of a whole, small file; of nothing where there is none."""
    content = path.read_bytes() if path.is_file() else b""
    return hashlib.blake2b(content, digest_size=16).digest()


def _digest(pieces: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
