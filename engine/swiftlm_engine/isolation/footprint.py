"""What a process holds, by the kernel's figures."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

RUSAGE_INFO_V4 = 4
# struct rusage_info_v4: a 16-byte uuid, then 64-bit fields; ri_phys_footprint is the eighth.
FOOTPRINT_OFFSET = 16 + 7 * 8
RUSAGE_V4_BYTES = 16 + 35 * 8


def footprint_bytes(pid: int | None = None) -> int:
    """`phys_footprint` on macOS (Metal buffers count), resident set on Linux. 0 if unknown."""
    pid = os.getpid() if pid is None else pid
    if sys.platform == "darwin":
        return _darwin(pid)
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _darwin(pid: int) -> int:
    buffer = ctypes.create_string_buffer(RUSAGE_V4_BYTES)
    libproc = ctypes.CDLL("/usr/lib/libproc.dylib")
    if libproc.proc_pid_rusage(pid, RUSAGE_INFO_V4, buffer) != 0:
        return 0
    return read_footprint(buffer.raw)


def read_footprint(rusage: bytes) -> int:
    """The footprint field of a `rusage_info_v4`."""
    return int.from_bytes(rusage[FOOTPRINT_OFFSET : FOOTPRINT_OFFSET + 8], sys.byteorder)
