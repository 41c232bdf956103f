"""Disk speeds that were measured, by disk and size of record: one small JSON file.

Each pair is measured before the first plan that streams from it, and again after a day: disks fill
up, and what was just downloaded may have been in memory. Plans between reuse it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from swiftlm_engine.brain.disk_speed import DiskSpeed, measure_disk
from swiftlm_engine.brain.facts import weight_files
from swiftlm_engine.brain.plan import MachineLimits, Plan, Range

log = logging.getLogger(__name__)

Measure = Callable[[Sequence[Path], int], DiskSpeed | None]

_KEPT_S = 24 * 3600.0
_LARGEST_RECORD = 4 << 20  # whole layers are read in pieces of this size


@dataclass(frozen=True, slots=True)
class _Measured:
    speed: DiskSpeed
    date: float  # seconds since the epoch


class DiskSpeeds:
    """`path` is rewritten whole and atomically; a broken file counts as an empty one."""

    def __init__(
        self,
        path: Path,
        measure: Measure = measure_disk,
        date: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._measure = measure
        self._date = date
        self._speeds = _read(path)

    def applied(self, limits: MachineLimits, folder: Path, record_bytes: int) -> MachineLimits:
        """`limits` with the disk as it was measured; measures (seconds) if it never was."""
        speed = self._get(folder, min(record_bytes, _LARGEST_RECORD))
        if speed is None:
            return limits
        bounds = Range(speed.low_bytes_s, speed.high_bytes_s)
        machine = replace(limits.speed, ssd_bytes_s=bounds, ssd_threads=speed.threads)
        return replace(limits, speed=machine)

    def _get(self, folder: Path, record_bytes: int) -> DiskSpeed | None:
        try:
            files = [path.resolve() for path in weight_files(folder)]
            key = f"{_volume(files[0] if files else folder)}:{record_bytes}"
            known = self._speeds.get(key)
            if known and 0 <= self._date() - known.date < _KEPT_S:
                return known.speed
            speed = self._measure(files, record_bytes)
            if speed is None:
                return known.speed if known else None
            self._speeds[key] = _Measured(speed, self._date())
            self._write()
        except OSError as error:
            log.warning("disk speed not measured folder=%s: %s", folder, error)
            return None
        log.info(
            "disk measured record_bytes=%d threads=%d median_gb_s=%.2f",
            record_bytes,
            speed.threads,
            speed.median_bytes_s / 1e9,
        )
        return speed

    def _write(self) -> None:
        text = json.dumps({key: asdict(found) for key, found in self._speeds.items()}, indent=1)
        part = self._path.with_suffix(".part")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text)
        os.replace(part, self._path)


def _volume(path: Path) -> str:
    """Where the disk is mounted, and its size: numbers of devices change when a Mac restarts."""
    place = path.absolute()
    while not place.is_mount() and place != place.parent:
        place = place.parent
    found = os.statvfs(place)
    return f"{place}:{found.f_blocks * found.f_frsize}"


def streamed_record_bytes(plan: Plan) -> int:
    """What one read of a streaming plan takes from the disk; 0 where nothing is streamed."""
    if plan.streaming is not None and plan.streaming.streamed_layers:
        return plan.streaming.record_bytes
    if plan.layers is not None and plan.layers.streamed:
        return plan.layers.bytes_per_step // len(plan.layers.streamed)
    return 0


def _read(path: Path) -> dict[str, _Measured]:
    try:
        stored = json.loads(path.read_text())
        return {
            str(key): _Measured(DiskSpeed(**entry["speed"]), float(entry["date"]))
            for key, entry in stored.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        log.warning("ignoring %s: %s", path, error)
        return {}
