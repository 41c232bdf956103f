"""Trial: whether a grammar can be compiled without harm, asked of a process that may die of it."""

import json
import selectors
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from swiftlm_engine.grammar import trial_compiler
from swiftlm_engine.grammar.trial_compiler import DEADLINE_S, DONE, frame

MAX_BYTES = 4 << 20  # of one grammar with its schemas
_START_S = 30.0  # of the process, on a machine that is busy


class TrialFailed(ValueError):
    """The grammar would have ended or stopped the engine."""


class Trial:
    """One model's. The process starts with the first grammar, and again after it has died."""

    def __init__(self, size: int, special: Mapping[int, str], eos_ids: Sequence[int]) -> None:
        known = {"size": size, "special": dict(special), "eos": list(eos_ids)}
        self._vocabulary = frame(json.dumps(known).encode())
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, grammar: str) -> None:
        """Raises TrialFailed; OSError where no process can be started. One thread at a time."""
        content = grammar.encode()
        if len(content) > MAX_BYTES:
            raise TrialFailed(
                f"the grammar or schema has {len(content):,} bytes; "
                f"at most {MAX_BYTES:,} can be enforced. Make it smaller"
            )
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(frame(content))
            process.stdin.flush()
            answer = _byte(process.stdout, DEADLINE_S)
        except BrokenPipeError:
            answer = b""
        if answer == DONE:
            return
        self._process = None
        _end(process)
        if answer is None:
            what = f"takes longer than {DEADLINE_S} s to compile"
        else:
            what = "is nested too deep or is too large to compile"
        raise TrialFailed(f"the grammar or schema {what}. Make it smaller")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        isolated = "-I" if sys.flags.isolated else "-P"
        process = subprocess.Popen(
            [sys.executable, isolated, trial_compiler.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        weakref.finalize(self, _end, process)
        assert process.stdin is not None
        assert process.stdout is not None
        nothing = frame(json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]}).encode())
        with suppress(BrokenPipeError):
            process.stdin.write(self._vocabulary + nothing)
            process.stdin.flush()
        if _byte(process.stdout, _START_S) != DONE:
            _end(process)
            raise OSError("the process that tries grammars does not start")
        self._process = process
        return process


def _byte(source: IO[bytes], seconds: float) -> bytes | None:
    """None when the time is over; empty when the process has ended."""
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            if selector.select(left):
                return source.read(1)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    process.wait()
