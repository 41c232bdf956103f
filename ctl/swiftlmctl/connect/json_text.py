"""Sets and removes members of a JSON object in its text, so that every other byte stays."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any  # JSON values

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class _Member:
    key: str
    start: int  # of the key
    value_start: int
    end: int  # behind the value


@dataclass(frozen=True, slots=True)
class _Object:
    start: int  # of the brace
    end: int  # of the closing brace
    members: list[_Member]

    def named(self, key: str) -> _Member | None:
        """The last of this name is the one that counts."""
        return next((m for m in reversed(self.members) if m.key == key), None)


def with_member(text: str, path: Sequence[str], value: Any) -> str:
    """`text` with the member at `path` set; all objects above it must be there."""
    parent = _object_at(text, path[:-1])
    member = parent.named(path[-1])
    indent = _indent(text, parent)
    if member is not None:
        return text[: member.value_start] + _dumped(text, value, indent) + text[member.end :]
    written = f"{json.dumps(path[-1], ensure_ascii=False)}: {_dumped(text, value, indent)}"
    newline = _newline(text)
    if parent.members:
        last = parent.members[-1].end
        gap = ", " if indent is None else f",{newline}{indent}"
        return text[:last] + gap + written + text[last:]
    if indent is None:
        return f"{text[: parent.start + 1]}{written}{text[parent.end :]}"
    outer = _line_indent(text, parent.start)
    inside = f"{newline}{indent}{written}{newline}{outer}"
    return text[: parent.start + 1] + inside + text[parent.end :]


def without_member(text: str, path: Sequence[str]) -> str:
    """`text` without the member at `path`, which must be there."""
    parent = _object_at(text, path[:-1])
    member = parent.named(path[-1])
    if member is None:
        raise ValueError(f"no member {path[-1]!r}")
    place = parent.members.index(member)
    if len(parent.members) == 1:
        return text[: parent.start + 1] + text[parent.end :]
    if place == len(parent.members) - 1:
        return text[: parent.members[place - 1].end] + text[member.end :]
    return text[: member.start] + text[parent.members[place + 1].start :]


def _object_at(text: str, path: Sequence[str]) -> _Object:
    found = _object(text, _skip(text, 0))
    for key in path:
        member = found.named(key)
        if member is None:
            raise ValueError(f"no member {key!r}")
        found = _object(text, member.value_start)
    return found


def _object(text: str, start: int) -> _Object:
    if text[start : start + 1] != "{":
        raise ValueError("not an object")
    members = []
    place = _skip(text, start + 1)
    while text[place] != "}":
        key, after = _DECODER.raw_decode(text, place)
        value_start = _skip(text, _skip(text, after) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(text, value_start)
        members.append(_Member(key, place, value_start, end))
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return _Object(start, place, members)


def _skip(text: str, place: int) -> int:
    match = _BLANK.match(text, place)
    assert match is not None
    return match.end()


def _indent(text: str, parent: _Object) -> str | None:
    """What stands before the members of this object; None where they share a line."""
    if parent.members:
        first = parent.members[0].start
        before = text[parent.start + 1 : first]
        return before.rpartition("\n")[2] if "\n" in before else None
    if "\n" not in text.strip() and text.strip() != "{}":
        return None
    return _line_indent(text, parent.start) + _unit(text)


def _line_indent(text: str, place: int) -> str:
    line = text[text.rfind("\n", 0, place) + 1 : place]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """One step of this file's indentation."""
    match = re.search(r'\{[ \t]*\r?\n([ \t]+)"', text)
    return match.group(1) if match else "  "


def _dumped(text: str, value: Any, indent: str | None) -> str:
    if indent is None:
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text))
    return lines.replace("\n", _newline(text) + indent)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
