"""The machine in figures, for status: memory, device, what the daemon itself holds."""

from __future__ import annotations

import os
import platform

import psutil

from swiftlm_engine.brain.plan import Accelerator, MachineLimits
from swiftlm_proto import messages as m
from swiftlmd.engines.environment import usable_cores


class SystemMemory:
    """What the kernel says about memory (psutil)."""

    def total_bytes(self) -> int:
        return int(psutil.virtual_memory().total)

    def available_bytes(self) -> int:
        return int(psutil.virtual_memory().available)

    def footprint_bytes(self, pid: int) -> int:
        try:
            process = psutil.Process(pid)
            full = process.memory_full_info()
        except psutil.NoSuchProcess:
            return 0
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
        return int(getattr(full, "pss", 0) or full.uss)


class SystemLimits:
    """The planner's view of this machine (`planning.LimitsReader`)."""

    def __init__(self, memory: SystemMemory, accelerator: Accelerator) -> None:
        self._memory = memory
        self._accelerator = accelerator

    def __call__(self, *, committed_bytes: int, returning_bytes: int) -> MachineLimits:
        return MachineLimits(
            ram_bytes=self._memory.total_bytes(),
            accelerator=self._accelerator,
            reclaimable_bytes=self._memory.available_bytes() + returning_bytes,
            committed_bytes=committed_bytes,
            num_cores=usable_cores(),
        )


class Machine:
    """Figures for status; every call is cheap."""

    def __init__(self, memory: SystemMemory) -> None:
        self._memory = memory

    def status(self, models: list[m.ModelStatus]) -> m.MachineStatus:
        loaded = next((model.loaded for model in models if model.loaded), None)
        return m.MachineStatus(
            device=loaded.device if loaded else "",
            device_name=platform.processor() or platform.machine(),
            memory_bytes=self._memory.total_bytes(),
            available_bytes=self._memory.available_bytes(),
            used_bytes=sum(model.priced_bytes for model in models),
            blas=loaded.blas if loaded else "",
            swap_used_bytes=int(psutil.swap_memory().used),
            measured_bytes=self.own_bytes() + sum(model.footprint_bytes for model in models),
        )

    def own_bytes(self) -> int:
        return int(psutil.Process(os.getpid()).memory_info().rss)
