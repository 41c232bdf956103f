"""What the kernel says about memory, as one value per moment; the adapters fill it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class Pressure(IntEnum):
    """The kernel's own verdict; macOS says 1, 2, 4, Linux is read from stall times."""

    NORMAL = 0
    WARN = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Reading:
    """One moment. `available_bytes` is what could be had without swapping. Where
    `available_is_advice`, the system makes more room than that by compressing idle programs.

    `total_bytes` is RAM, or the cgroup's limit where that is less; `footprint_bytes` is what the
    kernel charges the asked processes, which is what it kills by.
    """

    total_bytes: int
    available_bytes: int
    footprint_bytes: int
    pressure: Pressure = Pressure.NORMAL
    swap_used_bytes: int = 0
    wired_bytes: int | None = None
    cgroup_bytes: int | None = None
    available_is_advice: bool = False
    swapped_out_bytes: int = 0  # since the start of the machine: it only grows


class MemoryReadings(Protocol):
    """Every call asks the kernel and may take milliseconds: never on the event loop's thread."""

    def total_bytes(self) -> int: ...

    def available_bytes(self) -> int: ...

    def footprint_bytes(self, pid: int) -> int:
        """As the kernel counts the process; 0 when it is gone."""

    def read(self, pids: Sequence[int]) -> Reading:
        """Everything at once; the footprint is the sum over `pids`."""
