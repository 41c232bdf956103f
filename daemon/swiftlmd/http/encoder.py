"""What a dialect must be able to say of one request's events, as bytes that are ready to send."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError


class Encoder(Protocol):
    """One dialect's chunks."""

    def encode(self, event: m.SequenceEvent) -> bytes:
        """The chunks of one event; empty when the dialect has nothing to say about it."""

    def end(self, usage: m.Usage) -> bytes:
        """What follows the last event of a request that went well."""

    def error(self, error: ServiceError) -> bytes:
        """The only thing that follows a fault."""

    def idle(self) -> bytes:
        """What may be sent besides a comment while nothing happens."""


WAITING = b": waiting\n\n"
_FORETOLD = 0.05  # of a part, from which its rest is foretold by its pace


class Awaited:
    """What a silent stream waits for (a download, a load, the prompt), as comments."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._words, self._part, self._share = "", "", 0.0
        self._began, self._began_at = 0.0, 0.0  # share and time when this part was first seen
        self._seen_at = 0.0

    def note(self, progress: m.Progress) -> None:
        part, self._words, self._share = _read(progress)
        self._seen_at = self._clock()
        if part != self._part or self._share < self._began:
            self._part, self._began, self._began_at = part, self._share, self._seen_at

    def comment(self) -> bytes:
        left = self._left_s()
        told = f", {left} s left" if left else ""
        return f": {self._words}{told}\n\n".encode() if self._words else WAITING

    def _left_s(self) -> int:
        """By the pace so far; 0 = not known."""
        done = self._share - self._began
        if done < _FORETOLD:
            return 0
        whole_s = (self._seen_at - self._began_at) / done
        left_s = whole_s * (1 - self._share) - (self._clock() - self._seen_at)
        return max(0, round(left_s))


def _read(progress: m.Progress) -> tuple[str, str, float]:
    """Which part it tells of, in words, and how much of it is done."""
    if progress.stage:
        stage = f"load {progress.stage}"
        return stage, f"{stage} {progress.fraction:.0%}", progress.fraction
    if progress.total_bytes:
        done, total = progress.done_bytes, progress.total_bytes
        return "pull", f"pull {done}/{total} bytes", done / total
    done, total = progress.done_tokens, progress.total_tokens
    if not total:  # a download of which no size is known yet
        return "", "", 0.0
    return "prefill", f"prefill {done}/{total}", done / total
