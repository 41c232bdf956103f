"""What the engine process holds: the kernel's figures, and the ledger's names for them."""

from __future__ import annotations

import mlx.core as mx

from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.isolation.footprint import footprint_bytes
from swiftlm_engine.load.device import Device
from swiftlm_engine.session.session import Session
from swiftlm_engine.streaming.report import StreamMode


def holdings(session: Session) -> dict[EntryKind, int]:
    """Bytes held of each kind of the ledger. On the MLX thread."""
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
    return measured


def _expert_bytes(session: Session) -> int:
    """Slots of streamed layers; whole layers that stay are weights."""
    streaming = session.streaming
    if streaming is None or streaming.mode is StreamMode.LAYERS:
        return 0
    return streaming.slots * streaming.record_bytes * streaming.streamed_layers
