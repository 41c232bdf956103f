"""What the kernel says about memory, and what the daemon does about it.

`system_readings()` picks the adapter; `Governor` turns readings into acts and verdicts; `Watch`
runs it beside the event loop.
"""

from swiftlmd.memory.devices import Device, DeviceSource, system_device
from swiftlmd.memory.governor import (
    Action,
    Answer,
    Decision,
    Governor,
    Level,
    PressureVerdict,
    Watermarks,
)
from swiftlmd.memory.ratios import RatioStore
from swiftlmd.memory.readings import MemoryReadings, Pressure, Reading
from swiftlmd.memory.system import machine_limits, system_readings
from swiftlmd.memory.watch import Reclaimer, Watch

__all__ = [
    "Action",
    "Answer",
    "Decision",
    "Device",
    "DeviceSource",
    "Governor",
    "Level",
    "MemoryReadings",
    "Pressure",
    "PressureVerdict",
    "RatioStore",
    "Reading",
    "Reclaimer",
    "Watch",
    "Watermarks",
    "machine_limits",
    "system_device",
    "system_readings",
]
