"""One engine process: start it, know when it listens, stop it for certain, read its end.

The process stays in the daemon's process group, so launchd and systemd see it as part of the
job, and it leaves by itself when its parent is gone. Its output goes to a log file of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import BinaryIO

from swiftlm_proto.exit_codes import GROUP_BROKEN, EngineExit
from swiftlmd.faults import Kind, ServiceError

log = logging.getLogger(__name__)

_LOG_KEPT_BYTES = 256 * 1024
MAX_LOG_BYTES = 5 * 2**20
_POLL_S = 0.02
_TAIL_BYTES = 16 * 1024  # the stacks of a crash's threads fit in

_MEANINGS = {
    EngineExit.DONE: "it ended",
    EngineExit.LOOP_DIED: "its step loop failed",
    EngineExit.NO_DEVICE: "it found no device to compute on",
    EngineExit.GPU_FAULT: "the GPU reported a fault",
    EngineExit.RANK_LOST: "another rank of its group died or hung",
    EngineExit.MODEL_BROKEN: "the model's files are broken",
    EngineExit.STOP_TIMED_OUT: "it could not stop in time",
    EngineExit.PARENT_GONE: "it lost the daemon",
    EngineExit.FILES_CHANGED: "the model's files changed while it was loaded",
}

# What MLX or Metal prints before it aborts the process, and what the operator can do.
_HINTS = {
    "ImpactingInteractivity": "the display's watchdog stopped a long GPU command: "
    "lower engine.prefill_chunk",
    "Insufficient Memory": "the GPU ran out of memory: lower engine.context or engine.parallel",
    "Command buffer execution failed": "a GPU command failed; if it happens again, restart the "
    "machine",
    "out of memory": "memory ran out: lower engine.context or engine.parallel",
    "MemoryError": "memory ran out: lower engine.context or engine.parallel",
}


# Lines of the engine's own log that are no errors (as `logging.basicConfig` in its main writes
# them), and what faulthandler prints of each thread.
_BESIDE_THE_POINT = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING) "
    r"|Thread 0x|Current thread 0x|Extension modules: |  File "
)
_FATAL = ("Fatal Python error", "libc++abi", "terminate called", "Assertion failed", "thread '")
_FROM_OUTSIDE = (0, -signal.SIGKILL, -signal.SIGTERM)  # these leave no last words


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How an engine process ended: `code` as the system gave it (negative = signal)."""

    pid: int
    code: int
    meaning: str
    hint: str

    def __str__(self) -> str:
        return f"{self.meaning}; {self.hint}" if self.hint else self.meaning


class EngineDied(ServiceError):
    """The process ended before its model was loaded."""

    def __init__(self, message: str) -> None:
        super().__init__(Kind.INTERNAL, message, retry_after_s=1)


class EngineProcess:
    """A started child; `wait` or `stop` reaps it. Made by `spawn`."""

    def __init__(
        self, child: asyncio.subprocess.Process, socket_path: Path, log: Path, log_start: int = 0
    ) -> None:
        self._child = child
        self._log = log
        self._log_start = log_start  # what stands before it is of earlier engines
        self._ended_by = ""  # why we ended it, if we did
        self.socket_path = socket_path

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.returncode is None

    async def wait_listening(self, timeout_s: float) -> None:
        """Returns when the engine accepts connections; raises ServiceError when it will not."""
        try:
            async with asyncio.timeout(timeout_s):
                while not _accepts(self.socket_path):
                    if not self.alive:
                        raise EngineDied(f"the engine did not start: {self.end()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            message = f"the engine did not answer within {timeout_s:g} s; its log: {self._log}"
            raise ServiceError(Kind.INTERNAL, message) from None

    async def wait(self) -> ProcessEnd:
        """Until the process is gone and reaped."""
        await self._child.wait()
        return self.end()

    async def stop(self, deadline_s: float) -> ProcessEnd:
        """Gone when this returns: time to leave by itself, then SIGTERM, then SIGKILL."""
        for action, patience_s in (
            (None, deadline_s),
            (signal.SIGTERM, min(5.0, deadline_s)),
            (signal.SIGKILL, 30.0),
        ):
            if action is not None:
                log.warning("engine does not leave, sending %s pid=%d", action.name, self.pid)
                self._end_for("it did not leave when it was asked to", action)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    return await self.wait()
        message = f"engine process {self.pid} survives SIGKILL; only a restart of the machine helps"
        raise ServiceError(Kind.INTERNAL, message)

    def kill(self, reason: str = "the daemon has no more use for it") -> None:
        self._end_for(reason, signal.SIGKILL)

    def signal(self, number: Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)

    def end(self) -> ProcessEnd:
        """How it ended; only after it did."""
        code = self._child.returncode
        assert code is not None, "the engine process still runs"
        self.socket_path.unlink(missing_ok=True)
        if code < 0 and self._ended_by:  # its log says nothing about that
            return ProcessEnd(self.pid, code, f"the daemon ended it: {self._ended_by}", "")
        tail = tail_of(self._log, self._log_start) if code else ""
        hint = next((hint for mark, hint in _HINTS.items() if mark in tail), "")
        if code == EngineExit.RANK_LOST:
            hint = _lost_rank(tail)  # other ranks may have written after it
        if not hint and code not in _FROM_OUTSIDE and (said := last_words(tail)):
            hint = f"its log ends with: {said}"
        return ProcessEnd(self.pid, code, _meaning(code), hint)

    def _end_for(self, reason: str, number: Signals) -> None:
        if self.alive:
            self._ended_by = self._ended_by or reason
        self.signal(number)


async def spawn(
    command: list[str], socket_path: Path, environment: Mapping[str, str], log_path: Path
) -> EngineProcess:
    """Starts `command --socket PATH --parent PID`; raises ServiceError if that is impossible."""
    argv = [*command, "--socket", str(socket_path), "--parent", str(os.getpid())]
    try:
        with _prepared(socket_path, log_path) as output:
            log_start = output.seek(0, os.SEEK_END)
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
            )
    except OSError as error:
        message = f"the engine could not be started: {error.strerror or error}"
        raise ServiceError(Kind.INTERNAL, message) from error
    return EngineProcess(child, socket_path, log_path, log_start)


def _lost_rank(tail: str) -> str:
    """Which one on which host, as the engine's leader said it last."""
    _, mark, reason = tail.rpartition(GROUP_BROKEN)
    return reason.splitlines()[0] if mark else ""


def last_words(tail: str) -> str:
    """The line of a log's end that tells of the end: an error of ours, or what a library printed.

    What was logged in passing, and the stacks of threads, say nothing about it.
    """
    lines = [line.strip()[:300] for line in tail.splitlines() if not _BESIDE_THE_POINT.match(line)]
    said = [line for line in lines if line]
    return next((line for line in said if line.startswith(_FATAL)), said[-1] if said else "")


def engine_command() -> list[str]:
    """How this installation starts an engine: our own interpreter, isolated where we are.

    Nothing is ever imported from the folder that we were started in.
    """
    isolated = "-I" if sys.flags.isolated else "-P"
    return [sys.executable, isolated, "-X", "utf8", "-m", "swiftlm_engine"]


def plain(model: str) -> str:
    """The model's name as a part of file names."""
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in model)[-80:]


def remove_stale_sockets(folder: Path) -> None:
    """Unlinks engine sockets that dead daemons left; only for the holder of the instance lock."""
    for path in folder.glob("engine-*.sock"):
        with contextlib.suppress(OSError):
            path.unlink()


def shorten(path: Path, max_bytes: int) -> None:
    """Cuts a log that another process appends to down to its end, in the same file."""
    with contextlib.suppress(FileNotFoundError), open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= max_bytes:
            return
        file.seek(size - _LOG_KEPT_BYTES)
        kept = file.read()
        file.seek(0)
        file.write(kept[kept.find(b"\n") + 1 :])
        file.truncate()


def _prepared(socket_path: Path, log_path: Path) -> BinaryIO:
    """The log, open for appending; the socket's place is free."""
    for folder in (socket_path.parent, log_path.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    socket_path.unlink(missing_ok=True)
    shorten(log_path, MAX_LOG_BYTES)
    return open(log_path, "ab", opener=_private)


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _meaning(code: int) -> str:
    if code == -signal.SIGKILL:
        return "it was killed (SIGKILL), perhaps by the system for lack of memory"
    if code == -signal.SIGALRM:  # set while ranks connect
        return "the ranks of its group did not reach each other; does a firewall keep them apart?"
    if code < 0:
        try:
            return f"it was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was ended by signal {-code}"
    if code in list(EngineExit):
        return _MEANINGS[EngineExit(code)]
    return f"it ended with exit code {code}"


def tail_of(path: Path, start: int = 0) -> str:
    """The end of a log, of what was written from `start` on; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(
                max(start if start <= size else 0, size - _TAIL_BYTES)
            )  # it may have been cut
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
