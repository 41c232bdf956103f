"""This machine as the planner and `status` see it: device, limits, what is in use.

Readings come from `swiftlmd.memory`; `status` shows the newest one and asks the kernel nothing.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from importlib import metadata

import psutil

from swiftlm_engine.brain.plan import (
    SOFT_SHARE,
    Accelerator,
    BadBudget,
    Covers,
    MachineLimits,
    gigabytes,
    parse_budget,
)
from swiftlm_proto import messages as m
from swiftlmd.config.settings import Settings
from swiftlmd.engines.environment import find_openblas
from swiftlmd.memory import Device, DeviceSource, MemoryReadings, Reading, machine_limits
from swiftlmd.memory.thermal import Thermal

log = logging.getLogger(__name__)

_PRESSURE = ("normal", "warn", "critical")
# A Mac at rest wires a few GB; a GPU that hung may leave a whole model behind.
_MUCH_WIRED, _MUCH_WIRED_BYTES = 0.4, 8 * 10**9
_MLX_CUDA = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")


def has_cuda_mlx() -> bool:
    """Whether the MLX that engines will import was installed with its CUDA back end."""
    for name in _MLX_CUDA:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        return True
    return False


class Machine:
    """`device` was asked for once at start; `latest` is the newest reading of the watch.

    What an engine reports of its device replaces what the daemon read: MLX works with that.
    """

    def __init__(
        self,
        device: Device,
        readings: MemoryReadings,
        latest: Callable[[], Reading | None],
        settings: Callable[[], Settings],
        thermal: Thermal,
    ) -> None:
        self._device = device
        self._first = device  # as the daemon read it
        self._readings = readings
        self._latest = latest
        self._settings = settings
        self._thermal = thermal
        self._budget_bytes = 0  # of plans
        self.reserve_bytes = 0  # what is left to the rest of the machine

    def engine_reported(self, info: m.DeviceInfo | None) -> bool:
        """What an engine's MLX says of the device; True when plans are made with it from now on."""
        if self._device.accelerator is not Accelerator.METAL or info is None:
            return False
        if not info.working_set_bytes:
            return False
        found = Device(
            Accelerator.METAL,
            info.name or self._device.name,
            info.working_set_bytes,
            info.max_buffer_bytes or self._device.max_buffer_bytes,
            DeviceSource.ENGINE,
        )
        before, self._device = self._device, found
        if before.working_set_bytes == found.working_set_bytes:
            return before.max_buffer_bytes != found.max_buffer_bytes
        log.warning(
            "MLX's working set is %s, plans were made with %s",
            found.working_set_bytes,
            before.working_set_bytes,
        )
        return True

    def warnings(self) -> list[str]:
        """A device that could not be read, or that the engine sees otherwise."""
        if self._device.accelerator is not Accelerator.METAL:
            return []
        seen, first = self._device, self._first
        if seen.source is DeviceSource.ASSUMED:
            return [
                "no Metal device is visible to the daemon or to MLX, so plans assume its limits; "
                "log in at the screen, run `swiftlmctl restart`, then `swiftlmctl doctor`"
            ]
        if first.working_set_bytes is None or first.working_set_bytes == seen.working_set_bytes:
            return []
        return [
            f"MLX reports a Metal working set of {gigabytes(seen.working_set_bytes or 0)}, the "
            f"daemon read {gigabytes(first.working_set_bytes)} at its start; plans use MLX's. "
            f"`swiftlmctl restart` reads it again"
        ]

    def limits(self, *, committed_bytes: int, returning_bytes: int) -> MachineLimits:
        """A fresh reading in the planner's terms; takes milliseconds, call it in a thread."""
        return machine_limits(
            self._readings.read(()),
            self._device,
            committed_bytes=committed_bytes,
            returning_bytes=returning_bytes,
        )

    def measure_budget(self) -> int:
        """The governor's budget: its soft share is what all models together may be granted, by the
        tightest limit that does not move."""
        limits = self.limits(committed_bytes=0, returning_bytes=0)
        self.reserve_bytes = limits.reserve
        try:
            asked = parse_budget(self._settings().engine_memory_budget, limits)
        except BadBudget:
            asked = None  # said at load, where somebody can act on it
        moving = "reclaimable now"
        found = [
            limit.bytes
            for limit in limits.granted_limits(asked)
            if limit.covers is not Covers.BUFFER and limit.name != moving
        ]
        self._budget_bytes = max(1, min(found))
        return math.ceil(self._budget_bytes / SOFT_SHARE)

    def status(self, models: list[m.ModelStatus]) -> m.MachineStatus:
        reading = self._latest()
        blas = next((model.loaded.blas for model in models if model.loaded), "")
        status = m.MachineStatus(
            device=self._device.accelerator.value,
            device_name=self._device.name,
            budget_bytes=self._budget_bytes,
            used_bytes=sum(model.priced_bytes for model in models),
            blas=blas or str(find_openblas() or ""),
            thermal=self._thermal.level(),
            working_set_bytes=self._device.working_set_bytes or 0,
            max_buffer_bytes=self._device.max_buffer_bytes or 0,
            device_source=self._device.source.value,
        )
        if reading is not None:
            status.memory_bytes = reading.total_bytes
            status.available_bytes = reading.available_bytes
            status.pressure = _PRESSURE[reading.pressure]
            status.swap_used_bytes = reading.swap_used_bytes
            status.measured_bytes = reading.footprint_bytes
        return status


def wired_without_owner(reading: Reading | None, num_engines: int) -> str:
    """What to tell when dead processes' GPU memory seems to have stayed wired; else empty."""
    wired = reading.wired_bytes if reading else None
    if reading is None or wired is None or num_engines:
        return ""
    if wired < max(_MUCH_WIRED_BYTES, reading.total_bytes * _MUCH_WIRED):
        return ""
    return (
        f"{gigabytes(wired)} are wired though no model is loaded; if other programs do not hold "
        f"them, only a restart of the machine gives them back"
    )


def own_bytes() -> int:
    """What this process holds."""
    return int(psutil.Process(os.getpid()).memory_info().rss)
