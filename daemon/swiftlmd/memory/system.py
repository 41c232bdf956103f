"""The adapter for this machine, and its limits in the planner's terms."""

from __future__ import annotations

import os
import sys

from swiftlm_engine.brain.plan import MachineLimits, MachineSpeed, prior_speed
from swiftlmd.memory.devices import Device
from swiftlmd.memory.linux import LinuxReadings
from swiftlmd.memory.macos import MacReadings
from swiftlmd.memory.readings import MemoryReadings, Reading


def system_readings() -> MemoryReadings:
    return MacReadings() if sys.platform == "darwin" else LinuxReadings()


def machine_limits(
    reading: Reading,
    device: Device,
    *,
    committed_bytes: int = 0,
    returning_bytes: int = 0,
    speed: MachineSpeed | None = None,
) -> MachineLimits:
    """The limits a plan is made against.

    `committed_bytes`: what other loaded models are priced at. `returning_bytes`: what will come
    back to the machine before the load (models about to be evicted).
    """
    cores = os.cpu_count() or 1
    return MachineLimits(
        ram_bytes=reading.total_bytes,
        accelerator=device.accelerator,
        device_name=device.name,
        working_set_bytes=device.working_set_bytes,
        max_buffer_bytes=device.max_buffer_bytes,
        reclaimable_bytes=reading.available_bytes + returning_bytes,
        reclaimable_is_advice=reading.available_is_advice,
        cgroup_bytes=reading.cgroup_bytes,
        committed_bytes=committed_bytes,
        num_cores=cores,
        speed=speed or prior_speed(device.name, device.accelerator, cores),
    )
