"""The Calibrate call: one turn of the measurement at a time on the MLX thread, none of them while a
request is under way."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from swiftlm_engine.brain.calibration import Record, Spread
from swiftlm_engine.brain.disk_speed import DiskSpeed, measure_disk
from swiftlm_engine.brain.facts import weight_files
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.run.mlx_thread import MlxThread
from swiftlm_engine.server import wire
from swiftlm_engine.session.calibration import (
    FULL,
    QUICK,
    CalibrationProgress,
    Effort,
    Subject,
    measure,
)
from swiftlm_proto import messages as m

log = logging.getLogger(__name__)

_RECORD_BYTES = 4 << 20  # of a read from the disk, less where the model is small
_FEWEST_READS = 64
_READERS = (1, 4, 8)


class Calibration:
    """One run. `busy` says whether a request is here that must not wait."""

    def __init__(
        self, subject: Subject, folder: Path, mlx: MlxThread, busy: Callable[[], bool]
    ) -> None:
        self._subject = subject
        self._folder = folder
        self._mlx = mlx
        self._busy = busy

    async def run(self, *, full: bool) -> AsyncGenerator[m.CalibrationEvent, None]:
        """Ends in a record or in a fault; leaving it early stops the measurement."""
        try:
            async for event in self._run(FULL if full else QUICK):
                yield event
        except EngineFault as error:
            yield m.CalibrationEvent(fault=wire.fault(error))
        except Exception as error:
            log.exception("calibration failed")
            fault = EngineFault(FaultKind.INTERNAL, f"the measurement failed: {error}")
            yield m.CalibrationEvent(fault=wire.fault(fault))

    async def _run(self, effort: Effort) -> AsyncIterator[m.CalibrationEvent]:
        turns = measure(self._subject, effort)
        record: Record | None = None

        def turn() -> CalibrationProgress | None:
            nonlocal record
            try:
                return next(turns)
            except StopIteration as end:
                record = end.value
                return None

        def stop() -> None:
            turns.close()
            mx.clear_cache()

        try:
            while (progress := await self._turn(turn)) is not None:
                yield m.CalibrationEvent(fraction=progress.fraction, detail=progress.detail)
        finally:
            self._mlx.post(stop)  # its caches are freed on the thread that made them
        assert record is not None, "a measurement that was not stopped has its record"
        yield m.CalibrationEvent(fraction=0.97, detail="disk")
        disk = await asyncio.to_thread(_disk, self._folder)
        if disk is not None:
            ssd = Spread(disk.median_bytes_s, disk.low_bytes_s, disk.high_bytes_s, 2)
            record = replace(record, ssd_bytes_s=ssd, ssd_threads=disk.threads)
        yield m.CalibrationEvent(fraction=1.0, record=json.dumps(record.to_json()))

    async def _turn(
        self, turn: Callable[[], CalibrationProgress | None]
    ) -> CalibrationProgress | None:
        if self._busy():
            raise EngineFault(FaultKind.BUSY, "a request came first", retry_after_s=60)
        return await asyncio.wrap_future(self._mlx.call(turn))


def _disk(folder: Path) -> DiskSpeed | None:
    files = [path.resolve() for path in weight_files(folder)]
    try:
        total = sum(path.stat().st_size for path in files)
        size = min(_RECORD_BYTES, total // _FEWEST_READS // 16384 * 16384)
        return measure_disk(files, size, rounds=2, threads=_READERS) if size else None
    except OSError as error:
        log.warning("disk not measured: %s", error)
        return None
