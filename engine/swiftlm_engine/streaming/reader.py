"""Reads expert records straight into slot memory, with a few threads of its own.

The only place that reads experts, and so the only one that counts reads and bytes. A fault (short
read, error of the disk, a file that changed) is a `ReadFault`: the step fails, the process lives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swiftlm_engine.streaming.counters import StreamCounters

Preadv = Callable[[int, Sequence[memoryview], int], int]

DEFAULT_THREADS = 8
CHUNK_BYTES = 1 << 20  # below this, handing work to a thread costs more than reading
MAX_READ = 1 << 30  # one system call moves less than 2 GiB


class ReadFault(RuntimeError):
    """An expert could not be read."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one component of one expert lies, and as what its bytes are to be taken."""

    path: Path
    offset: int
    num_bytes: int
    dtype: str  # of safetensors


@dataclass(frozen=True, slots=True)
class Job:
    source: Source
    target: memoryview  # of bytes
    target_dtype: str


@dataclass(frozen=True, slots=True)
class _OpenFile:
    fd: int
    stamp: tuple[int, int]


class ExpertReader:
    """Owns file descriptors and threads until `close`. `read` is for one thread at a time."""

    def __init__(
        self,
        counters: StreamCounters,
        threads: int = DEFAULT_THREADS,
        preadv: Preadv = os.preadv,
    ) -> None:
        self.preadv = preadv
        self._counters = counters
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="experts")
        self._files: dict[Path, _OpenFile] = {}

    def open(self, path: Path) -> None:
        if path not in self._files:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._files[path] = _OpenFile(fd, _stamp(fd))

    def close(self) -> None:
        self._pool.shutdown()
        while self._files:
            os.close(self._files.popitem()[1].fd)

    def read(self, jobs: Sequence[Job]) -> None:
        """Fills every target or raises `ReadFault`; no thread writes any more when it returns."""
        started = time.perf_counter()
        counters = self._counters
        results: list[_Done] = []
        try:
            self._check_unchanged({job.source.path for job in jobs})
            results = self._run(jobs)
            if fault := next((done.fault for done in results if done.fault), None):
                raise fault
        except ReadFault:
            counters.read_errors += 1
            counters.failed_bytes += sum(done.num_bytes for done in results)
            raise
        finally:
            counters.read_wall_s += time.perf_counter() - started
            counters.read_busy_s += sum(done.busy_s for done in results)
            counters.reads += sum(done.reads for done in results)
            counters.bytes += sum(done.num_bytes for done in results)

    def _run(self, jobs: Sequence[Job]) -> list[_Done]:
        total = sum(job.source.num_bytes for job in jobs)
        width = max(1, min(self._threads, len(jobs), total // CHUNK_BYTES))
        parts = [jobs[i::width] for i in range(width)]
        futures: list[Future[_Done]] = [self._pool.submit(self._read_part, p) for p in parts[1:]]
        # Every thread is waited for, also after a fault: none may write into a slot given away.
        return [self._read_part(parts[0]), *(future.result() for future in futures)]

    def _read_part(self, jobs: Sequence[Job]) -> _Done:
        done = _Done()
        started = time.perf_counter()
        try:
            for job in jobs:
                self._read_job(job, done)
        except ReadFault as fault:
            done.fault = fault
        done.busy_s = time.perf_counter() - started
        return done

    def _read_job(self, job: Job, done: _Done) -> None:
        if job.source.dtype == job.target_dtype:
            self._fill(job.source, job.target, done)
            return
        staging = memoryview(bytearray(job.source.num_bytes))
        self._fill(job.source, staging, done)
        cast(staging, job.source.dtype, job.target, job.target_dtype)

    def _fill(self, source: Source, target: memoryview, done: _Done) -> None:
        fd = self._files[source.path].fd
        at = 0
        while at < source.num_bytes:
            piece = target[at : min(source.num_bytes, at + MAX_READ)]
            try:
                count = self.preadv(fd, [piece], source.offset + at)
            except OSError as error:
                raise ReadFault(f"{source.path.name} cannot be read: {error}") from error
            if count <= 0:
                raise ReadFault(
                    f"{source.path.name} ends at byte {source.offset + at}, inside an expert; "
                    "the file was truncated, pull the model again"
                )
            at += count
            done.reads += 1
            done.num_bytes += count

    def _check_unchanged(self, paths: set[Path]) -> None:
        for path in paths:
            try:
                stamp = _stamp(self._files[path].fd)
            except OSError as error:
                raise ReadFault(f"{path.name} is gone: {error}") from error
            if stamp != self._files[path].stamp:
                raise ReadFault(f"{path.name} changed while its model is loaded; load it again")


@dataclass(slots=True)
class _Done:
    reads: int = 0
    num_bytes: int = 0
    busy_s: float = 0.0
    fault: ReadFault | None = None


def _stamp(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns


# What `cast` can do: the engine loads 16-bit checkpoints as float32 on a CPU.
CASTS = {("F16", "F32"), ("BF16", "F32"), ("F32", "F16"), ("BF16", "F16")}


def cast(source: memoryview, dtype: str, target: memoryview, target_dtype: str) -> None:
    """Converts as `astype` of MLX does; only pairs of `CASTS`."""
    if dtype == "BF16":  # the upper half of a float32
        wide = np.frombuffer(source, np.uint16).astype(np.uint32) << 16
        values = wide.view(np.float32)
    else:
        values = np.frombuffer(source, np.float16 if dtype == "F16" else np.float32)
    with np.errstate(over="ignore"):
        into = np.frombuffer(target, np.float32 if target_dtype == "F32" else np.float16)
        into[:] = values
