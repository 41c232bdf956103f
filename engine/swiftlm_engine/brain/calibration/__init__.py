"""What was measured of one model on one machine, what follows from it, and how it is kept.

`record` holds the figures, `choices` picks settings from them, `prediction` reads speeds off them.
The engine measures, the daemon keeps the records, the plan uses them.
"""

from swiftlm_engine.brain.calibration.choices import choose
from swiftlm_engine.brain.calibration.prediction import decode_s, decode_speed, prefill_s
from swiftlm_engine.brain.calibration.record import (
    BadRecord,
    Choices,
    Decoded,
    Prefilled,
    Record,
    Spread,
)

__all__ = [
    "BadRecord",
    "Choices",
    "Decoded",
    "Prefilled",
    "Record",
    "Spread",
    "choose",
    "decode_s",
    "decode_speed",
    "prefill_s",
]
