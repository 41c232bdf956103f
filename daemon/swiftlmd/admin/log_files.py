"""Reading the log files back: the last lines, then what is added, across rotation."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_FOLLOW_S = 0.25
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Which lines are wanted."""

    level: str = ""
    since: float = 0.0
    request_id: str = ""

    def passes(self, stamp: float, line: str) -> bool:
        if stamp < self.since or self.request_id not in line:
            return False
        words = line.split(" ", 2)
        level = _LEVELS.get(words[1], 0) if len(words) > 1 else 0
        return level >= _LEVELS.get(self.level, 0)


class _Choice:
    """What a filter takes of lines in their order."""

    def __init__(self, wanted: LineFilter) -> None:
        self._wanted = wanted
        self._kept: bool | None = None  # the last line with a stamp

    def takes(self, line: str) -> bool:
        """A line without a stamp (a traceback) goes with the one before."""
        stamp = _seconds(line.split(" ", 1)[0])
        if stamp is not None:
            self._kept = self._wanted.passes(stamp, line)
        return self._wanted.request_id in line if self._kept is None else self._kept


def last_lines(path: Path, count: int, wanted: LineFilter, until: Tail | None = None) -> list[str]:
    """The newest `count` wanted lines, oldest first; older files are read where needed. With
    `until`, only those that it does not follow."""
    found: deque[str] = deque()
    for file, size in _files(path, until):
        with file:
            newest = deque(_wanted_lines(file, size, wanted), maxlen=count - len(found))
        found.extendleft(reversed(newest))
        if len(found) >= count:
            break
    return list(found)


def _files(path: Path, until: Tail | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """Newest first, each with how much of it is meant, if not all; rotation renames them."""
    names = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, 6))]
    if until is not None and not until.began:  # there was none
        names, until = names[1:], None
    for file in filter(None, map(_opened, names)):
        if until is None:
            yield file, None
        elif until.is_of(file):
            yield file, until.start
            until = None
        else:
            file.close()


class Tail:
    """What is added to a file from now on; goes over to the new file when the log rotates.

    Reads the disk: call it in a thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._file = _opened(self._path)
        self.start = self._file.seek(0, os.SEEK_END) if self._file else 0
        self._began_with = os.fstat(self._file.fileno()) if self._file else None

    @property
    def began(self) -> bool:
        """Whether there was a file."""
        return self._began_with is not None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def is_of(self, file: BinaryIO) -> bool:
        """Whether it began in that file, under whatever name."""
        began = self._began_with
        return began is not None and os.path.samestat(began, os.fstat(file.fileno()))

    def lines(self) -> list[str]:
        """Whole lines that came since the last call."""
        if self._file is None:
            self._file = _opened(self._path)
            return self._added() if self._file else []
        # Asked before reading: nothing more comes to a file that has been rotated.
        rotated = self._rotated()
        lines = self._added()
        if rotated and not lines:
            self._file.close()
            self._file, self._rest = _opened(self._path), b""
        return lines

    def _added(self) -> list[str]:
        file = self._file
        assert file is not None, "only of an open file"
        if os.fstat(file.fileno()).st_size < file.tell():  # somebody emptied it
            file.seek(0)
            self._rest = b""
        *whole, self._rest = (self._rest + file.read(_CHUNK_BYTES)).split(b"\n")
        if len(self._rest) > _CHUNK_BYTES:  # no line of ours
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode("utf-8", "replace") for line in whole]

    def _rotated(self) -> bool:
        assert self._file is not None
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False


async def follow(tail: Tail, wanted: LineFilter) -> AsyncGenerator[str, None]:
    """Lines as they are added."""
    choice = _Choice(wanted)
    while True:
        lines = await asyncio.to_thread(tail.lines)
        for line in filter(choice.takes, lines):
            yield line
        if not lines:
            await asyncio.sleep(_FOLLOW_S)


def _wanted_lines(file: BinaryIO, size: int | None, wanted: LineFilter) -> Iterator[str]:
    choice, read = _Choice(wanted), 0
    for line in file:
        read += len(line)
        if size is not None and read > size:
            return
        text = line.decode("utf-8", "replace").rstrip("\n")
        if choice.takes(text):
            yield text


def _seconds(stamp: str) -> float | None:
    if len(stamp) != 24 or stamp[-1] != "Z":
        return None
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def _opened(path: Path) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        return None
