"""The daemon's log files: swiftlmd.log for changes of state, access.log for requests.

Both rotate by themselves (10 MB, five old ones). Writing happens in a thread of its own: neither
a slow nor a full disk stops the event loop. No prompt or reply text comes here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from swiftlm_proto.visible import visible, visible_json, visible_lines

_MAX_BYTES = 10 * 10**6
_OLD_FILES = 5
_ACCESS = "swiftlmd.access"

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
    main = _rotating(folder / "swiftlmd.log", PlainFormatter())
    access = _rotating(folder / "access.log", AccessFormatter())
    listeners = [
        _start(logging.getLogger(), [main, *_on_stderr(environ)]),
        _start(logging.getLogger(_ACCESS), [access]),
    ]
    logging.getLogger(_ACCESS).propagate = False
    set_access(True)
    set_level(level)
    try:
        yield
    finally:
        for logger, handler, listener in listeners:
            logger.removeHandler(handler)
            listener.stop()
        for file in (main, access):
            file.close()


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
    if "JOURNAL_STREAM" not in environ and not os.isatty(2):
        return []
    handler = logging.StreamHandler(sys.stderr)
    journal = "JOURNAL_STREAM" in environ
    handler.setFormatter(JournalFormatter() if journal else PlainFormatter())
    return [handler]


def _start(
    logger: logging.Logger, handlers: list[logging.Handler]
) -> tuple[logging.Logger, logging.Handler, logging.handlers.QueueListener]:
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = _Enqueue(lines)
    listener = logging.handlers.QueueListener(lines, *handlers)
    logger.addHandler(handler)
    listener.start()
    return logger, handler, listener


class _Enqueue(logging.handlers.QueueHandler):
    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """As it is: the formatters want the exception too, and no other process reads it."""
        return record
