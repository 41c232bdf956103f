"""A copy of the experts beside a model, one aligned record each, so that a miss is one read.

`packing.py` writes and verifies it. It is used only for the checkpoint it was made of, and only
where reading it was measured to be faster: on a fast disk nine reads may cost no more than one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path

from swiftlm_engine.brain.facts import weight_files
from swiftlm_engine.streaming.reader import ReadSource
from swiftlm_engine.streaming.table import Component

log = logging.getLogger(__name__)

RECORDS = "experts.swiftlm-pack"
INDEX = "experts.swiftlm-pack.json"
VERSION = 3
LEAST_GAIN = 1.10  # of reading speed; less is within what a disk varies by


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """Records of one layer, by expert; the components of a record lie side by side."""

    offset: int
    stride: int
    names: list[str]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class Pack:
    """What the index says. `gain` is the speed of reading records over that of the checkpoint.

    The hash is that of the records when they were written; a load, which has no time to read them
    all, knows by their time whether anybody wrote to them since.
    """

    checkpoint: str
    sha256: str
    num_bytes: int
    written_ns: int
    gain: float
    layers: dict[str, PackedLayer]

    def save(self, folder: Path) -> None:
        temporary = folder / f".{INDEX}.{os.getpid()}.swiftlm-tmp"
        temporary.write_text(json.dumps({"version": VERSION} | asdict(self)), encoding="utf-8")
        temporary.replace(folder / INDEX)


def open_pack(folder: Path) -> Pack | None:
    """None where there is none worth using; one of another checkpoint is said and left alone."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if index.pop("version") != VERSION:
            return None
        layers = {path: PackedLayer(**layer) for path, layer in index.pop("layers").items()}
        pack = Pack(layers=layers, **index | {"gain": float(index["gain"])})
        records = (folder / RECORDS).stat()
    except FileNotFoundError:
        return None
    except (AttributeError, OSError, ValueError, KeyError, TypeError) as error:
        log.warning("the pack in %s cannot be read and is not used: %s", folder, error)
        return None
    if pack.checkpoint != checkpoint_hash(folder):
        log.warning("the pack in %s is not of this checkpoint and is not used; pack again", folder)
        return None
    if (pack.num_bytes, pack.written_ns) != (records.st_size, records.st_mtime_ns):
        log.warning("the pack in %s was changed and is not used; pack again", folder)
        return None
    return pack if pack.gain >= LEAST_GAIN else None


def packed(
    pack: Pack, folder: Path, path: str, components: tuple[Component, ...]
) -> tuple[Component, ...]:
    """The same components, read from the records."""
    layer = pack.layers.get(path)
    names, sizes = [c.name for c in components], [c.sources[0].num_bytes for c in components]
    if layer is None or (layer.names, layer.sizes) != (names, sizes):
        return components
    starts = [0, *accumulate(sizes)]
    return tuple(
        replace(component, sources=tuple(
            ReadSource(
                folder / RECORDS, layer.offset + e * layer.stride + start, s.num_bytes, s.dtype
            )
            for e, s in enumerate(component.sources)
        ))
        for component, start in zip(components, starts, strict=False)
    )  # fmt: skip


def checkpoint_hash(folder: Path) -> str:
    """Of names, sizes, times and headers: reading all weights at every load would take too long.

    The time is what tells other weights of the same shapes.
    """
    digest = hashlib.sha256()
    for path in weight_files(folder, "model*.safetensors"):
        with path.open("rb") as file:
            size = file.read(8)
            header = file.read(int.from_bytes(size, "little"))
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns} ".encode() + header)
    return digest.hexdigest()
