"""Reading the log files back: the last lines, then what is added, across rotation."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_FOLLOW_S = 0.25


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Which lines are wanted. A line without a stamp (a traceback) goes with the one before."""

    level: str = ""
    since: float = 0.0
    request_id: str = ""

    def passes(self, line: str) -> bool:
        if self.request_id and self.request_id not in line:
            return False
        words = line.split(" ", 2)
        stamp = _seconds(words[0])
        if stamp is None:
            return True
        if stamp < self.since:
            return False
        level = _LEVELS.get(words[1], 0) if len(words) > 1 else 0
        return level >= _LEVELS.get(self.level, 0)


def last_lines(path: Path, count: int, wanted: LineFilter) -> list[str]:
    """The newest `count` wanted lines, oldest first; older files are read where needed."""
    found: deque[str] = deque()
    for file in (path, *(path.with_name(f"{path.name}.{n}") for n in range(1, 6))):
        if len(found) >= count:
            break
        newest = deque(_wanted_lines(file, wanted), maxlen=count - len(found))
        found.extendleft(reversed(newest))
    return list(found)


async def follow(path: Path, wanted: LineFilter) -> AsyncIterator[str]:
    """Lines as they are added, from now on; goes over to the new file when the log rotates."""
    file = _open_at_end(path)
    rest = ""
    kept = True
    try:
        while True:
            if file is None:
                file = _open(path)
            # Asked before reading: nothing more comes to a file that has been rotated.
            rotated = file is not None and _rotated(file, path)
            chunk = file.read(65536) if file else ""
            if not chunk:
                if file is not None and rotated:
                    file.close()
                    file = None
                    continue
                await asyncio.sleep(_FOLLOW_S)
                continue
            *lines, rest = (rest + chunk).split("\n")
            for line in lines:
                kept = wanted.passes(line) if _seconds(line.split(" ", 1)[0]) else kept
                if kept:
                    yield line
    finally:
        if file is not None:
            file.close()


def _wanted_lines(path: Path, wanted: LineFilter) -> Iterator[str]:
    kept = True
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                text = line.rstrip("\n")
                if _seconds(text.split(" ", 1)[0]) is not None or wanted.request_id:
                    kept = wanted.passes(text)
                if kept:
                    yield text
    except FileNotFoundError:
        return


def _seconds(stamp: str) -> float | None:
    if len(stamp) != 24 or stamp[-1] != "Z":
        return None
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def _open(path: Path) -> TextIO | None:
    try:
        return open(path, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _open_at_end(path: Path) -> TextIO | None:
    file = _open(path)
    if file is not None:
        file.seek(0, os.SEEK_END)
    return file


def _rotated(file: TextIO, path: Path) -> bool:
    try:
        return os.fstat(file.fileno()).st_ino != path.stat().st_ino
    except FileNotFoundError:
        return False
