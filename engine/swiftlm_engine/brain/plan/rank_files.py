"""The weight files that a rank's share lies in, and folders that hold those and no others.

In such a folder the other weight files are hollow: the header is there and the data is a hole in
the disk, which reads as zeros. So the model is recognised by the same fingerprint, and loads lazily
like a whole one. A note beside them names the hollow files; whoever evaluates weights asks
`missing_files` first.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path

from swiftlm_engine.brain.facts import layer_of, read_checkpoint
from swiftlm_engine.brain.plan.share import Share, Split

_NOTE = "swiftlm-share.json"


def files_of(folder: Path, share: Share) -> frozenset[str]:
    """Names of the weight files in which the share has tensors. Raises ModelFilesError."""
    return frozenset(
        tensor.file.name for tensor in read_checkpoint(folder) if _needs(share, tensor.name)
    )


def missing_files(folder: Path, share: Share | None) -> frozenset[str]:
    """The hollow ones among the files of a share, or of the whole model (None)."""
    hollow = hollow_files(folder)
    if not hollow or share is None:
        return hollow
    return hollow & files_of(folder, share)


def held_layers(folder: Path) -> frozenset[int] | None:
    """The layers of which no part is in a hollow file; None in a folder of a whole model."""
    hollow = hollow_files(folder)
    if not hollow:
        return None
    tensors = read_checkpoint(folder)
    lost = {layer_of(tensor.name) for tensor in tensors if tensor.file.name in hollow}
    return frozenset(n for t in tensors if (n := layer_of(t.name)) is not None) - lost


def hollow_files(folder: Path) -> frozenset[str]:
    try:
        return frozenset(json.loads((folder / _NOTE).read_bytes())["hollow"])
    except FileNotFoundError:
        return frozenset()


def note_hollow(folder: Path, names: Iterable[str]) -> None:
    (folder / _NOTE).write_text(json.dumps({"hollow": sorted(names)}))


def write_hollow(target: Path, source: Path) -> None:
    """`target` as `source` is, without its data."""
    with source.open("rb") as read, target.open("wb") as written:
        prefix = read.read(8)
        (length,) = struct.unpack("<Q", prefix)
        written.write(prefix + read.read(length))
        written.truncate(source.stat().st_size)


def _needs(share: Share, tensor: str) -> bool:
    layer = layer_of(tensor)
    if share.split is Split.TENSOR:
        return True
    return share.ends if layer is None else layer in share.layers
