"""The other end of a `Child`: one question after the other, each with an answer.

The standard library only: what else a child needs its own module imports.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO

from swiftlm_engine.isolation.file_limit import bear_few_files

LENGTH_BYTES = 8
ALARM_BYTES = 4
DEFAULT_STACK_BYTES = 8 << 20
Handler = Callable[[bytes], bytes]


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(LENGTH_BYTES, "little") + content


def question(content: bytes, deadline_s: float) -> bytes:
    """The frame of a question: after twice its deadline the child ends, also without a parent."""
    return frame(max(1, round(2 * deadline_s)).to_bytes(ALARM_BYTES, "little") + content)


def serve(
    open_handler: Callable[[bytes], Handler],
    memory_bytes: int,
    stack_bytes: int = DEFAULT_STACK_BYTES,
    *,
    nice: int = 5,
) -> None:
    """The first question makes the handler and is answered by nothing. Ends with its input."""
    bear_few_files()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # macOS may not limit it
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    os.nice(nice)
    threading.stack_size(stack_bytes)
    worker = threading.Thread(target=_answer_all, args=(open_handler,))
    worker.start()
    worker.join()


def _answer_all(open_handler: Callable[[bytes], Handler]) -> None:
    handler: Handler | None = None
    while (asked := _read(sys.stdin.buffer)) is not None:
        signal.alarm(int.from_bytes(asked[:ALARM_BYTES], "little"))
        content, answer = asked[ALARM_BYTES:], b""
        del asked
        if handler is None:
            handler = open_handler(content)
        else:
            answer = handler(content)
        signal.alarm(0)
        sys.stdout.buffer.write(frame(answer))
        sys.stdout.buffer.flush()


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    return source.read(int.from_bytes(head, "little"))
