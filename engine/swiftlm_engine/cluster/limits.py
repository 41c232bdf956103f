"""The limits of a process, set alike by a model's only process, a leader and a follower."""

from __future__ import annotations

import mlx.core as mx

from swiftlm_engine.cluster.group import ProcessLimits
from swiftlm_engine.load.device import Device


def set_limits(limits: ProcessLimits, device: Device) -> None:
    """Once, before anything is allocated; never toggled later (see docs/memory.md)."""
    if limits.memory:
        mx.set_memory_limit(limits.memory)
    if limits.buffers is not None:
        mx.set_cache_limit(limits.buffers)
    if limits.wired and device is Device.METAL:
        mx.set_wired_limit(limits.wired)
