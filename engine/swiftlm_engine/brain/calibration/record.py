"""Figures of one calibration, with their spread, as data and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any  # JSON values


class BadRecord(ValueError):
    """A file that holds no calibration."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing, after the warm-up."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))

    @property
    def noise(self) -> float:
        """Half the width between the bounds, as a share of the median."""
        return (self.high - self.low) / (2 * self.median) if self.median > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A chunk of prompt tokens behind `depth` others: seconds of the chunk, bytes at its peak."""

    chunk: int
    depth: int
    chunk_s: Spread
    scratch_bytes: int

    @property
    def tokens_s(self) -> float:
        return self.chunk / self.chunk_s.median


@dataclass(frozen=True, slots=True)
class Decoded:
    """One step of `width` sequences that each hold `depth` tokens."""

    width: int
    depth: int
    step_s: Spread

    @property
    def tokens_s(self) -> float:
        return self.width / self.step_s.median


@dataclass(frozen=True, slots=True)
class Choices:
    """Settings that follow from the figures. `kv_threshold` is the context in tokens from which
    compressed KV decodes faster than exact KV; 0 = at none."""

    prefill_chunk: int
    parallel: int
    buffer_cache_bytes: int
    kv_threshold: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """`warm_up_s` is what first runs took longer than later ones (kernels being compiled)."""

    prefill: tuple[Prefilled, ...]
    decode: tuple[Decoded, ...]
    memory_bytes_s: Spread
    warm_up_s: float
    choices: Choices
    full: bool = False
    ssd_bytes_s: Spread | None = None
    ssd_threads: int = 0

    @property
    def noise(self) -> float:
        """Of the median figure: more than 1 and another program measured itself in ours."""
        spreads = [row.chunk_s for row in self.prefill] + [row.step_s for row in self.decode]
        # What was measured once has no spread, and tells nothing of the machine.
        repeated = [spread.noise for spread in spreads if spread.repeats > 1]
        return statistics.median(repeated) if repeated else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Record:
        """Raises BadRecord."""
        try:
            ssd = stored.get("ssd_bytes_s")
            record = cls(
                prefill=tuple(
                    Prefilled(**(row | {"chunk_s": Spread(**row["chunk_s"])}))
                    for row in stored["prefill"]
                ),
                decode=tuple(
                    Decoded(**(row | {"step_s": Spread(**row["step_s"])}))
                    for row in stored["decode"]
                ),
                memory_bytes_s=Spread(**stored["memory_bytes_s"]),
                warm_up_s=float(stored["warm_up_s"]),
                choices=Choices(**stored["choices"]),
                full=bool(stored["full"]),
                ssd_bytes_s=Spread(**ssd) if ssd else None,
                ssd_threads=int(stored.get("ssd_threads", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadRecord(f"no calibration: {error!r}") from error
        _check(record)
        return record


def batched_depth(rows: Sequence[Decoded]) -> int:
    """The depth at which batches of several widths were measured."""
    return max(rows, key=lambda row: row.width).depth


def _check(record: Record) -> None:
    if not record.prefill or not record.decode:
        raise BadRecord("no calibration: nothing was measured")
    spreads = [row.chunk_s for row in record.prefill] + [row.step_s for row in record.decode]
    spreads += [record.memory_bytes_s] + ([record.ssd_bytes_s] if record.ssd_bytes_s else [])
    for spread in spreads:
        low, median, high = values = spread.low, spread.median, spread.high
        numbers = all(isinstance(v, int | float) and math.isfinite(v) for v in values)
        if not numbers or not 0 < low <= median <= high:
            raise BadRecord(f"no calibration: {spread}")
    if record.choices.prefill_chunk < 1 or record.choices.parallel < 1:
        raise BadRecord(f"no calibration: {record.choices}")
