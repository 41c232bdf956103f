"""Reads that end in the memory of a CUDA GPU.

An array that the host has looked at lives in memory that GPU and host share by page faults: a write
by the host first fetches the old page back, and the GPU fetches the new one with its next look. So
bytes are read into page-locked memory, and the driver copies them to pages that stay with the GPU.
Whole pages are read, so that a file can be opened past the page cache.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import mlx.core as mx

from swiftlm_engine.streaming.counters import StreamCounters
from swiftlm_engine.streaming.reader import MAX_RUN_BYTES, ExpertReader, Preadv

_ALIGN = 4096  # no disk asks direct reads for more

_PREFERRED_LOCATION = 3  # CU_MEM_ADVISE_SET_PREFERRED_LOCATION
_OF_THREAD = ctypes.c_void_p(2)  # CU_STREAM_PER_THREAD
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE


class DriverError(OSError):
    """CUDA's driver refused a call."""


class Driver(Protocol):
    def page_locked(self, num_bytes: int) -> memoryview: ...
    def copy(self, pairs: Sequence[tuple[memoryview, memoryview]]) -> None:
        """(target, source) pairs; done when it returns."""
        ...


def make_reader(
    counters: StreamCounters, threads: int, preadv: Preadv, *, nocache: bool
) -> ExpertReader:
    """A reader for targets that `keep_on_device` has seen."""
    driver = _driver()
    if driver is None:
        return ExpertReader(counters, threads, preadv, nocache=nocache)
    reads = GpuReads(driver, preadv)
    return ExpertReader(counters, threads, reads, nocache=nocache, direct=nocache)


def keep_on_device(view: memoryview) -> None:
    """Bytes that the GPU reads and only readers of `make_reader` write."""
    driver = _driver()
    if driver is not None and view.nbytes:
        driver.keep(view)


class GpuReads:
    """A `preadv`. Each thread that calls it holds 4 MB as long as the process lives."""

    def __init__(self, driver: Driver, preadv: Preadv) -> None:
        self._driver = driver
        self._preadv = preadv
        self._thread = threading.local()

    def __call__(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        staging = self._staging()
        wanted = min(MAX_RUN_BYTES, sum(view.nbytes for view in views))
        start = offset % _ALIGN
        pages = -(-(start + wanted) // _ALIGN)
        found = self._preadv(fd, [staging[: pages * _ALIGN]], offset - start)
        count = max(0, min(wanted, found - start))
        pairs, at = [], 0
        for view in views:
            size = min(view.nbytes, count - at)
            if size <= 0:
                break
            pairs.append((view[:size], staging[start + at : start + at + size]))
            at += size
        self._driver.copy(pairs)
        return count

    def _staging(self) -> memoryview:
        if not hasattr(self._thread, "staging"):
            self._thread.staging = self._driver.page_locked(MAX_RUN_BYTES + 2 * _ALIGN)
        staging: memoryview = self._thread.staging
        return staging


class CudaDriver:
    """The few calls that MLX does not offer, on the GPU it uses."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)

    def page_locked(self, num_bytes: int) -> memoryview:
        self._attach()
        start = ctypes.c_void_p()
        size = ctypes.c_size_t(num_bytes)
        self._call("cuMemHostAlloc", ctypes.byref(start), size, ctypes.c_uint(_PORTABLE))
        assert start.value is not None
        return memoryview((ctypes.c_ubyte * num_bytes).from_address(start.value)).cast("B")

    def copy(self, pairs: Sequence[tuple[memoryview, memoryview]]) -> None:
        self._attach()
        for target, source in pairs:
            size = ctypes.c_size_t(target.nbytes)
            self._call("cuMemcpyAsync", _start(target), _start(source), size, _OF_THREAD)
        self._call("cuStreamSynchronize", _OF_THREAD)

    def keep(self, view: memoryview) -> None:
        self._attach()
        start, size = _start(view), ctypes.c_size_t(view.nbytes)
        self._call("cuMemAdvise", start, size, _PREFERRED_LOCATION, 0)
        self._call("cuMemPrefetchAsync", start, size, 0, _OF_THREAD)
        self._call("cuStreamSynchronize", _OF_THREAD)

    def _attach(self) -> None:
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DriverError(f"{name} failed with CUDA error {code}")


@cache
def _driver() -> CudaDriver | None:
    used = mx.cuda.is_available() and mx.default_device().type == mx.DeviceType.gpu
    return CudaDriver() if used else None


def _start(view: memoryview) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_ubyte.from_buffer(view)))
