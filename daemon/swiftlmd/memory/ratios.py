"""How far each model's real memory was from its price: one small JSON file, kept across restarts.

The key is the model's fingerprint with what changes the price; a ratio far from 1 is a bug in the
formulas and worth a log line, not a licence to price by it.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_WEIGHT = 0.3
_MAX_ENTRIES = 200


@dataclass(frozen=True, slots=True)
class Ratio:
    """Measured over priced bytes: newest, average in which recent loads weigh most, highest."""

    last: float
    average: float
    highest: float
    samples: int
    date: float  # seconds since the epoch


class RatioStore:
    """`path` is rewritten whole and atomically; a broken file counts as an empty one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ratios = _read(path)

    def get(self, key: str) -> Ratio | None:
        return self._ratios.get(key)

    def record(self, key: str, priced_bytes: int, measured_bytes: int, date: float) -> Ratio:
        """Keep one comparison, made after the spike of a load has passed; writes the file."""
        if priced_bytes <= 0 or measured_bytes < 0:
            raise ValueError(f"cannot compare {measured_bytes} with {priced_bytes} bytes")
        value, before = measured_bytes / priced_bytes, self._ratios.pop(key, None)
        average = value if before is None else before.average + _WEIGHT * (value - before.average)
        highest = value if before is None else max(before.highest, value)
        samples = 1 if before is None else before.samples + 1
        ratio = Ratio(round(value, 4), round(average, 4), round(highest, 4), samples, date)
        self._ratios[key] = ratio
        self._write()
        return ratio

    def _write(self) -> None:
        newest = list(self._ratios.items())[-_MAX_ENTRIES:]
        self._ratios = dict(newest)
        text = json.dumps({key: asdict(ratio) for key, ratio in newest}, indent=1)
        part = self._path.with_suffix(".part")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(text)
            os.replace(part, self._path)
        except OSError:  # a full disk
            part.unlink(missing_ok=True)
            raise


def _read(path: Path) -> dict[str, Ratio]:
    try:
        stored = json.loads(path.read_text())
        return {str(key): Ratio(**entry) for key, entry in stored.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("ignoring %s: %s", path, error)
        return {}
