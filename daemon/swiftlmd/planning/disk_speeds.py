"""Disk speeds that were measured, by disk and size of record: one small JSON file.

Each pair is measured once, before the first plan that streams from it; later plans reuse it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from swiftlm_engine.brain.disk_speed import DiskSpeed, measure_disk
from swiftlm_engine.brain.facts import weight_files
from swiftlm_engine.brain.plan import MachineLimits, Plan, Range

log = logging.getLogger(__name__)

Measure = Callable[[Sequence[Path], int], DiskSpeed | None]

_LARGEST_RECORD = 4 << 20  # whole layers are read in pieces of this size


class DiskSpeeds:
    """`path` is rewritten whole and atomically; a broken file counts as an empty one."""

    def __init__(self, path: Path, measure: Measure = measure_disk) -> None:
        self._path = path
        self._measure = measure
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
            key = f"{folder.stat().st_dev}:{record_bytes}"
            if key in self._speeds:
                return self._speeds[key]
            files = [path.resolve() for path in weight_files(folder)]
            speed = self._measure(files, record_bytes)
            if speed is None:
                return None
            self._speeds[key] = speed
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
        text = json.dumps({key: asdict(speed) for key, speed in self._speeds.items()}, indent=1)
        part = self._path.with_suffix(".part")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text)
        os.replace(part, self._path)


def streamed_record_bytes(plan: Plan) -> int:
    """What one read of a streaming plan takes from the disk; 0 where nothing is streamed."""
    if plan.streaming is not None and plan.streaming.streamed_layers:
        return plan.streaming.record_bytes
    if plan.layers is not None and plan.layers.streamed:
        return plan.layers.bytes_per_step // len(plan.layers.streamed)
    return 0


def _read(path: Path) -> dict[str, DiskSpeed]:
    try:
        stored = json.loads(path.read_text())
        return {str(key): DiskSpeed(**entry) for key, entry in stored.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("ignoring %s: %s", path, error)
        return {}
