"""Reads expert records straight into slot memory, with a few threads of its own.

The only place that reads experts, and so the only one that counts reads and bytes. A fault (short
read, error of the disk, a file that changed) is a `ReadFault`: the step fails, the process lives.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swiftlm_engine.streaming.counters import StreamCounters

log = logging.getLogger(__name__)

Preadv = Callable[[int, Sequence[memoryview], int], int]

DEFAULT_THREADS = 8
CHUNK_BYTES = 1 << 19  # below this, handing work to a thread costs more than reading
MAX_RUN_BYTES = 4 << 20  # of one system call, so that threads finish together
PAGE_BYTES = 16384


class ReadFault(RuntimeError):
    """Weights could not be read."""


class FilesChanged(ReadFault):
    """The weights on disk are no longer those that were loaded: only a new load can read them."""


@dataclass(frozen=True, slots=True)
class ReadSource:
    """Where one component of one expert lies, and as what its bytes are to be taken."""

    path: Path
    offset: int
    num_bytes: int
    dtype: str  # of safetensors


@dataclass(frozen=True, slots=True)
class Job:
    source: ReadSource
    target: memoryview  # of bytes
    target_dtype: str


@dataclass(frozen=True, slots=True)
class _OpenFile:
    fd: int
    stamp: tuple[int, int]
    direct: bool


def start_pool(threads: int, name: str) -> tuple[ThreadPoolExecutor | None, int]:
    """A pool whose threads run already, as many of them as the system gives, and their number.

    A pool that starts them when they are first needed may fail to: then it raises, and what was
    handed to it still runs, later, into memory that was given to somebody else meanwhile.
    """
    for count in range(threads, 0, -1):
        pool, all_here = ThreadPoolExecutor(count, thread_name_prefix=name), threading.Event()
        try:
            for _ in range(count):  # each waits, so that the next one needs a thread of its own
                pool.submit(all_here.wait)
        except RuntimeError as error:
            log.warning("%d threads of %d for %s: %s", count - 1, threads, name, error)
            all_here.set()
            pool.shutdown()
            continue
        all_here.set()
        return pool, count
    return None, 1


class ExpertReader:
    """Owns file descriptors and threads until `close`. `read` is for one thread at a time.

    With `nocache` what was read does not stay in the page cache, which others then keep. `direct`
    asks for files past it, where they can be had: for a `preadv` that reads whole pages to pages.
    """

    def __init__(
        self,
        counters: StreamCounters,
        threads: int = DEFAULT_THREADS,
        preadv: Preadv = os.preadv,
        *,
        nocache: bool = False,
        direct: bool = False,
    ) -> None:
        self.preadv = preadv
        self.nocache = nocache
        self._direct = direct
        self._counters = counters
        self._pool, self._threads = start_pool(threads, "experts")
        self._files: dict[Path, _OpenFile] = {}

    def open(self, path: Path) -> None:
        if path not in self._files:
            fd = _open_direct(path) if self._direct else None
            direct = fd is not None
            if fd is None:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if self.nocache and hasattr(fcntl, "F_NOCACHE"):
                fcntl.fcntl(fd, fcntl.F_NOCACHE, 1)
            self._files[path] = _OpenFile(fd, _stamp(fd), direct)

    def drop_cached(self) -> None:
        """Lets the page cache forget the open files, where the system can be asked to."""
        if hasattr(os, "posix_fadvise"):
            for file in self._files.values():
                os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        while self._files:
            os.close(self._files.popitem()[1].fd)

    def read(self, jobs: Sequence[Job]) -> None:
        """Fills every target or raises `ReadFault`; no thread writes any more when it returns."""
        started = time.perf_counter()
        counters = self._counters
        results: list[_Done] = []
        try:
            paths = {job.source.path for job in jobs}
            self._check_unchanged(paths)
            results = self._run(jobs)
            if fault := next((done.fault for done in results if done.fault), None):
                raise fault
            self._check_unchanged(paths)  # a file written over while it was read
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
        width = max(1, min(self._threads, total // CHUNK_BYTES))
        share = -(-total // width)
        most = min(MAX_RUN_BYTES, max(CHUNK_BYTES // 2, -(-share // PAGE_BYTES) * PAGE_BYTES))
        runs = deque(_runs(jobs, most))
        width = min(width, len(runs))
        futures: list[Future[_Done]] = []
        if self._pool is not None:
            futures = [self._pool.submit(self._read_runs, runs) for _ in range(width - 1)]
        # Every thread is waited for, also after a fault: none may write into a slot given away.
        try:
            own = self._read_runs(runs)
        finally:
            runs.clear()
            wait(futures)
        return [own, *(future.result() for future in futures)]

    def _read_runs(self, runs: deque[_Run]) -> _Done:
        """Takes runs until none is left (a deque's `popleft` is atomic)."""
        done = _Done()
        started = time.perf_counter()
        try:
            while runs:
                self._read_run(runs.popleft(), done)
        except IndexError:  # another thread had the last one
            pass
        except ReadFault as fault:
            runs.clear()
            done.fault = fault
        except Exception as error:  # the root of a thread; no memory left, say
            runs.clear()
            log.exception("a read broke")
            done.fault = ReadFault(f"weights could not be read: {error!r}")
        done.busy_s = time.perf_counter() - started
        return done

    def _read_run(self, run: _Run, done: _Done) -> None:
        if run.converts is None:
            self._fill(run, done)
            return
        job = run.converts
        staging = memoryview(bytearray(run.num_bytes))
        self._fill(_Run(run.path, run.offset, [staging], run.num_bytes), done)
        cast(staging, job.source.dtype, job.target, job.target_dtype)

    def _fill(self, run: _Run, done: _Done) -> None:
        file = self._files[run.path]
        at, views = 0, run.views
        while at < run.num_bytes:
            try:
                count = self.preadv(file.fd, views, run.offset + at)
            except OSError as error:
                raise ReadFault(f"{run.path.name} cannot be read: {error}") from error
            if count <= 0:
                raise ReadFault(
                    f"{run.path.name} ends at byte {run.offset + at}, inside an expert; "
                    "the file was truncated, pull the model again"
                )
            at += count
            views = _rest(views, count)
            done.reads += 1
            done.num_bytes += count
        if self.nocache and not file.direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fd, run.offset, run.num_bytes, os.POSIX_FADV_DONTNEED)

    def _check_unchanged(self, paths: set[Path]) -> None:
        for path in paths:
            try:
                stamp = _stamp(self._files[path].fd)
            except OSError as error:
                raise ReadFault(f"{path.name} is gone: {error}") from error
            if stamp != self._files[path].stamp:
                raise FilesChanged(
                    f"{path.name} changed while its model is loaded; "
                    "a new load reads it as it is now"
                )


@dataclass(slots=True)
class _Run:
    """Adjacent bytes of one file: one system call into several targets, if nothing is short."""

    path: Path
    offset: int
    views: list[memoryview]
    num_bytes: int
    converts: Job | None = None


def _runs(jobs: Sequence[Job], most: int) -> list[_Run]:
    """Jobs that lie side by side become one run; a run larger than `most` becomes several."""
    runs: list[_Run] = []
    for job in jobs:
        source = job.source
        if source.dtype != job.target_dtype:
            runs.append(_Run(source.path, source.offset, [], source.num_bytes, job))
            continue
        for at in range(0, source.num_bytes, most):
            view = job.target[at : min(source.num_bytes, at + most)]
            last = runs[-1] if runs else None
            if last is not None and _continues(last, source.path, source.offset + at, view, most):
                last.views.append(view)
                last.num_bytes += len(view)
            else:
                runs.append(_Run(source.path, source.offset + at, [view], len(view)))
    return runs


def _continues(run: _Run, path: Path, offset: int, view: memoryview, most: int) -> bool:
    fits = run.converts is None and run.num_bytes + len(view) <= most
    return fits and run.path == path and run.offset + run.num_bytes == offset


def _rest(views: list[memoryview], count: int) -> list[memoryview]:
    for number, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[number + 1 :]]
        count -= len(view)
    return []


@dataclass(slots=True)
class _Done:
    reads: int = 0
    num_bytes: int = 0
    busy_s: float = 0.0
    fault: ReadFault | None = None


def _open_direct(path: Path) -> int | None:
    """None where the file system cannot."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def _stamp(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns


_FLOATS = frozenset({"F32", "F16", "BF16"})  # what a load in another number type casts


def can_read(dtype: str, target_dtype: str) -> bool:
    return dtype == target_dtype or {dtype, target_dtype} <= _FLOATS


def cast(source: memoryview, dtype: str, target: memoryview, target_dtype: str) -> None:
    """Converts floats as `astype` of MLX does."""
    if dtype == "BF16":  # the upper half of a float32
        wide = np.frombuffer(source, np.uint16).astype(np.uint32) << 16
        values = wide.view(np.float32)
    else:
        values = np.frombuffer(source, np.float16 if dtype == "F16" else np.float32)
    if target_dtype == "BF16":
        np.frombuffer(target, np.uint16)[:] = _upper_halves(values)
        return
    with np.errstate(over="ignore"):
        into = np.frombuffer(target, np.float32 if target_dtype == "F32" else np.float16)
        into[:] = values


def _upper_halves(values: np.ndarray) -> np.ndarray:
    """Of float32s, rounded to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0
    return rounded
