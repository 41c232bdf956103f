"""One GGUF file in, one MLX folder out: written beside its place, synced, then renamed into it."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import dequantize
from numpy.typing import NDArray

from swiftlm_engine.brain.leftovers import temporary_name
from swiftlm_engine.convert import blocks, families, tokenizer
from swiftlm_engine.convert.errors import ConvertError
from swiftlm_engine.convert.gguf_file import GgufFile, GgufTensor
from swiftlm_engine.convert.safetensors_file import (
    NAMES,
    SafetensorsWriter,
    Spec,
    as_dtype,
    from_dtype,
)

ORIGIN = "swiftlm-origin.json"
_CHUNK_WEIGHTS = 1 << 22  # rows are decoded in runs of about this many weights


@dataclass(frozen=True, slots=True)
class Loss:
    """What rounding cost the tensors of one GGUF type: |stored - read| over |read|, both RMS."""

    kind: str
    bits: int
    tensors: int
    relative: float


@dataclass(frozen=True, slots=True)
class Converted:
    path: Path
    model_type: str
    dtype: str
    size_bytes: int
    losses: tuple[Loss, ...]  # empty: every weight is the file's own


@dataclass(frozen=True, slots=True)
class _TensorPlan:
    """One GGUF tensor and what it becomes."""

    source: GgufTensor
    target: families.Target
    order: NDArray[np.intp] | None
    layout: blocks.BlockLayout | None  # an exact twin of the file's blocks
    bits: int  # 0: stored dense

    def specs(self, dtype: str) -> list[Spec]:
        name, shape = f"{self.target.module}.{self.target.leaf}", self.source.shape
        if not self.bits:
            return [Spec(name, dtype, shape)]
        rows, columns = shape
        groups = (rows, columns // blocks.GROUP)
        return [
            Spec(name, "U32", (rows, columns * self.bits // 32)),
            Spec(f"{self.target.module}.scales", dtype, groups),
            Spec(f"{self.target.module}.biases", dtype, groups),
        ]


class _LossMeter:
    """Squares of errors and of weights per GGUF type."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], list[float]] = {}

    def add(
        self, step: _TensorPlan, stored: NDArray[np.float32], read: NDArray[np.float32]
    ) -> None:
        sums = self._sums.setdefault((step.source.kind.name, step.bits), [0.0, 0.0])
        difference = (stored - read).ravel()
        sums[0] += float(difference @ difference)
        sums[1] += float(read.ravel() @ read.ravel())

    def losses(self, steps: list[_TensorPlan]) -> tuple[Loss, ...]:
        counts = Counter((s.source.kind.name, s.bits) for s in steps)
        return tuple(
            Loss(kind, bits, counts[kind, bits], (error / weight) ** 0.5 if weight else 0.0)
            for (kind, bits), (error, weight) in sorted(self._sums.items())
            if error > 0
        )


Progress = Callable[[int, int, str], None]  # bytes of the source done, all, tensor


def convert(source: Path, out: Path, dtype: str, progress: Progress, origin: str = "") -> Converted:
    """`dtype` float32, float16, bfloat16, or auto (the family's best on a GPU). `origin` is kept
    in the folder as it is given: where the file came from."""
    file = GgufFile(source)
    family = families.family_of(file)
    chosen = family.gpu_dtype if dtype == "auto" else dtype
    config = families.config_of(file, family)
    steps = _steps(file, family, config)
    with temporary_beside(out) as folder:
        losses = _write_weights(folder / "model.safetensors", steps, family, chosen, progress)
        _write_json(folder, file, config | _quantisation(steps), chosen)
        if origin:
            (folder / ORIGIN).write_text(origin, encoding="utf-8")
        move_into_place(folder, out)
    size = sum(p.stat().st_size for p in out.iterdir())
    return Converted(out, family.model_type, chosen, size, losses)


@contextmanager
def temporary_beside(out: Path) -> Iterator[Path]:
    """An empty folder on the same disk; gone afterwards unless it was moved."""
    folder = out.with_name(temporary_name(out.name))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move_into_place(folder: Path, out: Path) -> None:
    """Synced, then renamed, so that no reader ever sees half a model, not even after a crash."""
    if out.exists():
        raise ConvertError(f"{out} exists already; remove it first")
    for path in (*folder.iterdir(), folder):
        _sync(path)
    folder.rename(out)
    _sync(out.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _steps(
    file: GgufFile, family: families.ArchitectureNames, config: families.Config
) -> list[_TensorPlan]:
    steps = []
    for tensor in file.tensors():
        target = families.target_of(tensor.name, family)
        if target is not None:
            order = families.row_order(target, family, config, tensor.shape[0])
            steps.append(_TensorPlan(tensor, target, order, *_encoding(tensor)))
    names = [f"{s.target.module}.{s.target.leaf}" for s in steps]
    if "model.embed_tokens.weight" not in names:
        raise ConvertError(f"{file.path.name} has no embedding; it holds a vocabulary only")
    config["tie_word_embeddings"] = "lm_head.weight" not in names
    return steps


def _encoding(tensor: GgufTensor) -> tuple[blocks.BlockLayout | None, int]:
    if tensor.kind in blocks.DENSE:
        return None, 0
    if len(tensor.shape) != 2 or tensor.shape[1] % blocks.GROUP:
        raise ConvertError(f"tensor {tensor.name} of shape {tensor.shape} is not a matrix")
    if layout := blocks.EXACT.get(tensor.kind):
        return layout, layout.bits
    return None, blocks.requantised_bits(tensor.kind)


def _write_weights(
    path: Path,
    steps: list[_TensorPlan],
    family: families.ArchitectureNames,
    dtype: str,
    progress: Progress,
) -> tuple[Loss, ...]:
    name = NAMES[dtype]
    meter = _LossMeter()
    total = sum(s.source.num_bytes for s in steps)
    done = 0
    with SafetensorsWriter(path, [spec for s in steps for spec in s.specs(name)]) as writer:
        for step in steps:
            progress(done, total, step.source.name)
            for array in _encode(step, family, name, meter):
                writer.add(array)
            done += step.source.num_bytes
        writer.finish()
    progress(total, total, "")
    return meter.losses(steps)


def _encode(
    step: _TensorPlan, family: families.ArchitectureNames, dtype: str, meter: _LossMeter
) -> list[NDArray[Any]]:
    """The tensor's arrays in the order of its specs."""
    if not step.bits:
        return [_dense(step, family, dtype, meter)]
    parts: list[tuple[NDArray[Any], ...]] = []
    for raw in _row_runs(step):
        matrix = _affine(step, raw)
        scales, biases = as_dtype(matrix.scales, dtype), as_dtype(matrix.biases, dtype)
        stored = blocks.Affine(
            matrix.bits, matrix.codes, from_dtype(scales, dtype), from_dtype(biases, dtype)
        )
        rounded = not _same(stored, matrix)
        if step.layout is None or rounded:
            meter.add(step, stored.dequantised(), dequantize(raw, step.source.kind))
        parts.append((blocks.pack(matrix.codes, matrix.bits), scales, biases))
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _affine(step: _TensorPlan, raw: NDArray[np.uint8]) -> blocks.Affine:
    if step.layout is not None:
        return step.layout.affine(raw)
    values = dequantize(raw, step.source.kind).astype(np.float32)
    return blocks.quantise(values.reshape(raw.shape[0], -1), step.bits)


def _same(a: blocks.Affine, b: blocks.Affine) -> bool:
    return bool(np.array_equal(a.scales, b.scales) and np.array_equal(a.biases, b.biases))


def _row_runs(step: _TensorPlan) -> Iterator[NDArray[np.uint8]]:
    rows, columns = step.source.shape
    run = max(1, _CHUNK_WEIGHTS // columns)
    for start in range(0, rows, run):
        stop = min(rows, start + run)
        chosen = slice(start, stop) if step.order is None else step.order[start:stop]
        yield np.ascontiguousarray(step.source.data[chosen])


def _dense(
    step: _TensorPlan, family: families.ArchitectureNames, dtype: str, meter: _LossMeter
) -> NDArray[Any]:
    values = dequantize(step.source.data, step.source.kind).astype(np.float32)
    values = values.reshape(step.source.shape)
    if step.order is not None:
        values = values[step.order]
    if family.norm_plus_one and step.target.part.endswith("norm"):
        values = values - 1
    stored = as_dtype(values, dtype)
    if dtype != "F32":
        meter.add(step, from_dtype(stored, dtype), values)
    return stored


def _quantisation(steps: list[_TensorPlan]) -> families.Config:
    """mlx-lm's setting: the most frequent width, and every module that differs from it."""
    widths = {s.target.module: s.bits for s in steps if s.bits}
    if not widths:
        return {}
    common = Counter(widths.values()).most_common(1)[0][0]
    others = {
        module: {"group_size": blocks.GROUP, "bits": bits}
        for module, bits in widths.items()
        if bits != common
    }
    return {"quantization": {"group_size": blocks.GROUP, "bits": common, **others}}


def _write_json(folder: Path, file: GgufFile, config: families.Config, dtype: str) -> None:
    ids = tokenizer.token_ids(file)
    contents = {
        "config.json": config | ids | {"torch_dtype": dtype},
        "generation_config.json": ids,
        "tokenizer.json": tokenizer.tokenizer_json(file),
        "tokenizer_config.json": tokenizer.tokenizer_config(file),
    }
    for name, content in contents.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    if licence := file.get("general.license"):
        card = f"---\nlicense: {licence}\n---\n"
        (folder / "README.md").write_text(card, encoding="utf-8")
