"""The adapters on recorded files and a fake libSystem; what the planner makes of the readings."""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from swiftlm_engine.brain.plan import Accelerator
from swiftlmd.memory import Device, Pressure, machine_limits
from swiftlmd.memory.devices import parse_nvidia_smi
from swiftlmd.memory.linux import LinuxReadings
from swiftlmd.memory.macos import MacReadings
from swiftlmd.memory.readings import Reading

KIB, MIB, GIB = 2**10, 2**20, 2**30

MEMINFO = """MemTotal:       16000000 kB
MemFree:          500000 kB
MemAvailable:    {available} kB
SwapTotal:       4000000 kB
SwapFree:        3000000 kB
Mlocked:              64 kB
"""
CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 total=0\n"


def machine(root: Path, files: dict[str, str], available_kb: int = 9_000_000) -> LinuxReadings:
    for name, text in {"proc/meminfo": MEMINFO.format(available=available_kb), **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return LinuxReadings(root)


def test_linux_reads_available_total_and_swap(tmp_path: Path) -> None:
    found = machine(tmp_path, {}).read([])
    assert found == Reading(
        total_bytes=16_000_000 * KIB,
        available_bytes=9_000_000 * KIB,
        footprint_bytes=0,
        pressure=Pressure.NORMAL,
        swap_used_bytes=1_000_000 * KIB,
        wired_bytes=64 * KIB,
    )


def test_footprint_is_what_only_swapping_could_take_summed_over_processes(tmp_path: Path) -> None:
    anonymous = "RssAnon: 500 kB\nRssFile: 370 kB\nRssShmem: 30 kB\nVmSwap: 20 kB\n"
    readings = machine(
        tmp_path,
        {
            "proc/11/status": "Name: x\nVmRSS: 900 kB\n" + anonymous,
            "proc/12/status": "Name: x\nRssAnon:   70 kB\nVmSwap:   5 kB\n",
        },
    )
    assert readings.footprint_bytes(11) == 550 * KIB
    assert readings.footprint_bytes(12) == 75 * KIB
    assert readings.footprint_bytes(13) == 0
    assert readings.read([11, 12, 13]).footprint_bytes == 625 * KIB


@pytest.mark.parametrize(
    ("stalls", "available_kb", "pressure"),
    [
        (CALM, 9_000_000, Pressure.NORMAL),
        ("some avg10=12.5 avg60=1 total=9\nfull avg10=2.0 total=9\n", 9_000_000, Pressure.WARN),
        ("some avg10=80 avg60=1 total=9\nfull avg10=30 total=9\n", 9_000_000, Pressure.CRITICAL),
        (CALM, 1_000_000, Pressure.WARN),
        (CALM, 300_000, Pressure.CRITICAL),
        ("", 9_000_000, Pressure.NORMAL),
    ],
)
def test_linux_pressure_comes_from_stalls_and_from_the_share_that_is_left(
    stalls: str, available_kb: int, pressure: Pressure, tmp_path: Path
) -> None:
    readings = machine(tmp_path, {"proc/pressure/memory": stalls}, available_kb)
    assert readings.read([]).pressure is pressure


def _v2(folder: str, limit: str, used: int, cached: int = 0) -> dict[str, str]:
    base = f"sys/fs/cgroup/{folder}/"
    return {
        base + "memory.max": limit + "\n",
        base + "memory.current": f"{used}\n",
        base + "memory.stat": f"anon 1\ninactive_file {cached}\nactive_file 0\n",
        base + "memory.pressure": "some avg10=25.0 total=1\nfull avg10=0.0 total=1\n",
    }


def test_tightest_cgroup_on_the_way_up_is_the_machine(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/user.slice/swiftlm.service\n", "proc/pressure/memory": CALM}
    files |= _v2("user.slice/swiftlm.service", "max", 1)
    files |= _v2("user.slice", str(2 * GIB), GIB, cached=256 * MIB)
    readings = machine(tmp_path, files)
    found = readings.read([])
    assert found.total_bytes == readings.total_bytes() == 2 * GIB
    assert found.available_bytes == readings.available_bytes() == GIB + 256 * MIB
    assert found.cgroup_bytes == 2 * GIB
    assert found.pressure is Pressure.WARN  # the group's own stalls, not the machine's


def test_cgroup_v1_is_read_and_its_no_limit_is_none(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "8:pids:/\n4:memory:/docker/abc\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(3 * GIB),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
        "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {MIB}\ntotal_active_file 0\n",
    }
    assert machine(tmp_path / "a", files).read([]).available_bytes == 2 * GIB + MIB
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712"
    assert machine(tmp_path / "b", files).read([]).cgroup_bytes is None


def test_machine_without_any_file_reads_as_zeros_not_as_an_error(tmp_path: Path) -> None:
    found = LinuxReadings(tmp_path).read([1])
    assert (found.total_bytes, found.available_bytes, found.footprint_bytes) == (0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads this machine's own /proc")
def test_this_machine_is_readable() -> None:
    found = LinuxReadings().read([os.getpid()])
    assert 0 < found.footprint_bytes < found.total_bytes
    assert 0 < found.available_bytes <= found.total_bytes


class FakeLibSystem:
    """The five functions, filling the caller's buffers as the kernel does."""

    def __init__(self, level: int = 1) -> None:
        self.level = level
        self.footprints = {42: 7 * GIB}

    def sysctlbyname(self, name: bytes, value: Any, size: Any, new: None, length: Any) -> int:
        target = value._obj
        if name == b"vm.swapusage":
            target.total, target.used = 4 * GIB, GIB
        elif name in (b"hw.memsize", b"vm.pagesize", b"kern.memorystatus_vm_pressure_level"):
            target.value = {
                b"hw.memsize": 32 * GIB,
                b"vm.pagesize": 16384,
                b"kern.memorystatus_vm_pressure_level": self.level,
            }[name]
        else:
            return -1
        assert size._obj.value == ctypes.sizeof(target)
        return 0

    rights = 0  # that were taken and never given back

    def mach_host_self(self) -> int:
        self.rights += 1
        return 9

    def host_statistics64(self, host: int, flavor: int, pages: Any, count: Any) -> int:
        assert (host, flavor, count._obj.value) == (9, 4, 38)
        filled = pages._obj
        filled.free_count, filled.speculative_count, filled.inactive_count = 1000, 300, 5000
        filled.external_page_count, filled.internal_page_count = 2000, 5000
        filled.swapouts = 50
        filled.purgeable_count, filled.wire_count = 100, 300
        return 0

    def proc_pid_rusage(self, pid: int, flavor: int, buffer: Any) -> int:
        if pid not in self.footprints:
            return -1
        assert flavor == 4
        # rusage_info_v4: uuid[16], user, system, 2 x wakeups, pageins, wired, resident, footprint
        raw = b"\x01" * 16 + b"".join(
            value.to_bytes(8, "little") for value in (1, 2, 3, 4, 5, 6, 7, self.footprints[pid])
        )
        ctypes.memmove(buffer, raw, len(raw))
        return 0


def test_macos_reads_footprint_pages_swap_and_wired() -> None:
    found = MacReadings(FakeLibSystem()).read([42, 43])
    assert found == Reading(
        total_bytes=32 * GIB,
        available_bytes=(700 + 2000 + 100 + 2450) * 16384,
        footprint_bytes=7 * GIB,
        pressure=Pressure.NORMAL,
        swap_used_bytes=GIB,
        wired_bytes=300 * 16384,
        available_is_advice=True,
        swapped_out_bytes=50 * 16384,
    )


def test_macos_readings_take_one_right_however_often_they_are_made() -> None:
    library = FakeLibSystem()
    readings = MacReadings(library)
    for _ in range(5):
        readings.read([])
    assert library.rights == 1


@pytest.mark.parametrize(
    ("level", "pressure"),
    [(1, Pressure.NORMAL), (2, Pressure.WARN), (4, Pressure.CRITICAL), (0, Pressure.NORMAL)],
)
def test_macos_pressure_level_is_a_mask(level: int, pressure: Pressure) -> None:
    assert MacReadings(FakeLibSystem(level)).read([]).pressure is pressure


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("NVIDIA H100 80GB HBM3, 81559\n", ("NVIDIA H100 80GB HBM3", 81559 * MIB)),
        ("GeForce RTX 4090, 24564\nGeForce RTX 4090, 24564\n", ("GeForce RTX 4090", 24564 * MIB)),
        ("Thing, [N/A]\n", ("Thing", None)),
        ("", ("", None)),
    ],
)
def test_nvidia_smi_line_becomes_a_device(text: str, device: tuple[str, int | None]) -> None:
    assert parse_nvidia_smi(text) == Device(Accelerator.CUDA, *device)


def test_limits_hold_readings_device_and_other_models() -> None:
    reading = Reading(64 * GIB, 30 * GIB, 5 * GIB, cgroup_bytes=48 * GIB)
    device = Device(Accelerator.METAL, "Apple M4 Pro", 40 * GIB, 20 * GIB)
    limits = machine_limits(reading, device, committed_bytes=8 * GIB, returning_bytes=2 * GIB)
    found = {limit.name: limit.bytes for limit in limits.limits(50 * GIB)}
    assert found == {
        "memory budget": 42 * GIB,
        "metal working set": 32 * GIB,
        "RAM less reserve": 64 * GIB - 64 * GIB * 12 // 100 - 8 * GIB,
        "cgroup limit": 40 * GIB,
        "reclaimable now": 32 * GIB,
        "largest buffer": 20 * GIB,
    }
    assert limits.speed.memory_bytes_s.high == 0.85 * 273e9
