"""What a dialect must be able to say of one request's events, as bytes that are ready to send."""

from __future__ import annotations

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


def waiting(progress: m.Progress | None) -> bytes:
    """A comment for a silent stream."""
    if progress is None:
        return b": waiting\n\n"
    if progress.total_bytes:
        return f": pull {progress.done_bytes}/{progress.total_bytes} bytes\n\n".encode()
    return f": prefill {progress.done_tokens}/{progress.total_tokens}\n\n".encode()
