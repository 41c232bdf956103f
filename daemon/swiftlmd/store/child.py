"""Child processes that report by JSON lines. Cancelling the call kills the child for certain.

Downloads and conversions run outside the daemon: a thread cannot be stopped, a process can.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

_LINE_LIMIT = 1 << 22
_KEPT_LINES = 20  # of a child's complaints, for the message when it fails
_KEPT_BYTES = 1 << 16

Report = dict[str, Any]  # one JSON object from the child
OnReport = Callable[[Report], object]


class ChildFailed(Exception):
    """The child ended without success; `complaint` holds its last words."""

    def __init__(self, code: int, complaint: str) -> None:
        super().__init__(complaint or f"exit status {code}")
        self.code = code
        self.complaint = complaint

    @property
    def cause(self) -> str:
        """The complaint; of a traceback its last line, which says what was wrong."""
        _, traceback, rest = self.complaint.rpartition("Traceback (most recent call last)")
        lines = rest.strip().splitlines()
        return lines[-1] if traceback and lines else str(self)


@asynccontextmanager
async def python(
    *args: str, environ: Mapping[str, str], stdin: bytes = b""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """This interpreter with other arguments, in a group of its own that dies with the block."""
    isolated = "-I" if sys.flags.isolated else "-P"  # nothing from where we were started
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        isolated,
        *args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environ),
        limit=_LINE_LIMIT,
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        yield process
    finally:
        _kill(process)
        await process.wait()


async def run(
    *args: str,
    on_report: OnReport,
    environ: Mapping[str, str],
    stdin: bytes = b"",
) -> None:
    """Hands on the child's JSON lines; raises ChildFailed when it ends with another status than 0.

    Cancelling kills the child before it returns.
    """
    async with python(*args, environ=environ, stdin=stdin) as process:
        assert process.stdout is not None
        complaints = asyncio.create_task(last_lines(process.stderr))
        try:
            async for line in _lines(process.stdout):
                if (report := _parsed(line)) is not None:
                    on_report(report)
            code = await process.wait()
            if code != 0:
                raise ChildFailed(code, await complaints)
        finally:
            complaints.cancel()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        try:
            line = await stream.readline()
        except ValueError as error:  # how a line past the limit shows
            raise ChildFailed(0, f"it sent a line of more than {_LINE_LIMIT:,} bytes") from error
        if not line:
            return
        yield line


async def last_lines(stream: asyncio.StreamReader | None) -> str:
    """Reads to the end, so that the child never waits for a full pipe; keeps the tail."""
    kept = b""
    assert stream is not None
    while piece := await stream.read(_KEPT_BYTES):  # a line may be of any length
        kept = (kept + piece)[-_KEPT_BYTES:]
    lines = kept.decode(errors="replace").splitlines()
    return "\n".join(line.rstrip() for line in lines[-_KEPT_LINES:])


def _parsed(line: bytes) -> Report | None:
    try:
        report = json.loads(line)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
