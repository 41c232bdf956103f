"""A GGUF file (or its numbered parts) as metadata and tensors; every bad file is a ConvertError."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from numpy.typing import NDArray

from swiftlm_engine.convert.errors import ConvertError

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]  # rows first, in weights
    data: NDArray[Any]  # mapped: (rows, bytes per row) when quantised
    num_bytes: int


class GgufFile:
    """Open for reading; the tensors stay mapped as long as this object lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._readers = [_open(part) for part in _parts(path)]
        self._fields = self._readers[0].fields
        self.architecture = str(self.need("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:  # GGUF values have any type
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ConvertError(f"{self.path.name} has no {key}; the file is not a complete model")
        return value

    def arch(self, key: str, default: Any = None) -> Any:
        return self.get(f"{self.architecture}.{key}", default)

    def need_arch(self, key: str) -> Any:
        return self.need(f"{self.architecture}.{key}")

    def tensors(self) -> Iterator[GgufTensor]:
        for reader in self._readers:
            for t in reader.tensors:
                shape = tuple(int(n) for n in reversed(t.shape))
                yield GgufTensor(t.name, t.tensor_type, shape, t.data, int(t.n_bytes))

    def tensor(self, name: str) -> NDArray[np.float32] | None:
        """A small dense tensor by name."""
        for t in self.tensors():
            if t.name == name:
                return np.asarray(t.data, np.float32).reshape(t.shape)
        return None


def _open(path: Path) -> GGUFReader:
    try:
        return GGUFReader(path)
    except RecursionError as error:
        raise ConvertError(f"{path} is not a readable GGUF file: it is nested too deep") from error
    except Exception as error:  # the reader believes what it reads: any of them is the file's fault
        said = str(error) or type(error).__name__
        raise ConvertError(f"{path} is not a readable GGUF file: {said}") from error


def _parts(path: Path) -> list[Path]:
    """The file itself, or all parts of `name-00001-of-00003.gguf` in order."""
    found = _PART.search(path.name)
    if found is None:
        return [path]
    count = int(found.group(2))
    stem = path.name[: found.start()]
    parts = [path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    if missing := [p.name for p in parts if not p.exists()]:
        raise ConvertError(f"{path.name} is one of {count} parts; missing: {', '.join(missing)}")
    return parts
