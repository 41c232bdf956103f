"""Finds the statements of a TOML text, so that one can be changed and every other byte stays.

The standard library reads TOML and writes none. A statement is the shortest run of lines that is
TOML by itself: that also holds for strings and lists over several lines.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any  # TOML values


@dataclass(frozen=True, slots=True)
class Statement:
    first: int  # index of its first line
    last: int  # behind its last line
    table: tuple[str, ...]
    key: tuple[str, ...]  # () = a header, a comment or nothing
    is_header: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        return self.table + self.key


def lines_of(text: str) -> list[str]:
    """With their ends; only a line feed ends a line of TOML."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def statements(lines: Sequence[str]) -> Iterator[Statement]:
    """Of a sound text; raises ValueError for another one."""
    table: tuple[str, ...] = ()
    first = 0
    while first < len(lines):
        last, found = _shortest(lines, first)
        key = _only_path(found)
        if lines[first].lstrip().startswith("["):
            table = key
            yield Statement(first, last, table, (), is_header=True)
        else:
            yield Statement(first, last, table, key)
        first = last


def _shortest(lines: Sequence[str], first: int) -> tuple[int, dict[str, Any]]:
    for last in range(first + 1, len(lines) + 1):
        try:
            return last, tomllib.loads("".join(lines[first:last]))
        except tomllib.TOMLDecodeError:
            continue
    raise ValueError(f"line {first + 1} is not a TOML statement")


def _only_path(found: Any) -> tuple[str, ...]:
    """The names that lead to the value of one statement; a list is of tables here or a value."""
    path: tuple[str, ...] = ()
    while isinstance(found, dict) and len(found) == 1:
        ((name, found),) = found.items()
        path += (name,)
        if isinstance(found, list) and found == [{}]:
            break
    return path


def without_path(text: str, path: Sequence[str]) -> str:
    """`text` without the statement that sets `path`, or the header of a table of that name."""
    lines = lines_of(text)
    for found in statements(lines):
        if found.path == tuple(path) and (found.key or found.is_header):
            return "".join(lines[: found.first] + lines[found.last :])
    return text


def with_root_key(text: str, key: str, value: Any) -> str:
    """`text` with a plain value set at its top."""
    written = f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
    lines = lines_of(text)
    for found in statements(lines):
        if found.path == (key,) and not found.is_header:
            return "".join([*lines[: found.first], written, *lines[found.last :]])
    return written + text
