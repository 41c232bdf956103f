"""The daemon's log files: swiftlmd.log for changes of state, access.log for requests.

Both rotate by themselves (10 MB, five old ones). Each file, and stderr, is written by a thread of
its own: neither a slow or full disk nor a terminal that is held stops the event loop, the other
files or the daemon's end, and what waits is bounded. No prompt or reply text comes here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from swiftlm_proto.visible import visible, visible_json, visible_lines

_MAX_BYTES = 10 * 10**6
_OLD_FILES = 5
_ACCESS = "swiftlmd.access"
_MAX_WAITING = 10_000  # lines of one file
_STOP_S = 2.0  # for what waits at the end

# systemd reads the priority of a line on stderr from its first characters.
_JOURNAL_PRIORITY = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


@contextmanager
def logging_to(folder: Path, level: str, environ: Mapping[str, str]) -> Iterator[None]:
    """Logs go to files in `folder` (and to stderr, where somebody reads it) during the block."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    logging.raiseExceptions = False  # a full disk loses lines, not the daemon
    root, access = logging.getLogger(), logging.getLogger(_ACCESS)
    writers = [
        _Writer(root, _rotating(folder / "swiftlmd.log", PlainFormatter())),
        _Writer(access, _rotating(folder / "access.log", AccessFormatter())),
        *(_Writer(root, handler) for handler in _on_stderr(environ)),
    ]
    logging.getLogger(_ACCESS).propagate = False
    set_access(True)
    set_level(level)
    try:
        yield
    finally:
        for writer in writers:
            writer.stop()


def set_level(level: str) -> None:
    """Also while running: `log.level` needs no restart."""
    logging.getLogger().setLevel(level.upper())
    for chatty in ("asyncio", "grpclib", "hpack", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))


def set_access(on: bool) -> None:
    """Whether requests are logged; also while running."""
    logging.getLogger(_ACCESS).setLevel(logging.INFO if on else logging.CRITICAL)


class PlainFormatter(logging.Formatter):
    """`2026-11-28T09:30:00.123Z info swiftlmd.residency.residency model ready model=x`."""

    def format(self, record: logging.LogRecord) -> str:
        text = _text(self, record)
        stamp = _stamp(record.created)
        return f"{stamp} {record.levelname.lower()} {record.name} {text}"


class AccessFormatter(logging.Formatter):
    """One JSON object per request: what the caller put into `extra={"fields": {...}}`.

    The fields hold names, counts and times, never text of prompts or answers.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None) or {"message": record.getMessage()}
        line = {"time": _stamp(record.created), **fields}
        return visible_json(json.dumps(line, default=str, ensure_ascii=False))


class JournalFormatter(logging.Formatter):
    """The journal has the time already; it wants a priority, on every line."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.name} {_text(self, record)}"
        priority = _JOURNAL_PRIORITY.get(record.levelno, 6)
        return "\n".join(f"<{priority}>{line}" for line in text.splitlines())


def _text(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """What is said is one line, whatever the names in it hold; a stack's lines are set in, so
    that none looks like a record."""
    text = visible(record.getMessage())
    if record.exc_info:
        stack = visible_lines(formatter.formatException(record.exc_info))
        text += "".join(f"\n  {line}" for line in stack.split("\n"))
    return text


def _stamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


class _RotatingFile(logging.handlers.RotatingFileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        """A log that somebody deleted begins anew; lines in a file without a name are lost."""
        if self.stream is not None and not self._is_there(self.stream.fileno()):
            self.close()  # the next line opens it
            with contextlib.suppress(OSError):
                Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        super().emit(record)

    def doRollover(self) -> None:
        """A file that cannot be renamed grows on: its lines are worth more than its size."""
        try:
            super().doRollover()
        except OSError:
            if self.stream is None:
                self.stream = self._open()

    def _is_there(self, file: int) -> bool:
        try:
            return os.path.samestat(os.stat(self.baseFilename), os.fstat(file))
        except OSError:
            return False

    def close(self) -> None:
        """Buffered lines that no longer fit on the disk are lost; that ends nothing else."""
        with contextlib.suppress(OSError):
            super().close()


def _rotating(path: Path, formatter: logging.Formatter) -> logging.Handler:
    handler = _RotatingFile(
        path, maxBytes=_MAX_BYTES, backupCount=_OLD_FILES, encoding="utf-8", delay=True
    )
    handler.setFormatter(formatter)
    return handler


def _on_stderr(environ: Mapping[str, str]) -> list[logging.Handler]:
    """For the journal and for a terminal; launchd's file is kept for what cannot be logged."""
    journal = _is_journal(environ.get("JOURNAL_STREAM", ""))
    if not journal and not os.isatty(2):
        return []
    handler = _Stderr()
    handler.setFormatter(JournalFormatter() if journal else PlainFormatter())
    return [handler]


def _is_journal(stream: str) -> bool:
    """A shell below a service has the variable too, and another stderr."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


class _Stderr(logging.Handler):
    """Without a buffer, whose lock the interpreter's end would wait for."""

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{self.format(record)}\n".encode(errors="replace")
        with contextlib.suppress(OSError):
            while text:
                text = text[os.write(2, text) :]


class _Writer:
    """Hands the records of one logger to one handler, in a thread."""

    def __init__(self, logger: logging.Logger, handler: logging.Handler) -> None:
        handler.lock = None  # it has one user; a lock that is held for good stops the process's end
        self._logger, self._handler = logger, handler
        self._entrance = _Enqueue()
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()
        logger.addHandler(self._entrance)

    def stop(self) -> None:
        """When all is written, or nothing more can be."""
        self._logger.removeHandler(self._entrance)
        self._entrance.end()
        self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            self._handler.close()

    def _write(self) -> None:
        for record in self._entrance.records():
            with contextlib.suppress(Exception):  # a line that cannot be made is not the last one
                self._handler.handle(record)


class _Enqueue(logging.handlers.QueueHandler):
    """Where the loggers leave their records. When too many wait, new ones are only counted."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._num_lost = 0
        super().__init__(self._waiting)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """As it is: the formatters want the exception too, and no other process reads it."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._waiting.qsize() >= _MAX_WAITING:
            self._num_lost += 1
            return
        self._waiting.put(record)

    def end(self) -> None:
        self._waiting.put(None)

    def records(self) -> Iterator[logging.LogRecord]:
        """Until the end, with a word on those that are missing."""
        while (record := self._waiting.get()) is not None:
            yield record
            if self._num_lost:
                lost, self._num_lost = self._num_lost, 0
                yield _lost(lost)


def _lost(count: int) -> logging.LogRecord:
    text = "%d lines were lost: they came faster than they could be written"
    fields = {"message": text % count}
    record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (count,), None)
    record.fields = fields
    return record
