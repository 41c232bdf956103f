"""Reads swiftlmd's own log files: the last records, then new ones, over rotations.

Works without the daemon. A record starts with a time stamp; lines without one (a traceback)
belong to the record before. Rotation renames `x.log` to `x.log.1`, so a follower reads its open
file to the end before it opens the new one.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# 2026-11-27T12:00:00.123+01:00 or 2026-11-27 12:00:00,123
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(Z|[+-]\d\d:?\d\d)?\s+"
)
_LEVELS = ("debug", "info", "warning", "error", "critical")
_ALIASES = {"warn": "warning", "fatal": "critical"}
# A follower that finds a file longer than this starts near its end.
_TAIL_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogRecord:
    time: float  # seconds since the epoch; 0 = the line carries none
    level: str
    text: str  # the whole record, as it stands in the file
    file: str

    @property
    def shown(self) -> str:
        """For a person: a JSON line of access.log as one line of words."""
        if not self.text.startswith("{"):
            return self.text
        fields = _fields(self.text)
        words = [f"{key}={value}" for key, value in fields.items() if key != "time"]
        return " ".join([str(fields.get("time", "")), "request", *words]) if fields else self.text


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records to show."""

    level: str = ""
    since: float = 0.0
    request: str = ""

    def matches(self, record: LogRecord) -> bool:
        if self.since and record.time < self.since:
            return False
        if self.request and self.request not in record.text:
            return False
        return not self.level or _rank(record.level) >= _rank(self.level)


def level_named(text: str) -> str:
    """The level's own name; "" when there is no such level."""
    name = _ALIASES.get(text.lower(), text.lower())
    return name if name in _LEVELS else ""


def _rank(level: str) -> int:
    # A line that says no level is an answer to a question nobody asked it: info.
    return _LEVELS.index(level) if level in _LEVELS else _LEVELS.index("info")


def rotated(path: Path) -> list[Path]:
    """`x.log.5` … `x.log.1`, `x.log`: oldest first, as far as they exist."""
    old = [p for p in path.parent.glob(f"{path.name}.*") if p.suffix.removeprefix(".").isdigit()]
    old.sort(key=lambda p: int(p.suffix.removeprefix(".")), reverse=True)
    return [p for p in (*old, path) if p.exists()]


def last(paths: Iterable[Path], wanted: Wanted, count: int) -> list[LogRecord]:
    """The newest `count` records that match, of all files together, oldest first."""
    found: list[LogRecord] = []
    for path in paths:
        for part in rotated(path):
            found += [r for r in _read(part, path.name) if wanted.matches(r)]
    found.sort(key=lambda record: record.time)  # stable: equal stamps keep the file's order
    return found[-count:] if count else found


def _read(path: Path, name: str) -> Iterator[LogRecord]:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:  # rotated away between listing and opening
        return
    lines = text.splitlines()
    yield from records(lines[1:] if size > _TAIL_BYTES else lines, name)


def records(lines: Iterable[str], name: str) -> Iterator[LogRecord]:
    held: list[str] = []
    for line in lines:
        if held and (line.startswith("{") or _STAMP.match(line)):
            yield parse("\n".join(held), name)
            held = []
        held.append(line)
    if held:
        yield parse("\n".join(held), name)


def parse(text: str, name: str) -> LogRecord:
    if text.startswith("{"):
        match = _STAMP.match(f"{_fields(text).get('time', '')} ")
        return LogRecord(_seconds(match) if match else 0.0, "", text, name)
    match = _STAMP.match(text)
    if match is None:
        return LogRecord(0.0, "", text, name)
    words = text[match.end() :].split(maxsplit=3)[:3]
    named = (level_named(word.strip("[]:")) for word in words)
    return LogRecord(_seconds(match), next((n for n in named if n), ""), text, name)


def _fields(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(match: re.Match[str]) -> float:
    date, clock, fraction, zone = match.groups()
    text = f"{date}T{clock}.{(fraction or '0').ljust(6, '0')}{(zone or '').replace('Z', '+00:00')}"
    return datetime.datetime.fromisoformat(text).timestamp()


class Follower:
    """New records of one file; `poll` never waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = _opened(path)
        self._rest = b""
        if self._file is not None:
            self._file.seek(0, 2)

    def poll(self) -> list[LogRecord]:
        lines = self._lines()
        if self._rotated():
            lines += self._lines()  # what came between the first reading and the renaming
            self._reopen()
            lines += self._lines()
        return list(records(lines, self._path.name))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _lines(self) -> list[str]:
        if self._file is None:
            return []
        if self._shrunk():
            self._file.seek(0)
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def _shrunk(self) -> bool:
        assert self._file is not None
        position = self._file.tell()
        size = self._file.seek(0, 2)
        self._file.seek(position)
        return size < position

    def _rotated(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        if self._file is None:
            return True
        ours = os.fstat(self._file.fileno())
        return (ours.st_ino, ours.st_dev) != (there.st_ino, there.st_dev)

    def _reopen(self) -> None:
        self.close()
        self._file = _opened(self._path)
        self._rest = b""


def _opened(path: Path) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        return None
