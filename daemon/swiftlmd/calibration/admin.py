"""What swiftlmctl asks about calibrations: measure now, show, change, forget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Any  # JSON values

from swiftlm_engine.brain.calibration import Decoded, Prefilled, Spread
from swiftlm_proto import messages as m
from swiftlmd.calibration.calibrator import Calibrator
from swiftlmd.calibration.store import Kept
from swiftlmd.faults import Kind, ServiceError


class CalibrationAdmin:
    def __init__(self, calibrator: Calibrator) -> None:
        self._calibrator = calibrator
        self._store = calibrator.store

    async def calibrate(self, name: str, *, full: bool) -> AsyncGenerator[m.OperationEvent, None]:
        """Progress, then `done` with the record; raises ServiceError."""
        async with aclosing(self._calibrator.calibrate(name, full=full)) as events:
            async for event in events:
                if isinstance(event, Kept):
                    result = json.dumps(summary(event))
                    yield m.OperationEvent(stage="done", fraction=1.0, done=True, result=result)
                else:
                    yield m.OperationEvent(
                        stage="measuring", fraction=event.fraction, detail=event.detail
                    )

    async def answer(self, name: str, message: m.CalibrationsRequest) -> m.CalibrationsReply:
        """`name` is a model or empty for all of them; raises ServiceError."""
        found = [k for k in await asyncio.to_thread(self._store.all) if name in ("", k.model)]
        if message.action is m.CalibrationsRequestAction.CLEAR:
            forgotten = found if name else [None]
            return m.CalibrationsReply(cleared=sum(map(self._calibrator.forget, forgotten)))
        if message.action is m.CalibrationsRequestAction.EDIT:
            if not found or not name:
                text = f"nothing was measured of '{name}'; run `swiftlmctl calibrate {name}` first"
                raise ServiceError(Kind.INVALID, text)
            found = [self._edited(found[0], dict(message.choices))]
        return m.CalibrationsReply(records=json.dumps([summary(kept) for kept in found]))

    def _edited(self, kept: Kept, choices: dict[str, int]) -> Kept:
        try:
            return self._store.edit(kept, choices)
        except ValueError as error:
            raise ServiceError(Kind.INVALID, str(error)) from error
        except OSError as error:
            message = (
                f"the calibration of '{kept.model}' could not be changed: {error}; "
                "the values before the edit still hold"
            )
            raise ServiceError(Kind.INTERNAL, message) from error


def summary(kept: Kept) -> dict[str, Any]:
    """A record for people: speeds instead of seconds, each with its spread."""
    record, here = kept.record, kept.circumstances
    return {
        "model": kept.model,
        "measured": datetime.fromtimestamp(kept.date).astimezone().isoformat(timespec="minutes"),
        "effort": "full" if record.full else "quick",
        "quantization": kept.quantisation,
        "run_as": " ".join(str(v) for v in (kept.manner.strategy, kept.manner.dtype) if v),
        "machine": f"{here.device}, {here.num_cores} cores, {here.system}",
        "versions": f"mlx {here.mlx}, swiftlm {here.swiftlm}",
        "warm_up_s": record.warm_up_s,
        "memory_gb_s": _rate(record.memory_bytes_s, 1e-9),
        "ssd_gb_s": _rate(record.ssd_bytes_s, 1e-9) if record.ssd_bytes_s else "",
        "chosen": {
            "prefill_chunk": record.choices.prefill_chunk,
            "parallel": record.choices.parallel,
            "buffer_cache_bytes": record.choices.buffer_cache_bytes,
            "kv_threshold": record.choices.kv_threshold or "never",
            "edited": ", ".join(kept.edited),
        },
        "prefill": [_prefill(row) for row in record.prefill],
        "decode": [_decode(row) for row in record.decode],
    }


def _prefill(row: Prefilled) -> dict[str, Any]:
    return {
        "chunk": row.chunk,
        "behind": row.depth,
        "tokens_s": _speed(row.chunk, row.chunk_s),
        "scratch_bytes": row.scratch_bytes,
    }


def _decode(row: Decoded) -> dict[str, Any]:
    return {"width": row.width, "depth": row.depth, "tokens_s": _speed(row.width, row.step_s)}


def _speed(tokens: int, taken: Spread) -> str:
    fast, slow = tokens / taken.low, tokens / taken.high
    runs = f"{taken.repeats} run{'s' if taken.repeats > 1 else ''}"
    return f"{tokens / taken.median:.3g} ({slow:.3g}-{fast:.3g}, {runs})"


def _rate(rate: Spread, scale: float) -> str:
    return f"{rate.median * scale:.3g} ({rate.low * scale:.3g}-{rate.high * scale:.3g})"
