"""A libSystem that answers as the Mac of a recorded file did."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from swiftlmctl.doctor.mac_record import MacRecord, read_record
from swiftlmctl.doctor.mac_verdicts import sysctl, vm_stat

FIXTURES = Path(__file__).parents[1] / "mac_fixtures"


def recorded(name: str) -> MacRecord:
    return read_record(FIXTURES / f"{name}.json")


class RecordedLibSystem:
    def __init__(self, record: MacRecord) -> None:
        self._record = record

    def sysctlbyname(self, name: bytes, value: Any, size: Any, new: None, length: Any) -> int:
        text, target = sysctl(self._record, name.decode()), value._obj
        if not text:
            return -1
        if name == b"vm.swapusage":
            found = re.search(r"used = ([\d.]+)M", text)
            target.used = int(float(found[1]) * 2**20) if found else 0
        elif name == b"machdep.cpu.brand_string":
            target.value = text.encode()
        else:
            target.value = int(text)
        return 0

    def mach_host_self(self) -> int:
        return 9

    def host_statistics64(self, host: int, flavor: int, pages: Any, count: Any) -> int:
        said, filled = vm_stat(self._record), pages._obj
        filled.speculative_count = said["Pages speculative"]
        # `vm_stat` takes the pages that were read ahead off; the kernel counts them as free.
        filled.free_count = said["Pages free"] + said["Pages speculative"]
        filled.inactive_count, filled.active_count = said["Pages inactive"], said["Pages active"]
        filled.wire_count, filled.purgeable_count = (
            said["Pages wired down"],
            said["Pages purgeable"],
        )
        filled.external_page_count = said["File-backed pages"]
        filled.internal_page_count = said["Anonymous pages"]
        filled.swapouts, filled.swapins = said["Swapouts"], said["Swapins"]
        return 0

    def proc_pid_rusage(self, pid: int, flavor: int, buffer: Any) -> int:
        found = re.search(r"phys_footprint: (\d+)", self._record.commands["footprint"])
        raw = bytes(72) + int(found[1] if found else 0).to_bytes(8, "little")
        ctypes.memmove(buffer, raw, len(raw))
        return 0
