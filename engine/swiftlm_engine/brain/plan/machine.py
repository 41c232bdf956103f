"""What the machine allows: the limits a plan has to respect, each with its source.

Readings are handed in (the daemon's memory adapters, the engine's device query): nothing is asked
of the operating system here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from swiftlm_engine.brain.plan.errors import BadBudget
from swiftlm_engine.brain.plan.speed import MachineSpeed

GB = 10**9
BUDGET = "memory budget"
RECLAIMABLE = "reclaimable now"
# What plans may grant of what a machine can hold. It is also where the governor begins to take
# memory back, so that a plan in full use, with nothing beside it, is left alone.
SOFT_SHARE = 0.85
_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": GB, "t": 10**12,
          "kb": 10**3, "mb": 10**6, "gb": GB, "tb": 10**12,
          "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
_BUDGETS = "give a size (24GB), a share (60%) or auto"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z%]*)\s*", re.IGNORECASE | re.ASCII)


class Accelerator(StrEnum):
    METAL = "metal"
    CUDA = "cuda"
    CPU = "cpu"


class Covers(StrEnum):
    """Which bytes of a plan a limit counts."""

    ALL = "all"
    UNIFIED = "unified"  # the device's bytes and the process around them, where both are RAM
    OWN = "own"  # without what is left to the page cache: that is never ours
    DEVICE = "device"
    HOST = "host"
    BUFFER = "buffer"  # the largest single buffer, not a sum


@dataclass(frozen=True, slots=True)
class Limit:
    """One ceiling, with what other models already hold of it taken off."""

    name: str
    bytes: int
    covers: Covers = Covers.ALL


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Readings of one machine. None = there is no such limit, or it could not be read.

    `reclaimable_bytes` is what could be had now without swapping (own models that may be evicted
    included); where `reclaimable_is_advice` the system makes more room by compressing what idle
    programs hold. `committed_bytes` is what other loaded models are priced at.
    """

    ram_bytes: int
    accelerator: Accelerator = Accelerator.CPU
    device_name: str = ""
    working_set_bytes: int | None = None
    max_buffer_bytes: int | None = None
    reclaimable_bytes: int | None = None
    reclaimable_is_advice: bool = False
    cgroup_bytes: int | None = None
    reserve_bytes: int | None = None
    committed_bytes: int = 0
    num_cores: int = 1
    speed: MachineSpeed = field(default_factory=MachineSpeed)

    @property
    def reserve(self) -> int:
        """What is left to the rest of the machine. Linux servers have no desktop to feed."""
        if self.reserve_bytes is not None:
            return self.reserve_bytes
        if self.accelerator is Accelerator.METAL:
            return max(4 * GB, self.ram_bytes * 12 // 100)
        return max(GB, self.ram_bytes * 5 // 100)

    @property
    def working_set(self) -> int | None:
        """What the accelerator may hold. A Metal device that could not be read gets Apple's least
        default, two thirds of the memory: without a limit its plans would not hold."""
        if self.working_set_bytes is None and self.accelerator is Accelerator.METAL:
            return self.ram_bytes * 2 // 3
        return self.working_set_bytes

    @property
    def shared_memory(self) -> bool:
        """Whether the accelerator computes in the machine's own RAM."""
        return self.accelerator is not Accelerator.CUDA

    def limits(self, budget_bytes: int | None = None) -> list[Limit]:
        """Every ceiling that applies, the user's first: what the machine can hold."""
        return self._limits(budget_bytes, 1.0, Covers.DEVICE)

    def granted_limits(self, budget_bytes: int | None = None) -> list[Limit]:
        """What plans are made against: the user's budget, and the soft share of the others."""
        metal = self.accelerator is Accelerator.METAL
        return self._limits(budget_bytes, SOFT_SHARE, Covers.UNIFIED if metal else Covers.DEVICE)

    def _limits(self, budget_bytes: int | None, share: float, device: Covers) -> list[Limit]:
        host = Covers.ALL if self.shared_memory else Covers.HOST
        own = Covers.OWN if self.shared_memory else Covers.HOST
        rows = [
            (BUDGET, budget_bytes, 1.0, Covers.OWN),
            (f"{self.accelerator} working set", self.working_set, share, device),
            ("RAM less reserve", max(0, self.ram_bytes - self.reserve), share, host),
            ("cgroup limit", self.cgroup_bytes, share, own),
        ]
        found = [
            Limit(name, max(0, int(size * part) - self.committed_bytes), covers)
            for name, size, part, covers in rows
            if size is not None
        ]
        if self.reclaimable_bytes is not None and not self.reclaimable_is_advice:
            found.append(Limit(RECLAIMABLE, self.reclaimable_bytes, own))
        if self.max_buffer_bytes is not None:
            found.append(Limit("largest buffer", self.max_buffer_bytes, Covers.BUFFER))
        return found


def parse_budget(text: str, machine: MachineLimits) -> int | None:
    """`24GB`, `16GiB`, `60%` (of RAM) in bytes; None for `auto` and `off`. Raises BadBudget."""
    if text.strip().lower() in ("auto", "off", ""):
        return None
    match = _SIZE.fullmatch(text)
    unit = match[2].lower() if match else None
    if match is None or (unit != "%" and unit not in _UNITS):
        raise BadBudget(f"memory budget {text!r}: {_BUDGETS}")
    if unit == "%":
        size = int(machine.ram_bytes * float(match[1]) / 100)
    else:
        size = int(float(match[1]) * _UNITS[unit or ""])
    if size <= 0:
        raise BadBudget(f"memory budget {text!r} leaves nothing: {_BUDGETS}")
    if size > machine.ram_bytes and machine.shared_memory:
        raise BadBudget(
            f"memory budget {text!r} is more than this machine's {gigabytes(machine.ram_bytes)}"
        )
    return size


def gigabytes(size: int) -> str:
    """`21.4 GB`, or a smaller unit where a tenth of a GB would hide the number."""
    if abs(size) >= GB:
        return f"{size / GB:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size == 0 or abs(size) >= 10**6 else f"{size / 1e3:.1f} kB"
