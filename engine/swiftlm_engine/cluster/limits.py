"""The limits of a process, set alike by a model's only process, a leader and a follower."""

from __future__ import annotations

import logging

import mlx.core as mx

from swiftlm_engine.cluster.group import ProcessLimits
from swiftlm_engine.load.device import Device, device_facts

log = logging.getLogger(__name__)


def set_limits(limits: ProcessLimits, device: Device) -> None:
    """Once, before anything is allocated; never toggled later (see docs/memory.md)."""
    if limits.memory:
        mx.set_memory_limit(limits.memory)
    if limits.buffers is not None:
        mx.set_cache_limit(limits.buffers)
    if limits.wired and device is Device.METAL:
        mx.set_wired_limit(_allowed(limits.wired))


def _allowed(wired: int) -> int:
    """MLX raises above what Metal recommends, which `iogpu.wired_limit_mb` may have lowered since
    the plan was made."""
    most = device_facts().working_set_bytes
    if most and wired > most:
        log.warning("wiring %d bytes instead of %d: Metal recommends no more", most, wired)
        return most
    return wired
