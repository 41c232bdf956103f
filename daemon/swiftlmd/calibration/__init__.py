"""Measuring models while the machine is idle, and keeping what was found."""

from swiftlmd.calibration.admin import CalibrationAdmin
from swiftlmd.calibration.calibrator import Calibrator
from swiftlmd.calibration.drift import Drift
from swiftlmd.calibration.store import CalibrationStore, Kept, Manner

__all__ = ["CalibrationAdmin", "CalibrationStore", "Calibrator", "Drift", "Kept", "Manner"]
