"""Read what a safetensors file holds from its header alone, and refuse one that lies.

The format: eight bytes of little-endian header length, the header (JSON), then the data. The file
must end exactly where the last tensor does, without holes; that is how a cut download shows.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from swiftlm_engine.brain.facts.errors import LyingHeader, MissingFile, TruncatedFile
from swiftlm_engine.brain.facts.files import open_regular

# The reference implementation allows three times as much. A header becomes objects that take
# ten times its size; the largest that anybody publishes has 2 MB.
MAX_HEADER_BYTES = 32_000_000
MAX_TENSORS = 500_000  # Kimi K2 as published has 140,000, in 61 files
_MAX_DIMENSIONS = 16

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip

_BY_PLACE = attrgetter("offset", "nbytes")


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor in one file. `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> list[TensorHeader]:
    """Every tensor of the file, checked against the size of the file; no weight is read."""
    try:
        with open_regular(path) as file:
            file_bytes = os.fstat(file.fileno()).st_size
            header = _header_bytes(path, file.read(8), file_bytes)
            data_start = 8 + header
            raw = file.read(header)
    except FileNotFoundError as error:
        raise MissingFile(path, f"{path.name} is missing; pull the model again") from error
    entries = _parse(path, raw)
    if len(entries) > MAX_TENSORS:
        raise LyingHeader(path, f"{path.name} lists {len(entries):,} tensors; no model has so many")
    tensors = [_tensor(path, name, entry, data_start) for name, entry in entries.items()]
    _check_layout(path, tensors, data_start, file_bytes)
    return tensors


def _header_bytes(path: Path, prefix: bytes, file_bytes: int) -> int:
    if prefix.startswith(b"version "):
        raise TruncatedFile(path, f"{path.name} is a Git LFS pointer, not the file it points to")
    if len(prefix) < 8:
        raise TruncatedFile(path, f"{path.name} has {file_bytes} bytes, too few for a header")
    length: int = struct.unpack("<Q", prefix)[0]
    if length > MAX_HEADER_BYTES:
        raise LyingHeader(path, f"{path.name} claims a header of {length:,} bytes")
    if 8 + length > file_bytes:
        raise TruncatedFile(
            path, f"{path.name} is cut inside its header: {file_bytes:,} of {8 + length:,} bytes"
        )
    return length


def _parse(path: Path, raw: bytes) -> dict[str, object]:
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise LyingHeader(path, f"{path.name} has a header that is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise LyingHeader(path, f"{path.name} has a header that is not an object")
    header.pop("__metadata__", None)
    return header


def _tensor(path: Path, name: str, entry: object, data_start: int) -> TensorHeader:
    try:
        dtype, shape = entry["dtype"], entry["shape"]  # type: ignore[index]  # checked by except
        begin, end = entry["data_offsets"]  # type: ignore[index]
        bits = BITS[dtype]
        numbers = [begin, end, *shape]
    except (TypeError, KeyError, ValueError) as error:
        raise LyingHeader(path, f"{path.name}: the entry of {name} is malformed") from error
    if not all(map(_is_size, numbers)):
        raise LyingHeader(path, f"{path.name}: {name} has a size that no tensor has")
    if len(shape) > _MAX_DIMENSIONS:
        raise LyingHeader(path, f"{path.name}: {name} has {len(shape):,} dimensions")
    nbytes = (math.prod(shape) * bits + 7) // 8
    if end - begin != nbytes:
        raise LyingHeader(
            path,
            f"{path.name}: {name} is {dtype} {list(shape)}, {nbytes:,} bytes, "
            f"but its offsets span {end - begin:,}",
        )
    return TensorHeader(name, dtype, tuple(shape), path, data_start + begin, nbytes)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63  # what the format can say


def _check_layout(
    path: Path, tensors: list[TensorHeader], data_start: int, file_bytes: int
) -> None:
    end = data_start
    for tensor in sorted(tensors, key=_BY_PLACE):
        if tensor.offset != end:
            raise LyingHeader(path, f"{path.name}: {tensor.name} overlaps or leaves a hole")
        end += tensor.nbytes
    if end > file_bytes:
        raise TruncatedFile(
            path,
            f"{path.name} is cut: {file_bytes:,} of {end:,} bytes are here; pull the model again",
        )
    if end < file_bytes:
        raise LyingHeader(path, f"{path.name} has {file_bytes - end:,} bytes no tensor claims")
