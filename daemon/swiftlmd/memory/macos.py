"""Readings on macOS through libSystem (ctypes): footprint, pressure level, pages, swap.

Jetsam kills by phys_footprint, which counts Metal's buffers; RSS does not. `free` pages are always
near zero and mean nothing alone: files that are cached go first, then what idle programs hold is
compressed, and only pressure says when that is no longer enough. Struct layouts: <sys/resource.h>,
<mach/vm_statistics.h>.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from swiftlmd.memory.readings import Pressure, Reading

_RUSAGE_INFO_V4 = 4
_RUSAGE_BYTES = 1024  # larger than rusage_info_v4; the kernel writes only that version's size
_PHYS_FOOTPRINT_AT = 72  # a uuid of 16 bytes and seven 64-bit counters precede it
_HOST_VM_INFO64 = 4
# xnu's compressor takes two pages to one or better; less is promised here.
_COMPRESSING_YIELDS = 0.5
# The kernel's numbers for the pressure level are the masks of the dispatch source.
_LEVELS = {1: Pressure.NORMAL, 2: Pressure.WARN, 4: Pressure.CRITICAL}


class _VmStatistics64(ctypes.Structure):
    _fields_ = [
        ("free_count", ctypes.c_uint32),
        ("active_count", ctypes.c_uint32),
        ("inactive_count", ctypes.c_uint32),
        ("wire_count", ctypes.c_uint32),
        ("zero_fill_count", ctypes.c_uint64),
        ("reactivations", ctypes.c_uint64),
        ("pageins", ctypes.c_uint64),
        ("pageouts", ctypes.c_uint64),
        ("faults", ctypes.c_uint64),
        ("cow_faults", ctypes.c_uint64),
        ("lookups", ctypes.c_uint64),
        ("hits", ctypes.c_uint64),
        ("purges", ctypes.c_uint64),
        ("purgeable_count", ctypes.c_uint32),
        ("speculative_count", ctypes.c_uint32),
        ("decompressions", ctypes.c_uint64),
        ("compressions", ctypes.c_uint64),
        ("swapins", ctypes.c_uint64),
        ("swapouts", ctypes.c_uint64),
        ("compressor_page_count", ctypes.c_uint32),
        ("throttled_count", ctypes.c_uint32),
        ("external_page_count", ctypes.c_uint32),
        ("internal_page_count", ctypes.c_uint32),
        ("total_uncompressed_pages_in_compressor", ctypes.c_uint64),
    ]


class _SwapUsage(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("page_size", ctypes.c_uint32),
        ("encrypted", ctypes.c_uint32),
    ]


class MacReadings:
    """`library` is libSystem; tests hand in an object with the same functions."""

    def __init__(self, library: Any = None) -> None:  # Any: a ctypes library has no better type
        self._library = library if library is not None else ctypes.CDLL("libSystem.dylib")
        self._total = self._number("hw.memsize", ctypes.c_uint64)
        self._host = 0  # the machine's port, once asked for
        self._page = self._number("vm.pagesize", ctypes.c_uint64) or 16384

    def total_bytes(self) -> int:
        return self._total

    def chip_name(self) -> str:
        """As Metal names it: `Apple M4 Pro`."""
        text = ctypes.create_string_buffer(128)
        known = self._sysctl("machdep.cpu.brand_string", text)
        return text.value.decode(errors="replace") if known else ""

    def available_bytes(self) -> int:
        return self._available(self._pages())

    def footprint_bytes(self, pid: int) -> int:
        buffer = ctypes.create_string_buffer(_RUSAGE_BYTES)
        if self._library.proc_pid_rusage(pid, _RUSAGE_INFO_V4, ctypes.byref(buffer)) != 0:
            return 0
        return ctypes.c_uint64.from_buffer(buffer, _PHYS_FOOTPRINT_AT).value

    def read(self, pids: Sequence[int]) -> Reading:
        pages = self._pages()
        level = self._number("kern.memorystatus_vm_pressure_level", ctypes.c_int)
        pressure = _LEVELS.get(level, Pressure.NORMAL)
        return Reading(
            total_bytes=self._total,
            available_bytes=self._available(pages),
            footprint_bytes=sum(self.footprint_bytes(pid) for pid in pids),
            pressure=pressure,
            swap_used_bytes=self._swap_used(),
            wired_bytes=pages.wire_count * self._page,
            available_is_advice=pressure is Pressure.NORMAL,
            swapped_out_bytes=int(pages.swapouts) * self._page,
        )

    def _available(self, pages: _VmStatistics64) -> int:
        """Free, cached from files, droppable on demand, and what compressing the rest yields.

        The kernel counts pages read ahead as free and as external, and purgeable ones as internal.
        """
        free = max(0, pages.free_count - pages.speculative_count)
        compressed = max(0, pages.internal_page_count - pages.purgeable_count) * _COMPRESSING_YIELDS
        found = int(free + pages.external_page_count + pages.purgeable_count + compressed)
        return min(found * self._page, self._total)

    def _pages(self) -> _VmStatistics64:
        pages = _VmStatistics64()
        count = ctypes.c_uint32(ctypes.sizeof(pages) // 4)
        # Each call takes a right that nobody gives back: one is enough.
        self._host = self._host or self._library.mach_host_self()
        self._library.host_statistics64(
            self._host, _HOST_VM_INFO64, ctypes.byref(pages), ctypes.byref(count)
        )
        return pages

    def _swap_used(self) -> int:
        usage = _SwapUsage()
        return int(usage.used) if self._sysctl("vm.swapusage", usage) else 0

    def _number(self, name: str, kind: type[ctypes.c_uint64 | ctypes.c_int]) -> int:
        value = kind(0)
        return int(value.value) if self._sysctl(name, value) else 0

    def _sysctl(self, name: str, value: Any) -> bool:  # Any: whatever ctypes object fits the name
        size = ctypes.c_size_t(ctypes.sizeof(value))
        done = self._library.sysctlbyname(
            name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
        return bool(done == 0)
