"""Readings on Linux: /proc, stall information (PSI) and the tightest cgroup, v1 or v2.

Inside a container the cgroup is the machine: its limit and its own stall times count, and pages of
clean files in it count as available because the kernel drops them before it kills.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftlmd.memory.readings import Pressure, Reading

# Percent of the last ten seconds in which some (or all) tasks waited for memory.
_WARN_SOME = 10.0
_CRITICAL_FULL = 10.0
# Stall times say nothing before the first reclaim; then the share left decides.
_WARN_SHARE = 0.08
_CRITICAL_SHARE = 0.03
_UNLIMITED = 2**60  # cgroup v1 writes a page-rounded 2**63 where there is no limit


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One memory cgroup with a limit."""

    limit_bytes: int
    used_bytes: int
    file_bytes: int
    pressure_file: Path

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes + self.file_bytes)


class LinuxReadings:
    """`root` is where /proc and /sys hang; tests hand in a folder of recorded files."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"
        self._sys = root / "sys/fs/cgroup"

    def total_bytes(self) -> int:
        total = self._meminfo().get("MemTotal", 0)
        cgroup = self._cgroup()
        return min(total, cgroup.limit_bytes) if cgroup else total

    def available_bytes(self) -> int:
        available = self._meminfo().get("MemAvailable", 0)
        cgroup = self._cgroup()
        return min(available, cgroup.available_bytes) if cgroup else available

    def footprint_bytes(self, pid: int) -> int:
        """Pages that only swapping could take from the process, as macOS counts them.

        Not `smaps_rollup`: the kernel walks every page of the process for it, once a second.
        """
        status = _keyed_sizes(_text(self._proc / str(pid) / "status"))
        return sum(status.get(kind, 0) for kind in ("RssAnon", "RssShmem", "VmSwap"))

    def read(self, pids: Sequence[int]) -> Reading:
        memory = self._meminfo()
        total, available = memory.get("MemTotal", 0), memory.get("MemAvailable", 0)
        cgroup = self._cgroup()
        stalls = self._proc / "pressure/memory"
        if cgroup is not None:
            total = min(total, cgroup.limit_bytes)
            available = min(available, cgroup.available_bytes)
            stalls = cgroup.pressure_file if cgroup.pressure_file.exists() else stalls
        return Reading(
            total_bytes=total,
            available_bytes=available,
            footprint_bytes=sum(self.footprint_bytes(pid) for pid in pids),
            pressure=_pressure(_text(stalls), available, total),
            swap_used_bytes=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
            wired_bytes=memory.get("Mlocked"),
            cgroup_bytes=cgroup.limit_bytes if cgroup else None,
        )

    def _meminfo(self) -> dict[str, int]:
        return _keyed_sizes(_text(self._proc / "meminfo"))

    def _cgroup(self) -> Cgroup | None:
        """The tightest limit from this process's group up to the root."""
        found = [c for folder in self._cgroup_folders() if (c := _read_cgroup(folder)) is not None]
        return min(found, key=lambda cgroup: cgroup.limit_bytes, default=None)

    def _cgroup_folders(self) -> Iterator[Path]:
        for line in _text(self._proc / "self/cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "":
                base = self._sys
            elif "memory" in controllers.split(","):
                base = self._sys / "memory"
            else:
                continue
            folder = base / path.lstrip("/")
            # In a container the path may be the host's; then only the mount point is there.
            yield base
            while folder != base and base in folder.parents:
                yield folder
                folder = folder.parent


def _read_cgroup(folder: Path) -> Cgroup | None:
    if (limit := _number(folder / "memory.max")) is not None:
        used = _number(folder / "memory.current") or 0
        stat = _plain_sizes(_text(folder / "memory.stat"))
        cached = stat.get("inactive_file", 0) + stat.get("active_file", 0)
    elif (limit := _number(folder / "memory.limit_in_bytes")) is not None:
        used = _number(folder / "memory.usage_in_bytes") or 0
        stat = _plain_sizes(_text(folder / "memory.stat"))
        cached = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    else:
        return None
    if limit >= _UNLIMITED:
        return None
    return Cgroup(limit, used, cached, folder / "memory.pressure")


def _pressure(stalls: str, available: int, total: int) -> Pressure:
    averages = _averages(stalls)
    share = available / total if total else 1.0
    if averages.get("full", 0.0) >= _CRITICAL_FULL or share < _CRITICAL_SHARE:
        return Pressure.CRITICAL
    if averages.get("some", 0.0) >= _WARN_SOME or share < _WARN_SHARE:
        return Pressure.WARN
    return Pressure.NORMAL


def _averages(stalls: str) -> dict[str, float]:
    """`some avg10=1.23 …` to {"some": 1.23}."""
    found: dict[str, float] = {}
    for line in stalls.splitlines():
        kind, _, rest = line.partition(" ")
        for field in rest.split():
            name, _, value = field.partition("=")
            if name == "avg10":
                found[kind] = float(value)
    return found


def _keyed_sizes(text: str) -> dict[str, int]:
    """`MemTotal:  123 kB` lines, in bytes."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            sizes[name] = int(fields[0]) * (1024 if fields[-1] == "kB" else 1)
    return sizes


def _plain_sizes(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}


def _number(path: Path) -> int | None:
    """None for an absent file and for `max`."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""  # a process that has just ended, a kernel without the file
