"""Where every expert of a checkpoint lies, from the safetensors headers alone.

Known layouts: one stacked tensor per component, one tensor per expert, and gate and up fused in one
stacked tensor. What is not found, or would not be used byte for byte, is a `TableError`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from swiftlm_engine.brain.facts import weight_files
from swiftlm_engine.brain.facts.expert_layout import MIXTRAL_NAMES, experts_of, places
from swiftlm_engine.streaming.reader import ReadSource, can_read

DTYPES = {
    "F32": mx.float32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,
    "U8": mx.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


MAX_HEADER = 100 << 20


class TableError(ValueError):
    """The experts are not where a known layout has them."""


@dataclass(frozen=True, slots=True)
class StreamedTensor:
    path: Path
    offset: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Component:
    """One parameter of the experts of a layer, such as `gate_proj.scales`."""

    name: str
    shape: tuple[int, ...]  # of one expert
    dtype: str  # wanted in memory
    sources: tuple[ReadSource, ...]  # by expert


def read_headers(folder: Path) -> dict[str, StreamedTensor]:
    found: dict[str, StreamedTensor] = {}
    for path in weight_files(folder, "model*.safetensors"):
        found |= _read_header(path)
    return found


def _read_header(path: Path) -> dict[str, StreamedTensor]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_HEADER:
            raise TableError(f"{path.name} has a header of {size} bytes")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {
        name: StreamedTensor(
            path,
            8 + size + entry["data_offsets"][0],
            entry["data_offsets"][1] - entry["data_offsets"][0],
            tuple(entry["shape"]),
            entry["dtype"],
        )
        for name, entry in header.items()
    }


def locate(
    tensors: dict[str, StreamedTensor], path: str, name: str, shape: tuple[int, ...], dtype: str
) -> Component:
    """Parameter `name` (shape `(experts, ...)`) of the expert module at `path`."""
    sources = (
        _stacked(tensors, path, name, shape)
        or _per_expert(tensors, path, name, shape)
        or _fused(tensors, path, name, shape)
    )
    if sources is None:
        raise TableError(f"experts of {path}.{name} are not in the checkpoint in a known layout")
    for source in sources:
        if not can_read(source.dtype, dtype):
            raise TableError(f"{path}.{name} is {source.dtype} and cannot be read as {dtype}")
    return Component(name, shape[1:], dtype, sources)


def _stacked(
    tensors: dict[str, StreamedTensor], path: str, name: str, shape: tuple[int, ...]
) -> tuple[ReadSource, ...] | None:
    for place in places(path):
        tensor = tensors.get(f"{place}.{name}")
        if tensor is not None and tensor.shape == shape:
            return _cut(tensor, shape[0], 0, 1)
    return None


def _per_expert(
    tensors: dict[str, StreamedTensor], path: str, name: str, shape: tuple[int, ...]
) -> tuple[ReadSource, ...] | None:
    module, _, parameter = name.partition(".")
    for place in places(path):
        experts = experts_of(place)
        for alias in (module, MIXTRAL_NAMES.get(module, module)):
            names = [f"{experts}.{e}.{alias}.{parameter}" for e in range(shape[0])]
            found = [tensors[n] for n in names if n in tensors]
            if len(found) == shape[0] and all(t.shape == shape[1:] for t in found):
                return tuple(ReadSource(t.path, t.offset, t.num_bytes, t.dtype) for t in found)
    return None


def _fused(
    tensors: dict[str, StreamedTensor], path: str, name: str, shape: tuple[int, ...]
) -> tuple[ReadSource, ...] | None:
    """`gate_up_proj` of shape (experts, 2 x inner, hidden): gate first, then up."""
    module, _, parameter = name.partition(".")
    if parameter != "weight" or len(shape) != 3:
        return None
    for place in places(path):
        experts = experts_of(place)
        if module == "down_proj":
            tensor, wanted, part, parts = tensors.get(f"{experts}.down_proj"), shape, 0, 1
        else:
            tensor = tensors.get(f"{experts}.gate_up_proj")
            wanted = (shape[0], 2 * shape[1], shape[2])
            part, parts = (0 if module == "gate_proj" else 1), 2
        if tensor is not None and tensor.shape == wanted:
            return _cut(tensor, shape[0], part, parts)
    return None


def _cut(tensor: StreamedTensor, experts: int, part: int, parts: int) -> tuple[ReadSource, ...]:
    """Part `part` of `parts` of each expert's run of bytes."""
    size = tensor.num_bytes // experts // parts
    return tuple(
        ReadSource(tensor.path, tensor.offset + (e * parts + part) * size, size, tensor.dtype)
        for e in range(experts)
    )


def record_bytes(components: tuple[Component, ...]) -> int:
    """Bytes on disk of one expert."""
    return sum(component.sources[0].num_bytes for component in components)


ITEM_BYTES = {"F32": 4, "U32": 4, "F16": 2, "BF16": 2, "U8": 1}


def memory_bytes(components: tuple[Component, ...]) -> int:
    """Bytes in memory of one expert."""
    return sum(math.prod(c.shape) * ITEM_BYTES[c.dtype] for c in components)
