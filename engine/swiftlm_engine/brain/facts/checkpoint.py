"""Which weight files a model folder has, and whether they are all there and whole.

With an index, the index decides: every file it names must exist and hold exactly the tensors it
says. Without one, `model*.safetensors` are taken (mlx-lm's rule), else every safetensors file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from swiftlm_engine.brain.facts.errors import LyingHeader, MissingFile
from swiftlm_engine.brain.facts.files import INDEX_BYTES, read_bounded, weight_files
from swiftlm_engine.brain.facts.safetensors import MAX_TENSORS, TensorHeader, read_header

INDEX_NAME = "model.safetensors.index.json"
MAX_FILES = 5_000  # the largest models have some hundred
_SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors$")


def read_checkpoint(folder: Path) -> tuple[TensorHeader, ...]:
    """Every tensor the folder's weight files hold; raises ModelFilesError if one is not whole."""
    index = folder / INDEX_NAME
    if index.exists():
        return _read_indexed(folder, index)
    files = weight_files(folder, "model*.safetensors") or weight_files(folder)
    if not files:
        raise MissingFile(
            folder,
            f"no weights in {folder}{_leftovers(folder)}: "
            f"looked for {INDEX_NAME} and *.safetensors",
        )
    _check_count(folder, 0, len(files))
    _check_shard_numbers(folder, files)
    return _unique(folder, (tensor for file in files for tensor in read_header(file)))


def _read_indexed(folder: Path, index: Path) -> tuple[TensorHeader, ...]:
    weight_map = _weight_map(index)
    promised: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        promised.setdefault(file, set()).add(name)
    _check_count(folder, len(weight_map), len(promised))
    absent = sorted(file for file in promised if not (folder / file).exists())
    if absent:
        raise MissingFile(
            folder / absent[0],
            f"{len(absent)} of {len(promised)} weight files are missing, first {absent[0]}"
            f"{_leftovers(folder)}; pull the model again",
        )
    tensors: list[TensorHeader] = []
    for file, names in sorted(promised.items()):
        held = read_header(folder / file)
        _check_promise(folder / file, names, held)
        tensors += held
        _check_count(folder, len(tensors), 0)
    return _unique(folder, tensors)


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(read_bounded(index, INDEX_BYTES))["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LyingHeader(index, f"{index.name} is not an index: {error!r}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise LyingHeader(index, f"{index.name} names no tensor")
    for file in set(map(str, weight_map.values())):
        # A shard is a plain name beside the index: an index must not reach outside the folder.
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise LyingHeader(index, f"{index.name} names a strange weight file: {file!r}")
    return weight_map


def _check_promise(file: Path, promised: set[str], held: list[TensorHeader]) -> None:
    missing = promised - {tensor.name for tensor in held}
    if missing:
        raise LyingHeader(
            file,
            f"{file.name} lacks {len(missing)} tensors that the index puts there, "
            f"first {min(missing)}",
        )


def _check_shard_numbers(folder: Path, files: list[Path]) -> None:
    """Without an index, the names `-00001-of-00003` are the only sign of a missing shard."""
    groups: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if match := _SHARD.match(file.name):
            groups.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, count), present in groups.items():
        absent = [i for i in range(1, min(count, 100_000) + 1) if i not in present]
        if absent:
            name = f"{stem}-{absent[0]:05d}-of-{count:05d}.safetensors"
            raise MissingFile(folder / name, f"{name} is missing; pull the model again")


def _check_count(folder: Path, tensors: int, files: int) -> None:
    if tensors > MAX_TENSORS or files > MAX_FILES:
        listed = f"{tensors:,} tensors in {files:,} weight files"
        raise LyingHeader(folder, f"{folder} lists {listed}; no model has so many")


def _unique(folder: Path, tensors: Iterable[TensorHeader]) -> tuple[TensorHeader, ...]:
    seen: dict[str, TensorHeader] = {}
    for tensor in tensors:
        if (other := seen.get(tensor.name)) is not None:
            raise LyingHeader(
                tensor.file,
                f"{tensor.name} is in both {other.file.name} and {tensor.file.name}; "
                "remove the file that does not belong",
            )
        seen[tensor.name] = tensor
        _check_count(folder, len(seen), 0)
    if not seen:
        raise MissingFile(folder, f"the weight files in {folder} hold no tensor")
    return tuple(seen.values())


def _leftovers(folder: Path) -> str:
    """Of other programs' downloads. Nothing below is walked: a folder may be a whole disk."""
    parts = sum(1 for _ in folder.glob("*.incomplete"))
    return f" ({parts} unfinished downloads lie beside)" if parts else ""
