"""How fast experts of real size come into their slots, against the disk's own best.

Warm: from the page cache. Cold: what is to be read is dropped from the cache first, and in the same
round whole records are read raw, with several numbers of threads; the best of these is the peer.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mlx.nn as nn
from mlx_lm.utils import load_model

from bench.table import Figure, Report, ratio
from swiftlm_engine.streaming.install import install
from swiftlm_engine.streaming.layer import StreamedExperts
from swiftlm_engine.streaming.reader import Job
from swiftlm_engine.streaming.report import StreamOptions

MISSES = 8  # of one token in one layer
RAW_THREADS = (1, 4, 8, 16)
WARM_TARGET, COLD_TARGET = 3.0, 0.8


@dataclass(frozen=True, slots=True)
class _Layers:
    """The streamed layers of a checkpoint, asked for reads alone."""

    modules: list[StreamedExperts]
    num_experts: int

    def draw(self, chance: random.Random) -> tuple[StreamedExperts, list[Job]]:
        """Eight experts of one layer, into its slots."""
        layer = chance.choice(self.modules)
        experts = chance.sample(range(self.num_experts), MISSES)
        source = layer._source.components
        return layer, [j for s, e in enumerate(experts) for j in layer._bank.jobs(source, e, s)]


def reads(folder: Path, rounds: int = 40) -> Report:
    """Numbers of a token's misses in one layer: bytes over wall time."""
    model, _ = load_model(folder, lazy=True)
    installed = install(model, "qwen3_moe", folder, StreamOptions(slots=MISSES))
    layers = _Layers(_streamed(model), installed.num_experts)
    report = Report("streaming: reads of real records", ["what", "GB/s", "of the best raw"])
    try:
        warm = _warm(layers, rounds)
        report.add("warm, 9 parts of 8 experts", warm, "", warm=warm)
        cold, raw = _cold(layers, installed.record_bytes, rounds)
        best = max(raw.values(), key=lambda figure: figure.median)
        report.add("cold, the same", cold, ratio(cold, best), cold=cold)
        for threads, figure in raw.items():
            report.add(f"cold, raw records, {threads} threads", figure, ratio(figure, best))
    finally:
        installed.streamer.close()
    report.notes.append(
        f"record {installed.record_bytes:,} bytes; targets: warm >= {WARM_TARGET} GB/s, "
        f"cold >= {COLD_TARGET} of the best raw"
    )
    return report


def _streamed(model: nn.Module) -> list[StreamedExperts]:
    return [module for _, module in model.named_modules() if isinstance(module, StreamedExperts)]


def _warm(layers: _Layers, rounds: int) -> Figure:
    chance, speeds = random.Random(1), []
    for _ in range(rounds):
        layer, jobs = layers.draw(chance)
        layer._streamer.read(jobs)  # into the page cache
        speeds.append(_speed(layer, jobs))
    return _figure(speeds)


def _cold(layers: _Layers, record: int, rounds: int) -> tuple[Figure, dict[int, Figure]]:
    chance = random.Random(2)
    ours: list[float] = []
    raw: dict[int, list[float]] = {threads: [] for threads in RAW_THREADS}
    for _ in range(rounds):
        layer, jobs = layers.draw(chance)
        for threads in chance.sample((0, *RAW_THREADS), len(RAW_THREADS) + 1):
            if threads:
                speed = _raw_speed(jobs[0].source.path, record, threads, chance)
                raw[threads].append(speed)
                continue
            _drop((job.source.path, job.source.offset, job.source.num_bytes) for job in jobs)
            ours.append(_speed(layer, jobs))
    return _figure(ours), {threads: _figure(speeds) for threads, speeds in raw.items()}


def _speed(layer: StreamedExperts, jobs: list[Job]) -> float:
    started = time.perf_counter()
    layer._streamer.read(jobs)
    seconds = time.perf_counter() - started
    return sum(job.source.num_bytes for job in jobs) / seconds / 1e9


def _raw_speed(path: Path, record: int, threads: int, chance: random.Random) -> float:
    """Whole records at places of one file, each into a buffer that is in memory."""
    last = path.stat().st_size // record - 1
    places = [number * record for number in chance.sample(range(last), max(MISSES, threads))]
    _drop((path, place, record) for place in places)
    buffers = [bytearray(record) for _ in places]
    fd = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(threads) as pool:
            pool.submit(int).result()
            started = time.perf_counter()
            done = sum(pool.map(lambda b, at: os.preadv(fd, [b], at), buffers, places))
            return done / (time.perf_counter() - started) / 1e9
    finally:
        os.close(fd)


def _drop(ranges: Iterable[tuple[Path, int, int]]) -> None:
    for path, offset, size in ranges:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _figure(values: list[float]) -> Figure:
    """Of the middle half: a busy machine makes a long tail."""
    low, _, high = statistics.quantiles(values, n=4)
    middle = tuple(value for value in values if low <= value <= high)
    return Figure(middle or tuple(values), "GB/s")
