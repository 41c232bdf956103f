"""How hot the Mac is, by its notification service (ctypes); shown, never acted upon."""

from __future__ import annotations

import ctypes
import logging
import sys
from typing import Any, Protocol

log = logging.getLogger(__name__)

_NAME = b"com.apple.system.thermalpressurelevel"
_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")
_OK = 0


class Thermal(Protocol):
    def level(self) -> str:
        """One of nominal, moderate, heavy, trapping, sleeping; empty where it is not known."""


class NoThermal:
    """A machine that does not say."""

    def level(self) -> str:
        return ""


class MacThermal:
    """`library` is libSystem, or in tests what answers like it."""

    def __init__(self, library: Any) -> None:  # Any: a ctypes library
        self._library = library
        self._token = ctypes.c_int(-1)
        status = library.notify_register_check(_NAME, ctypes.byref(self._token))
        self._registered = status == _OK

    def level(self) -> str:
        if not self._registered:
            return ""
        state = ctypes.c_uint64(0)
        if self._library.notify_get_state(self._token, ctypes.byref(state)) != _OK:
            return ""
        known = state.value < len(_LEVELS)
        return _LEVELS[state.value] if known else f"level {state.value}"


def system_thermal() -> Thermal:
    if sys.platform != "darwin":
        return NoThermal()
    try:
        return MacThermal(ctypes.CDLL(None))
    except (OSError, AttributeError) as error:
        log.info("thermal level is not known: %s", error)
        return NoThermal()
