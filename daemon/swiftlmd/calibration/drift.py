"""Whether a model still runs as fast as it was measured: twenty requests that were alone decide."""

from __future__ import annotations

import statistics
from collections import deque

from swiftlm_engine.brain.calibration import Record, decode_speed
from swiftlm_proto import messages as m

REQUESTS = 20
TOLERANCE = 1.2
_FEWEST_TOKENS = 8  # an answer of fewer says little of the speed


class Drift:
    """One per model and record. A single slow request is a busy moment, not a drift."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=REQUESTS)

    def observe(self, record: Record, finished: m.Finished) -> float | None:
        """The ratio of measured to predicted speed once it is known to be off; else None."""
        usage, timings = finished.usage, finished.timings
        if usage is None or timings is None or usage.completion_tokens < _FEWEST_TOKENS:
            return None
        if timings.draft_tokens or timings.decode_tokens_per_s <= 0:
            return None
        depth = usage.prompt_tokens + usage.completion_tokens // 2
        self._ratios.append(timings.decode_tokens_per_s / decode_speed(record, depth))
        if len(self._ratios) < REQUESTS:
            return None
        ratio = statistics.median(self._ratios)
        return None if 1 / TOLERANCE <= ratio <= TOLERANCE else ratio
