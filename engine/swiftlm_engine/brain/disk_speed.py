"""How fast a disk gives records of a model: at random places, by 1 to 16 threads, none read twice.

The page cache would answer for the disk, so what is to be read is dropped from it first where the
system allows that (Linux); elsewhere (macOS, where F_NOCACHE leaves alone what is cached) records
that lie in memory are passed over. What answers faster than any disk does not count.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

THREADS = (1, 2, 4, 8, 16)
# No disk of a Mac is faster; Linux servers have several in one.
FASTEST_BYTES_S = 16e9 if sys.platform == "darwin" else 25e9
NEAR_BEST = 0.9  # fewer threads that are this good leave more cores to others
_MIN_PLACES = 2 * max(THREADS)
_ALIGN = 16384
_PROT_READ, _MAP_SHARED, _INCORE = 1, 1, 1


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Bytes per second at the knee: the fewest threads that come near the best."""

    record_bytes: int
    threads: int
    median_bytes_s: float
    low_bytes_s: float
    high_bytes_s: float


def measure_disk(
    files: Sequence[Path],
    record_bytes: int,
    *,
    round_s: float = 0.12,
    rounds: int = 3,
    threads: Sequence[int] = THREADS,
    seed: int | None = None,
) -> DiskSpeed | None:
    """None where the files are too small to say anything, or all came from memory.

    Takes about `rounds * len(threads) * round_s` seconds of one reader per thread. Raises OSError.
    """
    places = _places(files, record_bytes)
    if len(places) < _MIN_PLACES:
        return None
    random.Random(seed).shuffle(places)
    samples: dict[int, list[float]] = {number: [] for number in threads}
    with ExitStack() as stack:
        opened = {path: _open(stack, path) for path in files}
        remaining = _Places((opened[path], at) for path, at in places)
        # In turn, so that a disk's bursts and other programs meet every number of threads.
        for _ in range(rounds):
            for number in threads:
                speed = _read_for(remaining, record_bytes, number, round_s)
                if 0 < speed < FASTEST_BYTES_S:
                    samples[number].append(speed)
    return _at_the_knee(record_bytes, samples)


def _at_the_knee(record_bytes: int, samples: dict[int, list[float]]) -> DiskSpeed | None:
    medians = {number: statistics.median(found) for number, found in samples.items() if found}
    if not medians:
        return None
    best = max(medians.values())
    number = min(n for n, median in medians.items() if median >= NEAR_BEST * best)
    found = samples[number]
    return DiskSpeed(record_bytes, number, medians[number], min(found), max(found))


def _places(files: Sequence[Path], record_bytes: int) -> list[tuple[Path, int]]:
    """Disjoint records; beginnings as uneven as those of tensors would not change the speed."""
    step = -(-record_bytes // _ALIGN) * _ALIGN
    return [
        (path, at)
        for path in files
        for at in range(0, path.stat().st_size - record_bytes + 1, step)
    ]


class _Places:
    """Handed out once, to any thread."""

    def __init__(self, places: Iterator[tuple[int, int]]) -> None:
        self._places = places
        self._lock = threading.Lock()  # guards the iterator

    def take(self) -> tuple[int, int] | None:
        with self._lock:
            return next(self._places, None)


def _open(stack: ExitStack, path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    if hasattr(fcntl, "F_NOCACHE"):
        fcntl.fcntl(fd, fcntl.F_NOCACHE, 1)
    return fd


def _read_for(places: _Places, record_bytes: int, number: int, seconds: float) -> float:
    """Bytes per second of `number` threads; 0 when there was nothing left to read."""
    started = time.perf_counter()

    def read() -> int:
        buffer, done = bytearray(record_bytes), 0
        while time.perf_counter() - started < seconds and (place := places.take()):
            if hasattr(os, "posix_fadvise") or not _in_memory(*place, record_bytes):
                done += _read_cold(*place, buffer)
        return done

    with ThreadPoolExecutor(number) as pool:
        readers = [pool.submit(read) for _ in range(number)]
        total = sum(reader.result() for reader in readers)
    return total / (time.perf_counter() - started)


def _in_memory(fd: int, at: int, size: int) -> bool:
    """Whether the page cache holds any page of the range; False where that cannot be asked."""
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = library.mmap(None, size, _PROT_READ, _MAP_SHARED, fd, at)
    if address in (None, ctypes.c_void_p(-1).value):
        return False
    try:
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        known = library.mincore(address, size, pages) == 0
        return known and any(page & _INCORE for page in pages.raw)
    finally:
        library.munmap(address, size)


def _read_cold(fd: int, at: int, buffer: bytearray) -> int:
    if not hasattr(os, "posix_fadvise"):
        return os.preadv(fd, [buffer], at)
    os.posix_fadvise(fd, at, len(buffer), os.POSIX_FADV_DONTNEED)
    done = os.preadv(fd, [buffer], at)
    os.posix_fadvise(fd, at, len(buffer), os.POSIX_FADV_DONTNEED)
    return done
