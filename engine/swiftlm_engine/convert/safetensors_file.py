"""Writes one safetensors file tensor by tensor, so that only one tensor is in memory at a time."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swiftlm_engine.convert.errors import ConvertError

_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}
NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True, slots=True)
class Spec:
    """What the header says of a tensor, known before its bytes are."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


class SafetensorsWriter:
    """The header is written first; `add` must then follow the order of `specs`."""

    def __init__(self, path: Path, specs: list[Spec]) -> None:
        self._left = list(reversed(specs))
        self._file = path.open("wb")
        header = _header(specs)
        self._file.write(struct.pack("<Q", len(header)) + header)

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, array: NDArray[Any]) -> None:
        spec = self._left.pop()
        if array.shape != spec.shape or array.nbytes != spec.num_bytes:
            raise AssertionError(f"{spec} got an array of {array.shape}, {array.nbytes} bytes")
        self._file.write(np.ascontiguousarray(array).data)

    def finish(self) -> None:
        """Checks that nothing is missing."""
        if self._left:
            raise ConvertError(f"tensor {self._left[-1].name} was announced and never written")


def as_dtype(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """float32 in the bytes of the safetensors dtype."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        # round half to even, as every BF16 converter does
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(np.float16 if dtype == "F16" else np.float32)


def from_dtype(stored: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """What a loader will read back."""
    if dtype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def _header(specs: list[Spec]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for spec in specs:
        end = at + spec.num_bytes
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [at, end],
        }
        at = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)
