"""Text of others (names of models and folders, messages) as it may be shown: in a terminal, a log
or a unit, no character of it moves the cursor, ends the line or turns the writing round."""

from __future__ import annotations

import re

# Control characters of ASCII and Latin-1, line and paragraph ends, marks of direction, and halves
# of pairs, which no stream can write. Joiners stay: emoji and Persian are written with them.
_HIDDEN = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_A_LINE = re.compile(f"[{_HIDDEN}]")
_IN_LINES = re.compile(f"(?![\t\n])[{_HIDDEN}]")


def visible(text: str) -> str:
    """One line: also its ends are shown escaped."""
    return _IN_A_LINE.sub(_escape, text)


def visible_lines(text: str) -> str:
    """The same for text that may have several lines."""
    return _IN_LINES.sub(_escape, text)


def visible_json(line: str) -> str:
    """The same for one line of JSON, which stays JSON with the same meaning."""
    return _IN_A_LINE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def has_control(text: str) -> bool:
    return any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    )
