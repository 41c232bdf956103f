"""`python -m swiftlm_engine.streaming.packing FOLDER [--remove]`: JSON lines out, exit 0 or 1.

Writes the records, reads them back against their hash, measures them against the checkpoint, and
only then writes the index that makes them a pack.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from swiftlm_engine.brain.facts.config import read_config
from swiftlm_engine.convert.lines import die_with_parent, say
from swiftlm_engine.isolation.file_limit import bear_few_files
from swiftlm_engine.messages import EngineFault
from swiftlm_engine.streaming.counters import StreamCounters
from swiftlm_engine.streaming.pack import (
    INDEX,
    LEAST_GAIN,
    RECORDS,
    Pack,
    PackedLayer,
    checkpoint_hash,
    packed,
)
from swiftlm_engine.streaming.reader import PAGE_BYTES, ExpertReader, Job
from swiftlm_engine.streaming.table import Component, record_bytes

if TYPE_CHECKING:  # it imports mlx_lm, which `bear_few_files` must precede
    from swiftlm_engine.streaming.install import ExpertLayer

SPARE_BYTES = 1 << 30  # of the disk, never taken
ROUNDS = 15
EXPERTS_PER_ROUND = 8  # about what a layer misses in decode


class PackError(RuntimeError):
    """The pack could not be made; nothing of it is left."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="swiftlm_engine.streaming.packing", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--remove", action="store_true")
    args = parser.parse_args(argv)
    die_with_parent(lambda: discard_unfinished(args.folder))
    try:
        detail = remove(args.folder) if args.remove else pack(args.folder)
    except (PackError, EngineFault, OSError, ValueError) as error:
        say(stage="error", message=str(error))
        return 1
    say(stage="done", detail=detail)
    return 0


def remove(folder: Path) -> str:
    freed = sum((folder / n).stat().st_size for n in (INDEX, RECORDS) if (folder / n).exists())
    (folder / INDEX).unlink(missing_ok=True)  # first: without it the records mean nothing
    (folder / RECORDS).unlink(missing_ok=True)
    return f"pack removed, {freed / 1e9:.2f} GB freed" if freed else "there was no pack"


def discard_unfinished(folder: Path) -> None:
    """Records without an index are as large as the model, and nobody would ever look for them."""
    for temporary in folder.glob(f".{RECORDS}*.swiftlm-tmp"):
        temporary.unlink(missing_ok=True)
    if not (folder / INDEX).exists():
        (folder / RECORDS).unlink(missing_ok=True)


def pack(folder: Path) -> str:
    bear_few_files()
    from mlx_lm.utils import load_model

    from swiftlm_engine.streaming.install import find_experts

    model, _ = load_model(folder, lazy=True)
    layers = find_experts(model, read_config(folder).model_type, folder)
    index, total = _plan(layers)
    free = shutil.disk_usage(folder).free
    if free < total + SPARE_BYTES:
        raise PackError(
            f"the pack takes {total / 1e9:.1f} GB beside the model and "
            f"{max(0, free - SPARE_BYTES) / 1e9:.1f} GB are free"
        )
    remove(folder)
    temporary = folder / f".{RECORDS}.{os.getpid()}.swiftlm-tmp"
    try:
        digest = _write(temporary, layers, index, total)
        if _hash(temporary) != digest:
            raise PackError("what was written does not read back the same; is the disk failing?")
        temporary.replace(folder / RECORDS)
    finally:
        temporary.unlink(missing_ok=True)
    written_ns = (folder / RECORDS).stat().st_mtime_ns
    made = Pack(checkpoint_hash(folder), digest, total, written_ns, 1.0, index)
    gain = _measure(made, folder, layers)
    replace(made, gain=gain).save(folder)
    use = "used from the next load on" if gain >= LEAST_GAIN else "not used: too little is gained"
    return f"{total / 1e9:.2f} GB of records, read {gain:.2f} x as fast as the checkpoint; {use}"


def _plan(layers: list[ExpertLayer]) -> tuple[dict[str, PackedLayer], int]:
    index, offset = {}, 0
    for layer in layers:
        stride = -(-record_bytes(layer.components) // PAGE_BYTES) * PAGE_BYTES
        names = [component.name for component in layer.components]
        sizes = [component.sources[0].num_bytes for component in layer.components]
        index[layer.path] = PackedLayer(offset, stride, names, sizes)
        offset += stride * len(layer.components[0].sources)
    return index, offset


def _write(
    target: Path, layers: list[ExpertLayer], index: dict[str, PackedLayer], total: int
) -> str:
    counters = StreamCounters()
    reader = ExpertReader(counters, nocache=True)
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for layer in layers:
            _open_all(reader, layer.components)
            stride = index[layer.path].stride
            for expert in range(len(layer.components[0].sources)):
                record = bytearray(stride)
                reader.read(_jobs(layer.components, expert, memoryview(record)))
                digest.update(record)
                file.write(record)
            say(stage="convert", done_bytes=file.tell(), total_bytes=total, detail=layer.path)
        _to_disk(file)
    reader.close()
    return digest.hexdigest()


def _to_disk(file: BinaryIO) -> None:
    """And out of the page cache, so that what is read back comes from the disk."""
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _measure(made: Pack, folder: Path, layers: list[ExpertLayer]) -> float:
    """How much faster the records are read, cold, in turns with the checkpoint."""
    reader = ExpertReader(StreamCounters(), nocache=True)
    draw = random.Random(0)
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * ROUNDS):
        layer, from_pack = draw.choice(layers), number % 2 == 1
        components = layer.components
        if from_pack:
            components = packed(made, folder, layer.path, components)
        _open_all(reader, components)
        experts = draw.sample(range(len(components[0].sources)), k=min(
            EXPERTS_PER_ROUND, len(components[0].sources)))  # fmt: skip
        size = record_bytes(components)
        room = memoryview(bytearray(size * len(experts)))
        jobs = [
            job
            for place, expert in enumerate(experts)
            for job in _jobs(components, expert, room[place * size : (place + 1) * size])
        ]
        reader.drop_cached()
        started = time.perf_counter()
        reader.read(jobs)
        times[from_pack].append(time.perf_counter() - started)
    reader.close()
    return round(statistics.median(times[False]) / statistics.median(times[True]), 3)


def _open_all(reader: ExpertReader, components: tuple[Component, ...]) -> None:
    for component in components:
        for source in component.sources:
            reader.open(source.path)


def _jobs(components: tuple[Component, ...], expert: int, record: memoryview) -> list[Job]:
    jobs, at = [], 0
    for component in components:
        source = component.sources[expert]
        jobs.append(Job(source, record[at : at + source.num_bytes], source.dtype))
        at += source.num_bytes
    return jobs


if __name__ == "__main__":
    sys.exit(main())
