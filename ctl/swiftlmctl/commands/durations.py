"""Times as people write them: `90`, `10m`, `2h30m`, `3d`, and where that has a sense `never`."""

from __future__ import annotations

import re

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.errors import CtlError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NEVER = 2**32 - 1
_PART = re.compile(r"(\d+)([smhd])")


def seconds(text: str) -> int:
    if text.isdecimal():
        return int(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise CtlError(f"{text!r} is not a time; write 90, 10m or 2h30m", code=CtlExit.USAGE)
    return sum(int(number) * _UNITS[unit] for number, unit in parts)


def keep_alive(text: str) -> int:
    """Seconds as `LoadOptions` carries them, whose largest number is "never"."""
    return NEVER if text == "never" else min(seconds(text), NEVER)
