"""The thread that writes the SSD tier. It is given bytes and paths, never arrays.

Operations run in the order they were submitted. Only the engine thread submits and reads results;
the lock guards the queue and its byte count and is never held during I/O.
"""

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swiftlm_engine.prefix.block_file import BlockHeader, encode

log = logging.getLogger(__name__)


class Disk(Protocol):
    """The few file operations of the SSD tier; tests put a slow or failing one in its place."""

    def write(self, path: Path, pieces: Iterable[bytes]) -> int: ...
    def remove(self, path: Path) -> None: ...
    def touch(self, path: Path, when: float) -> None: ...
    def free_bytes(self, folder: Path) -> int: ...


class PosixDisk:
    def write(self, path: Path, pieces: Iterable[bytes]) -> int:
        """Write all or nothing: a reader never sees a torn file under the final name."""
        scratch = path.with_suffix(".tmp")
        try:
            with scratch.open("wb") as file:
                num_bytes = sum(file.write(piece) for piece in pieces)
                file.flush()
                os.fsync(file.fileno())
            scratch.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise
        return num_bytes

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def touch(self, path: Path, when: float) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, (when, when))

    def free_bytes(self, folder: Path) -> int:
        usage = os.statvfs(folder)
        return usage.f_bavail * usage.f_frsize


@dataclass(frozen=True, slots=True)
class Write:
    path: Path
    header: BlockHeader
    buffers: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.buffers))


@dataclass(frozen=True, slots=True)
class Remove:
    path: Path
    frees: int  # bytes on disk
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Touch:
    path: Path
    when: float
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """Outcome of the Write of this very header: `error` is None when the file is in place."""

    header: BlockHeader
    num_bytes: int
    error: str | None = None

    @property
    def id(self) -> str:
        return self.header.id


class Writer:
    """A queue of at most `max_bytes` with one thread behind it, started on first use."""

    def __init__(self, max_bytes: int, disk: Disk) -> None:
        self.max_bytes = max_bytes
        self._disk = disk
        self._queue: deque[Write | Remove | Touch] = deque()
        self._results: deque[Written] = deque()
        self._queued_bytes = 0
        self._is_closing = False
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None

    @property
    def queued_bytes(self) -> int:
        with self._changed:
            return self._queued_bytes

    @property
    def pending_free_bytes(self) -> int:
        """What the disk gains, less what it loses, once the queue is done."""
        with self._changed:
            frees = sum(op.frees for op in self._queue if isinstance(op, Remove))
            return frees - self._queued_bytes

    def has_room(self, nbytes: int) -> bool:
        """One file may exceed the limit, if it is alone."""
        queued = self.queued_bytes
        return queued == 0 or queued + nbytes <= self.max_bytes

    def submit(self, operation: Write | Remove | Touch) -> None:
        with self._changed:
            if self._is_closing:
                raise RuntimeError("writer is closed")
            self._queue.append(operation)
            self._queued_bytes += operation.nbytes
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="prefix-writer", daemon=True)
            self._thread.start()

    def results(self) -> list[Written]:
        """Outcomes since the last call."""
        with self._changed:
            results = list(self._results)
            self._results.clear()
        return results

    def drain(self, deadline_s: float) -> bool:
        """Wait until everything submitted is done; False when the deadline came first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, deadline_s)

    def close(self, deadline_s: float) -> bool:
        """Drain, then stop. What is still queued at the deadline is dropped."""
        drained = self.drain(deadline_s)
        with self._changed:
            self._is_closing = True
            # The one being written stays at the head until the thread is done with it.
            while len(self._queue) > 1:
                self._queued_bytes -= self._queue.pop().nbytes
            self._changed.notify_all()
        return drained

    def _run(self) -> None:
        while (operation := self._next()) is not None:
            try:
                result = self._perform(operation)
            except Exception as error:  # the root of this thread: it must outlive any file
                log.exception("prefix writer: %s failed", type(operation).__name__)
                result = _failed(operation, error)
            with self._changed:
                self._queue.popleft()
                self._queued_bytes -= operation.nbytes
                if result is not None:
                    self._results.append(result)
                self._changed.notify_all()

    def _next(self) -> Write | Remove | Touch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            return None if self._is_closing else self._queue[0]

    def _perform(self, operation: Write | Remove | Touch) -> Written | None:
        try:
            if isinstance(operation, Write):
                pieces = encode(operation.header, operation.buffers)
                return Written(operation.header, self._disk.write(operation.path, pieces))
            if isinstance(operation, Remove):
                self._disk.remove(operation.path)
            else:
                self._disk.touch(operation.path, operation.when)
            return None
        except OSError as error:
            return _failed(operation, error)


def _failed(operation: Write | Remove | Touch, error: Exception) -> Written | None:
    """A write has to be answered; a file that stays too long or looks too old does no harm."""
    if isinstance(operation, Write):
        return Written(operation.header, 0, str(error) or type(error).__name__)
    return None
