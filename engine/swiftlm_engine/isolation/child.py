"""Child: a process of ours that may hang, crash or eat memory; then it is ended, and says so."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import swiftlm_engine
from swiftlm_engine.isolation.footprint import footprint_bytes
from swiftlm_engine.isolation.serve import LENGTH_BYTES, question
from swiftlm_engine.isolation.work import current

START_S = 30.0  # of the process, on a machine that is busy
START_BYTES = 2 << 30  # a vocabulary is made of it
_POLL_S = 0.05
_PIECE_BYTES = 1 << 20


class ChildFailed(Exception):
    """The process did not answer. `went` says what became of it, for the end of a sentence."""

    went = "failed"


class ChildEnded(ChildFailed):
    went = "crashes"


class ChildTooSlow(ChildFailed):
    def __init__(self, deadline_s: float) -> None:
        self.went = f"takes longer than {deadline_s:g} s"
        super().__init__(self.went)


class ChildTooLarge(ChildFailed):
    def __init__(self, limit_bytes: int) -> None:
        self.went = f"takes more than {limit_bytes / 1e9:.1f} GB of memory"
        super().__init__(self.went)


class Child:
    """`module` has a `main` that calls `serve`. Owned by one thread at a time."""

    def __init__(self, module: str, first: bytes) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I" if sys.flags.isolated else "-P", "-c", _program(module)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            self.ask(first, START_S, START_BYTES)
        except ChildFailed as error:
            raise OSError(f"a process that isolates foreign data does not start: {error}") from None
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, content: bytes, deadline_s: float, limit_bytes: int) -> bytes:
        """Raises ChildFailed and Cancelled; the process has ended then."""
        try:
            return self._exchange(question(content, deadline_s), deadline_s, limit_bytes)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        end(self.process)

    def _exchange(self, asked: bytes, deadline_s: float, limit_bytes: int) -> bytes:
        exchange = _Exchange(self.process, asked)
        work, until = current(), time.monotonic() + deadline_s
        while not exchange.is_complete:
            left = until - time.monotonic()
            if left <= 0:
                raise ChildTooSlow(deadline_s)
            if not exchange.go_on(min(left, _POLL_S)):
                work.check()
                if footprint_bytes(self.process.pid) > limit_bytes:
                    raise ChildTooLarge(limit_bytes)
        return exchange.answer


class _Exchange:
    """A question on its way out and its answer on its way in, neither of which blocks."""

    def __init__(self, process: subprocess.Popen[bytes], asked: bytes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._out, self._in = process.stdin.fileno(), process.stdout.fileno()
        for fd in (self._out, self._in):
            os.set_blocking(fd, False)
        self._asked = memoryview(asked)
        self._said = bytearray()

    @property
    def is_complete(self) -> bool:
        said = self._said
        if len(said) < LENGTH_BYTES:
            return False
        return len(said) >= LENGTH_BYTES + int.from_bytes(said[:LENGTH_BYTES], "little")

    @property
    def answer(self) -> bytes:
        return bytes(memoryview(self._said)[LENGTH_BYTES:])

    def go_on(self, seconds: float) -> bool:
        """Whether anything moved. Raises ChildEnded."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_READ)
            if self._asked:
                selector.register(self._out, selectors.EVENT_WRITE)
            ready = selector.select(seconds)
        for key, _ in ready:
            if key.fd == self._in:
                self._read()
            else:
                self._write()
        return bool(ready)

    def _read(self) -> None:
        piece = os.read(self._in, _PIECE_BYTES)
        if not piece:
            raise ChildEnded("the process has ended")
        self._said += piece

    def _write(self) -> None:
        try:
            self._asked = self._asked[os.write(self._out, self._asked[:_PIECE_BYTES]) :]
        except BrokenPipeError:
            raise ChildEnded("the process has ended") from None


def end(process: subprocess.Popen[bytes]) -> None:
    """Safe to call twice."""
    process.kill()
    pipes: tuple[IO[bytes] | None, ...] = (process.stdin, process.stdout)
    for stream in pipes:
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    process.wait()


def _program(module: str) -> str:
    """At the path's end, where our package can hide nothing, also where it is not installed."""
    root = str(Path(swiftlm_engine.__file__).parents[1])
    return f"import sys; sys.path.append({root!r}); from {module} import main; main()"
