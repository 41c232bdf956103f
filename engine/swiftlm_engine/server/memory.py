"""What the engine process holds: the kernel's figures, and the ledger's names for them."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

import mlx.core as mx

from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.load.device import Device
from swiftlm_engine.session.session import Session
from swiftlm_engine.streaming.report import StreamMode

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


def holdings(session: Session) -> str:
    """JSON, {"measured": {kind: bytes}}. On the MLX thread."""
    active, pool, footprint = mx.get_active_memory(), mx.get_cache_memory(), footprint_bytes()
    experts = _expert_bytes(session)
    ssd = session.prefix.stats().ssd
    queued = ssd.queued_bytes if ssd else 0
    # The kernel counts none of a CUDA card's memory as the process's.
    in_ram = 0 if session.facts.device == Device.CUDA else active + pool
    given_back = session.expanded.freed_bytes if session.expanded else 0
    measured = {
        EntryKind.WEIGHTS: session.facts.weight_bytes - experts - given_back,
        EntryKind.EXPERTS: experts,
        EntryKind.KV: session.runner.kv_bytes(),
        # What was once needed above what is held now: a chunk's scratch, and KV that has gone.
        EntryKind.SCRATCH: max(0, mx.get_peak_memory() - active),
        EntryKind.PREFIX_CACHE: session.prefix.nbytes,
        EntryKind.BUFFER_POOL: pool,
        EntryKind.WRITE_BUFFERS: queued,
        EntryKind.PROCESS: max(0, footprint - in_ram - queued),
    }
    if (images := session.runner.images) is not None:
        measured[EntryKind.IMAGES] = images.nbytes
    if not experts:
        del measured[EntryKind.EXPERTS]
    return json.dumps({"measured": {kind.value: size for kind, size in measured.items()}})


def _expert_bytes(session: Session) -> int:
    """Slots of streamed layers; whole layers that stay are weights."""
    streaming = session.streaming
    if streaming is None or streaming.mode is StreamMode.LAYERS:
        return 0
    return streaming.slots * streaming.record_bytes * streaming.streamed_layers
